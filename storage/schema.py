"""The tables of the SQLite file, their version, and the statements that read and write them.

A group is written by one statement: an insert into a temporary view, whose triggers spread the JSON lists
over the tables; a list that is NULL costs nothing. One statement in autocommit is one thread hop and one flush, and no
cancellation can fall into it. The bodies come as one blob, of which every row names its piece: as JSON strings they
would be escaped, parsed and copied twice, and `json_each` cuts a bare string at NUL.

Rows lie in the order in which they came (`id`), with a unique index over (conversation, seq): appends then share the
last pages, where a table clustered by conversation writes 2.7 times the pages.
"""

from __future__ import annotations

from . import activity
from .media import PIECE_BYTES

__all__ = [
    "APPLICATION_ID",
    "DUE",
    "FIND",
    "INSERT_BATCH",
    "INSERT_MEDIA_BATCH",
    "INSERT_ROW",
    "HELD",
    "KEYS",
    "LIST",
    "MEDIA",
    "MIGRATIONS",
    "OPEN",
    "READ_FIRST",
    "READ_LAST",
    "TEMPORARY",
    "VERSION",
]

APPLICATION_ID = 0x7061726C  # "parl"
VERSION = 3

MIGRATIONS: dict[int, str] = {
    1: """
CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE conversation (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  generation INTEGER NOT NULL DEFAULT 1,
  floor INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE message (
  id INTEGER PRIMARY KEY,
  conversation INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  at INTEGER NOT NULL,
  size INTEGER NOT NULL,
  author TEXT NOT NULL,
  client_id TEXT,
  digest INTEGER,
  turn,
  finish TEXT,
  body TEXT NOT NULL
);
CREATE UNIQUE INDEX message_seq ON message (conversation, seq);
CREATE UNIQUE INDEX message_client ON message (conversation, author, client_id) WHERE client_id IS NOT NULL;
CREATE TABLE key (
  conversation INTEGER NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (conversation, key)
) WITHOUT ROWID;
CREATE TABLE timer (
  id INTEGER PRIMARY KEY,
  conversation INTEGER NOT NULL,
  name TEXT NOT NULL,
  due INTEGER NOT NULL,
  UNIQUE (conversation, name)
);
CREATE INDEX timer_due ON timer (due);
CREATE TABLE work (
  conversation INTEGER PRIMARY KEY,
  since INTEGER NOT NULL
);
""",
    # `seq` is the last row that refers to the media, NULL for as long as none does; `since` when they were last put.
    # However rows come to go, media go with them.
    2: """
CREATE TABLE media (
  id INTEGER PRIMARY KEY,
  conversation INTEGER NOT NULL,
  hash TEXT NOT NULL,
  type TEXT NOT NULL,
  size INTEGER NOT NULL,
  seq INTEGER,
  since INTEGER NOT NULL
);
CREATE UNIQUE INDEX media_hash ON media (conversation, hash);
CREATE INDEX media_unused ON media (since) WHERE seq IS NULL;
CREATE TABLE piece (
  id INTEGER PRIMARY KEY,
  media INTEGER NOT NULL,
  start INTEGER NOT NULL,
  data BLOB NOT NULL
);
CREATE UNIQUE INDEX piece_start ON piece (media, start);
CREATE TRIGGER media_gone AFTER DELETE ON media BEGIN
  DELETE FROM piece WHERE media = OLD.id;
END;
CREATE TRIGGER conversation_trimmed AFTER UPDATE OF floor ON conversation BEGIN
  DELETE FROM media WHERE conversation = NEW.id AND seq <= NEW.floor;
END;
CREATE TRIGGER conversation_gone AFTER DELETE ON conversation BEGIN
  DELETE FROM media WHERE conversation = OLD.id;
END;
""",
    3: activity.TABLES,
}
"""Forward migrations: version to the script that leads to it."""

_BATCH = ("rows", "bodies", "names", "puts", "deletes", "timers", "works")
_MEDIA_BATCH = (*_BATCH, "blobs", "uses", "stale")

_SPREAD = """
CREATE TEMP VIEW {view} AS SELECT {columns};
CREATE TEMP TRIGGER {view}_rows INSTEAD OF INSERT ON {view} WHEN NEW.rows IS NOT NULL BEGIN
  INSERT INTO message (conversation, seq, at, author, client_id, digest, turn, finish, size, body)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
           json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
           json_extract(value, '$[6]'), json_extract(value, '$[7]'), json_extract(value, '$[8]'),
           CAST(substr(NEW.bodies, json_extract(value, '$[9]'), json_extract(value, '$[8]')) AS TEXT)
    FROM json_each(NEW.rows);
END;
CREATE TEMP TRIGGER {view}_names INSTEAD OF INSERT ON {view} WHEN NEW.names IS NOT NULL BEGIN
  INSERT INTO conversation (id, name)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(NEW.names);
END;
CREATE TEMP TRIGGER {view}_puts INSTEAD OF INSERT ON {view} WHEN NEW.puts IS NOT NULL BEGIN
  INSERT INTO key (conversation, key, value)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]')
    FROM json_each(NEW.puts) WHERE true
    ON CONFLICT (conversation, key) DO UPDATE SET value = excluded.value;
END;
CREATE TEMP TRIGGER {view}_deletes INSTEAD OF INSERT ON {view} WHEN NEW.deletes IS NOT NULL BEGIN
  DELETE FROM key WHERE (conversation, key) IN
    (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(NEW.deletes));
END;
CREATE TEMP TRIGGER {view}_timers INSTEAD OF INSERT ON {view} WHEN NEW.timers IS NOT NULL BEGIN
  INSERT INTO timer (conversation, name, due)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]')
    FROM json_each(NEW.timers) WHERE json_extract(value, '$[2]') IS NOT NULL
    ON CONFLICT (conversation, name) DO UPDATE SET due = excluded.due;
  DELETE FROM timer WHERE (conversation, name) IN
    (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(NEW.timers)
     WHERE json_extract(value, '$[2]') IS NULL);
END;
CREATE TEMP TRIGGER {view}_works INSTEAD OF INSERT ON {view} WHEN NEW.works IS NOT NULL BEGIN
  INSERT INTO work (conversation, since)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]')
    FROM json_each(NEW.works) WHERE json_extract(value, '$[1]') IS NOT NULL
    ON CONFLICT (conversation) DO NOTHING;
  DELETE FROM work WHERE conversation IN
    (SELECT json_extract(value, '$[0]') FROM json_each(NEW.works) WHERE json_extract(value, '$[1]') IS NULL);
END;
"""


def _spread(view: str, columns: tuple[str, ...]) -> str:
    return _SPREAD.format(view=view, columns=", ".join(f"NULL AS {column}" for column in columns))


# Most groups hold no media, and each column costs them something: hence two views.
TEMPORARY = f"""
{_spread("batch", _BATCH)}
{_spread("media_batch", _MEDIA_BATCH)}
CREATE TEMP TRIGGER media_batch_media INSTEAD OF INSERT ON media_batch BEGIN
  INSERT INTO media (conversation, hash, type, size, since)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
           json_extract(value, '$[3]'), json_extract(value, '$[4]')
    FROM json_each(NEW.blobs) WHERE true
    ON CONFLICT (conversation, hash) DO UPDATE SET since = excluded.since;
  INSERT INTO piece (media, start, data)
    SELECT (SELECT id FROM media
            WHERE conversation = json_extract(value, '$[0]') AND hash = json_extract(value, '$[1]')),
           json_extract(value, '$[5]'),
           coalesce(substr(NEW.bodies, json_extract(value, '$[7]'), json_extract(value, '$[6]')), x'')
    FROM json_each(NEW.blobs) WHERE true
    ON CONFLICT (media, start) DO NOTHING;
  UPDATE media SET seq =
    (SELECT json_extract(value, '$[2]') FROM json_each(NEW.uses)
     WHERE json_extract(value, '$[0]') = conversation AND json_extract(value, '$[1]') = hash)
  WHERE (conversation, hash) IN
    (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(NEW.uses));
  DELETE FROM media WHERE id IN
    (SELECT id FROM media WHERE seq IS NULL AND since < NEW.stale ORDER BY since LIMIT 100);
END;
{activity.TEMPORARY}"""


def _insert(view: str, columns: tuple[str, ...]) -> str:
    return f"INSERT INTO {view} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


INSERT_BATCH = _insert("batch", _BATCH)
INSERT_MEDIA_BATCH = _insert("media_batch", _MEDIA_BATCH)

INSERT_ROW = (
    "INSERT INTO message (conversation, seq, at, author, client_id, digest, turn, finish, size, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT))"
)

OPEN = """
SELECT c.id, c.generation, c.floor, m.seq, m.at
FROM conversation AS c
LEFT JOIN message AS m ON m.conversation = c.id
  AND m.seq = (SELECT max(seq) FROM message WHERE conversation = c.id)
WHERE c.name = ?
"""

# The body comes as bytes, so that one that is no UTF-8 any more spoils its own row only. The end of a page that is
# bounded in bytes is found over `size`, which lies in front of the body: a row behind the end is never read whole.
_READ = """
SELECT seq, at, author, client_id, turn, finish, CAST(body AS BLOB) FROM message
WHERE conversation = ?1 AND {range} (
  SELECT {outermost}(seq) FROM (
    SELECT seq, size, sum(size) OVER (ORDER BY seq {order} ROWS UNBOUNDED PRECEDING) AS total FROM (
      SELECT seq, size FROM message WHERE conversation = ?1 AND seq > ?2 AND seq < ?3 ORDER BY seq {order} LIMIT ?4
    )
  ) WHERE total = size OR total <= ?5
) ORDER BY seq
"""
READ_FIRST = _READ.format(order="ASC", range="seq > ?2 AND seq <=", outermost="max")
READ_LAST = _READ.format(order="DESC", range="seq < ?3 AND seq >=", outermost="min")

FIND = """
SELECT w.value, m.seq, m.digest
FROM json_each(?) AS w
JOIN conversation AS c ON c.name = json_extract(w.value, '$[0]')
JOIN message AS m ON m.conversation = c.id AND m.author = json_extract(w.value, '$[1]')
  AND m.client_id = json_extract(w.value, '$[2]') AND m.client_id IS NOT NULL
"""

# No byte of UTF-8 is ff: behind every key that starts with the prefix, in front of every other key that follows.
KEYS = """
SELECT key, CAST(value AS BLOB) FROM key
WHERE conversation = ?1 AND key >= ?2 AND key < ?2 || x'ff' ORDER BY key
"""

# Media are there whole where all their pieces are; each piece but the last is as long as the others.
_WHOLE = f"(SELECT count(*) FROM piece WHERE media = m.id) * {PIECE_BYTES} >= m.size"
# A piece that damage has made longer or shorter is none: whoever reads on behind it would come to no end.
MEDIA = f"""
SELECT m.type, m.size, p.start, p.data
FROM media AS m JOIN piece AS p ON p.media = m.id AND p.start = ?3 / {PIECE_BYTES} * {PIECE_BYTES}
WHERE m.conversation = ?1 AND m.hash = ?2 AND (?3 < m.size OR ?3 = 0) AND {_WHOLE}
  AND typeof(p.data) = 'blob' AND length(p.data) = min({PIECE_BYTES}, m.size - p.start)
"""
HELD = f"""
SELECT c.name, m.hash
FROM json_each(?) AS w
JOIN conversation AS c ON c.name = json_extract(w.value, '$[0]')
JOIN media AS m ON m.conversation = c.id AND m.hash = json_extract(w.value, '$[1]')
WHERE {_WHOLE}
"""

LIST = """
SELECT c.name, coalesce(m.seq, 0), coalesce(m.at, 0)
FROM conversation AS c
LEFT JOIN message AS m ON m.conversation = c.id
  AND m.seq = (SELECT max(seq) FROM message WHERE conversation = c.id)
WHERE c.name > ?1 AND c.name < ?2
ORDER BY c.name LIMIT ?3
"""

# A page holds whole conversations: its cursor is the last of them. Most timers lie ahead, hence the index.
DUE = """
WITH waiting (conversation) AS (
  SELECT conversation FROM work WHERE conversation > ?2
  UNION
  SELECT conversation FROM timer INDEXED BY timer_due WHERE due <= ?1 AND conversation > ?2
  ORDER BY 1 LIMIT ?3
)
SELECT c.name, w.timer, w.at, w.conversation FROM (
  SELECT conversation, NULL AS timer, since AS at FROM work WHERE conversation IN waiting
  UNION ALL
  SELECT conversation, name AS timer, due AS at FROM timer WHERE conversation IN waiting AND due <= ?1
) AS w JOIN conversation AS c ON c.id = w.conversation
ORDER BY w.conversation, w.timer
"""
