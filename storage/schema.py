"""The tables of the SQLite file, their version, and the statements that read and write them.

A group is written by one statement: an insert into the temporary view `batch`, whose triggers spread the JSON lists
over the tables; a list that is NULL costs nothing. One statement in autocommit is one thread hop and one flush, and no
cancellation can fall into it. The bodies come as one blob, of which every row names its piece: as JSON strings they
would be escaped, parsed and copied twice, and `json_each` cuts a bare string at NUL.

Rows lie in the order in which they came (`id`), with a unique index over (conversation, seq): appends then share the
last pages, where a table clustered by conversation writes 2.7 times the pages.
"""

from __future__ import annotations

from . import activity

__all__ = [
    "APPLICATION_ID",
    "DUE",
    "FIND",
    "INSERT_BATCH",
    "INSERT_ROW",
    "KEYS",
    "LIST",
    "MIGRATIONS",
    "OPEN",
    "READ_FIRST",
    "READ_LAST",
    "TEMPORARY",
    "VERSION",
]

APPLICATION_ID = 0x7061726C  # "parl"
VERSION = 2

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
    2: activity.TABLES,
}
"""Forward migrations: version to the script that leads to it."""

TEMPORARY = """
CREATE TEMP VIEW batch AS
  SELECT NULL AS rows, NULL AS bodies, NULL AS names, NULL AS puts, NULL AS deletes, NULL AS timers, NULL AS works;
CREATE TEMP TRIGGER batch_rows INSTEAD OF INSERT ON batch WHEN NEW.rows IS NOT NULL BEGIN
  INSERT INTO message (conversation, seq, at, author, client_id, digest, turn, finish, size, body)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
           json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
           json_extract(value, '$[6]'), json_extract(value, '$[7]'), json_extract(value, '$[8]'),
           CAST(substr(NEW.bodies, json_extract(value, '$[9]'), json_extract(value, '$[8]')) AS TEXT)
    FROM json_each(NEW.rows);
END;
CREATE TEMP TRIGGER batch_names INSTEAD OF INSERT ON batch WHEN NEW.names IS NOT NULL BEGIN
  INSERT INTO conversation (id, name)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(NEW.names);
END;
CREATE TEMP TRIGGER batch_puts INSTEAD OF INSERT ON batch WHEN NEW.puts IS NOT NULL BEGIN
  INSERT INTO key (conversation, key, value)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]')
    FROM json_each(NEW.puts) WHERE true
    ON CONFLICT (conversation, key) DO UPDATE SET value = excluded.value;
END;
CREATE TEMP TRIGGER batch_deletes INSTEAD OF INSERT ON batch WHEN NEW.deletes IS NOT NULL BEGIN
  DELETE FROM key WHERE (conversation, key) IN
    (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(NEW.deletes));
END;
CREATE TEMP TRIGGER batch_timers INSTEAD OF INSERT ON batch WHEN NEW.timers IS NOT NULL BEGIN
  INSERT INTO timer (conversation, name, due)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]')
    FROM json_each(NEW.timers) WHERE json_extract(value, '$[2]') IS NOT NULL
    ON CONFLICT (conversation, name) DO UPDATE SET due = excluded.due;
  DELETE FROM timer WHERE (conversation, name) IN
    (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(NEW.timers)
     WHERE json_extract(value, '$[2]') IS NULL);
END;
CREATE TEMP TRIGGER batch_works INSTEAD OF INSERT ON batch WHEN NEW.works IS NOT NULL BEGIN
  INSERT INTO work (conversation, since)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]')
    FROM json_each(NEW.works) WHERE json_extract(value, '$[1]') IS NOT NULL
    ON CONFLICT (conversation) DO NOTHING;
  DELETE FROM work WHERE conversation IN
    (SELECT json_extract(value, '$[0]') FROM json_each(NEW.works) WHERE json_extract(value, '$[1]') IS NULL);
END;
"""
TEMPORARY += activity.TEMPORARY

INSERT_BATCH = "INSERT INTO batch (rows, bodies, names, puts, deletes, timers, works) VALUES (?, ?, ?, ?, ?, ?, ?)"

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
