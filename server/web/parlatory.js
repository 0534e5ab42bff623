/**
 * The JavaScript client: one conversation, every row exactly once, every send exactly once. See docs/browser.md.
 *
 * Each chat has a socket of its own, so that its token, its delays and its slowness are its own. What is said is data:
 * nothing in here makes markup of it.
 */

const PROTOCOL = "parlatory.v1";
const INFLIGHT_MAX = 32;
const OUTBOX_MAX = 1000;
const OUTBOX_BYTES_MAX = 16 << 20;
const HELLO_BYTES_MAX = 4096;
const FIRST_MS = 500;
const LONGEST_MS = 30_000;
const HINT_LONGEST_MS = 300_000;
const STABLE_MS = 30_000;
const WELCOME_MS = 10_000;
const PROBE_MS = 5_000;
const RETRY_MS = 1_000;
const SILENT_TICKS_MAX = 5;
const REOPENS_MAX = 3;
const ROWS_WAITING_MAX = 1000;
const EVENTS_MAX = 256;
const ITEMS_MAX = 10_000;
const RETRYABLE = new Set(["busy", "rate", "draining", "internal"]);
const REFUSALS = { 4400: "bad_frame", 4401: "unauthorized", 4403: "forbidden" };
// Who overloads a server shall not be back within the first half second.
const FAILURES_MIN = { 1013: 2, 4429: 4 };

const encoder = new TextEncoder();
const bytesOf = (text) => encoder.encode(text).length;
const noop = () => {};

/** Says what went wrong; `code` is stable, the text is for people. */
export class ParlatoryError extends Error {
  constructor(code, text, { retryMs, closeCode, cause } = {}) {
    super(`${code}: ${text}`, cause === undefined ? undefined : { cause });
    this.name = "ParlatoryError";
    this.code = code;
    this.retryMs = retryMs;
    this.closeCode = closeCode;
  }
}

/** Returns 128 random bits. */
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Joins the text of a message. */
export function textOf({ content }) {
  if (typeof content === "string") return content;
  return Array.isArray(content) ? content.map((part) => (part.type === "text" ? part.text : "")).join("") : "";
}

// All chats of a page are of one author.
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

const IDLE = freeze({ state: "idle", id: undefined, queued: 0 });

/** Is what the agent does. Ends may be missed: a turn that runs, or ran, ends any other. */
class Turns {
  #last = IDLE;
  #running = null;
  #queued = new Map();

  get now() {
    return this.#running ?? this.#queued.values().next().value ?? this.#last;
  }

  opened(turn = IDLE) {
    this.#running = null;
    this.#queued.clear();
    this.told(turn);
  }

  /** The last states come next; what else is queued nobody knows. */
  lagged() {
    this.#queued.clear();
    if (this.#last.state === "queued") this.#last = IDLE;
  }

  told({ state, id, queued = 0 }) {
    const turn = freeze({ state, id, queued });
    this.#last = turn;
    this.#queued.delete(undefined); // `opened` does not name it
    const waited = this.#queued.delete(id);
    if (state === "queued") {
      this.#queued.set(id, turn);
      if (this.#queued.size > EVENTS_MAX) this.#queued.delete(this.#queued.keys().next().value);
    } else if (state === "running") this.#running = turn;
    else if (!waited || state !== "stopped") this.#running = null; // it ran
    return turn;
  }
}

/** Is a message that is still being written. */
class Draft {
  #entry = null;

  constructor({ id, turn, index, message }) {
    Object.assign(this, { id, turn, index, message, hidden: false });
  }

  /** Applies a delta; returns whether it fits. */
  apply({ from, to, ops }) {
    if (from !== this.index) return false;
    this.index = to;
    this.#entry = null;
    this.hidden = false;
    return ops.every((op) => this.#apply(op));
  }

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
  const more = last?.type === type && typeof last.text === "string";
  if (more) parts[parts.length - 1] = { ...last, text: last.text + text };
  else parts.push({ type, text });
}

/** Is what one iteration has not taken yet. With a key the newer replaces the older, of those the last 256 stay. */
class Feed {
  // How many have no key.
  size = 0;
  #items = new Map();
  #waiting = [];
  #end = null;

  push(value, key) {
    this.#items.delete(key);
    this.#items.set(key ?? {}, value);
    if (key === undefined) this.size += 1;
    else if (this.#items.size - this.size > EVENTS_MAX) {
      this.#items.delete([...this.#items.keys()].find((one) => typeof one === "string"));
    }
    this.#serve();
  }

  clear() {
    this.#items.clear();
    this.size = 0;
  }

  end(error) {
    this.#end ??= { error };
    this.#serve();
  }

  iterate(taken, left) {
    return {
      next: () => {
        const next = new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
        this.#serve();
        taken();
        return next;
      },
      return: async () => {
        left();
        return { value: undefined, done: true };
      },
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  }

  #serve() {
    while (this.#waiting.length && (this.#items.size || this.#end)) {
      const { resolve, reject } = this.#waiting.shift();
      const [[key, value] = []] = this.#items;
      if (this.#items.delete(key)) {
        if (typeof key === "object") this.size -= 1;
        resolve({ value, done: false });
      } else if (this.#end.error) {
        reject(this.#end.error);
        this.#end = {};
      } else resolve({ value: undefined, done: true });
    }
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Keeps messages where a reload finds them, one key each: other tabs write there too. */
class Saved {
  constructor(storage, place) {
    this.storage = storage;
    this.prefix = `parlatory:${place}:`;
  }

  /** What is not of us comes as a message that cannot be said. */
  all() {
    const { storage, prefix } = this;
    const found = Array.from({ length: storage?.length ?? 0 }, (_, i) => storage.key(i))
      .filter((key) => key.startsWith(prefix))
      .map((key) => ({ ...parsed(storage.getItem(key)), clientId: key.slice(prefix.length) }));
    return found.sort((a, b) => a.n - b.n);
  }

  put({ clientId, n, principal, message }) {
    this.storage?.setItem(this.prefix + clientId, JSON.stringify({ n, principal, message }));
  }

  drop(clientId) {
    this.storage?.removeItem(this.prefix + clientId);
  }
}

/** Is every message that is not answered, in order. Its id makes it harmless to send one again on the next socket. */
class Outbox {
  entries = new Map();
  // Sent on this socket and not answered: a row alone frees none, the server counts until its ack.
  slots = new Set();
  heldUntil = 0;
  bytes = 0;

  add(entry) {
    this.remove(entry.clientId);
    this.entries.set(entry.clientId, entry);
    this.bytes += entry.bytes;
  }

  remove(clientId) {
    this.bytes -= this.entries.get(clientId)?.bytes ?? 0;
    this.entries.delete(clientId);
  }

  get waiting() {
    return [...this.entries.values()].filter(waits);
  }

  next(now) {
    return this.heldUntil > now ? undefined : this.waiting.find(({ sent }) => !sent);
  }

  lost() {
    this.slots.clear();
    for (const entry of this.entries.values()) {
      entry.uncertain ||= entry.sent;
      entry.sent = false;
    }
  }
}

const waits = ({ seq, error }) => seq === undefined && !error;

function viewOf(entry) {
  const { clientId, message, text, seq, error } = entry;
  const more = error ? { error } : seq === undefined ? {} : { seq };
  return (entry.view ??= freeze({ clientId, message, text, pending: seq === undefined, ...more }));
}

/** Keeps one socket at a time: connects, comes back, notices silence. */
class Link {
  state = "connecting";
  retryAt = null;
  error = null;
  // Of this socket: whether a row has come, and the server's `bye`.
  fruitful = false;
  bye = null;
  periodMs = WELCOME_MS / SILENT_TICKS_MAX;
  #ws = null;
  #peer;
  #options;
  #token;
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

  send(text) {
    this.#ws?.send(text);
  }

  welcome(beatMs) {
    this.#everWelcome = true;
    this.#rejections = 0;
    this.state = "open";
    this.error = null;
    this.periodMs = Math.max(beatMs, 2) / 2;
  }

  /** Something may have changed: an open socket has to answer, a wait is over. */
  check() {
    if (this.state === "open") this.#probe();
    else if (this.#waker && !this.bye && online()) {
      this.#failures = 0;
      this.#visit();
    } else if (this.#waker) this.#say(online() ? "waiting" : "offline");
  }

  drop(code, text) {
    this.#over(undefined, new ParlatoryError(code, text));
  }

  close(error = null) {
    if (this.state === "closed") return;
    this.#detach();
    clearTimeout(this.#waker);
    this.#unlisten();
    this.retryAt = null;
    this.error = error;
    this.state = "closed";
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
    const { token, WebSocket } = this.#options;
    try {
      this.#token ??= typeof token === "function" ? await token() : token;
    } catch (cause) {
      const error = new ParlatoryError("token", "there is no token", { cause });
      return this.state !== "closed" && this.#wait(this.#delay(), error);
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
    ws.onerror = () => this.#over(); // not every WebSocket closes after it
  }

  #opened(ws) {
    if (ws.protocol !== PROTOCOL) {
      const error = new ParlatoryError("connection", `${this.url} does not speak ${PROTOCOL}`);
      return this.#everWelcome ? this.#over(undefined, error) : this.#end(error);
    }
    const hello = JSON.stringify(this.#peer.hello(this.#token));
    if (bytesOf(hello) > HELLO_BYTES_MAX) this.#end(new ParlatoryError("too_large", "no server reads so long a token"));
    else this.send(hello);
  }

  #received(data) {
    this.#silent = 0;
    const ws = this.#ws;
    try {
      this.#peer.receive(JSON.parse(data), data.length);
    } catch (error) {
      if (ws === this.#ws && ws) this.drop("protocol", `the server does not keep to it: ${error.message}`);
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
    this.close(error);
    this.#peer.end(error);
    this.#peer.moved();
  }

  #over(closeCode, error) {
    if (!this.#ws) return;
    this.#detach();
    // 1005 and 1006 are the browser's, for none.
    const code = closeCode && closeCode !== 1005 && closeCode !== 1006 ? closeCode : this.bye?.code;
    if (this.fruitful || this.#options.now() - this.#since >= STABLE_MS) this.#failures = 0;
    const text = `the connection ended with ${code}`;
    error ??= new ParlatoryError(REFUSALS[code] ?? "connection", text, { closeCode: code });
    this.state = "waiting";
    this.#peer.lost(code);
    if (this.state === "closed") return;
    if (code === 4401) {
      this.#token = undefined;
      this.#rejections += 1;
    }
    const again = code === 4401 && (typeof this.#options.token === "function" || this.#rejections < 2);
    if (REFUSALS[code] && !again) this.#end(error);
    else this.#wait(this.#delay(code), error);
  }

  /** Full jitter below a bound that doubles; what a `bye` asks for takes precedence. */
  #delay(code) {
    const failures = Math.max(this.#failures, FAILURES_MIN[code] ?? 0);
    this.#failures = Math.min(failures + 1, 16);
    const { random } = this.#options;
    if (!this.bye?.retryMs) return random() * Math.min(LONGEST_MS, FIRST_MS * 2 ** failures);
    const [low, high] = this.bye.retryMs.map((ms) => Math.min(ms, HINT_LONGEST_MS));
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
   * Counts ticks of half a beat, not time: throttled timers do not keep frames away. One that is much too late means
   * that the machine slept: the socket has to answer now.
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
    if (this.#silent >= SILENT_TICKS_MAX) return;
    this.#silent = SILENT_TICKS_MAX;
    this.send('{"type":"ping","n":0}');
    this.#tickIn(PROBE_MS);
  }
}

const online = () => globalThis.navigator?.onLine !== false;

/** Is one open conversation; `connect` makes it. */
class Chat {
  #link;
  #options;
  #saved;
  #limits = {};
  #principal = null;
  #outbox = new Outbox();
  #turns = new Turns();
  // With what each costs.
  #rows = new Map();
  #chars = 0;
  #paged = 0;
  #more = false;
  // Behind the last row applied; null until the first `opened`.
  #position = null;
  #subscribed = false;
  #caughtUp = false;
  #paused = false;
  #fruitless = 0;
  #openTimer;
  #sendTimer;
  #draft = null;
  #draftReopens = 0;
  #givenUp = null;
  #state = {};
  #presence = null;
  #requests = new Map();
  // Opens, and cancels and signals with a ping behind them: an error that names no id is about the oldest.
  #asked = [];
  #pings = 0;
  #feeds = new Set();
  #listeners = new Set();
  // What was shown last; null if it is to be made anew.
  #messages = null;
  #status = null;
  #snapshot = null;
  #told = null;

  constructor(url, conversation, options) {
    this.conversation = conversation;
    this.#options = options;
    this.#saved = new Saved(options.storage, `${url}:${conversation}`);
    this.subscribe = this.subscribe.bind(this);
    this.getSnapshot = this.getSnapshot.bind(this);
    for (const saved of this.#saved.all()) {
      try {
        this.#add(saved);
      } catch {
        this.#saved.drop(saved.clientId);
      }
    }
    const { client } = options;
    this.#link = new Link(url, options, {
      hello: (token) => ({ type: "hello", token: token ?? undefined, client }),
      receive: (frame, length) => this.#receive(frame, length),
      lost: (code) => this.#lost(code),
      end: (error) => this.#end(error),
      moved: () => this.#tell(),
    });
    this.#link.start();
  }

  // -- what there is to see

  /** Rows, what is no row yet, the draft. A new array only if something changed. */
  get messages() {
    return (this.#messages ??= Object.freeze([
      ...this.#rows.keys(),
      ...[...this.#outbox.entries.values()].map(viewOf),
      ...(this.#draft?.hidden === false ? [this.#draft.entry] : []),
    ]));
  }

  get status() {
    const { state, retryAt, error } = this.#link;
    const status = {
      state,
      head: this.#position?.seq ?? 0,
      turn: this.#turns.now,
      retryAt,
      error,
      unsent: this.#outbox.waiting.length,
      caughtUp: this.#caughtUp,
      more: this.#more,
      principal: this.#principal,
    };
    if (!sameFields(this.#status, status)) this.#status = Object.freeze(status);
    return this.#status;
  }

  get state() {
    return this.#state.value;
  }

  get presence() {
    return this.#presence;
  }

  getSnapshot() {
    const now = { messages: this.messages, status: this.status, state: this.state, presence: this.presence };
    if (!sameFields(this.#snapshot, now)) this.#snapshot = Object.freeze(now);
    return this.#snapshot;
  }

  subscribe(listener) {
    const call = (snapshot) => listener(snapshot);
    this.#listeners.add(call);
    call((this.#told = this.getSnapshot()));
    return () => void this.#listeners.delete(call);
  }

  [Symbol.asyncIterator]() {
    const feed = new Feed();
    if (this.#closed) feed.end(this.#link.error);
    else this.#feeds.add(feed);
    const resume = () => this.#resume();
    return feed.iterate(resume, () => this.#feeds.delete(feed) && resume());
  }

  // -- what there is to do

  /** Appends a message, exactly once; resolves once it is committed. Offline it waits. */
  send(message, { clientId = randomId() } = {}) {
    try {
      return this.#post(message, clientId).promise;
    } catch (error) {
      return Promise.reject(error);
    }
  }

  #post(message, clientId) {
    const old = this.#outbox.entries.get(clientId);
    if (this.#closed) throw this.#closed;
    if (!/^[\w-]{1,64}$/.test(clientId)) throw new ParlatoryError("misuse", "a clientId is 1 to 64 of [A-Za-z0-9_-]");
    if (old && !old.error) throw new ParlatoryError("misuse", "a message of this clientId is being sent");
    if (!this.#options.outbox && !this.#connected) throw new ParlatoryError("offline", "there is no connection");
    if (typeof message === "string" || Array.isArray(message)) message = { role: "user", content: message };
    const last = [...this.#outbox.entries.values()].at(-1)?.n ?? 0;
    const n = Math.max(this.#options.now(), last + 1);
    const entry = this.#add({ clientId, n, principal: this.#principal, message });
    try {
      this.#saved.put(entry);
    } catch (cause) {
      this.#problem(new ParlatoryError("storage", "a message would not survive a reload", { cause }));
    }
    this.#flush();
    this.#tell();
    return entry;
  }

  /** Takes back a message that was refused, or not sent yet. */
  discard(clientId) {
    const entry = this.#outbox.entries.get(clientId);
    if (!entry || entry.seq !== undefined || entry.sent || (entry.uncertain && !entry.error)) return false;
    this.#outbox.remove(clientId);
    this.#saved.drop(clientId);
    this.#messages = null;
    entry.reject(new ParlatoryError("cancelled", "the message was taken back"));
    this.#tell();
    return true;
  }

  /** Stops a turn; resolves once the server has heard it. */
  cancel({ turn } = {}) {
    const { state, id } = this.#turns.now;
    turn ??= state === "running" || state === "queued" ? id : undefined;
    // Without a name it might stop a turn that began later: it is not repeated.
    return this.#ask({ type: "cancel", turn }, { again: turn !== undefined }).promise;
  }

  /** Calls a method: the promise of its result; iterated at once, what it streams. */
  call(method, args = {}, { key } = {}) {
    const id = randomId();
    const request = this.#ask({ type: "call", id, method, args, key }, { again: key !== undefined });
    request.promise[Symbol.asyncIterator] = () => {
      request.feed ??= new Feed();
      request.promise.then(() => request.feed.end(), (error) => request.feed.end(error));
      const left = new ParlatoryError("cancelled", "the iteration was left");
      return request.feed.iterate(noop, () => this.#leave(id, left));
    };
    return request.promise;
  }

  /** Tells the other subscribers something ephemeral; false without a connection. */
  signal(name, data) {
    if (!this.#connected) return false;
    this.#ping(this.#frame({ type: "signal", name, data }), null);
    return true;
  }

  /** Gets older rows, and puts them before those in `messages`. */
  page({ before = this.#position ? this.#first : Number.MAX_SAFE_INTEGER, limit } = {}) {
    return this.#ask({ type: "page", id: randomId(), before, limit }, { again: true, before }).promise;
  }

  /** Ends it; what is not acknowledged stays in `storage`, if there is one. */
  close() {
    this.#link.close();
    this.#end(null);
    this.#tell();
  }

  // -- the socket

  get #connected() {
    return this.#link.state === "open";
  }

  /** Until an `open` is answered rows belong to a position that was given up. */
  get #opening() {
    return this.#asked.some(({ open }) => open);
  }

  get #closed() {
    const { state, error } = this.#link;
    return state === "closed" ? error ?? new ParlatoryError("closed", "the chat was closed") : null;
  }

  #frame(fields) {
    return JSON.stringify({ ...fields, conversation: this.conversation });
  }

  /** Sends a frame, unless the server would close over it. */
  #send(text) {
    this.#measure(bytesOf(text), this.#limits.frame);
    this.#link.send(text);
  }

  #measure(bytes, limit = Infinity) {
    if (bytes > limit) throw new ParlatoryError("too_large", `it has ${bytes} bytes, of at most ${limit}`);
  }

  #receive(frame, length) {
    if (frame.conversation !== undefined && frame.conversation !== this.conversation) return;
    const current = this.#subscribed && !this.#opening;
    switch (frame.type) {
      case "welcome": return this.#welcome(frame);
      case "opened":
      case "reset": return this.#opened(frame);
      case "rows": return this.#take(frame, length, current);
      case "live": return current && this.#live(frame.seq);
      case "draft": return current && frame.id !== this.#givenUp && this.#setDraft(new Draft(frame));
      case "delta": return current && frame.id !== this.#givenUp && this.#delta(frame);
      case "draftEnd": return current && this.#draftEnd(frame);
      case "state": return current && this.#patch(frame);
      case "turn": return this.#event({ type: "turn", turn: this.#turns.told(frame) }, `turn ${frame.id}`);
      case "signal": return this.#event(freeze(frame), `signal ${frame.name} ${frame.by}`);
      case "event": return this.#event(freeze(frame), `event ${frame.seq}`);
      case "presence": return this.#event((this.#presence = freeze(frame)), "presence");
      case "beat": return current && frame.heads[this.conversation] > this.#position.seq && this.#again();
      case "ack": return this.#ack(frame);
      case "page": return this.#page(frame, length);
      case "item": return this.#item(frame);
      case "result": return this.#settle(frame.id, null, freeze(frame.value));
      case "pong": return this.#pong(frame.n);
      case "closed": return this.#refused(new ParlatoryError(frame.code, "the server ended the subscription"));
      case "error": return this.#error(frame);
      case "bye": this.#link.bye = frame;
    }
  }

  #welcome({ limits, principal, beatMs }) {
    const again = this.#connected;
    this.#limits = limits;
    this.#principal = principal;
    this.#link.welcome(beatMs);
    for (const entry of this.#outbox.waiting) {
      entry.principal ??= principal;
      // Somebody else has signed in.
      if (entry.principal !== principal) this.#refuse(entry, new ParlatoryError("forbidden", "it is another's"), true);
    }
    if (again) return;
    this.#paused = false;
    this.#fruitless = 0;
    this.#sendOpen();
    this.#flush();
  }

  #lost(code) {
    this.#subscribed = this.#caughtUp = false;
    clearTimeout(this.#openTimer);
    const sent = this.#outbox.waiting.filter((entry) => entry.sent).sort((a, b) => b.bytes - a.bytes);
    // Not repeated: it would end every socket the same way.
    if (code === 1009 && sent[0]) this.#refuse(sent[0], new ParlatoryError("too_large", "no server reads it"));
    this.#outbox.lost();
    this.#asked = [];
    for (const [id, request] of this.#requests) {
      if (request.again) request.sent = false;
      else if (request.sent) this.#settle(id, new ParlatoryError("lost", "it may have been done"));
    }
  }

  /** There will be no further socket; without an error the application wants it so. */
  #end(error) {
    this.#lost();
    clearTimeout(this.#sendTimer);
    for (const entry of this.#outbox.waiting) {
      if (error) this.#refuse(entry, error, true);
      else entry.reject(this.#closed);
    }
    for (const id of this.#requests.keys()) this.#settle(id, this.#closed);
    this.#tell();
    for (const feed of this.#feeds) feed.end(error);
    this.#feeds.clear();
  }

  // -- rows

  get #first() {
    return this.#rows.keys().next().value?.seq ?? this.#position.seq + 1;
  }

  #sendOpen() {
    this.#caughtUp = false;
    clearTimeout(this.#openTimer);
    const { epoch, seq: after, at } = this.#position ?? {};
    this.#send(this.#frame({ type: "open", tail: this.#options.tail, epoch, after, at }));
    this.#asked.push({ open: true, n: this.#pings + 1 });
  }

  #opened({ type, epoch, floor = 0, from, turn, state, reason = "epoch" }) {
    if (this.#asked[0]?.open) this.#asked.shift();
    this.#setDraft(null);
    this.#givenUp = null;
    this.#turns.opened(turn);
    this.#state = state ? { rev: state.rev, value: freeze(state.set) } : {};
    const held = this.#position;
    if (!held) this.#position = { epoch, seq: from };
    else if (type === "reset" || held.epoch !== epoch) this.#reset(epoch, from, reason);
    else if (from > held.seq) throw new Error(`opened at ${from}, behind the rows asked for`);
    for (const { clientId, seq } of this.#outbox.entries.values()) this.#hide(clientId, seq);
    this.#more = this.#first - 1 > floor;
    this.#subscribed = true;
  }

  #reset(epoch, seq, reason) {
    this.#rows.clear();
    this.#chars = this.#paged = 0;
    this.#position = { epoch, seq };
    this.#messages = null;
    for (const entry of this.#outbox.entries.values()) if (entry.seq) this.#outbox.remove(entry.clientId);
    for (const feed of this.#feeds) feed.clear();
    this.#event({ type: "reset", reason }, "reset");
  }

  #take({ epoch, rows }, length, current) {
    this.#link.fruitful = true;
    for (const { by, clientId, seq } of rows) if (by === this.#principal) this.#acknowledge(clientId, seq, false);
    if (!current) return;
    let hole = epoch !== this.#position.epoch;
    for (const row of hole ? [] : rows) {
      const { seq } = this.#position;
      if (row.seq <= seq) continue;
      if ((hole = row.seq !== seq + 1)) break;
      this.#apply(row, length / rows.length);
    }
    this.#trim();
    if (hole) return this.#again();
    if (![...this.#feeds].some((feed) => feed.size > ROWS_WAITING_MAX)) return;
    this.#paused = true;
    this.#subscribed = this.#caughtUp = false;
    this.#send(this.#frame({ type: "close" }));
  }

  #apply(row, cost) {
    const shown = freeze({ ...row, text: textOf(row.message) });
    const { seq, at, clientId, turn } = row;
    this.#position = { epoch: this.#position.epoch, seq, at };
    this.#rows.set(shown, cost);
    this.#chars += cost;
    this.#fruitless = 0;
    this.#messages = null;
    this.#hide(clientId, seq);
    // The row of a draft comes before its end: nobody shall see both.
    const draft = this.#draft;
    const written = draft && draft.turn === turn && row.message.role === "assistant";
    if (written && shown.text.startsWith(draft.entry.text)) draft.hidden = true;
    this.#event({ type: "row", row: shown });
  }

  #trim() {
    const { keep, keepChars } = this.#options;
    for (const [row, cost] of this.#rows) {
      if (this.#rows.size === 1 || (this.#rows.size <= keep + this.#paged && this.#chars <= keepChars)) break;
      this.#rows.delete(row);
      this.#chars -= cost;
      this.#more = true;
    }
  }

  #again() {
    this.#fruitless += 1;
    if (this.#fruitless > REOPENS_MAX) throw new Error("rows are missing, however often they are asked for");
    this.#sendOpen();
  }

  #live(seq) {
    if (seq > this.#position.seq) return this.#again();
    this.#fruitless = 0;
    if (this.#caughtUp) this.#turns.lagged();
    this.#caughtUp = true;
  }

  #resume() {
    if (!this.#paused || [...this.#feeds].some((feed) => feed.size > ROWS_WAITING_MAX / 2)) return;
    this.#paused = false;
    if (this.#connected) this.#sendOpen();
  }

  #refused(error) {
    this.#subscribed = this.#caughtUp = false;
    if (RETRYABLE.has(error.code)) {
      this.#openTimer = setTimeout(() => this.#sendOpen(), error.retryMs ?? RETRY_MS);
    } else {
      this.#link.close(error);
      this.#end(error);
    }
  }

  #page({ id, epoch, rows, more }, length) {
    const request = this.#requests.get(id);
    if (!request) return;
    const shown = rows.map((row) => freeze({ ...row, text: textOf(row.message) }));
    const cost = length / Math.max(rows.length, 1);
    const first = this.#position?.epoch === epoch ? this.#first : null;
    const older = shown.filter(({ seq }) => seq < first);
    if (older.length ? older.at(-1).seq === first - 1 : request.before === first) {
      const room = Math.max(Math.floor((this.#options.keepChars - this.#chars) / cost), 0);
      const taken = older.slice(Math.max(older.length - room, 0));
      this.#rows = new Map([...taken.map((row) => [row, cost]), ...this.#rows]);
      this.#chars += taken.length * cost;
      this.#paged += taken.length;
      this.#more = more || taken.length < older.length;
      if (taken.length) this.#messages = null;
    }
    this.#settle(id, null, { rows: Object.freeze(shown), more });
  }

  // -- drafts and state

  #setDraft(draft) {
    if (draft || this.#draft?.hidden === false) this.#messages = null;
    this.#draft = draft;
    if (draft && this.#feeds.size) this.#event({ type: "draft", draft: draft.entry }, `draft ${draft.id}`);
  }

  #delta(frame) {
    const draft = this.#draft;
    if (draft?.id === frame.id) {
      if (frame.to <= draft.index) return;
      if (draft.apply(frame)) {
        this.#draftReopens = 0;
        return this.#setDraft(draft);
      }
    }
    this.#draftReopens += 1;
    if (this.#draftReopens <= REOPENS_MAX) return this.#sendOpen();
    this.#draftReopens = 0;
    this.#givenUp = frame.id; // its row will come all the same
    this.#setDraft(null);
  }

  #draftEnd({ id, seq, finish }) {
    if (this.#draft?.id === id) this.#setDraft(null);
    this.#event({ type: "draftEnd", id, seq, finish }, `end ${id}`);
  }

  #patch({ rev, set, patch }) {
    const whole = set !== undefined;
    if (!whole && rev <= this.#state.rev) return;
    if (!whole && rev - 1 !== this.#state.rev) return this.#again();
    const value = freeze(whole ? set : merged(this.#state.value, patch));
    this.#state = { rev, value };
    this.#event({ type: "state", rev, state: value }, "state");
  }

  // -- sends

  #add({ clientId, n, principal, message }) {
    const body = JSON.stringify(message);
    // Half a character, which JSON writes as an escape, cannot be stored.
    const half = /(?<!\\)(\\\\)*\\ud[89a-f]/;
    if (!body?.startsWith("{") || half.test(body)) throw new ParlatoryError("bad_message", "this cannot be said");
    const bytes = bytesOf(body);
    this.#measure(bytes, this.#limits.message);
    if (this.#outbox.entries.size >= OUTBOX_MAX || this.#outbox.bytes + bytes > OUTBOX_BYTES_MAX) {
      throw new ParlatoryError("outbox_full", "too much waits to be sent");
    }
    const entry = { clientId, n, principal, body, bytes, message: freeze(JSON.parse(body)), text: textOf(message) };
    entry.promise = new Promise((resolve, reject) => Object.assign(entry, { resolve, reject }));
    entry.promise.catch(noop); // `messages` shows the error as well
    this.#outbox.add(entry);
    this.#messages = null;
    return entry;
  }

  /** Sends what may be sent. */
  #flush() {
    if (!this.#connected) return;
    const { slots } = this.#outbox;
    let free = Math.min(INFLIGHT_MAX, this.#limits.inflight) - slots.size;
    for (const request of this.#requests.values()) {
      const { id, type, text, sent, held } = request;
      const call = type === "call";
      if (call && sent) free -= 1;
      if (sent || held || (call && free-- <= 0)) continue;
      request.sent = true;
      try {
        if (type === "cancel") this.#ping(text, request);
        else this.#send(text);
      } catch (error) {
        this.#requests.delete(id);
        request.reject(error);
      }
    }
    for (let entry; free > 0 && (entry = this.#outbox.next(this.#options.now())); ) {
      const { clientId, body, bytes } = entry;
      try {
        this.#measure(bytes, this.#limits.message);
        this.#send(`${this.#frame({ type: "send", clientId }).slice(0, -1)},"message":${body}}`);
        entry.sent = true;
        slots.add(clientId);
        free -= 1;
      } catch (error) {
        this.#refuse(entry, error);
      }
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
    if (!entry || entry.seq !== undefined) return;
    Object.assign(entry, { seq, error: undefined, view: null });
    this.#saved.drop(clientId);
    this.#messages = null;
    this.#hide(clientId, seq);
    entry.resolve({ seq, duplicate });
  }

  /** A message is not shown beside its row, nor where that was long ago. */
  #hide(clientId, seq) {
    if (this.#outbox.entries.get(clientId)?.seq !== seq || !(seq <= this.#position?.seq)) return;
    this.#outbox.remove(clientId);
    this.#messages = null;
  }

  /** Refuses a message for good: it is shown with the error, and stored only if `kept`. */
  #refuse(entry, error, kept = false) {
    if (!kept) this.#saved.drop(entry.clientId);
    Object.assign(entry, { error, view: null });
    this.#messages = null;
    entry.reject(error);
  }

  #error({ code, text, retryMs, clientId, id }) {
    const error = new ParlatoryError(code, text, { retryMs });
    if (clientId !== undefined) this.#sendRefused(clientId, error);
    else if (id !== undefined) this.#requestRefused(id, error);
    else {
      const { open, request } = this.#asked.shift() ?? {};
      if (open) this.#refused(error);
      else if (request) this.#settle(request.id, error);
      else this.#problem(error);
    }
  }

  #sendRefused(clientId, error) {
    this.#outbox.slots.delete(clientId);
    const entry = this.#outbox.entries.get(clientId);
    if (entry && waits(entry)) {
      if (RETRYABLE.has(error.code)) this.#hold(entry, error);
      else this.#refuse(entry, error);
    }
    this.#flush();
  }

  #hold(entry, { code, retryMs = RETRY_MS }) {
    entry.sent = false;
    entry.uncertain ||= code === "internal";
    const now = this.#options.now();
    const until = (this.#outbox.heldUntil = Math.max(this.#outbox.heldUntil, now + retryMs));
    clearTimeout(this.#sendTimer);
    this.#sendTimer = setTimeout(() => {
      this.#outbox.heldUntil = 0;
      this.#flush();
      this.#tell();
    }, until - now);
  }

  // -- requests

  /** Keeps a request until it is answered; one that may be done `again` is sent again on the next socket. */
  #ask(frame, { again, before }) {
    const { id = randomId(), type } = frame;
    const request = { id, type, text: this.#frame(frame), again, before, sent: false, held: false, feed: null };
    request.promise = new Promise((resolve, reject) => Object.assign(request, { resolve, reject }));
    if (this.#closed) request.reject(this.#closed);
    else this.#requests.set(id, request);
    this.#flush();
    return request;
  }

  #settle(id, error, value) {
    const request = this.#requests.get(id);
    this.#requests.delete(id);
    if (error) request?.reject(error);
    else request?.resolve(value);
    this.#flush();
  }

  #requestRefused(id, error) {
    const request = this.#requests.get(id);
    // A call that failed inside may have run: only a key makes its repeat harmless.
    const again = RETRYABLE.has(error.code) && (error.code !== "internal" || request?.again);
    if (!request || !again) return this.#settle(id, error);
    Object.assign(request, { sent: false, held: true });
    setTimeout(() => {
      request.held = false;
      this.#flush();
    }, error.retryMs ?? RETRY_MS);
  }

  /** Learns by the pong that the server has handled the frame before it. */
  #ping(text, request) {
    this.#send(text);
    const n = (this.#pings += 1);
    this.#asked.push({ request, n });
    this.#link.send(JSON.stringify({ type: "ping", n }));
  }

  #pong(n) {
    while (this.#asked[0]?.n <= n) {
      const { open, request } = this.#asked.shift();
      if (open) throw new Error("a later frame was answered first");
      if (request) this.#settle(request.id, null, true);
    }
  }

  #item({ id, value }) {
    const feed = this.#requests.get(id)?.feed;
    feed?.push(freeze(value));
    if (feed?.size > ITEMS_MAX) this.#leave(id, new ParlatoryError("too_many", "the items are not taken"));
  }

  #leave(id, error) {
    if (this.#requests.get(id)?.sent) this.#link.send(this.#frame({ type: "cancel", id }));
    this.#settle(id, error);
  }

  // -- telling

  #event(event, key) {
    for (const feed of this.#feeds) feed.push(event, key);
  }

  #problem(error) {
    this.#event({ type: "error", error }, `error ${error.code}`);
  }

  #tell() {
    const before = this.#status;
    const { status } = this;
    if (before && status !== before) this.#event({ type: "status", status }, "status");
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

/** Opens a conversation on a socket of its own; does not wait for the server. The options are in parlatory.d.ts. */
export function connect(url, conversation, options = {}) {
  const { storage, WebSocket = globalThis.WebSocket } = options;
  let address;
  try {
    address = new URL(url, globalThis.location?.href);
    address.protocol = address.protocol.replace("http", "ws");
  } catch (cause) {
    throw new ParlatoryError("misuse", `"${url}" is no address of a server, such as ws://localhost:8000/v1`, { cause });
  }
  conversation = String(conversation).normalize("NFC");
  if (!/^[a-z][a-z0-9-]{0,31}\/./.test(conversation)) {
    const text = `"${conversation}" is no conversation: it is <agent>/<name>, such as bot/ann`;
    throw new ParlatoryError("misuse", text);
  }
  if (!WebSocket) throw new ParlatoryError("misuse", "there is no WebSocket: use Node 22, or pass one");
  let { client } = options;
  if (!client && storage) {
    client = storage.getItem("parlatory.client") ?? installation;
    storage.setItem("parlatory.client", client);
  }
  return new Chat(address.href, conversation, {
    outbox: true,
    WebSocket,
    keep: 1000,
    keepChars: 16 << 20,
    now: Date.now,
    random: Math.random,
    ...options,
    client: client ?? installation,
  });
}
