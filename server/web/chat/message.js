// A message as elements: who and when, its parts, how it ended.

import { byId, decoded, download, h, sized } from "./dom.js";
import { GrowingText, markdown } from "./markdown.js";
import { kept } from "./media.js";

const SHOWN_AT_ONCE = 40_000; // characters of a text; more on demand
const MARKDOWN_MAX = 400_000; // characters; longer texts stay plain
const PICTURE = /^image\/(?:png|jpeg|gif|webp|avif)$/;
const HASH = /^sha256:([0-9a-f]{64})$/;
const ENDS = {
  stopped: "Stopped",
  error: "Failed: the answer ends here",
  interrupted: "Interrupted by a restart of the server",
};
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const MOMENT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long", year: "numeric" });

/** Says who speaks: `eliza` as `Eliza`, `user:ann` as `ann`. */
export function author(row, agent) {
  if (row.by === "agent") return agent.charAt(0).toUpperCase() + agent.slice(1);
  return row.by?.startsWith("anonymous") ? "Somebody" : (row.by ?? "").replace(/^user:/, "");
}

/** All text of a message. */
export function textOf(message) {
  if (typeof message.content === "string") return message.content;
  return message.content
    .filter((part) => part.type === "text")
    .map((part) => part.text)
    .join("\n\n");
}

/**
 * Makes the element of a row or of a send that is not acknowledged yet.
 * @param {any} row
 * @param {{conversation: string, agent: string, own: (row: any) => boolean, previous?: any}} context
 */
export function rowElement(row, { conversation, agent, own, previous }) {
  const mine = own(row);
  const role = row.message.role;
  const kind = role === "user" ? (mine ? "user mine" : "user") : role;
  const same = previous && previous.by === row.by && sameDay(previous, row) && previous.message.role === role;
  const element = h("li", { class: `row ${kind}${same ? " same" : ""}`, "data-seq": row.seq });
  if (row.at && !(previous && sameDay(previous, row))) {
    element.append(h("p", { class: "day" }, DAY.format(new Date(row.at))));
  }
  const time = row.at && h("time", { datetime: row.at }, TIME.format(new Date(row.at)));
  const title = row.at && MOMENT.format(new Date(row.at));
  const name = role === "system" ? "System" : role === "tool" ? "Tool" : mine ? "You" : author(row, agent);
  element.append(h("div", { class: "head" }, h("span", { class: "name" }, name), time));
  const body = h("div", { class: "body", title });
  for (const part of parts(row.message)) body.append(partElement(part, role, conversation));
  element.append(body);
  if (ENDS[row.finish]) element.append(h("p", { class: `end ${row.finish}` }, ENDS[row.finish]));
  return element;
}

function sameDay(one, other) {
  return !other.at || !one.at || new Date(one.at).toDateString() === new Date(other.at).toDateString();
}

function parts(message) {
  return typeof message.content === "string" ? [{ type: "text", text: message.content }] : message.content;
}

function partElement(part, role, conversation) {
  switch (part.type) {
    case "text":
      return textElement(part.text, role);
    case "image":
    case "file":
      return fileElement(part, conversation);
    case "reasoning":
      return folded("Reasoning", () => (part.text ? plain(part.text) : plain("(kept by the provider)")));
    case "tool-call":
      return folded(`Called ${part.toolName}`, () => code(part.invalid ?? part.input));
    case "tool-result":
      return folded(`${failed(part.output) ? "Failure" : "Result"} of ${part.toolName}`, () =>
        outputElement(part.output, conversation),
      );
    default:
      return folded(part.kind ?? part.type, () => code(part.data ?? part));
  }
}

function textElement(text, role) {
  const element = h("div", { class: role === "assistant" ? "text markdown" : "text", dir: "auto" });
  const show = (shown) => {
    if (role === "assistant" && shown.length <= MARKDOWN_MAX) element.replaceChildren(markdown(shown));
    else element.replaceChildren(plain(shown));
  };
  if (text.length <= SHOWN_AT_ONCE) {
    show(text);
    return element;
  }
  show(text.slice(0, SHOWN_AT_ONCE));
  const all = h("button", { type: "button", onclick: () => show(text) }, `Show all (${sized(text.length)})`);
  element.append(h("p", {}, all));
  return element;
}

function fileElement(part, conversation) {
  const name = part.filename ?? (part.type === "image" ? "picture" : "file");
  if (/^https?:/i.test(part.url ?? "")) {
    return h(
      "a",
      { class: "file", href: part.url, target: "_blank", rel: "noopener noreferrer nofollow" },
      `↗ ${name}`,
    );
  }
  const hash = HASH.exec(part.ref?.parlatory ?? "")?.[1];
  if (part.data === undefined && !hash) return h("span", { class: "file" }, `${name} (kept elsewhere)`);
  const bytes = hash ? () => kept(conversation, hash) : async () => decoded(part.data);
  if (!PICTURE.test(part.mediaType ?? "") && !(part.type === "image" && hash)) return saved(name, bytes, part.data);
  const inline = part.data !== undefined && `data:${part.mediaType};base64,${part.data}`;
  const address = async () => inline || URL.createObjectURL(await bytes());
  const picture = h("img", { alt: name, height: "220" });
  const show = async () => enlarge(await address(), name);
  const button = h(
    "button",
    { type: "button", class: "picture", "aria-label": `Show ${name}`, onclick: show },
    picture,
  );
  load(picture, address).catch(() => button.replaceWith(saved(name, bytes)));
  return button;
}

async function load(picture, address) {
  picture.addEventListener("load", () => URL.revokeObjectURL(picture.src), { once: true });
  picture.src = await address();
}

/** A button that saves a file. */
function saved(name, bytes, data) {
  const size = h("small", {}, data === undefined ? "" : sized(Math.floor((data.length * 3) / 4)));
  const save = async () => {
    try {
      download(await bytes(), name);
    } catch (error) {
      size.textContent = error.message;
    }
  };
  return h("button", { type: "button", class: "file", onclick: save }, `⤓ ${name}`, size);
}

function enlarge(address, name) {
  const close = h(
    "button",
    { type: "button", class: "icon", "aria-label": "Close", onclick: () => dialog.close() },
    "✕",
  );
  const dialog = /** @type {HTMLDialogElement} */ (h("dialog", { class: "enlarged", "aria-label": name }));
  dialog.append(close, h("img", { src: address, alt: name }));
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    dialog.remove();
    URL.revokeObjectURL(address);
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** What few want to see: its content is made when it is opened. */
function folded(summary, content) {
  const details = h("details", {}, h("summary", {}, summary));
  details.addEventListener("toggle", () => details.childElementCount === 1 && details.append(content()), {
    once: true,
  });
  return details;
}

const plain = (text) => h("div", { class: "plain" }, text);

const code = (value) =>
  h(
    "pre",
    { tabindex: "0", role: "region", "aria-label": "Data" },
    typeof value === "string" ? value : JSON.stringify(value, null, 2),
  );

const failed = (output) => output.type.startsWith("error") || output.type === "execution-denied";

function outputElement(output, conversation) {
  switch (output.type) {
    case "text":
    case "error-text":
      return plain(output.value || "(nothing)");
    case "content":
      return h("div", {}, ...output.value.map((part) => partElement(part, "tool", conversation)));
    case "execution-denied":
      return plain(output.reason ?? "It was not allowed.");
    default:
      return code(output.value ?? null);
  }
}

/** Is the answer that is being written. */
export class DraftView {
  constructor(conversation, agent) {
    this.conversation = conversation;
    this.body = h("div", { class: "body" });
    const head = h("div", { class: "head" }, h("span", { class: "name" }, author({ by: "agent" }, agent)));
    this.element = h("li", { class: "row assistant draft" }, head, this.body);
    /** @type {{type: string, part: any, element: HTMLElement, text?: GrowingText}[]} */
    this.shown = [];
  }

  /** Takes the message as it is now. */
  update(message) {
    const all = parts(message);
    all.forEach((part, index) => {
      let shown = this.shown[index];
      if (shown?.type !== part.type) shown = this.#replace(index, part);
      if (part === shown.part) return;
      if (shown.text) shown.text.update(part.text);
      else if (part.type === "reasoning") shown.element.lastElementChild.textContent = part.text;
      else if (shown.part && JSON.stringify(part) !== JSON.stringify(shown.part)) {
        const element = partElement(part, "assistant", this.conversation);
        shown.element.replaceWith(element);
        shown.element = element;
      }
      shown.part = part;
    });
    for (const shown of this.shown.splice(all.length)) shown.element.remove();
  }

  #replace(index, part) {
    const element = this.#element(part);
    const text = part.type === "text" ? new GrowingText(element) : undefined;
    const shown = { type: part.type, element, text, part: undefined };
    const old = this.shown[index];
    if (old) old.element.replaceWith(element);
    else this.body.append(element);
    this.shown[index] = shown;
    return shown;
  }

  #element(part) {
    if (part.type === "text") return h("div", { class: "text markdown", dir: "auto" });
    if (part.type !== "reasoning") return partElement(part, "assistant", this.conversation);
    // Open while it grows; in the row it is folded.
    return h("details", { open: true }, h("summary", {}, "Reasoning"), h("div", { class: "plain" }));
  }
}

/** Says something to who listens to the page instead of seeing it. */
export function announce(text) {
  byId("announcer").textContent = text;
}
