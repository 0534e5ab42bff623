// The inspector: asks the server once a second what goes on, while somebody looks, and shows it.

import { byId, h } from "../chat/dom.js";
import { token } from "../chat/memory.js";

const POLL_MS = 1000;
const LIST_STEP = 50;
const LIST_MAX = 200;
const ROWS = 50;

const state = {
  limit: LIST_STEP,
  chosen: null, // the conversation that is shown
  epoch: null,
  rows: new Map(), // its rows, by seq, ascending
  more: false,
  before: null, // the overview of the last look, for rates
  paused: false,
  looking: false,
  again: false, // something was asked for during a look
  timer: 0,
};

class Refused extends Error {}

/** Asks for data below `v1/inspect`. */
async function ask(path, query = {}) {
  const address = new URL(`v1/inspect${path}`, document.baseURI);
  for (const [name, value] of Object.entries(query)) if (value !== "") address.searchParams.set(name, value);
  const answer = await fetch(address, { headers: token.headers(), cache: "no-store", credentials: "same-origin" });
  if (answer.status === 404 || answer.status === 401) throw new Refused();
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
  return answer.json();
}

// -- looking

function schedule() {
  clearTimeout(state.timer);
  if (!state.paused && document.visibilityState === "visible") state.timer = setTimeout(look, POLL_MS);
}

/** Looks once; one look at a time, and the next a second behind its end. */
async function look() {
  if (state.looking) {
    state.again = true;
    return;
  }
  state.looking = true;
  clearTimeout(state.timer);
  try {
    const overview = await ask("");
    byId("gate").hidden = true;
    byId("main").hidden = false;
    showOverview(overview);
    showList(await ask("/conversations", { search: byId("search").value, limit: state.limit }));
    if (state.chosen !== null) await lookAt(state.chosen);
    if (byId("sockets").open) showSockets(await ask("/connections"));
    say(state.paused ? "paused" : "live", state.paused ? "Paused" : "Live");
  } catch (error) {
    if (error instanceof Refused) {
      byId("gate").hidden = false;
      byId("main").hidden = true;
      say("waiting", token.get() ? "This token is no operator's" : "A token is needed");
    } else {
      say("trouble", error instanceof TypeError ? "The server does not answer" : error.message);
    }
  } finally {
    state.looking = false;
  }
  if (state.again) {
    state.again = false;
    look();
  } else if (byId("gate").hidden) {
    schedule();
  }
}

async function lookAt(conversation) {
  let found;
  try {
    found = await ask("/conversation", { name: conversation, limit: ROWS });
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    byId("chosen").hidden = true;
    set(byId("hint"), "There is no such conversation.");
    byId("hint").hidden = false;
    return;
  }
  if (state.chosen !== conversation) return;
  const held = [...state.rows.keys()];
  const reaches = !found.rows.length || !held.length || found.rows[0].seq <= held[held.length - 1] + 1;
  if (state.epoch !== found.epoch || !reaches) state.rows.clear();
  if (!state.rows.size) state.more = found.more;
  state.epoch = found.epoch;
  for (const row of found.rows) state.rows.set(row.seq, row);
  showChosen(found);
}

async function lookBack() {
  const conversation = state.chosen;
  const first = state.rows.keys().next().value;
  const found = await ask("/conversation", { name: conversation, limit: ROWS, before: first });
  if (state.chosen !== conversation || state.epoch !== found.epoch) return;
  state.rows = new Map([...found.rows.map((row) => [row.seq, row]), ...state.rows]);
  state.more = found.more;
  showRows();
}

function choose(conversation) {
  if (state.chosen === conversation) return;
  state.chosen = conversation;
  state.epoch = null;
  state.rows.clear();
  set(byId("name"), conversation ?? "No conversation chosen");
  byId("chosen").hidden = true;
  for (const button of byId("conversations").querySelectorAll("button")) mark(button);
  look();
}

// -- showing; an element is touched only where it says something else than before

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function say(kind, text) {
  byId("status").dataset.state = kind;
  set(byId("status"), text);
}

/** Makes the children of an element those of some items, keeping those that are there already. */
function keyed(parent, items, key, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = known.get(name);
    known.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    update?.(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of known.values()) child.remove();
}

const count = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const exact = new Intl.NumberFormat("en");
const ms = (value) => (value === null ? "–" : value < 10 ? `${value.toFixed(2)} ms` : `${Math.round(value)} ms`);
const sum = (counts) => Object.values(counts).reduce((total, one) => total + one, 0);

function showOverview(now) {
  const { server, runtime, storage } = now;
  const before = state.before?.boot === now.boot ? state.before : null;
  const at = performance.now();
  const rate = before ? ((storage.rows - before.rows) / Math.max(0.001, at - before.at)) * 1000 : null;
  state.before = { boot: now.boot, rows: storage.rows, at };
  set(byId("server"), `parlatory ${now.version} · ${now.agents.join(", ")}${server.draining ? " · stopping" : ""}`);
  const figures = [
    ["Connections", count.format(server.connections), `${exact.format(server.pending)} not let in yet`],
    ["Subscriptions", count.format(runtime.subscriptions), `${exact.format(runtime.lagging)} lagging`, runtime.lagging && "warn"],
    ["Turns", count.format(runtime.running), `${exact.format(runtime.queued)} queued`, runtime.queued > 100 && "warn"],
    ["Drafts", count.format(runtime.drafts), "being written"],
    ["Ended turns", count.format(sum(runtime.turns)), `${exact.format(runtime.turns.error)} failed`],
    ["Rows", count.format(storage.rows), rate === null ? "since its start" : `${count.format(rate)} a second`],
    ["Commit", ms(storage.commitP50Ms), `${ms(storage.commitP99Ms)} at 99 %`, storage.failed && "bad"],
    ["Queue", count.format(storage.queued), "rows to commit", storage.queued > 1000 && "warn"],
    ["Residents", count.format(runtime.residents), `${count.format(runtime.evictions)} evicted`],
    ["In memory", count.format(runtime.conversations), `${count.format(runtime.released)} let go`],
    ["Loop lag", ms(server.loopLagMs), "last timer", server.loopLagMs > 100 && "warn"],
    ["Refused", count.format(server.refused + server.dropped), `${exact.format(server.aborted)} aborted`],
  ];
  keyed(
    byId("figures"),
    figures,
    ([name]) => name,
    ([name]) => h("div", {}, h("dt", {}, name), h("dd", {}), h("dd", { class: "note" })),
    (tile, [, value, note, level]) => {
      set(tile.children[1], value);
      set(tile.children[2], note);
      tile.dataset.level = level || "";
    },
  );
}

const tag = (kind, text = kind) => h("span", { class: "tag", "data-kind": kind }, text);

function tagsOf(now) {
  if (!now) return [];
  const tags = [];
  if (now.state !== "idle") tags.push(["turn", now.state, now.queued ? `${now.state}, ${now.queued} wait` : now.state]);
  if (now.writing) tags.push(["draft", "writing", "writing"]);
  if (now.subscribers) tags.push(["subscribers", "watched", `${now.subscribers} listening`]);
  if (now.lagging) tags.push(["lagging", "lagging", `${now.lagging} lagging`]);
  return tags;
}

function showTags(parent, tags) {
  keyed(parent, tags, ([key, kind]) => `${key} ${kind}`, ([, kind]) => tag(kind), (element, [, , text]) => set(element, text));
}

function mark(button) {
  if (button.value === state.chosen) button.setAttribute("aria-current", "true");
  else button.removeAttribute("aria-current");
}

function showList({ conversations, next }) {
  keyed(
    byId("conversations"),
    conversations,
    (one) => one.conversation,
    (one) =>
      h("li", {}, h("button", { type: "button", value: one.conversation, onclick: () => goTo(one.conversation) },
        h("span", { class: "name" }, one.conversation), h("time", {}), h("span", { class: "last" }), h("span", { class: "tags" }))),
    (item, one) => {
      const button = item.firstElementChild;
      const [, time, last, tags] = button.children;
      mark(button);
      set(time, since(one.at));
      time.dateTime = one.at;
      time.title = one.at;
      set(last, one.last ? `${who(one.last.by)}: ${one.last.text || "…"}` : "");
      showTags(tags, tagsOf(one.now));
    },
  );
  byId("none").hidden = conversations.length > 0;
  byId("further").hidden = !next || state.limit >= LIST_MAX;
}

const who = (name) => (name.length > 24 ? `${name.slice(0, 16)}…` : name);

function since(instant) {
  const seconds = Math.max(0, (Date.now() - Date.parse(instant)) / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86_400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} d`;
}

function showChosen({ conversation, epoch, floor, head, now }) {
  byId("hint").hidden = true;
  byId("chosen").hidden = false;
  const turn = now && now.turn !== null ? `${now.state}, ${now.turn}${now.attempt ? ` (attempt ${now.attempt})` : ""}` : now?.state;
  const facts = [
    ["Head", exact.format(head)],
    ["Trimmed up to", floor ? exact.format(floor) : "–"],
    ["Turn", turn ?? "not in memory"],
    ["Queued", now ? exact.format(now.queued) : "–"],
    ["Mailbox", now ? exact.format(now.mailbox) : "–"],
    ["Committing", now ? exact.format(now.inFlight) : "–"],
    ["Agent", now?.resident ? "resident" : "not resident"],
    ["Epoch", epoch],
  ];
  keyed(byId("facts"), facts, ([name]) => name, ([name]) => h("div", {}, h("dt", {}, name), h("dd", {})), (fact, [, value]) => set(fact.children[1], value));
  byId("draft").hidden = !now?.draft;
  if (now?.draft) set(byId("draft").querySelector(".text"), textOf(now.draft.message));
  const subscriptions = now?.subscriptions ?? [];
  set(byId("subscribers-title"), `Subscribers (${now?.subscribers ?? 0})`);
  byId("subscribers").hidden = !subscriptions.length;
  table(byId("subscribers"), subscriptions, (one) => `${one.connection} ${one.principal}`, (one) => [
    one.principal, exact.format(one.position), one.live ? "live" : `${exact.format(one.lag)} behind`, one.connection ?? "–",
  ]);
  showRows();
}

function table(element, items, key, cells) {
  keyed(
    element.tBodies[0],
    items,
    key,
    (item) => h("tr", {}, ...cells(item).map(() => h("td", {}))),
    (line, item) => cells(item).forEach((text, place) => set(line.cells[place], text)),
  );
}

function showRows() {
  byId("older").hidden = !state.more;
  keyed(byId("rows"), [...state.rows.values()].reverse(), (row) => `${state.chosen} ${state.epoch} ${row.seq}`, rowElement);
}

function rowElement(row) {
  const { message } = row;
  const head = h("p", { class: "head" },
    h("b", {}, `#${row.seq}`), h("span", {}, row.by), message && message.role !== "user" && message.role !== "assistant" && h("span", {}, message.role),
    h("time", { datetime: row.at }, new Date(row.at).toLocaleString()), row.turn !== undefined && h("span", {}, `turn ${row.turn}`));
  if (row.finish) head.append(tag(row.finish === "error" ? "error" : "waiting", row.finish));
  if (row.fault) head.append(tag("fault", "cannot be read"));
  return h("li", {}, head, h("p", { class: "text" }, row.fault ?? textOf(message)));
}

/** Returns a message as text: what people say as it is, everything else as JSON. */
function textOf({ content }) {
  if (typeof content === "string") return content;
  return content.map((part) => (part.type === "text" ? part.text : JSON.stringify(part, shortened, 1))).join("\n");
}

const shortened = (_, value) => (typeof value === "string" && value.length > 2000 ? `${value.slice(0, 2000)}…` : value);

function showSockets({ connections, total }) {
  set(byId("sockets").querySelector("summary"), `Connections (${exact.format(total)})`);
  table(byId("sockets").querySelector("table"), connections, (one) => one.id, (one) => [
    one.principal ?? "not let in yet", one.peer, exact.format(one.open), exact.format(one.inflight),
    one.waiting ? `${exact.format(one.waiting)} bytes` : "–", one.id,
  ]);
}

// -- what people do

function goTo(conversation) {
  location.hash = encodeURIComponent(conversation);
}

function follow() {
  let conversation = null;
  try {
    conversation = decodeURIComponent(location.hash.slice(1)) || null;
  } catch {
    // no conversation has such a name
  }
  choose(conversation);
}

byId("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  byId("pause").setAttribute("aria-pressed", String(state.paused));
  look();
});
let typing = 0;
byId("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    state.limit = LIST_STEP;
    look();
  }, 200);
});
byId("further").addEventListener("click", () => {
  state.limit = Math.min(LIST_MAX, state.limit + LIST_STEP);
  look();
});
byId("older").addEventListener("click", () => lookBack().catch((error) => say("trouble", error.message)));
byId("sockets").addEventListener("toggle", look);
byId("gate").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(byId("token").value.trim());
  byId("token").value = "";
  look();
});
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && !state.paused && look());
addEventListener("hashchange", follow);
follow();
if (state.chosen === null) look();
