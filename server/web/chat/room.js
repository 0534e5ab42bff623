// One conversation on the screen: its client, its rows, what is being written, and what is wrong.

import { connect } from "../parlatory.js";
import { byId, change, h } from "./dom.js";
import { announce, author, DraftView, rowElement, textOf } from "./message.js";
import { token, visited, written } from "./memory.js";
import { Timeline } from "./timeline.js";

const TAIL = 60; // rows to begin with
const PAGE = 150;
// Between two renderings, ms: while nobody looks; while an answer is written, at least, and per ms of the last one.
const HIDDEN_MS = 500;
const WRITING_MS = 120;
const WRITING_PER_COST = 10;
const SPOKEN_MAX = 600; // characters of an answer that are announced
const TITLE_MAX = 80;
const ATTEMPTS_MAX = 3; // that may fail before the first welcome until the page says so

/** The address of the socket, beside the page. */
function socketUrl() {
  const url = new URL("v1", document.baseURI);
  url.protocol = url.protocol.replace("http", "ws");
  return url.href;
}

export class Room {
  /**
   * @param {string} conversation
   * @param {{composer: any, sidebar: any, admit: () => Promise<string>}} page
   */
  constructor(conversation, page) {
    this.conversation = conversation;
    this.agent = conversation.slice(0, conversation.indexOf("/"));
    this.page = page;
    this.rows = [];
    this.more = true; // there are rows before the first
    this.paging = false;
    this.spoken = 0; // the last row that was announced, or was there before
    this.told = 0; // the last row that the list knows of, and whether somebody saw it
    this.toldHidden = false;
    this.answering = false;
    this.failed = 0; // attempts at a first connection; a browser does not say why one fails
    this.retryAt = null;
    this.scheduled = false;
    this.rest = 0; // until then nothing is rendered
    /** @type {DraftView | null} */
    this.draft = null;
    this.draftId = null;
    /** @type {Map<string, {one: any, element: HTMLElement, state: HTMLElement}>} */
    this.unsent = new Map();
    this.own = new Set(); // the names this reader has spoken under
    this.timeline = page.timeline;
    this.timeline.clear();
    this.timeline.hooks = {
      element: (row, previous) =>
        rowElement(row, { conversation, agent: this.agent, own: (one) => this.#own(one), previous }),
      older: () => this.#older(),
      moved: () => this.#showLatest(),
    };
    byId("tail").replaceChildren();
    this.typing = h("li", { class: "row assistant typing", "aria-hidden": "true" }, h("i"), h("i"), h("i"));
    this.notice = h("li", { class: "notice" });
    this.chat = connect(socketUrl(), conversation, {
      token: () => this.#token(),
      tail: TAIL,
      storage: localStorage,
      outbox: true,
    });
    this.unsubscribe = this.chat.subscribe(({ status }) => {
      this.#count(status);
      this.schedule();
    });
    page.composer.restore(written.of(conversation));
    this.schedule();
  }

  close() {
    this.unsubscribe();
    this.chat.close();
    this.closed = true;
  }

  /**
   * Renders at the next frame, or a little later, however much is told until then. What waited does not wait for a
   * frame too: in one it would scroll for the next, and each rendering would take two.
   */
  schedule() {
    if (this.scheduled || this.closed) return;
    this.scheduled = true;
    const render = () => {
      this.scheduled = false;
      if (!this.closed) this.render();
    };
    const wait = document.hidden ? HIDDEN_MS : this.rest - performance.now();
    if (wait <= 0) requestAnimationFrame(render);
    else setTimeout(render, wait);
  }

  /** Sends a message; throws where it is refused before it stands among the messages. */
  async send(message, options) {
    this.timeline.jump();
    try {
      await this.chat.send(message, options);
    } catch (error) {
      if (!this.chat.messages.some((one) => one.error === error) && error.code !== "cancelled") throw error;
    }
  }

  stop() {
    this.chat.cancel().catch(() => this.schedule()); // the conversation has ended, and the page says so
  }

  render() {
    const begin = performance.now();
    const { messages, status } = this.chat;
    if (status.principal) this.own.add(status.principal);
    const rows = [];
    const unsent = [];
    let draft = null;
    for (const one of messages) {
      if (one.at) rows.push(one);
      else if (!one.draft) unsent.push(one);
      else if (one.message.content.length) draft = one; // before its first word it shows as typing
    }
    this.#takeRows(rows, status.more);
    this.#showTail(unsent, draft, status);
    this.#showStatus(status);
    this.#speak(status);
    this.timeline.follow();
    this.#showLatest();
    const cost = performance.now() - begin;
    this.rest = this.draft ? begin + Math.max(WRITING_MS, cost * WRITING_PER_COST) : 0;
  }

  async #token() {
    if (this.chat?.status.error?.code !== "unauthorized") return token.get();
    const given = await this.page.admit();
    this.page.sidebar.load();
    return given;
  }

  #own(row) {
    return row.message.role === "user" && (this.own.has(row.by) || (row.clientId && this.unsent.has(row.clientId)));
  }

  #takeRows(rows, more) {
    const [first, last] = [rows[0], rows[rows.length - 1]];
    if (first === this.first && last === this.last) return;
    [this.first, this.last] = [first, last];
    // What was paged stays while the client's rows go on from it; after a reset they are others.
    const at = first && this.rows.length ? first.seq - this.rows[0].seq : 0;
    const joined = at > 0 && this.rows[at] === first;
    if (!joined) this.more = more;
    this.rows = joined ? [...this.rows.slice(0, at), ...rows] : rows;
    this.timeline.update(this.rows, !this.more);
  }

  async #older() {
    const first = this.rows[0]?.seq;
    if (this.paging || !this.more || !first) return;
    this.paging = true;
    try {
      const { rows, more } = await this.chat.page({ before: first, limit: PAGE });
      if (this.closed || !this.rows.length) return;
      const older = rows.filter((row) => row.seq < this.rows[0].seq);
      if (older.length && older[older.length - 1].seq !== this.rows[0].seq - 1) return; // the log is another one now
      this.more = more;
      this.rows = [...older, ...this.rows];
      this.timeline.update(this.rows, !this.more);
    } catch {
      return; // the connection is lost; the reader scrolls again
    } finally {
      this.paging = false;
    }
  }

  #showTail(unsent, draft, status) {
    const waiting = status.state === "open" ? "Sending …" : "Waits for a connection";
    const elements = unsent.map((one) => this.#unsentElement(one, waiting));
    const known = new Set(unsent.map((one) => one.clientId));
    for (const id of this.unsent.keys()) if (!known.has(id)) this.unsent.delete(id);
    if (draft?.id !== this.draftId || !draft) {
      this.draft = draft ? new DraftView(this.conversation, this.agent) : null;
      this.draftId = draft?.id ?? null;
    }
    if (this.draft) {
      this.draft.update(draft.message);
      elements.push(this.draft.element);
    } else if (status.turn?.state === "running" && status.state === "open") elements.push(this.typing);
    const text = this.#trouble(status);
    if (text) {
      change(this.notice, { textContent: text });
      elements.push(this.notice);
    }
    const tail = byId("tail");
    if (tail.childElementCount !== elements.length || elements.some((one, index) => tail.children[index] !== one)) {
      tail.replaceChildren(...elements);
    }
    change(byId("greeting"), {
      hidden: this.rows.length > 0 || elements.length > 0 || !status.caughtUp,
      textContent: `Say something to ${author({ by: "agent" }, this.agent)}.`,
    });
  }

  #unsentElement(one, waiting) {
    const known = this.unsent.get(one.clientId);
    if (known?.one === one) {
      if (one.pending && !one.error) change(known.state, { textContent: waiting });
      return known.element;
    }
    const row = { by: "", message: one.message };
    const element = rowElement(row, { conversation: this.conversation, agent: this.agent, own: () => true });
    element.classList.add("unsent");
    const text = one.error ? `Not sent: ${one.error.message}` : one.pending ? waiting : "Sent";
    const state = h("p", { class: one.error ? "end error" : "end" }, text);
    if (one.error) {
      const again = () => this.send(one.message, { clientId: one.clientId });
      state.append(" ", h("button", { type: "button", onclick: again }, "Send again"));
      state.append(" ", h("button", { type: "button", onclick: () => this.chat.discard(one.clientId) }, "Discard"));
    }
    element.append(state);
    this.unsent.set(one.clientId, { one, element, state });
    return element;
  }

  /** Counts the attempts that ended without a word of the server, until it has welcomed this page once. */
  #count({ state, retryAt, error }) {
    if (state === "open") this.failed = Number.NEGATIVE_INFINITY;
    else if (retryAt && retryAt !== this.retryAt && error?.code === "connection" && !error.closeCode) this.failed += 1;
    this.retryAt = retryAt;
  }

  /** What is wrong with the conversation, in a sentence. */
  #trouble({ turn, error, state }) {
    if (state === "closed" && error) {
      return error.code === "forbidden"
        ? "You may not read this conversation, or there is no such agent."
        : error.message;
    }
    if (this.failed >= ATTEMPTS_MAX) return "The server refuses this page or cannot be reached.";
    const marked = this.rows[this.rows.length - 1]?.finish === "error"; // the row says so itself
    if (turn?.state === "error" && !marked) return "The agent failed to answer. The log of the server says why.";
    if (turn?.state === "waiting") return "The agent waits for an approval.";
    if (turn?.state === "queued") return "The agent is busy; your message waits.";
    return "";
  }

  #showStatus(status) {
    const connection = byId("connection");
    const [name, text] = this.#connection(status);
    change(connection, { textContent: text });
    change(connection.dataset, { state: name });
    const busy = ["queued", "running", "waiting"].includes(status.turn?.state) || this.draft !== null;
    this.page.composer.running(busy && status.state === "open");
    this.page.composer.enable(status.state !== "closed");
    change(byId("messages"), { ariaBusy: String(!status.caughtUp) });
  }

  #connection({ state, unsent, caughtUp }) {
    const waiting = unsent ? `, ${unsent} unsent` : "";
    switch (state) {
      case "open":
        return caughtUp ? ["open", "Connected"] : ["connecting", "Catching up …"];
      case "offline":
        return ["lost", `Offline${waiting}`];
      case "waiting":
        return ["lost", `Reconnecting …${waiting}`];
      case "closed":
        return ["lost", "Not connected"];
      default:
        return ["connecting", `Connecting …${waiting}`];
    }
  }

  /** Announces what is new, an answer as a whole; tells the list what it has come to. */
  #speak({ caughtUp, turn }) {
    const row = this.rows[this.rows.length - 1];
    if (!caughtUp) return;
    if (!this.spoken || (row && row.seq < this.spoken)) this.spoken = row?.seq ?? 0;
    const fresh = this.rows.slice(-5).filter((one) => one.seq > this.spoken && one.text && !this.#own(one));
    for (const one of fresh) announce(`${author(one, this.agent)}: ${textOf(one.message).slice(0, SPOKEN_MAX)}`);
    const answering = turn?.state === "running";
    if (answering && !this.answering && !fresh.length) announce(`${author({ by: "agent" }, this.agent)} is answering`);
    this.answering = answering;
    this.spoken = row?.seq ?? 0;
    if (row && (this.told !== row.seq || this.toldHidden)) {
      this.told = row.seq;
      this.toldHidden = document.hidden;
      const first = this.rows.find((one) => one.message.role === "user");
      const title = this.rows[0].seq === 1 && first ? textOf(first.message).slice(0, TITLE_MAX) : "";
      visited.note(this.conversation, title, true);
      this.page.sidebar.told(this.conversation, row, textOf(row.message));
      byId("title").textContent = this.page.sidebar.title(this.conversation);
    }
  }

  #showLatest() {
    change(byId("latest"), { hidden: this.timeline.stuck });
  }
}
