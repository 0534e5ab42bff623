// The chat page: which conversation is open, and what the keys and buttons around it do.

import { Composer } from "./composer.js";
import { byId } from "./dom.js";
import { token, visited, written } from "./memory.js";
import { Room } from "./room.js";
import { hashOf, Sidebar } from "./sidebar.js";
import { Timeline } from "./timeline.js";

const COPIED_MS = 1500;

/** @type {Room | null} */
let room = null;
/** @type {Promise<string> | null} */
let asking = null;

const composer = new Composer({
  send: async (message) => room?.send(message),
  stop: () => room?.stop(),
  keep: (text) => room && written.note(room.conversation, text),
});
const sidebar = new Sidebar({ begin, unread: (count) => (document.title = count ? `(${count}) Chat` : "Chat") });
const timeline = new Timeline(
  { scroller: byId("messages"), list: byId("rows"), head: byId("beginning"), tail: byId("tail") },
  {},
);

/** Returns the conversation that the address names, if it does. */
function named() {
  try {
    const name = decodeURIComponent(location.hash.slice(1)).normalize("NFC");
    return /^[a-z][a-z0-9-]{0,31}\/./.test(name) ? name : "";
  } catch {
    return "";
  }
}

/** Goes to a new conversation with an agent. Nobody can guess its name. */
function begin(agent) {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  location.hash = hashOf(
    `${agent}/${btoa(String.fromCharCode(...bytes))
      .replaceAll("+", "-")
      .replaceAll("/", "_")}`,
  );
}

function open() {
  const conversation = named();
  if (!conversation || conversation === room?.conversation) return;
  room?.close();
  sidebar.open(false);
  sidebar.current = conversation;
  visited.note(conversation, "", false);
  byId("title").textContent = sidebar.title(conversation);
  room = new Room(conversation, { composer, sidebar, timeline, admit });
  sidebar.show();
  composer.focus();
}

/** Asks for a token until there is one, and keeps it. Asks once, however many want it. */
function admit() {
  asking ??= ask().finally(() => (asking = null));
  return asking;
}

function ask() {
  const dialog = byId("admission");
  dialog.showModal();
  return new Promise((resolve) => {
    const closed = () => {
      const given = byId("token").value.trim();
      if (!given) return dialog.showModal();
      dialog.removeEventListener("close", closed);
      byId("token").value = "";
      byId("refusal").textContent = "The server did not accept this token. Try another one.";
      token.set(given);
      resolve(given);
    };
    dialog.addEventListener("close", closed);
  });
}

async function copy(element) {
  if (navigator.clipboard) return navigator.clipboard.writeText(element.textContent);
  getSelection().selectAllChildren(element); // without TLS there is only the old way
  document.execCommand("copy");
}

document.addEventListener("keydown", (event) => {
  const meant = event.key === "Escape" && !event.isComposing && !event.defaultPrevented;
  if (meant && !document.querySelector("dialog[open]") && !byId("stop").hidden) room?.stop();
});
byId("latest").addEventListener("click", () => {
  timeline.jump();
  composer.focus();
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the conversation
  composer.focus();
});
byId("messages").addEventListener("click", async ({ target }) => {
  if (!target.matches(".copy")) return;
  await copy(target.closest(".code").querySelector("pre"));
  target.textContent = "Copied";
  setTimeout(() => (target.textContent = "Copy"), COPIED_MS);
});
document.addEventListener("visibilitychange", () => document.hidden || room?.schedule());
addEventListener("hashchange", open);

/** Without a name in the address: the last one that was open, else a new one. */
async function start() {
  const listed = sidebar.load();
  open();
  if (room) return;
  const last = visited.last();
  if (last) location.replace(hashOf(last));
  else {
    await listed;
    while (sidebar.status === 401) {
      await admit();
      await sidebar.load();
    }
    const first = sidebar.entries.keys().next().value;
    if (first) location.replace(hashOf(first));
    else if (sidebar.agents.length) begin(sidebar.agents[0]);
    else {
      byId("connection").textContent = "";
      byId("greeting").hidden = false;
      byId("greeting").textContent = "Begin a conversation with an agent of this server.";
      composer.enable(false);
    }
  }
}

await start();
