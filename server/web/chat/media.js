// Pictures and files that lie beside their rows: fetched with the token, which an <img> could not send.

import { token } from "./memory.js";

const KEPT = 40;
/** @type {Map<string, Promise<Blob>>} */
const blobs = new Map(); // by address, the one used last at the end

/** Gets what a row refers to. */
export function kept(conversation, hash) {
  const path = [...conversation.split("/"), hash].map(encodeURIComponent).join("/");
  const address = new URL(`v1/media/${path}`, document.baseURI).href;
  const found = blobs.get(address) ?? load(address);
  blobs.delete(address);
  blobs.set(address, found);
  if (blobs.size > KEPT) blobs.delete(blobs.keys().next().value);
  found.catch(() => blobs.delete(address)); // the next time may be luckier
  return found;
}

async function load(address) {
  const answer = await fetch(address, { headers: token.headers() });
  if (!answer.ok) throw new Error(answer.status === 404 ? "is not there any more" : "cannot be loaded now");
  return answer.blob();
}
