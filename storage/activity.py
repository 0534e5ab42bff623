"""Which conversations were active last, and who has spoken in which: an index over the log that appends do not pay for.

`message.id` counts the rows of all conversations in the order of their commits, so the id of a conversation's last row
is its activity. An index that moved with every append would write two more pages each time. Instead the rows behind
the highest id in `activity` are **fresh**: a list finds them by reading those rows, and the writer folds them into the
index between two groups, some thousand at a time, in a transaction of its own. Nothing has to be made good after a
crash: what was not folded is fresh still.
"""

from __future__ import annotations

__all__ = ["FEW_BY", "FEW_NAMED", "FOLD", "FRESH", "LIST_ALL", "LIST_FEW", "TABLES", "TEMPORARY"]

# What an older file holds is folded here, at once.
TABLES = """
CREATE TABLE activity (
  conversation INTEGER PRIMARY KEY,
  last INTEGER NOT NULL UNIQUE
);
CREATE TABLE member (
  author TEXT NOT NULL,
  conversation INTEGER NOT NULL,
  PRIMARY KEY (author, conversation)
) WITHOUT ROWID;
INSERT INTO activity (conversation, last) SELECT conversation, max(id) FROM message GROUP BY conversation;
INSERT INTO member (author, conversation) SELECT DISTINCT author, conversation FROM message;
"""

# NOT INDEXED: by id, never along an index over the whole log that would save the sorting.
_FRESH = "message NOT INDEXED WHERE id > (SELECT coalesce(max(last), 0) FROM activity)"

TEMPORARY = f"""
CREATE TEMP VIEW fold AS SELECT NULL AS now;
CREATE TEMP TRIGGER fold_rows INSTEAD OF INSERT ON fold BEGIN
  INSERT OR IGNORE INTO member (author, conversation) SELECT DISTINCT author, conversation FROM {_FRESH};
  INSERT INTO activity (conversation, last) SELECT conversation, max(id) FROM {_FRESH} GROUP BY conversation
    ON CONFLICT (conversation) DO UPDATE SET last = excluded.last;
END;
"""

FOLD = "INSERT INTO fold (now) VALUES (1)"

FRESH = "SELECT coalesce((SELECT max(id) FROM message), 0) - coalesce((SELECT max(last) FROM activity), 0)"

# ?1 the cursor, ?2 and ?3 the ends of the names, ?4 a pattern for names, ?5 the author or NULL, ?6 the limit, ?7 and ?8
# up to which size and seq rows are looked at. Both halves are cut before they are merged: what is fresh comes first.
_LIST = f"""
WITH fresh (conversation, last) AS (SELECT conversation, max(id) FROM {_FRESH} GROUP BY conversation)
SELECT found.name, m.seq, m.at, found.last,
  m.author, m.client_id, m.turn, m.finish, CASE WHEN m.size <= ?7 THEN CAST(m.body AS BLOB) END,
  f.seq, f.at, f.author, f.client_id, f.turn, f.finish, CAST(f.body AS BLOB)
FROM (
  SELECT * FROM (
    SELECT a.conversation, a.last, c.name
    FROM fresh AS a CROSS JOIN conversation AS c ON c.id = a.conversation
    WHERE a.last < ?1 AND c.name > ?2 AND c.name < ?3 AND c.name LIKE ?4 ESCAPE '|' AND (
      ?5 IS NULL OR EXISTS (SELECT 1 FROM member AS b WHERE b.author = ?5 AND b.conversation = a.conversation)
      OR a.conversation IN (SELECT conversation FROM {_FRESH} AND author = ?5))
    ORDER BY a.last DESC LIMIT ?6
  )
  UNION ALL
  SELECT * FROM (
    SELECT a.conversation, a.last, c.name
    FROM {{source}} CROSS JOIN conversation AS c ON c.id = a.conversation
    WHERE a.last < ?1 AND c.name > ?2 AND c.name < ?3 AND c.name LIKE ?4 ESCAPE '|' AND (
      ?5 IS NULL OR EXISTS (SELECT 1 FROM member AS b WHERE b.author = ?5 AND b.conversation = a.conversation))
      AND a.conversation NOT IN (SELECT conversation FROM fresh)
    ORDER BY a.last DESC LIMIT ?6
  )
) AS found
CROSS JOIN message AS m ON m.id = found.last
LEFT JOIN message AS f ON f.id = (
  SELECT id FROM message WHERE conversation = found.conversation AND seq <= ?8 AND size <= ?7
    AND substr(body, 1, 14) = '{{{{"role":"user"' ORDER BY seq LIMIT 1
)
ORDER BY found.last DESC LIMIT ?6
"""

# Along the activity, until enough are found; or, where an author or a text leaves few, those few (?9), sorted.
LIST_ALL = _LIST.format(source="activity AS a")
LIST_FEW = _LIST.format(source="json_each(?9) AS few CROSS JOIN activity AS a ON a.conversation = few.value")

FEW_BY = "SELECT conversation FROM member WHERE author = ? LIMIT ?"
FEW_NAMED = "SELECT id FROM conversation WHERE name LIKE ? ESCAPE '|' LIMIT ?"
