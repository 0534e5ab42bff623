// The list of one's own conversations: what the server knows, and what was open in this browser.

import { byId, h } from "./dom.js";
import { seen, token, visited } from "./memory.js";

const PAGE = 50;
const AGAIN_MS = 20_000;
const TITLE_MAX = 60;
const TEXT_MAX = 200;
const AGENT = /^[a-z][a-z0-9-]{0,31}$/;
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const DATE = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

/** `#eliza/alice` for `eliza/alice`. */
export const hashOf = (conversation) => `#${conversation.split("/").map(encodeURIComponent).join("/")}`;

const agentOf = (conversation) => conversation.slice(0, conversation.indexOf("/"));
const short = (text) => (text.length > TITLE_MAX ? `${text.slice(0, TITLE_MAX)}…` : text).replace(/\s+/g, " ");

export class Sidebar {
  /** @param {{begin: (agent: string) => void, unread: (count: number) => void}} hooks */
  constructor(hooks) {
    this.hooks = hooks;
    this.agents = [];
    /** @type {Map<string, any>} */
    this.entries = new Map(); // what the server listed, by conversation
    this.current = "";
    this.next = null; // where the server's list goes on
    this.status = 0; // of the server's last answer
    byId("new").addEventListener("submit", (event) => {
      event.preventDefault();
      const agent = byId("agent").value || this.agents[0];
      if (AGENT.test(agent)) hooks.begin(agent);
    });
    byId("further").addEventListener("click", () => this.load(this.next));
    byId("menu").addEventListener("click", () => this.open(true));
    byId("hide").addEventListener("click", () => this.open(false));
    byId("shade").addEventListener("click", () => this.open(false));
    byId("sidebar").addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.opened) return;
      event.preventDefault(); // it does not stop the answer too
      this.open(false);
    });
    addEventListener("storage", (event) => event.key === seen.key && this.show());
    document.addEventListener("visibilitychange", () => document.hidden || this.load());
    setInterval(() => document.hidden || this.load(), AGAIN_MS);
  }

  get opened() {
    return byId("menu").getAttribute("aria-expanded") === "true";
  }

  /** Opens or closes the list where it lies over the messages: on a narrow screen. */
  open(opened) {
    if (opened === this.opened) return;
    byId("menu").setAttribute("aria-expanded", String(opened));
    document.body.classList.toggle("listing", opened);
    byId("shade").hidden = !opened;
    if (opened) byId("hide").focus();
    else if (byId("sidebar").contains(document.activeElement)) byId("menu").focus();
  }

  /** Asks the server for the list; the page works where it has none, or gives none. */
  async load(after = null) {
    const address = new URL("v1/conversations", document.baseURI);
    address.searchParams.set("limit", String(PAGE));
    if (after) address.searchParams.set("after", after);
    const answer = await fetch(address, {
      headers: token.headers(),
      cache: "no-store",
      credentials: "same-origin",
    }).catch(() => null);
    if (!answer) return; // no network: the chat says so
    this.status = answer.status;
    if (answer.ok) {
      const { conversations, agents, next } = await answer.json();
      if (agents) this.agents = agents;
      for (const one of conversations) this.entries.set(one.conversation, one);
      if (after || this.next === null) this.next = next ?? null;
      seen.meet(conversations);
    }
    this.show();
  }

  /** Notes what the open conversation has come to. */
  told(conversation, row, text) {
    if (!document.hidden) seen.note({ [conversation]: row.seq });
    const known = this.entries.get(conversation);
    if (known?.head === row.seq) return this.show();
    const last = { by: row.by, text: text.slice(0, TEXT_MAX) };
    this.entries.set(conversation, { title: null, ...known, conversation, head: row.seq, at: row.at, last });
    this.show();
  }

  /** What a conversation is called. */
  title(conversation) {
    const { title, last } = this.entries.get(conversation) ?? {};
    return short(title || visited.all()[conversation]?.title || last?.text || "New conversation");
  }

  show() {
    this.#showAgents();
    const all = new Map([...this.entries].map(([name, one]) => [name, { ...one, time: Date.parse(one.at) }]));
    for (const [conversation, { at, used }] of Object.entries(visited.all())) {
      if (all.has(conversation) || !(used || conversation === this.current)) continue;
      all.set(conversation, { conversation, time: at });
    }
    const sorted = [...all.values()].sort((a, b) => b.time - a.time);
    let unread = 0;
    const items = sorted.map((one) => {
      const read = one.conversation === this.current && !document.hidden;
      const count = read ? 0 : Math.max(0, (one.head ?? 0) - seen.of(one.conversation));
      unread += count && 1;
      return this.#item(one, count);
    });
    const list = byId("conversations");
    const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    list.replaceChildren(...items);
    if (focused) /** @type {any} */ (list.querySelector(`a[href="${CSS.escape(focused)}"]`))?.focus();
    byId("further").hidden = !this.next;
    byId("elsewhere").hidden = !unread;
    this.hooks.unread(unread);
  }

  #item({ conversation, time, last }, count) {
    const now = new Date();
    const when = new Date(time);
    const shown = when.toDateString() === now.toDateString() ? TIME.format(when) : DATE.format(when);
    const shownCount = count > 99 ? "99+" : String(count);
    const badge = count > 0 && h("span", { class: "unread" }, shownCount, h("span", { class: "hidden" }, " unread"));
    const link = h(
      "a",
      { href: hashOf(conversation), "aria-current": conversation === this.current && "page" },
      h("span", { class: "name" }, this.title(conversation)),
      h("time", {}, shown),
      h("span", { class: "last" }, last?.text ? short(last.text) : agentOf(conversation)),
      badge,
    );
    return h("li", {}, link);
  }

  /** Offers the agents to begin with: a choice where there are several, a field where nobody says which there are. */
  #showAgents() {
    const known = [...new Set([...this.agents, ...Object.keys(visited.all()).map(agentOf)])];
    const field = byId("agent");
    const offered = known.join();
    if (field.dataset.offered === offered) return;
    const chosen = field.value || (this.current && agentOf(this.current));
    const options = known.map((one) => h("option", { selected: one === chosen }, one));
    const typed = { id: "agent", placeholder: "Agent", pattern: AGENT.source, required: true, autocomplete: "off" };
    const listed = known.length > 0 || this.status === 200;
    const choice = listed ? h("select", { id: "agent", hidden: known.length < 2 }, ...options) : h("input", typed);
    choice.dataset.offered = offered;
    field.replaceWith(choice);
  }
}
