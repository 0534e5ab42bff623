// Markdown to nodes. HTML in a text is text; what the parser makes of the rest passes the sanitiser.

import { Marked, Tokenizer } from "../vendor/marked.esm.js";
import DOMPurify from "../vendor/purify.es.mjs";
import { become, h } from "./dom.js";

const SAFE = {
  ALLOWED_TAGS: [
    "a",
    "blockquote",
    "br",
    "code",
    "del",
    "em",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "li",
    "ol",
    "p",
    "pre",
    "strong",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "ul",
  ],
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
// Characters that may be searched in vain for the end of an emphasis. For each beginning the parser looks through the
// rest of its block: without a limit `*a_*a_...` would take it a minute.
const SEARCHED_MAX = 2_000_000;
let searched = 0;
const TOGETHER = 24; // blocks of a text that grows: what stands in other elements is not looked at for each new one
const LANGUAGE = /^language-([\w+#.-]{1,20})$/;

const escaped = (text) => text.replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);

const marked = new Marked({
  async: false,
  breaks: true,
  gfm: true,
  tokenizer: {
    html: () => undefined,
    tag: () => undefined,
    emStrong(text, ...place) {
      if (searched > SEARCHED_MAX) return undefined;
      const token = Tokenizer.prototype.emStrong.call(this, text, ...place);
      if (!token) searched += text.length;
      return token;
    },
  },
  renderer: {
    // The page's own headings are h1 and h2.
    heading({ tokens, depth }) {
      const level = Math.min(depth + 2, 6);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    // A picture from elsewhere would tell its host who reads: it is a link.
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
  },
});

/** Takes a step of the parser; a text that is nested too deep for it stays as it was written. */
function attempted(step, otherwise) {
  try {
    return step();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return otherwise();
  }
}

/** @param {string} text @returns {any[]} */
function blocks(text) {
  searched = 0;
  return attempted(() => marked.lexer(text), () => [asWritten(text)]);
}

const asWritten = (text) => ({ type: "paragraph", raw: text, text, tokens: [{ type: "text", raw: text, text }] });

/** @param {any[]} tokens @returns {string} HTML that is not sanitised yet */
function written(tokens) {
  return attempted(
    () => marked.parser(tokens),
    () => marked.parser([asWritten(tokens.map((token) => token.raw).join(""))]),
  );
}

/** @param {string} html @returns {DocumentFragment} */
function nodes(html) {
  const fragment = /** @type {any} */ (DOMPurify.sanitize(html, SAFE));
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const block of fragment.querySelectorAll("pre")) {
    const language = LANGUAGE.exec(block.firstElementChild?.className ?? "")?.[1] ?? "";
    const label = language ? `Code, ${language}` : "Code";
    const copy = h("button", { type: "button", class: "copy" }, "Copy");
    const frame = h("div", { class: "code" }, h("div", { class: "caption" }, h("span", {}, language || "code"), copy));
    block.replaceWith(frame);
    block.tabIndex = 0;
    block.setAttribute("role", "region");
    block.setAttribute("aria-label", label);
    frame.append(block);
  }
  return fragment;
}

/** Renders blocks at once, for the sanitiser has its price by the call. @param {string[]} htmls @returns {any[][]} */
function nodesOf(htmls) {
  const items = htmls.length ? [...nodes(htmls.map((html) => `<li>${html}</li>`).join("")).children] : [];
  return items.map((item) => [...item.childNodes]);
}

/** Renders a whole text. @param {string} text @returns {DocumentFragment} */
export function markdown(text) {
  return nodes(written(blocks(text)));
}

/** Is a text that grows: only its last blocks, which what comes can still change, become others. */
export class GrowingText {
  /** @param {HTMLElement} element holds nothing else */
  constructor(element) {
    this.element = element;
    this.text = "";
    this.settled = 0; // characters whose blocks stay as they are
    /** @type {{html: string, nodes: any[]}[]} */
    this.open = []; // the blocks of the rest
    this.end = element; // where the next one goes
  }

  /** Takes the text as it is now. */
  update(text) {
    if (text.includes("\r")) text = text.replace(/\r\n?/g, "\n"); // as the parser counts
    if (text === this.text) return;
    if (!text.startsWith(this.text)) {
      this.element.replaceChildren();
      this.settled = 0;
      this.open = [];
      this.end = this.element;
    }
    this.text = text;
    const tokens = blocks(text.slice(this.settled));
    const all = tokens.map((token) => written([token]));
    let same = 0;
    while (same < this.open.length && this.open[same].html === all[same]) same++;
    const fresh = nodesOf(all.slice(same)).map((nodes, index) => ({ html: all[same + index], nodes }));
    const before = this.open.splice(same);
    while (before.length && before[0].nodes.length === fresh[0]?.nodes.length) {
      const { html, nodes } = fresh.shift();
      this.open.push({ html, nodes: before.shift().nodes.map((node, index) => become(node, nodes[index])) });
    }
    for (const { nodes } of before) for (const node of nodes) node.remove();
    for (const block of fresh) this.#append(block);
    const settled = tokens.slice(0, lastOpen(tokens));
    this.open.splice(0, settled.length);
    for (const { raw } of settled) this.settled += raw.length;
  }

  #append(block) {
    this.open.push(block);
    if (this.end.childElementCount >= TOGETHER) this.element.append((this.end = h("div", { class: "blocks" })));
    this.end.append(...block.nodes);
  }
}

/** Returns where the last two blocks begin: what comes can still change their kind. */
function lastOpen(tokens) {
  let blocks = 0;
  for (let index = tokens.length - 1; index >= 0; index--) {
    if (tokens[index].type !== "space" && ++blocks === 2) return index;
  }
  return 0;
}
