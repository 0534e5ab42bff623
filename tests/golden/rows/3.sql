PRAGMA user_version=3;
PRAGMA application_id=1885434476;
BEGIN TRANSACTION;
CREATE TABLE activity (
  conversation INTEGER PRIMARY KEY,
  last INTEGER NOT NULL UNIQUE
);
CREATE TABLE conversation (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  generation INTEGER NOT NULL DEFAULT 1,
  floor INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "conversation" VALUES(1,'bot/ann',1,0);
CREATE TABLE key (
  conversation INTEGER NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (conversation, key)
) WITHOUT ROWID;
INSERT INTO "key" VALUES(1,'state.a','{"b":1}');
CREATE TABLE media (
  id INTEGER PRIMARY KEY,
  conversation INTEGER NOT NULL,
  hash TEXT NOT NULL,
  type TEXT NOT NULL,
  size INTEGER NOT NULL,
  seq INTEGER,
  since INTEGER NOT NULL
);
CREATE TABLE member (
  author TEXT NOT NULL,
  conversation INTEGER NOT NULL,
  PRIMARY KEY (author, conversation)
) WITHOUT ROWID;
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
INSERT INTO "message" VALUES(1,1,1,1796049865648447,38,'system-1',NULL,NULL,NULL,NULL,'{"role":"system","content":"Be kind."}');
INSERT INTO "message" VALUES(2,1,2,1796049865651634,30,'system-1',NULL,NULL,NULL,NULL,'{"role":"system","content":""}');
INSERT INTO "message" VALUES(3,1,3,1796049865657247,83,'user-1','c1',4274154790970987023,NULL,NULL,'{"role":"user","id":"m1","name":"Ann <Lee>","metadata":{"tab":3},"content":"hello"}');
INSERT INTO "message" VALUES(4,1,4,1796049865661208,1146,'assistant-1',NULL,NULL,3,NULL,'{"role":"assistant","content":[{"type":"reasoning","text":"plan ","signature":"sig","provider":"anthropic"},{"type":"reasoning","data":"redacted","provider":"anthropic"},{"type":"reasoning","text":"plan","id":"rs_1","data":"enc","provider":"openai"},{"type":"reasoning","text":"plan","signature":"AAEC","provider":"google"},{"type":"text","text":"Let me look."},{"type":"tool-call","toolCallId":"call_0","toolName":"2fa.check","input":{"order":0,"é":"日"}},{"type":"tool-call","toolCallId":"call_1","toolName":"find order","input":{"order":1,"é":"日"}},{"type":"tool-call","toolCallId":"call_2","toolName":"find order","input":{"order":2,"é":"日"}},{"type":"tool-call","toolCallId":"call_3","toolName":"find order","input":{"order":3,"é":"日"}},{"type":"tool-call","toolCallId":"call_4","toolName":"find order","input":{"order":4,"é":"日"}},{"type":"tool-call","toolCallId":"call_5","toolName":"find order","input":{"order":5,"é":"日"}},{"type":"tool-call","toolCallId":"call_6","toolName":"find order","input":{"order":6,"é":"日"}},{"type":"tool-call","toolCallId":"call_7","toolName":"find order","input":{"order":7,"é":"日"}}]}');
INSERT INTO "message" VALUES(5,1,5,1796049865665008,1090,'tool-1',NULL,NULL,3,NULL,'{"role":"tool","content":[{"type":"tool-result","toolCallId":"call_7","toolName":"find order","output":{"type":"content","value":[{"type":"text","text":"see"},{"type":"image","data":"iVBORw0KGgo="},{"type":"file","mediaType":"application/pdf","data":"JVBERi0xLjQ="}]}},{"type":"tool-result","toolCallId":"call_6","toolName":"find order","output":{"type":"execution-denied","reason":"over budget"}},{"type":"tool-result","toolCallId":"call_5","toolName":"find order","output":{"type":"error-json","value":{"code":7}}},{"type":"tool-result","toolCallId":"call_4","toolName":"find order","output":{"type":"error-text","value":"no such order"}},{"type":"tool-result","toolCallId":"call_3","toolName":"find order","output":{"type":"json","value":null}},{"type":"tool-result","toolCallId":"call_2","toolName":"find order","output":{"type":"json","value":{"eta":[1,2.5,null,true]}}},{"type":"tool-result","toolCallId":"call_1","toolName":"find order","output":{"type":"text","value":""}},{"type":"tool-result","toolCallId":"call_0","toolName":"2fa.check","output":{"type":"text","value":"sent"}}]}');
INSERT INTO "message" VALUES(6,1,6,1796049865665394,45,'assistant-1',NULL,NULL,3,'stopped','{"role":"assistant","content":"half an ans "}');
INSERT INTO "message" VALUES(7,1,7,1796049865667692,869,'user-1',NULL,NULL,NULL,NULL,'{"role":"user","content":[{"type":"text","providerOptions":{"anthropic":{"cacheControl":{"type":"ephemeral"}}},"text":"look: naïve 😀 שלום a\u0000b"},{"type":"image","data":"iVBORw0KGgo=","mediaType":"image/png","detail":"low"},{"type":"image","url":"https://x.test/a.jpg","filename":"a.jpg"},{"type":"image","data":"SUkqAAgAAAA=","mediaType":"image/tiff"},{"type":"image","ref":{"parlatory":"sha256:0f"},"mediaType":"image/png"},{"type":"file","mediaType":"application/pdf","data":"JVBERi0xLjQ=","filename":"bill.pdf"},{"type":"file","mediaType":"audio/wav","data":"UklGRgAAAABXQVZF"},{"type":"file","mediaType":"text/plain; charset=utf-8","data":"aGVsbG8="},{"type":"file","mediaType":"application/pdf","ref":{"openai":"file-1"}},{"type":"file","mediaType":"application/pdf","url":"https://x.test/b.pdf"},{"type":"custom","kind":"acme.card","data":{"a":[1]}}]}');
INSERT INTO "message" VALUES(8,1,8,1796049865673326,282,'assistant-1',NULL,NULL,7,NULL,'{"role":"assistant","content":[{"type":"tool-call","toolCallId":"srv_1","toolName":"web_search","input":{"q":"x"},"providerExecuted":true},{"type":"tool-result","toolCallId":"srv_1","toolName":"web_search","output":{"type":"text","value":"a page"}},{"type":"text","text":"Found."}]}');
INSERT INTO "message" VALUES(9,1,9,1796049865673715,39,'system-1',NULL,NULL,NULL,NULL,'{"role":"system","content":"Be brief."}');
INSERT INTO "message" VALUES(10,1,10,1796049865677222,85,'user-1',NULL,NULL,NULL,NULL,'{"role":"user","content":[{"type":"text","text":" "},{"type":"text","text":"again"}]}');
INSERT INTO "message" VALUES(11,1,11,1796049865677656,126,'assistant-1',NULL,NULL,10,NULL,'{"role":"assistant","content":[{"type":"tool-call","toolCallId":"call_0","toolName":"lookup","input":{},"invalid":"{\"a\":"}]}');
INSERT INTO "message" VALUES(12,1,12,1796049865682314,42,'user-1',NULL,NULL,NULL,NULL,'{"role":"user","content":"are you there?"}');
INSERT INTO "message" VALUES(13,1,13,1796049865685748,148,'assistant-1',NULL,NULL,NULL,NULL,'{"role":"assistant","content":[{"type":"text","text":"Yes. "},{"type":"file","mediaType":"image/png","data":"iVBORw0KGgo=","filename":"chart.png"}]}');
INSERT INTO "message" VALUES(14,1,14,1796049865689480,122,'agent',NULL,NULL,'call:9',NULL,'{"role":"assistant","content":[{"type":"x-new","a":1.50},{"type":"text","text":"newer","x":1}],"xField":{"kept":"\u00e9"}}');
CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "meta" VALUES('clean','1');
INSERT INTO "meta" VALUES('epoch','43c3061de886ed0c');
CREATE TABLE piece (
  id INTEGER PRIMARY KEY,
  media INTEGER NOT NULL,
  start INTEGER NOT NULL,
  data BLOB NOT NULL
);
CREATE TABLE timer (
  id INTEGER PRIMARY KEY,
  conversation INTEGER NOT NULL,
  name TEXT NOT NULL,
  due INTEGER NOT NULL,
  UNIQUE (conversation, name)
);
CREATE TABLE work (
  conversation INTEGER PRIMARY KEY,
  since INTEGER NOT NULL
);
INSERT INTO "work" VALUES(1,1796049865693022);
CREATE UNIQUE INDEX message_seq ON message (conversation, seq);
CREATE UNIQUE INDEX message_client ON message (conversation, author, client_id) WHERE client_id IS NOT NULL;
CREATE INDEX timer_due ON timer (due);
CREATE UNIQUE INDEX media_hash ON media (conversation, hash);
CREATE INDEX media_unused ON media (since) WHERE seq IS NULL;
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
COMMIT;
