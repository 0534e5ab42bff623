PRAGMA auto_vacuum=INCREMENTAL;
PRAGMA application_id=1885434476;
PRAGMA user_version=1;
BEGIN TRANSACTION;
CREATE TABLE conversation (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  generation INTEGER NOT NULL DEFAULT 1,
  floor INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "conversation" VALUES(1,'bot/ann',1,0);
INSERT INTO "conversation" VALUES(2,'bot/bob',1,0);
CREATE TABLE key (
  conversation INTEGER NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (conversation, key)
) WITHOUT ROWID;
INSERT INTO "key" VALUES(1,'turn.handled','2');
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
INSERT INTO "message" VALUES(1,1,1,1796045653467061,30,'user','c1',-1142446977375644466,NULL,NULL,'{"role":"user","content":"hi"}');
INSERT INTO "message" VALUES(2,1,2,1796045653468463,120,'user:ann','c2',3162368439911677593,NULL,NULL,'{"role":"user","content":[{"type":"text","text":"look"},{"type":"image","data":"iVBORw0KGgo=","mediaType":"image/png"}]}');
INSERT INTO "message" VALUES(3,1,3,1796045653469411,45,'agent',NULL,NULL,NULL,NULL,'{"role":"assistant","content":"nice é 😀"}');
INSERT INTO "message" VALUES(4,2,1,1796045653471247,37,'agent',NULL,NULL,NULL,NULL,'{"role":"system","content":"be kind"}');
INSERT INTO "message" VALUES(5,2,2,1796045653471247,33,'user',NULL,NULL,NULL,NULL,'{"role":"user","content":"hello"}');
CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "meta" VALUES('clean','1');
INSERT INTO "meta" VALUES('epoch','363b302996215481');
CREATE TABLE timer (
  id INTEGER PRIMARY KEY,
  conversation INTEGER NOT NULL,
  name TEXT NOT NULL,
  due INTEGER NOT NULL,
  UNIQUE (conversation, name)
);
INSERT INTO "timer" VALUES(1,1,'t',1800000000000000);
CREATE TABLE work (
  conversation INTEGER PRIMARY KEY,
  since INTEGER NOT NULL
);
INSERT INTO "work" VALUES(1,1796045653469992);
CREATE UNIQUE INDEX message_seq ON message (conversation, seq);
CREATE UNIQUE INDEX message_client ON message (conversation, author, client_id) WHERE client_id IS NOT NULL;
CREATE INDEX timer_due ON timer (due);
COMMIT;
