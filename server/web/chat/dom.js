// Elements in one line. Text becomes a text node, never HTML.

/**
 * Makes an element: `h("button", {type: "button", class: "icon", onclick: f}, "Copy")`.
 * @param {string} tag
 * @param {Record<string, any>} [properties] attributes, and `on...` listeners; null, undefined and false are left out
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {HTMLElement}
 */
export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child || child === ""));
  return element;
}

/** @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

/** Sets properties where they are others: to set one anew has its price though nothing changes. */
export function change(element, properties) {
  for (const [name, value] of Object.entries(properties)) if (element[name] !== value) element[name] = value;
}

/**
 * Makes a node what another one is and keeps all of it that is the same, and so what is selected, focused, scrolled.
 * @param {any} node @param {any} other @returns {Node} what stands there now
 */
export function become(node, other) {
  if (node.isEqualNode(other)) return node;
  if (node.nodeType === Node.TEXT_NODE && other.nodeType === Node.TEXT_NODE) {
    if (other.data.startsWith(node.data)) node.appendData(other.data.slice(node.length));
    else node.data = other.data;
    return node;
  }
  if (!node.cloneNode().isEqualNode(other.cloneNode())) {
    node.replaceWith(other);
    return other;
  }
  const [before, now] = [[...node.childNodes], [...other.childNodes]];
  for (const one of before.splice(now.length)) one.remove();
  now.forEach((one, index) => (index < before.length ? become(before[index], one) : node.append(one)));
  return node;
}

/** Says a size: `1.5 MB`. @param {number} bytes */
export function sized(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 1e6 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** Offers bytes as a download; whatever type they claim, the browser is not to show them as a page of ours. */
export function download(bytes, filename) {
  const url = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  h("a", { href: url, download: filename }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** @param {string} base64 */
export function decoded(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}
