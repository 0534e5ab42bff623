// The JavaScript client against a real server, through a proxy that cuts.
// `node javascript_live.mjs MODULE PYTHON AGENTS DATA` ends with code 0 if every client has seen each row once and in
// order, and every draft became the row it promised.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createServer, connect as dial } from "node:net";
import { createInterface } from "node:readline";

const [module, python, agents, data] = process.argv.slice(2);
const { connect } = await import(module);
const SENDS = 100;
const DEADLINE_MS = 50_000;

// -- a server that can be killed

class Server {
  async start(port = 0) {
    const code = "from parlatory.server.cli import main; main()";
    const args = ["-c", code, "serve", agents, "--data", data, "--port", `${port}`];
    this.process = spawn(python, args, { stdio: ["ignore", "ignore", "pipe"] });
    this.ended = new Promise((resolve) => this.process.once("exit", resolve));
    for await (const line of createInterface({ input: this.process.stderr })) {
      const match = /listening on ws:\/\/127\.0\.0\.1:(\d+)/.exec(line);
      if (!match) continue;
      this.port = Number(match[1]);
      return;
    }
    throw new Error("the server did not start");
  }

  async kill() {
    this.process.kill("SIGKILL");
    await this.ended;
  }
}

// -- a network that can be cut: connections end in the middle of whatever they carry

class Proxy {
  pairs = new Set();
  cuts = 0;
  down = false;
  // Of a piece being cut in two, and the connection with it.
  chance = 0;

  async start(target) {
    this.server = createServer((near) => this.#accept(near, target));
    await new Promise((resolve) => this.server.listen(0, "127.0.0.1", resolve));
    return this.server.address().port;
  }

  cut() {
    for (const pair of this.pairs) for (const socket of pair) socket.resetAndDestroy();
    this.cuts += this.pairs.size;
    this.pairs.clear();
  }

  #accept(near, target) {
    if (this.down) return near.resetAndDestroy();
    const far = dial(target.port, "127.0.0.1");
    const pair = [near, far];
    this.pairs.add(pair);
    const end = () => {
      if (this.pairs.delete(pair)) for (const socket of pair) socket.destroy();
    };
    for (const [from, to] of [pair, [far, near]]) {
      from.on("error", end).on("close", end);
      from.on("data", (bytes) => {
        const cut = Math.random() < this.chance;
        to.write(cut ? bytes.subarray(0, bytes.length / 2) : bytes);
        if (!cut) return;
        this.cuts += 1;
        end();
      });
    }
  }
}

// -- a client, and what it has seen

class Person {
  seqs = [];
  drafts = new Map();

  constructor(name, conversation, options) {
    this.chat = connect(url, conversation, { token: `user:${name}`, random: () => 0.02, ...options });
    this.unsubscribe = this.chat.subscribe((snapshot) => this.#look(snapshot));
    this.done = this.#read();
  }

  async #read() {
    for await (const event of this.chat) {
      assert.notEqual(event.type, "reset");
      if (event.type === "row") this.seqs.push(event.row.seq);
      if (event.type === "draft") this.drafts.set(event.draft.id, event.draft);
    }
  }

  #look({ messages }) {
    const rows = messages.filter(({ at }) => at);
    rows.forEach(({ seq }, i) => assert.equal(seq, rows[0].seq + i));
    const ids = messages.filter(({ clientId, by }) => clientId && (!by || by === this.chat.status.principal));
    assert.equal(new Set(ids.map(({ clientId }) => clientId)).size, ids.length, "a message is shown twice");
    const draft = messages.at(-1);
    if (!draft?.draft) return;
    assert(draft.text.startsWith(this.drafts.get(draft.id)?.text ?? ""), "a draft has shrunk");
    assert(!rows.some(({ turn, text }) => turn === draft.turn && draft.text && text === draft.text), "row and draft");
  }

  /** Waits until something is so. */
  until(condition) {
    return new Promise((resolve) => {
      const stop = this.chat.subscribe((snapshot) => {
        const found = condition(snapshot);
        if (!found) return;
        resolve(found);
        queueMicrotask(() => stop());
      });
    });
  }

  /** Waits for the last answer to the row `seq`, and returns it. */
  answer(seq) {
    const answers = ({ at, turn, finish }) => at && turn === seq && finish !== "interrupted";
    return this.until(({ messages }) => messages.findLast(answers));
  }

  /** Waits until the draft has some text, and returns it. */
  writing(length = 20) {
    return this.until(({ messages }) => messages.find((entry) => entry.draft && entry.text.length >= length));
  }
}

const words = (count) => Array.from({ length: count }, (_, i) => `w${i} `).join("");

const server = new Server();
process.once("exit", () => server.process.kill("SIGKILL"));
setTimeout(() => assert.fail("it does not come to its end"), DEADLINE_MS).unref();
await server.start();
const proxy = new Proxy();
const url = `ws://127.0.0.1:${await proxy.start(server)}/v1`;
const ann = new Person("ann", "echo/room");
const bo = new Person("bo", "echo/room");

// A send, its answer, and both see them.
const { seq } = await ann.chat.send("hi");
assert.equal((await bo.answer(seq)).text, "echo: hi");

// Stop in mid-stream: the row has what was written.
const stopped = (await ann.chat.send("/stream 4000 5")).seq;
const shown = await ann.writing();
await ann.chat.cancel();
const partial = await ann.answer(stopped);
assert.equal(partial.finish, "stopped");
assert(partial.text.startsWith(shown.text) && partial.text.length < words(4000).length);

// The network goes away in mid-stream; somebody else comes in the middle, and is there for the next turn as well.
const streamed = (await ann.chat.send("/stream 400 5")).seq;
await ann.writing();
proxy.cut();
const cy = new Person("cy", "echo/room", { tail: 1 });
const late = await Promise.race([cy.writing(), cy.answer(streamed)]); // on a slow machine it is over by now
assert(words(400).startsWith(late.text));
for (const person of [ann, bo, cy]) assert.equal((await person.answer(streamed)).text, words(400));
for (const { drafts } of [ann, bo]) assert(words(400).startsWith([...drafts.values()].at(-1).text));

// The server is killed in mid-stream: the partial is a row, and the turn runs again.
const killed = (await ann.chat.send("/stream 40 10")).seq;
await ann.writing();
await server.kill();
await ann.until(({ status }) => status.state === "waiting");
await server.start(server.port);
for (const person of [ann, bo, cy]) assert.equal((await person.answer(killed)).text, words(40));

// Offline: what is said then goes out in order, once.
proxy.down = true;
proxy.cut();
const offline = ["/quiet a", "/quiet b", "/quiet c"].map((text) => ann.chat.send(text));
assert.equal(ann.chat.status.unsent, 3);
proxy.down = false;
const seqs = (await Promise.all(offline)).map((answer) => answer.seq);
assert.deepEqual(seqs, [...seqs].sort((a, b) => a - b));

// Two sockets of one person, cut again and again while both send.
const twin = new Person("ann", "relay/room");
const other = new Person("ann", "relay/room");
proxy.cut();
proxy.chance = 0.15;
const answers = [];
const talk = async ({ chat }, count) => {
  for (let i = 0; i < count; i += 5) {
    const sent = [1, 2, 3, 4, 5].map((n) => chat.send(`${i + n}`));
    answers.push(...(await Promise.all(sent)));
  }
};
await Promise.all([talk(twin, SENDS / 2), talk(other, SENDS / 2)]);
proxy.chance = 0;
await Promise.all([twin, other].map((person) => person.until(({ status }) => status.head === SENDS)));
const acked = answers.map((answer) => answer.seq).sort((a, b) => a - b);
assert.deepEqual(acked, Array.from({ length: SENDS }, (_, i) => i + 1));
assert(proxy.cuts > 10, `${proxy.cuts} cuts`);

for (const person of [ann, bo, cy, twin, other]) {
  await person.until(({ status }) => status.caughtUp && !status.unsent);
  person.unsubscribe();
  person.chat.close();
  await person.done;
  person.seqs.forEach((one, i) => assert.equal(one, person.seqs[0] + i));
}
assert.equal(twin.seqs.length, SENDS);
assert.equal(bo.seqs.at(-1), ann.seqs.at(-1));
console.log(`${proxy.cuts} cuts, ${ann.seqs.length + twin.seqs.length} rows`);
proxy.cut();
proxy.server.close();
await server.kill();
