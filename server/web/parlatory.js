/**
 * The JavaScript client: one conversation of a parlatory server, with every row exactly once and every send exactly once.
 *
 *     const chat = connect("wss://example.org/v1", "bot/ann", { token, tail: 50 });
 *     chat.subscribe(({ messages, status }) => render(messages, status));
 *     await chat.send("hi");
 *
 * The connection keeps itself: when it is lost the chat comes back, goes on behind the last row it has, and sends again
 * what was not answered. Each chat has a socket of its own, so that its token, its backoff and its slowness are its own.
 * What is said is data and stays data: nothing in here makes markup of it. See docs/browser.md.
 */

const PROTOCOL = "parlatory.v1";
const OUTBOX_MAX = 1000;
const OUTBOX_BYTES_MAX = 16 << 20;
const HELLO_BYTES_MAX = 4096;
const BEFORE_NEWEST = Number.MAX_SAFE_INTEGER;
const FIRST_MS = 500;
const LONGEST_MS = 30_000;
const HINT_LONGEST_MS = 300_000;
const STABLE_MS = 30_000;
const WELCOME_MS = 10_000;
const PROBE_MS = 5_000;
const RETRY_MS = 1_000;
const SILENT_TICKS_MAX = 5;
const REOPENS_MAX = 3;
const FEED_ROWS_MAX = 1000;
const FEED_OTHERS_MAX = 256;
const ITEMS_MAX = 10_000;
const RETRYABLE = new Set(["busy", "rate", "draining", "internal"]);
const ENDS = new Set(["done", "stopped", "error"]);
const FINAL = { 4400: "bad_frame", 4403: "forbidden" };
// Who overloads a server shall not be back within the first half second.
const FAILURES_MIN = { 1013: 2, 4429: 4 };

const encoder = new TextEncoder();
const bytesOf = (text) => encoder.encode(text).length;
const noop = () => {};

/** Says what went wrong; `code` is stable, the text is for people. `retryMs` is there where trying again makes sense. */
export class ParlatoryError extends Error {
  constructor(code, text, { retryMs, closeCode, cause } = {}) {
    super(`${code}: ${text}`, cause === undefined ? undefined : { cause });
    this.name = "ParlatoryError";
    this.code = code;
    this.retryMs = retryMs;
    this.closeCode = closeCode;
  }
}

/** Returns 128 random bits as base64url. */
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** Joins the text of a message. */
export function textOf({ content }) {
  if (typeof content === "string") return content;
  return Array.isArray(content) ? content.map((part) => (part.type === "text" ? part.text : "")).join("") : "";
}

// Without authentication the server knows an author by it: all chats of a page are the same one.
const installation = randomId();

function freeze(value) {
  if (value !== null && typeof value === "object" && !Object.isFrozen(value)) {
    Object.freeze(value);
    for (const key of Object.keys(value)) freeze(value[key]);
  }
  return value;
}

/** Returns `target` changed by an RFC 7396 merge patch. */
function merged(target, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const base = target !== null && typeof target === "object" && !Array.isArray(target) ? target : {};
  const entries = new Map(Object.entries(base));
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) entries.delete(key);
    else entries.set(key, merged(entries.get(key), value));
  }
  return Object.fromEntries(entries); // defines keys: one named __proto__ is a key as any other
}

function sameFields(a, b) {
  return a !== null && Object.keys(b).every((key) => a[key] === b[key]);
}

/** Is what the agent does, out of what the server tells: ends are missed, so a turn that runs ends any other. */
class Turns {
  #last = freeze({ state: "idle", id: undefined, queued: 0 });
  #running = null;
  #queued = new Map();

  /** The turn that runs, else the first one queued, else what was told last. */
  get now() {
    return this.#running ?? this.#queued.values().next().value ?? this.#last;
  }

  opened(turn = { state: "idle" }) {
    this.#running = null;
    this.#queued.clear();
    this.told(turn);
  }

  told({ state, id, queued = 0 }) {
    const turn = freeze({ state, id, queued });
    this.#last = turn;
    const waited = this.#queued.delete(id);
    if (state === "queued") {
      this.#queued.set(id, turn);
      if (this.#queued.size > OUTBOX_MAX) this.#queued.delete(this.#queued.keys().next().value);
    } else if (state === "running") this.#running = turn;
    else if (!(waited && ENDS.has(state))) this.#running = null;
    return turn;
  }
}

/** Is a message that is still being written; its deltas say which of the agent's writes they hold. */
class Draft {
  #entry = null;

  constructor({ id, turn, index, message }) {
    Object.assign(this, { id, turn, index, message, hidden: false });
  }

  /** Applies a delta; returns whether it fits. After one that does not the draft is of no use. */
  apply({ from, to, ops }) {
    if (from !== this.index) return false;
    this.index = to;
    this.#entry = null;
    this.hidden = false;
    return ops.every((op) => this.#apply(op));
  }

  /** What is written so far, as an entry of `messages`. */
  get entry() {
    const { id, turn, message } = this;
    return (this.#entry ??= freeze({ draft: true, id, turn, message, text: textOf(message) }));
  }

  #apply({ add, reasoning, part, set }) {
    let { content } = this.message;
    if (typeof add === "string" && typeof content === "string") return this.#become(content + add);
    const parts = Array.isArray(content) ? [...content] : content ? [{ type: "text", text: content }] : [];
    if (typeof add === "string") append(parts, "text", add);
    else if (typeof reasoning === "string") append(parts, "reasoning", reasoning);
    else if (!part) return false;
    else if (set === undefined) parts.push(part);
    else if (set in parts) parts[set] = part;
    else return false;
    return this.#become(parts);
  }

  #become(content) {
    this.message = { ...this.message, content };
    return true;
  }
}

function append(parts, type, text) {
  const last = parts.at(-1);
  if (last?.type === type && typeof last.text === "string") parts[parts.length - 1] = { ...last, text: last.text + text };
  else parts.push({ type, text });
}

/** Holds the newest rows without a hole, and what was paged before them; bounded in rows and characters. */
class Rows {
  list = [];
  #costs = [];
  #cost = 0;
  #paged = 0;

  constructor(rowsMax, charsMax) {
    this.rowsMax = rowsMax;
    this.charsMax = charsMax;
  }

  clear() {
    this.list = [];
    this.#costs = [];
    this.#cost = this.#paged = 0;
  }

  append(row, cost) {
    this.list.push(row);
    this.#costs.push(cost);
    this.#cost += cost;
  }

  /** Drops the oldest above the limits; returns whether there were any. */
  trim() {
    let drop = Math.max(0, this.list.length - this.rowsMax - this.#paged);
    let cost = this.#cost;
    for (let i = 0; i < this.list.length - 1 && (i < drop || cost > this.charsMax); i++) {
      cost -= this.#costs[i];
      drop = Math.max(drop, i + 1);
    }
    this.list.splice(0, drop);
    this.#costs.splice(0, drop);
    this.#cost = cost;
    return drop > 0;
  }

  /** Puts older rows before the others, as many as there is room for; returns whether that was all. */
  prepend(rows, cost) {
    const room = Math.max(0, Math.floor((this.charsMax - this.#cost) / Math.max(cost, 1)));
    const taken = rows.slice(Math.max(0, rows.length - room));
    this.list = [...taken, ...this.list];
    this.#costs = [...taken.map(() => cost), ...this.#costs];
    this.#cost += cost * taken.length;
    this.#paged += taken.length;
    return taken.length === rows.length;
  }
}

/** Is what one iteration has not taken yet. Rows wait; of the rest the newer replaces the older. */
class Feed {
  rows = 0;
  #items = [];
  #keyed = new Map();
  #waiting = [];
  #end = null;

  push(event, key) {
    const queued = key && this.#keyed.get(key);
    if (queued) queued.event = event;
    else {
      const item = { event, key };
      this.#items.push(item);
      if (key) this.#keyed.set(key, item);
      if (event.type === "row") this.rows += 1;
      else if (this.#items.length - this.rows > FEED_OTHERS_MAX) {
        this.#forget(this.#items.splice(this.#items.findIndex((one) => one.event.type !== "row"), 1)[0]);
      }
    }
    this.#serve();
  }

  clear() {
    this.#items = [];
    this.#keyed.clear();
    this.rows = 0;
  }

  end(error) {
    this.#end ??= { error };
    this.#serve();
  }

  next() {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      this.#serve();
    });
  }

  #serve() {
    while (this.#waiting.length && (this.#items.length || this.#end)) {
      const { resolve, reject } = this.#waiting.shift();
      const item = this.#items.shift();
      if (item) {
        this.#forget(item);
        if (item.event.type === "row") this.rows -= 1;
        resolve({ value: item.event, done: false });
      } else if (this.#end.error) {
        reject(this.#end.error);
        this.#end = {};
      } else resolve({ value: undefined, done: true });
    }
  }

  #forget(item) {
    if (item.key) this.#keyed.delete(item.key);
  }
}

/** Keeps unanswered messages where a reload finds them, one key each: other tabs write there too. */
class Saved {
  constructor(storage, place) {
    this.storage = storage;
    this.prefix = `parlatory:${place}:`;
  }

  all() {
    const found = [];
    for (let i = 0; i < (this.storage?.length ?? 0); i++) {
      const key = this.storage.key(i);
      if (!key.startsWith(this.prefix)) continue;
      try {
        found.push({ ...JSON.parse(this.storage.getItem(key)), clientId: key.slice(this.prefix.length) });
      } catch {
        this.storage.removeItem(key); // not of us, or cut off
      }
    }
    return found.sort((a, b) => a.n - b.n);
  }

  put({ clientId, n, principal, message }) {
    this.storage?.setItem(this.prefix + clientId, JSON.stringify({ n, principal, message }));
  }

  drop(clientId) {
    this.storage?.removeItem(this.prefix + clientId);
  }
}

/**
 * Is every message that is not answered, in order. One that was sent on a socket that was lost is sent again: its id
 * makes the repeat harmless. A refusal for now holds back everything behind it.
 */
class Outbox {
  entries = new Map();
  // Sent on this socket and not answered by `ack` or `error`: a row alone frees none, the server counts until its ack.
  slots = new Set();
  heldUntil = 0;
  bytes = 0;

  add(entry) {
    this.entries.set(entry.clientId, entry);
    this.bytes += entry.bytes;
  }

  remove(clientId) {
    const entry = this.entries.get(clientId);
    if (entry) this.bytes -= entry.bytes;
    this.entries.delete(clientId);
    return entry;
  }

  /** Returns what may be sent next. */
  next(now) {
    if (this.heldUntil > now) return undefined;
    for (const entry of this.entries.values()) if (waits(entry) && !entry.sent) return entry;
    return undefined;
  }

  lost() {
    this.slots.clear();
    for (const entry of this.entries.values()) entry.sent = false;
  }
}

/** Is whether a message is neither acknowledged nor refused. */
const waits = (entry) => entry.seq === undefined && !entry.error;

function entryOf(clientId, message, body, bytes, extra) {
  return { clientId, message, body, bytes, text: textOf(message), sent: false, view: null, ...extra };
}

/** Returns a message as `messages` shows it. */
function viewOf(entry) {
  const { clientId, message, text, seq, error } = entry;
  return (entry.view ??= freeze({
    clientId,
    message,
    text,
    pending: seq === undefined,
    ...(seq !== undefined && { seq }),
    ...(error && { error }),
  }));
}

/**
 * Keeps one socket at a time: connects, comes back, notices silence. The peer is told `hello(token)`, which returns the
 * first frame, `receive(frame, length)`, `lost(closeCode)`, `end(error)` and `moved()`.
 */
class Link {
  state = "connecting";
  retryAt = null;
  error = null;
  // Of the socket: a row has come, the server's `bye`, half a beat.
  fruitful = false;
  bye = null;
  periodMs = WELCOME_MS / SILENT_TICKS_MAX;
  #ws = null;
  #peer;
  #options;
  #token = undefined;
  #rejections = 0;
  #failures = 0;
  #since = 0;
  #silent = 0;
  #due = 0;
  #ticker;
  #waker;
  #everWelcome = false;
  #unlisten = noop;

  constructor(url, options, peer) {
    this.url = url;
    this.#options = options;
    this.#peer = peer;
  }

  start() {
    const check = () => this.check();
    const shown = () => document.visibilityState === "visible" && this.check();
    const targets = [
      [globalThis, "online", check],
      [globalThis, "offline", check],
      [globalThis, "pageshow", check],
      [globalThis.document, "visibilitychange", shown],
    ];
    for (const [target, name, listener] of targets) target?.addEventListener?.(name, listener);
    this.#unlisten = () => {
      for (const [target, name, listener] of targets) target?.removeEventListener?.(name, listener);
    };
    this.#visit();
  }

  send(frame) {
    this.#ws?.send(typeof frame === "string" ? frame : JSON.stringify(frame));
  }

  /** The server has accepted. */
  welcome(beatMs) {
    this.#everWelcome = true;
    this.#rejections = 0;
    this.state = "open";
    this.error = null;
    this.periodMs = Math.max(beatMs, 2) / 2;
  }

  /** Something may have changed while nobody looked: an open socket has to answer, a wait is over. */
  check() {
    if (this.state === "open") this.#probe();
    else if (this.#waker && !this.bye && online()) this.#visit();
    else if (this.#waker) this.#say(online() ? "waiting" : "offline");
  }

  /** The socket is of no use. */
  drop(code, text) {
    this.#over(undefined, new ParlatoryError(code, text));
  }

  close() {
    if (this.state === "closed") return;
    this.#detach();
    clearTimeout(this.#waker);
    this.#unlisten();
    this.retryAt = null;
    this.state = "closed";
  }

  /** Gets a new token for the socket that is there. */
  async renew() {
    if (typeof this.#options.token !== "function") return;
    const ws = this.#ws;
    try {
      const token = await this.#options.token();
      if (ws !== this.#ws || !ws) return;
      this.#token = token;
      this.send({ type: "auth", token });
    } catch {
      this.#token = undefined; // the server will close with 4401, and it is asked for again
    }
  }

  #say(state) {
    this.state = state;
    this.#peer.moved();
  }

  async #visit() {
    clearTimeout(this.#waker);
    this.#waker = undefined;
    this.retryAt = null;
    this.#say("connecting");
    const { token, WebSocket = globalThis.WebSocket } = this.#options;
    try {
      this.#token ??= typeof token === "function" ? await token() : token;
    } catch (cause) {
      if (this.state !== "closed") this.#wait(this.#delay(), new ParlatoryError("token", "there is no token", { cause }));
      return;
    }
    if (this.state === "closed") return;
    let ws;
    try {
      ws = this.#ws = new WebSocket(this.url, [PROTOCOL]);
    } catch (cause) {
      return this.#end(new ParlatoryError("connection", `${this.url} cannot be connected to`, { cause }));
    }
    this.fruitful = false;
    this.bye = null;
    this.periodMs = WELCOME_MS / SILENT_TICKS_MAX;
    this.#since = this.#options.now();
    this.#silent = 0;
    this.#tickIn(this.periodMs);
    ws.onopen = () => this.#opened(ws);
    ws.onmessage = ({ data }) => this.#received(data);
    ws.onclose = ({ code }) => this.#over(code);
  }

  #opened(ws) {
    if (ws.protocol !== PROTOCOL) {
      const error = new ParlatoryError("connection", `${this.url} does not speak ${PROTOCOL}`);
      if (this.#everWelcome) this.#over(undefined, error);
      else this.#end(error);
      return;
    }
    const hello = JSON.stringify(this.#peer.hello(this.#token));
    if (bytesOf(hello) > HELLO_BYTES_MAX) this.#end(new ParlatoryError("too_large", "the token is longer than a server reads"));
    else this.send(hello);
  }

  #received(data) {
    this.#silent = 0;
    const ws = this.#ws;
    try {
      this.#peer.receive(JSON.parse(data), data.length);
    } catch (error) {
      if (ws === this.#ws && ws) this.drop("protocol", `the server does not keep to the protocol: ${error.message}`);
    }
    this.#peer.moved();
  }

  #detach() {
    const ws = this.#ws;
    this.#ws = null;
    clearTimeout(this.#ticker);
    if (!ws) return;
    ws.onopen = ws.onmessage = ws.onclose = null;
    ws.onerror = noop;
    ws.close();
  }

  #end(error) {
    this.close();
    this.error = error;
    this.#peer.end(error);
    this.#peer.moved();
  }

  /** The socket is gone; `closeCode` is the server's. */
  #over(closeCode, error) {
    if (!this.#ws) return;
    this.#detach();
    const code = closeCode && closeCode !== 1005 && closeCode !== 1006 ? closeCode : this.bye?.code;
    if (this.fruitful || this.#options.now() - this.#since >= STABLE_MS) this.#failures = 0;
    error ??= new ParlatoryError("connection", code ? `the connection ended with ${code}` : "there is no connection", { closeCode: code });
    this.#peer.lost(code);
    if (this.state === "closed") return;
    if (FINAL[code]) return this.#end(new ParlatoryError(FINAL[code], `the server refused the connection with ${code}`, { closeCode: code }));
    if (code === 4401) {
      this.#token = undefined;
      this.#rejections += 1;
      error = new ParlatoryError("unauthorized", "the server wants a valid token", { closeCode: code });
      if (typeof this.#options.token !== "function" && this.#rejections > 1) return this.#end(error);
    }
    this.#wait(this.#delay(code), error);
  }

  /** Returns how long to wait: full jitter below a bound that doubles; what a `bye` asks for takes precedence. */
  #delay(code) {
    const failures = Math.max(this.#failures, FAILURES_MIN[code] ?? 0);
    this.#failures = Math.min(failures + 1, 16);
    const { random } = this.#options;
    if (!this.bye?.retryMs) return random() * Math.min(LONGEST_MS, FIRST_MS * 2 ** failures);
    const [low, high] = this.bye.retryMs.map((ms) => Math.min(Math.max(ms, 0), HINT_LONGEST_MS));
    return low + random() * Math.max(high - low, 0);
  }

  #wait(delayMs, error) {
    this.error = error;
    this.retryAt = this.#options.now() + delayMs;
    this.#waker = setTimeout(() => this.#visit(), delayMs);
    this.#say(online() ? "waiting" : "offline");
  }

  #tickIn(ms) {
    clearTimeout(this.#ticker);
    this.#due = this.#options.now() + ms;
    this.#ticker = setTimeout(() => this.#tick(), ms);
  }

  /**
   * Counts ticks, not time: a page whose timers are throttled has still received whatever came. 2.5 beats are five
   * ticks. A tick that is much too late means that the machine slept: the socket has to prove itself now.
   */
  #tick() {
    const late = this.#options.now() - this.#due;
    if (this.state === "open" && late > Math.max(this.periodMs, PROBE_MS) && this.#silent < SILENT_TICKS_MAX) {
      return this.#probe();
    }
    this.#silent += 1;
    if (this.#silent > SILENT_TICKS_MAX) this.drop("silence", "the server has fallen silent");
    else this.#tickIn(this.periodMs);
  }

  #probe() {
    this.#silent = SILENT_TICKS_MAX;
    this.send({ type: "ping", n: 0 });
    this.#tickIn(PROBE_MS);
  }
}

const online = () => globalThis.navigator?.onLine !== false;

/** Is one open conversation; `connect` makes it. */
class Chat {
  #link;
  #limits = null;
  #welcomed = false;
  #principal = null;
  #options;
  #saved;
  #outbox = new Outbox();
  #rows;
  #turns = new Turns();
  // Behind the last row applied; null until the first `opened`.
  #position = null;
  #floor = 0;
  #more = false;
  // Opens of this socket that are not answered: while there are any, rows belong to a position that was given up.
  #opens = 0;
  #subscribed = false;
  #caughtUp = false;
  #paused = false;
  #fruitless = 0;
  #openTimer;
  #sendTimer;
  #draft = null;
  #draftReopens = 0;
  #givenUp = null;
  #state = { rev: -1, value: undefined };
  #presence = null;
  #ids = 0;
  #calls = new Map();
  #pages = new Map();
  // Signals and cancels with a ping behind them: before its pong, an error that names no id is theirs.
  #pinged = [];
  #feeds = new Set();
  #listeners = new Set();
  // What was shown last; null where it is to be made anew.
  #messages = null;
  #status = null;
  #snapshot = null;
  #told = null;

  constructor(url, conversation, options) {
    this.conversation = conversation;
    this.#options = options;
    this.#rows = new Rows(options.keep, options.keepChars);
    this.#saved = new Saved(options.storage, `${url}:${conversation}`);
    this.subscribe = this.subscribe.bind(this);
    this.getSnapshot = this.getSnapshot.bind(this);
    for (const { clientId, n, principal, message } of this.#saved.all()) this.#add({ clientId, n, principal, message }).promise.catch(noop);
    this.#link = new Link(url, options, {
      hello: (token) => ({ type: "hello", ...(token !== undefined && token !== null && { token }), client: options.client }),
      receive: (frame, length) => this.#receive(frame, length),
      lost: (code) => this.#lost(code),
      end: (error) => this.#end(error),
      moved: () => this.#tell(),
    });
    this.#link.start();
  }

  // -- what there is to see

  /** Rows, then messages that are not acknowledged, then the draft. A new frozen array whenever something changed. */
  get messages() {
    if (!this.#messages) {
      const entries = [...this.#outbox.entries.values()];
      const draft = this.#draft && !this.#draft.hidden ? [this.#draft.entry] : [];
      this.#messages = Object.freeze([...this.#rows.list, ...entries.map(viewOf), ...draft]);
    }
    return this.#messages;
  }

  get status() {
    const { state, retryAt, error } = this.#link;
    let unsent = 0;
    for (const entry of this.#outbox.entries.values()) if (waits(entry)) unsent += 1;
    const status = {
      state: state === "open" && !this.#welcomed ? "connecting" : state,
      head: this.#position?.seq ?? 0,
      turn: this.#turns.now,
      retryAt,
      error,
      unsent,
      caughtUp: this.#caughtUp,
      more: this.#more,
      principal: this.#principal,
    };
    if (!this.#status || !sameFields(this.#status, status)) this.#status = Object.freeze(status);
    return this.#status;
  }

  /** The agent's public state; undefined if it has none. */
  get state() {
    return this.#state.value;
  }

  /** Who has the conversation open, `{count, principals}`; null until the server tells. */
  get presence() {
    return this.#presence;
  }

  /** Returns all of it as one frozen value, the same one until something changes. */
  getSnapshot() {
    const now = { messages: this.messages, status: this.status, state: this.state, presence: this.presence };
    if (!sameFields(this.#snapshot, now)) this.#snapshot = Object.freeze(now);
    return this.#snapshot;
  }

  /**
   * Calls the listener with the snapshot, now and after every change; returns what ends that. This is what Svelte takes
   * for a store, and with `getSnapshot` what `useSyncExternalStore` takes.
   */
  subscribe(listener) {
    const call = (snapshot) => listener(snapshot);
    this.#listeners.add(call);
    call(this.getSnapshot());
    return () => void this.#listeners.delete(call);
  }

  /** Iterates over what happens from now on: rows each exactly once, and the latest of everything else. */
  [Symbol.asyncIterator]() {
    const feed = new Feed();
    if (this.#link.state === "closed") feed.end(this.#link.error);
    else this.#feeds.add(feed);
    return {
      next: () => {
        const taken = feed.next();
        this.#resume();
        return taken;
      },
      return: async () => {
        this.#feeds.delete(feed);
        this.#resume();
        return { value: undefined, done: true };
      },
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  }

  // -- what there is to do

  /**
   * Appends a message, exactly once: text, the parts of a user message, or a message. Resolves with `{seq, duplicate}`
   * once it is committed; offline it waits.
   */
  send(message, { clientId = randomId() } = {}) {
    const { storage, outbox } = this.#options;
    try {
      this.#check();
      const old = this.#outbox.entries.get(clientId);
      if (!/^[A-Za-z0-9_-]{1,64}$/.test(clientId)) throw new ParlatoryError("misuse", "a clientId is 1 to 64 of [A-Za-z0-9_-]");
      if (old && !old.error) throw new ParlatoryError("misuse", "a message of this clientId is being sent");
      if (!outbox && !this.#welcomed) throw new ParlatoryError("offline", "there is no connection");
      const content = typeof message === "string" || Array.isArray(message);
      const last = [...this.#outbox.entries.values()].at(-1)?.n ?? 0;
      const n = Math.max(this.#options.now(), last + 1);
      const made = this.#add({ clientId, n, principal: this.#principal, message: content ? { role: "user", content: message } : message });
      made.promise.catch(noop); // its entry in `messages` shows the error as well
      try {
        this.#saved.put(made.entry);
      } catch (cause) {
        this.#event({ type: "error", error: new ParlatoryError("storage", "a message would not survive a reload", { cause }) });
      }
      this.#flush();
      this.#tell();
      return made.promise;
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** Takes back a message that was refused, or that was not sent yet; returns whether it could. */
  discard(clientId) {
    const entry = this.#outbox.entries.get(clientId);
    if (!entry || entry.seq !== undefined || entry.sent || entry.uncertain) return false;
    this.#settle(clientId);
    entry.reject(new ParlatoryError("cancelled", "the message was taken back"));
    this.#tell();
    return true;
  }

  /** Stops a turn, as `status.turn` says which: resolves once the server has heard it. */
  cancel({ turn } = {}) {
    const { state, id } = this.#turns.now;
    turn ??= state === "running" || state === "queued" ? id : undefined;
    return this.#ask((asked) => {
      this.#ping(asked, { type: "cancel", conversation: this.conversation, ...(turn !== undefined && { turn }) });
    }, turn === undefined ? {} : { again: true });
  }

  /**
   * Calls a method of the agent. The promise has its result; iterated at once, what a streaming method yields. With a
   * `key` (random, kept by the application) it may be repeated, also by this client after a loss: it runs once.
   */
  call(method, args = {}, { key } = {}) {
    const id = `c${(this.#ids += 1)}-${randomId()}`;
    const call = { frame: { type: "call", id, conversation: this.conversation, method, args, ...(key && { key }) }, key, sent: false, feed: null };
    const promise = new Promise((resolve, reject) => Object.assign(call, { resolve, reject }));
    promise[Symbol.asyncIterator] = () => this.#items(id, call, promise);
    try {
      this.#check();
      this.#calls.set(id, call);
      this.#flush();
    } catch (error) {
      call.reject(error);
    }
    return promise;
  }

  /** Tells the other subscribers something ephemeral; returns false where there is no connection to do it on. */
  signal(name, data) {
    if (!this.#welcomed) return false;
    this.#ping(null, { type: "signal", conversation: this.conversation, name, ...(data !== undefined && { data }) });
    return true;
  }

  /** Gets rows before seq `before`, by default those before the oldest held, and puts them before those in `messages`. */
  page({ before, limit } = {}) {
    const id = `p${(this.#ids += 1)}`;
    before ??= this.#position ? this.#first : BEFORE_NEWEST;
    const frame = { type: "page", id, conversation: this.conversation, before, ...(limit !== undefined && { limit }) };
    return this.#ask(() => this.#link.send(frame), { id });
  }

  /** Ends it: nothing is received any more; what is not acknowledged stays in `storage`, if there is one. */
  close() {
    this.#link.close();
    this.#end(new ParlatoryError("closed", "the chat was closed"), true);
    this.#tell();
  }

  // -- the socket

  #receive(frame, length) {
    if (frame.conversation !== undefined && frame.conversation !== this.conversation) return;
    switch (frame.type) {
      case "welcome": return this.#welcome(frame);
      case "opened": return this.#opened(frame);
      case "reset": return this.#opened(frame);
      case "rows": return this.#take(frame, length);
      case "live": return this.#live(frame);
      case "draft": return this.#draftSet(frame);
      case "delta": return this.#delta(frame);
      case "draftEnd": return this.#draftEnd(frame);
      case "turn": return this.#event({ type: "turn", turn: this.#turns.told(frame) }, `turn ${frame.id}`);
      case "ack": return this.#ack(frame);
      case "page": return this.#page(frame, length);
      case "item": return this.#item(frame);
      case "result": return this.#result(frame);
      case "state": return this.#patch(frame);
      case "event": return this.#event(freeze(frame));
      case "signal": return this.#event(freeze(frame), `signal ${frame.name} ${frame.by}`);
      case "presence": return this.#present(frame);
      case "closed": return this.#closed(frame);
      case "error": return this.#error(frame);
      case "beat": return this.#beat(frame);
      case "authExpiring": return this.#link.renew();
      case "bye": return void (this.#link.bye = frame);
      case "pong": return this.#pong(frame);
    }
  }

  #welcome({ limits, principal, beatMs }) {
    this.#limits = limits;
    this.#principal = principal;
    this.#link.welcome(beatMs);
    for (const entry of this.#outbox.entries.values()) {
      // Somebody else signed in: their messages are not ours to send.
      if ((entry.principal ??= principal) !== principal) this.#refuse(entry, new ParlatoryError("forbidden", "it is of another principal"), true);
    }
    if (this.#welcomed) return;
    this.#welcomed = true;
    this.#paused = false;
    this.#fruitless = 0;
    this.#open();
    for (const asked of this.#pages.values()) asked.send(asked);
    this.#flush();
  }

  #lost(code) {
    this.#welcomed = this.#subscribed = this.#caughtUp = false;
    this.#opens = 0;
    clearTimeout(this.#openTimer);
    const { entries } = this.#outbox;
    if (code === 1009) {
      // The longest is not repeated: it would end every socket the same way.
      const sent = [...entries.values()].filter((entry) => entry.sent && waits(entry));
      const largest = sent.sort((a, b) => b.bytes - a.bytes)[0];
      if (largest) this.#refuse(largest, new ParlatoryError("too_large", "the server does not read so long a message"));
    }
    for (const entry of entries.values()) entry.uncertain ||= entry.sent;
    this.#outbox.lost();
    for (const { asked } of this.#pinged) if (asked && !asked.again) this.#answer(asked, false);
    this.#pinged = [];
    for (const [id, call] of this.#calls) {
      if (call.key) call.sent = false;
      else if (call.sent) this.#finish(id, new ParlatoryError("lost", "the connection was lost; the call may have run"));
    }
  }

  /** There will be no further socket. */
  #end(error, quiet = false) {
    this.#welcomed = this.#subscribed = this.#caughtUp = false;
    clearTimeout(this.#openTimer);
    clearTimeout(this.#sendTimer);
    for (const entry of this.#outbox.entries.values()) {
      if (!waits(entry)) continue;
      if (quiet) entry.reject(error);
      else this.#refuse(entry, error, true);
    }
    for (const asked of this.#pages.values()) asked.reject(error);
    this.#pages.clear();
    for (const id of this.#calls.keys()) this.#finish(id, error);
    this.#tell();
    for (const feed of this.#feeds) feed.end(quiet ? null : error);
    this.#feeds.clear();
  }

  #check() {
    if (this.#link.state === "closed") throw this.#link.error ?? new ParlatoryError("closed", "the chat was closed");
  }

  #stop(error) {
    this.#link.close();
    this.#link.error = error;
    this.#end(error);
  }

  // -- rows

  get #first() {
    return this.#rows.list[0]?.seq ?? this.#position.seq + 1;
  }

  #open() {
    this.#opens += 1;
    clearTimeout(this.#openTimer);
    const frame = { type: "open", conversation: this.conversation };
    if (this.#options.tail !== undefined) frame.tail = this.#options.tail;
    if (this.#position) {
      const { epoch, seq, at } = this.#position;
      Object.assign(frame, { epoch, after: seq }, at && seq && { at });
    }
    this.#link.send(frame);
  }

  #opened({ type, epoch, floor = 0, from, turn, state, reason }) {
    this.#opens = Math.max(this.#opens - 1, 0);
    if (this.#opens || this.#paused) return;
    this.#setDraft(null);
    this.#givenUp = null;
    this.#turns.opened(turn);
    this.#state = state ? { rev: state.rev, value: freeze(state.set) } : { rev: -1, value: undefined };
    this.#floor = floor;
    const held = this.#position;
    if (held && (type === "reset" || held.epoch !== epoch)) this.#reset(epoch, from, reason ?? "epoch");
    else if (!held) this.#position = { epoch, seq: from };
    else if (from > held.seq) throw new Error(`opened at ${from}, behind the rows asked for`);
    this.#more = this.#first - 1 > floor;
    this.#subscribed = true;
    this.#caughtUp = false;
  }

  #reset(epoch, seq, reason) {
    this.#rows.clear();
    this.#position = { epoch, seq };
    this.#messages = null;
    for (const [clientId, entry] of this.#outbox.entries) if (entry.seq !== undefined) this.#outbox.remove(clientId);
    for (const feed of this.#feeds) feed.clear();
    this.#event({ type: "reset", reason });
  }

  #take({ epoch, rows }, length) {
    this.#link.fruitful = true;
    for (const { by, clientId, seq } of rows) if (clientId && by === this.#principal) this.#acknowledge(clientId, seq, false);
    if (!this.#subscribed || this.#opens) return;
    let hole = epoch !== this.#position.epoch;
    for (const row of hole ? [] : rows) {
      const { seq } = this.#position;
      if (row.seq <= seq) continue;
      hole = row.seq !== seq + 1;
      if (hole) break;
      this.#apply(row, length / rows.length);
    }
    if (this.#rows.trim()) this.#more = true;
    if (hole) this.#again();
    else if ([...this.#feeds].some((feed) => feed.rows > FEED_ROWS_MAX)) {
      this.#paused = true;
      this.#subscribed = this.#caughtUp = false;
      this.#link.send({ type: "close", conversation: this.conversation });
    }
  }

  #apply(row, cost) {
    const shown = freeze({ ...row, text: textOf(row.message) });
    this.#position = { epoch: this.#position.epoch, seq: row.seq, at: row.at };
    this.#rows.append(shown, cost);
    this.#fruitless = 0;
    this.#messages = null;
    const entry = this.#outbox.entries.get(row.clientId);
    if (entry?.seq === row.seq) this.#outbox.remove(row.clientId);
    // The row of a draft comes before its end: nobody shall see both.
    const draft = this.#draft;
    if (draft && row.turn === draft.turn && row.message.role === "assistant" && shown.text.startsWith(textOf(draft.message))) draft.hidden = true;
    this.#event({ type: "row", row: shown });
  }

  #again() {
    this.#fruitless += 1;
    if (this.#fruitless > REOPENS_MAX) throw new Error("rows are missing, however often they are asked for");
    this.#caughtUp = false;
    this.#open();
  }

  #live({ seq }) {
    if (!this.#subscribed || this.#opens) return;
    if (seq > this.#position.seq) return this.#again();
    this.#fruitless = 0;
    this.#caughtUp = true;
  }

  #beat({ heads }) {
    if (!this.#subscribed || this.#opens) return;
    if (Object.hasOwn(heads, this.conversation) && heads[this.conversation] > this.#position.seq) this.#again();
  }

  #resume() {
    if (!this.#paused || [...this.#feeds].some((feed) => feed.rows > FEED_ROWS_MAX / 2)) return;
    this.#paused = false;
    if (this.#welcomed) this.#open();
  }

  #closed({ code }) {
    this.#subscribed = this.#caughtUp = false;
    if (RETRYABLE.has(code)) this.#openTimer = setTimeout(() => this.#open(), RETRY_MS);
    else this.#stop(new ParlatoryError(code, "the server ended the subscription"));
  }

  #page({ id, epoch, rows, more }, length) {
    const asked = this.#pages.get(id);
    if (!asked) return;
    const shown = rows.map((row) => freeze({ ...row, text: textOf(row.message) }));
    const held = this.#position;
    if (held?.epoch === epoch) {
      const first = this.#first;
      const older = shown.filter((row) => row.seq < first);
      if (older.length ? older.at(-1).seq === first - 1 : !more && asked.before === first) {
        this.#more = !this.#rows.prepend(older, length / Math.max(rows.length, 1)) || more;
        this.#messages = null;
      }
    }
    this.#answer(asked, { rows: Object.freeze(shown), more });
  }

  // -- drafts, state, presence

  #setDraft(draft) {
    if (this.#draft || draft) this.#messages = null;
    this.#draft = draft;
    if (draft && this.#feeds.size) this.#event({ type: "draft", draft: draft.entry }, `draft ${draft.id}`);
  }

  #draftSet(frame) {
    if (this.#subscribed && !this.#opens && frame.id !== this.#givenUp) this.#setDraft(new Draft(frame));
  }

  #delta(frame) {
    if (!this.#subscribed || this.#opens || frame.id === this.#givenUp) return;
    const draft = this.#draft;
    if (draft?.id === frame.id) {
      if (frame.to <= draft.index) return;
      if (draft.apply(frame)) {
        this.#draftReopens = 0;
        return this.#setDraft(draft);
      }
    }
    this.#draftReopens += 1;
    if (this.#draftReopens > REOPENS_MAX) {
      this.#draftReopens = 0;
      this.#givenUp = frame.id; // its row will come all the same
      return this.#setDraft(null);
    }
    this.#caughtUp = false;
    this.#open();
  }

  #draftEnd({ id, seq, finish }) {
    if (!this.#subscribed || this.#opens) return;
    if (this.#draft?.id === id) this.#setDraft(null);
    this.#event({ type: "draftEnd", id, finish, ...(seq !== undefined && { seq }) });
  }

  #patch({ rev, set, patch }) {
    if (!this.#subscribed || this.#opens || (set === undefined && rev <= this.#state.rev)) return;
    if (set === undefined && rev !== this.#state.rev + 1) return this.#again();
    this.#state = { rev, value: freeze(set === undefined ? merged(this.#state.value, patch) : set) };
    this.#event({ type: "state", rev, state: this.#state.value }, "state");
  }

  #present({ count, principals }) {
    this.#presence = freeze({ count, ...(principals && { principals }) });
    this.#event({ type: "presence", ...this.#presence }, "presence");
  }

  // -- sends

  #add({ clientId, n, principal, message }) {
    const text = JSON.stringify(message);
    if (message === null || typeof message !== "object" || !text) throw new ParlatoryError("bad_message", "a message is text, parts or an object");
    if (/\\ud[89a-f]/.test(text.replaceAll("\\\\", ""))) throw new ParlatoryError("bad_message", "there is half a character in the message");
    const bytes = bytesOf(text);
    this.#measure(bytes);
    const { entries } = this.#outbox;
    if (entries.size >= OUTBOX_MAX || this.#outbox.bytes + bytes > OUTBOX_BYTES_MAX) {
      throw new ParlatoryError("outbox_full", "too much waits to be sent: wait, or discard some");
    }
    const entry = entryOf(clientId, freeze(JSON.parse(text)), text, bytes, { n, principal });
    this.#outbox.remove(clientId);
    this.#outbox.add(entry);
    this.#messages = null;
    return { entry, promise: new Promise((resolve, reject) => Object.assign(entry, { resolve, reject })) };
  }

  #measure(bytes) {
    const { message = Infinity, frame = Infinity } = this.#limits ?? {};
    const limit = Math.min(message, frame - 2 * this.conversation.length - 200);
    if (bytes > limit) throw new ParlatoryError("too_large", `the message is ${bytes} bytes, of at most ${limit}`);
  }

  /** Sends what may be sent; what is over a limit is refused here, because the server might close over it. */
  #flush() {
    if (!this.#welcomed) return;
    const most = Math.min(32, this.#limits.inflight);
    let calls = [...this.#calls.values()].filter((call) => call.sent).length;
    for (const call of this.#calls.values()) {
      if (call.sent || call.held || calls + this.#outbox.slots.size >= most) continue;
      call.sent = true;
      calls += 1;
      this.#link.send(call.frame);
    }
    let entry;
    while (calls + this.#outbox.slots.size < most && (entry = this.#outbox.next(this.#options.now()))) {
      try {
        this.#measure(entry.bytes);
      } catch (error) {
        this.#refuse(entry, error);
        continue;
      }
      entry.sent = true;
      this.#outbox.slots.add(entry.clientId);
      const { clientId, body } = entry;
      this.#link.send(`{"type":"send","conversation":${JSON.stringify(this.conversation)},"clientId":"${clientId}","message":${body}}`);
    }
  }

  #ack({ clientId, seq, duplicate = false }) {
    this.#outbox.slots.delete(clientId);
    this.#acknowledge(clientId, seq, duplicate);
    this.#flush();
  }

  /** The message is row `seq`; until that is here its entry stays. */
  #acknowledge(clientId, seq, duplicate) {
    const entry = this.#outbox.entries.get(clientId);
    if (!entry || !waits(entry)) return;
    this.#saved.drop(clientId);
    this.#messages = null;
    entry.seq = seq;
    entry.view = null;
    if (seq <= (this.#position?.seq ?? -1)) this.#outbox.remove(clientId);
    entry.resolve({ seq, duplicate });
  }

  /** Refuses a message for good; it stays in `messages` with the error, and where `kept` in the storage. */
  #refuse(entry, error, kept = false) {
    if (!waits(entry)) return;
    if (!kept) this.#saved.drop(entry.clientId);
    entry.error = error;
    entry.view = this.#messages = null;
    entry.reject(error);
  }

  #settle(clientId) {
    this.#outbox.remove(clientId);
    this.#saved.drop(clientId);
    this.#messages = null;
  }

  #error(frame) {
    const { code, text, retryMs, clientId, id } = frame;
    const again = RETRYABLE.has(code);
    const afterMs = Math.max(retryMs ?? RETRY_MS, 0);
    const error = new ParlatoryError(code, text, { retryMs });
    if (clientId !== undefined) this.#sendRefused(clientId, error, again ? afterMs : null);
    else if (this.#calls.has(id)) this.#callRefused(id, error, again ? afterMs : null);
    else if (this.#pages.has(id)) {
      const asked = this.#pages.get(id);
      if (again) setTimeout(() => this.#welcomed && this.#pages.has(id) && asked.send(asked), afterMs);
      else this.#answer(asked, null, error);
    } else if (id === undefined && this.#pinged.length) {
      const { asked } = this.#pinged.shift();
      if (asked) this.#answer(asked, null, error);
      else this.#event({ type: "error", error });
    } else if (frame.conversation === undefined || !this.#opens) this.#event({ type: "error", error });
    else {
      this.#opens -= 1;
      if (this.#opens) return;
      this.#subscribed = false;
      if (again) this.#openTimer = setTimeout(() => this.#open(), afterMs);
      else this.#stop(error);
    }
  }

  #sendRefused(clientId, error, afterMs) {
    const { slots, entries } = this.#outbox;
    slots.delete(clientId);
    const entry = entries.get(clientId);
    if (entry && waits(entry)) {
      if (afterMs === null) this.#refuse(entry, error);
      else {
        entry.sent = false;
        entry.uncertain ||= error.code === "internal";
        const now = this.#options.now();
        this.#outbox.heldUntil = Math.max(this.#outbox.heldUntil, now + afterMs);
        clearTimeout(this.#sendTimer);
        this.#sendTimer = setTimeout(() => this.#release(), this.#outbox.heldUntil - now);
      }
    }
    this.#flush();
  }

  #release() {
    this.#outbox.heldUntil = 0;
    this.#flush();
    this.#tell();
  }

  // -- requests

  /** Keeps a request until it is answered; sends it now and, where it makes sense, on every new socket. */
  #ask(send, { id = `a${(this.#ids += 1)}`, again = false } = {}) {
    return new Promise((resolve, reject) => {
      this.#check();
      const asked = { id, again, send, resolve, reject };
      this.#pages.set(id, asked);
      if (this.#welcomed) send(asked);
    });
  }

  #answer(asked, value, error) {
    this.#pages.delete(asked.id);
    if (error) asked.reject(error);
    else asked.resolve(value);
  }

  #ping(asked, frame) {
    const n = (this.#ids += 1);
    this.#pinged.push({ n, asked });
    this.#link.send(frame);
    this.#link.send({ type: "ping", n });
  }

  #pong({ n }) {
    while (this.#pinged.length && this.#pinged[0].n <= n) {
      const { asked } = this.#pinged.shift();
      if (asked) this.#answer(asked, true);
    }
  }

  #items(id, call, promise) {
    promise.catch(noop);
    const feed = (call.feed ??= new Feed());
    if (!this.#calls.has(id)) promise.then(() => feed.end(), (error) => feed.end(error));
    return {
      next: async () => {
        const { value, done } = await feed.next();
        return { value: value?.value, done };
      },
      return: async () => {
        if (this.#calls.has(id) && this.#welcomed && call.sent) this.#link.send({ type: "cancel", conversation: this.conversation, id });
        this.#finish(id, new ParlatoryError("cancelled", "the iteration was left"));
        return { value: undefined, done: true };
      },
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  }

  #item({ id, value }) {
    const call = this.#calls.get(id);
    if (!call?.feed) return;
    call.feed.push({ type: "row", value: freeze(value) });
    if (call.feed.rows <= ITEMS_MAX) return;
    this.#link.send({ type: "cancel", conversation: this.conversation, id });
    this.#finish(id, new ParlatoryError("too_many", `more than ${ITEMS_MAX} items wait to be taken`));
  }

  #result({ id, value }) {
    this.#finish(id, null, value);
  }

  #callRefused(id, error, afterMs) {
    const call = this.#calls.get(id);
    // `internal` may have run: only a key makes its repeat harmless.
    if (afterMs === null || (error.code === "internal" && !call.key)) return this.#finish(id, error);
    Object.assign(call, { sent: false, held: true });
    setTimeout(() => {
      call.held = false;
      this.#flush();
    }, afterMs);
  }

  #finish(id, error, value) {
    const call = this.#calls.get(id);
    this.#calls.delete(id);
    if (!call) return;
    if (error) call.reject(error);
    else call.resolve(freeze(value));
    call.feed?.end(error);
    this.#flush();
  }

  // -- telling

  #event(event, key) {
    for (const feed of this.#feeds) feed.push(event, key);
  }

  #tell() {
    const before = this.#status;
    if (this.status !== before && before) this.#event({ type: "status", status: this.status }, "status");
    if (!this.#listeners.size || this.getSnapshot() === this.#told) return;
    this.#told = this.getSnapshot();
    for (const listener of [...this.#listeners]) {
      try {
        listener(this.#told);
      } catch (error) {
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }
}

/**
 * Opens a conversation, `<agent>/<name>`, on a socket of its own; does not wait for the server.
 *
 * `url` is `ws://host:port/v1`, also as `https:` or relative to the page. See parlatory.d.ts for the options.
 */
export function connect(url, conversation, options = {}) {
  const { storage, WebSocket = globalThis.WebSocket } = options;
  let address;
  try {
    address = new URL(url, globalThis.location?.href);
    address.protocol = address.protocol.replace("http", "ws");
  } catch (cause) {
    throw new ParlatoryError("misuse", `${url} is no address of a server`, { cause });
  }
  conversation = String(conversation).normalize("NFC");
  if (!/^[a-z][a-z0-9-]{0,31}\/./.test(conversation)) throw new ParlatoryError("misuse", "a conversation is <agent>/<name>");
  if (typeof WebSocket !== "function") throw new ParlatoryError("misuse", "there is no WebSocket here: use Node 22, or pass one");
  let { client } = options;
  if (!client && storage) {
    client = storage.getItem("parlatory.client") ?? installation;
    storage.setItem("parlatory.client", client);
  }
  return new Chat(address.href, conversation, {
    outbox: true,
    keep: 1000,
    keepChars: 16 << 20,
    now: Date.now,
    random: Math.random,
    ...options,
    client: client ?? installation,
  });
}
