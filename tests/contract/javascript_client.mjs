// Carries out the cases with the JavaScript client: the real one, over sockets in memory, on a virtual clock.
// `node javascript_client.mjs < cases` prints one line of JSON per case: its name, and what went wrong or null.

import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";

const CONVERSATION = "echo/a";
const START_MS = 1_000_000;

// -- the clock: what setTimeout and clearTimeout are here

class Clock {
  now = START_MS;
  #count = 0;
  #timers = new Map();

  set = (callback, ms = 0) => {
    this.#timers.set((this.#count += 1), { at: this.now + Math.max(ms, 0), callback });
    return this.#count;
  };

  clear = (id) => void this.#timers.delete(id);

  drop() {
    this.#timers.clear();
  }

  async advance(ms) {
    const end = this.now + ms;
    for (;;) {
      await settle();
      const [id, timer] = this.#due(end) ?? [];
      if (id === undefined) break;
      this.now = Math.max(this.now, timer.at);
      this.#timers.delete(id);
      timer.callback();
    }
    this.now = Math.max(this.now, end);
  }

  #due(end) {
    const due = [...this.#timers].filter(([, { at }]) => at <= end);
    return due.sort(([a, { at }], [b, { at: other }]) => at - other || a - b)[0];
  }
}

const turn = setImmediate;
const settle = () => new Promise((resolve) => turn(resolve));

// -- what a browser has beside that

const page = new EventTarget();
let listening = 0;
globalThis.addEventListener = (...what) => {
  listening += 1;
  page.addEventListener(...what);
};
globalThis.removeEventListener = (...what) => {
  listening -= 1;
  page.removeEventListener(...what);
};
globalThis.document = Object.assign(new EventTarget(), { visibilityState: "visible" });
Object.defineProperty(globalThis, "navigator", { value: { onLine: true }, configurable: true });

class Storage {
  #items = new Map();

  get length() {
    return this.#items.size;
  }

  key = (index) => [...this.#items.keys()][index] ?? null;
  getItem = (key) => this.#items.get(key) ?? null;

  setItem(key, value) {
    if (this.full) throw new Error("the quota is exceeded");
    this.#items.set(key, String(value));
  }

  removeItem = (key) => void this.#items.delete(key);
}

// -- sockets

class Socket {
  static stage;
  frames = [];
  open = true;

  constructor() {
    const { stage } = Socket;
    stage.tries += 1;
    this.protocol = stage.options.protocol ?? "parlatory.v1";
    if (stage.down) queueMicrotask(() => this.end(1006));
    else {
      stage.waiting.push(this);
      queueMicrotask(() => this.onopen?.({}));
    }
  }

  send = (text) => void this.frames.push(JSON.parse(text));

  close() {
    this.open = false;
  }

  /** Brings a frame, also to a client that has closed: it may have been on its way. */
  hear(data) {
    this.onmessage?.({ data });
  }

  end(code) {
    this.open = false;
    this.onclose?.({ code });
  }
}

// -- the application, as its user sees it

class Application {
  rows = [];
  signals = [];
  ends = [];
  events = [];
  closed = null;
  resets = 0;
  sends = {};
  cancels = [];
  pages = [];
  calls = [];
  items = [];
  problems = [];
  notices = 0;
  // What the iteration waits for before it takes the next event.
  held = Promise.resolve();
  taken = 0;

  constructor(chat) {
    this.chat = chat;
    this.unsubscribe = chat.subscribe((snapshot) => this.#notice(snapshot));
    this.run();
  }

  async run() {
    try {
      for await (const event of this.chat) {
        await this.held;
        if (this.left) break;
        this.events.push(event.type);
        if (event.type === "row") {
          this.rows.push(event.row.text);
          this.taken += 1;
        } else if (event.type === "error") this.problems.push(event.error.code);
        else if (event.type === "draftEnd") this.ends.push([event.seq, this.#textAt(event.seq), event.finish]);
        else if (event.type === "signal") this.signals.push([event.name, event.by, event.data ?? null]);
        else if (event.type === "reset") {
          this.rows = [];
          this.resets += 1;
        }
      }
      if (!this.left) this.closed = "closed";
    } catch (error) {
      this.closed = error.code;
    }
  }

  #textAt(seq) {
    return this.chat.messages.find((entry) => entry.seq === seq)?.text;
  }

  /** Every snapshot has to be another one, frozen, and to keep the entries that did not change. */
  #notice(snapshot) {
    this.notices += 1;
    const before = this.last;
    this.last = snapshot;
    for (const one of [snapshot, snapshot.messages, snapshot.status]) check(Object.isFrozen(one), "not frozen");
    check(snapshot === this.chat.getSnapshot() && snapshot.messages === this.chat.messages, "not the snapshot of now");
    check(snapshot !== before, "told without a change");
    const known = new Map(before?.messages.map((entry) => [entry.seq ?? entry.clientId ?? entry.id, entry]));
    for (const entry of snapshot.messages) {
      check(Object.isFrozen(entry) && Object.isFrozen(entry.message), "an entry is not frozen");
      const old = known.get(entry.seq);
      if (old && entry.at && old.at === entry.at) check(old === entry, `row ${entry.seq} is another object`);
    }
    const same = before && isDeepStrictEqual(before.messages, snapshot.messages);
    if (same) check(before.messages === snapshot.messages, "another array with the same messages");
  }

  view() {
    const { messages, status, state, presence } = this.chat;
    const rows = messages.filter(({ at }) => at);
    const texts = rows.map(({ text }) => text);
    const newest = Math.min(texts.length, this.rows.length); // older ones were paged, or are not kept
    const same = isDeepStrictEqual(texts.slice(texts.length - newest), this.rows.slice(this.rows.length - newest));
    check((same && (newest || !this.rows.length)) || this.slow, `rows are ${texts}`);
    rows.forEach(({ seq }, i) => check(seq === rows[0].seq + i, "seqs with a hole"));
    const draft = messages.find((entry) => entry.draft);
    return {
      rows: this.rows,
      signals: this.signals,
      ends: this.ends,
      closed: this.closed,
      resets: this.resets,
      sends: this.sends,
      cancels: this.cancels,
      pages: this.pages,
      calls: this.calls,
      items: this.items,
      problems: this.problems,
      taken: this.taken,
      heard: this.signals.length,
      told: this.last === this.chat.getSnapshot(),
      state: state ?? null,
      present: presence && [presence.count, presence.principals],
      events: this.events,
      problem: status.error?.code ?? null,
      count: rows.length,
      status: status.state,
      unsent: status.unsent,
      head: status.head,
      more: status.more,
      retryIn: status.retryAt === null ? null : Math.round(status.retryAt - Socket.stage.clock.now),
      live: status.caughtUp && status.state === "open",
      draft: draft ? draft.text : null,
      content: draft ? draft.message.content : null,
      turn: [status.turn.state, status.turn.id ?? null],
      shown: messages.map((entry) => [
        entry.draft ? "draft" : entry.error ? entry.error.code : entry.pending ? "pending" : entry.at ? "row" : "acked",
        entry.text,
      ]),
    };
  }

  async keep(place, key, promise) {
    place[key] = "waits";
    try {
      place[key] = await promise;
    } catch (error) {
      place[key] = error.code ?? String(error);
    }
  }
}

function check(good, text) {
  if (!good) Socket.stage.wrong ??= text;
}

// -- the server that does what the case says

class Stage {
  clock = new Clock();
  tries = 0;
  waiting = [];
  known = {};
  storage = new Storage();
  wrong = null;

  constructor(options) {
    Socket.stage = this;
    this.options = options;
    this.down = options.down ?? false;
    globalThis.setTimeout = this.clock.set;
    globalThis.clearTimeout = this.clock.clear;
    navigator.onLine = true;
    document.visibilityState = "visible";
    this.begin();
  }

  begin() {
    const { tokens, token, random = 0.9, storage = false, ...rest } = this.options;
    const left = [...(tokens ?? [])];
    delete rest.protocol;
    delete rest.down;
    const chat = connect("ws://server/v1", CONVERSATION, {
      ...rest,
      token: tokens ? async () => left.shift() ?? Promise.reject(new Error("no network")) : token,
      ...(storage && { storage: this.storage }),
      WebSocket: Socket,
      now: () => this.clock.now,
      random: () => random,
    });
    this.app = new Application(chat);
  }

  // what a server does

  on_socket() {
    assert(this.waiting.length, "there is no new socket");
    this.former = this.socket;
    this.socket = this.waiting.shift();
  }

  on_say(frame) {
    this.socket.hear(JSON.stringify(filled(frame, this.known)));
  }

  on_raw(text) {
    this.socket.hear(text);
  }

  on_cut() {
    this.socket.end(1006);
  }

  on_close(code) {
    this.socket.end(code);
  }

  on_error() {
    this.socket.onerror?.({});
  }

  /** The socket before this one brings a frame that was on its way, and ends. */
  on_ghost(frame) {
    this.former.hear(JSON.stringify(frame));
    this.former.end(1000);
  }

  on_down() {
    this.down = true;
  }

  on_up() {
    this.down = false;
  }

  // what the client does meanwhile

  on_expect(frame) {
    const { frames } = this.socket;
    assert(frames.length, "there is no frame");
    match(frame, frames.shift(), this.known);
  }

  on_quiet() {
    assert(!this.socket?.frames.length, `frames: ${JSON.stringify(this.socket?.frames)}`);
  }

  on_none() {
    assert(!this.waiting.length, "there is a new socket");
  }

  on_tries(count) {
    assert(this.tries === count, `${this.tries} tries`);
  }

  on_stays() {
    assert(this.socket.open, "the socket is gone");
  }

  on_gone() {
    assert(!this.socket.open, "the socket is open");
  }

  on_see(view) {
    const seen = this.app.view();
    for (const [key, value] of Object.entries(view)) {
      assert(isDeepStrictEqual(plain(seen[key]), value), `${key} is ${JSON.stringify(seen[key])}`);
    }
  }

  // what the application does

  on_send(clientId, text) {
    this.app.keep(this.app.sends, clientId, this.app.chat.send(text, { clientId }).then(({ seq }) => seq));
  }

  on_page(before, limit) {
    const rows = this.app.chat.page({ before, limit }).then(({ rows, more }) => [rows.map(({ text }) => text), more]);
    this.app.keep(this.app.pages, this.app.pages.length, rows);
  }

  on_cancel(turn) {
    this.app.keep(this.app.cancels, this.app.cancels.length, this.app.chat.cancel({ turn }).then(() => "heard"));
  }

  on_signal(name, data) {
    this.app.chat.signal(name, data ?? undefined);
  }

  "on_signal fails"(name, data, code) {
    try {
      this.app.chat.signal(name, data);
      assert(false, "it does not fail");
    } catch (error) {
      assert(error.code === code, `${error}`);
    }
  }

  on_signals(count) {
    const signal = { type: "signal", conversation: CONVERSATION, by: "you" };
    for (let i = 0; i < count; i++) this.on_say({ ...signal, name: `${i}` });
  }

  on_end() {
    this.app.chat.close();
  }

  on_mutter(clientId, text) {
    this.app.chat.send(text, { clientId });
  }

  on_discard(clientId, could) {
    assert(this.app.chat.discard(clientId) === could, `it says ${!could}`);
  }

  on_flood(count) {
    for (let i = 0; i < count; i++) this.app.chat.send(`${i}`).catch(() => {});
  }

  on_call(method, args, key) {
    this.app.keep(this.app.calls, this.app.calls.length, this.app.chat.call(method, args, { key }));
  }

  /** Iterates over so many items, and leaves then; over none it only begins to. */
  async on_stream(method, args, most) {
    const { items } = this.app;
    const stream = this.app.chat.call(method, args)[Symbol.asyncIterator]();
    if (!most) return;
    (async () => {
      for await (const item of stream) if (items.push(item) === most) break;
      items.push("end");
    })().catch((error) => items.push(error.code));
  }

  on_items(id, count) {
    for (let value = 1; value <= count; value++) this.on_say({ type: "item", conversation: CONVERSATION, id, value });
  }

  on_own(key, name) {
    const value = this.app.chat.state[key];
    assert(Object.hasOwn(value, name) && Object.getPrototypeOf(value) === Object.prototype, JSON.stringify(value));
  }

  on_hold() {
    this.app.slow = true;
    this.app.held = new Promise((resolve) => (this.release = resolve));
  }

  on_release() {
    this.app.slow = false;
    this.release();
  }

  on_leave() {
    this.app.left = true;
    this.release();
  }

  on_unsubscribe() {
    this.app.unsubscribe();
  }

  on_many(from, to) {
    const rows = [];
    for (let seq = from; seq <= to; seq++) {
      const at = `2026-11-30T00:00:00.${String(seq).padStart(6, "0")}Z`;
      rows.push({ seq, at, by: "agent", message: { role: "assistant", content: `${seq}` } });
    }
    this.on_say({ type: "rows", conversation: CONVERSATION, epoch: "e1", rows });
  }

  // what its browser does

  /** The page goes away without a word, and comes again. */
  on_reload() {
    this.clock.drop();
    this.reloaded = true;
    this.socket && (this.socket.open = false);
    this.waiting = [];
    this.app.unsubscribe();
    this.begin();
  }

  on_fill() {
    this.storage.full = true;
  }

  on_store(key, value) {
    this.storage.setItem(key, value);
  }

  on_stored(count) {
    assert(this.storage.length === count + 1, `${this.storage.length} keys`); // and who one is
  }

  on_same(frame) {
    this.on_expect(filled(frame, this.known));
  }

  on_online(online) {
    navigator.onLine = online;
  }

  on_fire(name) {
    (name === "visibilitychange" ? document : page).dispatchEvent(new Event(name));
  }

  on_hide() {
    document.visibilityState = "hidden";
  }

  /** Time passes, and no timer fires before the frame comes. */
  on_freeze(seconds, frame) {
    this.clock.now += seconds * 1000;
    if (frame) this.on_say(frame);
  }

  on_advance(seconds) {
    return this.clock.advance(seconds * 1000);
  }
}

function assert(good, text) {
  if (!good) throw new Error(text);
}

const plain = (value) => (value === undefined ? undefined : JSON.parse(JSON.stringify(value)));

function filled(value, known) {
  if (typeof value === "string") return value.startsWith("$") ? known[value] : value;
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map((one) => filled(one, known));
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, filled(one, known)]));
}

function match(wanted, frame, known) {
  for (const [key, value] of Object.entries(wanted)) {
    assert(key in frame, `it is ${JSON.stringify(frame)}`);
    if (value === "*") continue;
    if (typeof value === "string" && value.startsWith("$")) known[value] = frame[key];
    else assert(isDeepStrictEqual(frame[key], value), `it is ${JSON.stringify(frame)}`);
  }
  assert(Object.keys(frame).every((key) => key in wanted), `it is ${JSON.stringify(frame)}`);
}

async function play({ options, steps }) {
  const stage = new Stage(options);
  try {
    await settle();
    for (const [number, [name, ...rest]] of steps.entries()) {
      try {
        await stage[`on_${name}`](...rest);
        await stage.clock.advance(0.1);
        assert(!stage.wrong, stage.wrong);
      } catch (error) {
        return `step ${number}, ${JSON.stringify(steps[number])}: ${error.message}`;
      }
    }
    return null;
  } finally {
    stage.app.chat.close();
    await settle();
    if (!stage.reloaded && listening) stray.push(`${listening} listeners are left`);
    listening = 0;
  }
}

const stray = [];
process.on("unhandledRejection", (error) => stray.push(`nobody waits for ${error.message}`));
process.on("uncaughtException", (error) => stray.push(`nobody caught ${error.stack}`));

const { connect } = await import(process.argv[2]);
for (const [name, scenario] of Object.entries(JSON.parse(readFileSync(0, "utf8")))) {
  const wrong = (await play(scenario)) ?? stray[0] ?? null;
  stray.length = 0;
  console.log(JSON.stringify({ name, wrong }));
}
