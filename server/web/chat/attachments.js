// Files as parts of a message. A picture that is too large for one is made smaller.

const PICTURE = /^image\/(?:png|jpeg|gif|webp)$/;
const SIDES_PX = [2048, 1400, 960];
const QUALITY = 0.85;

/** Is a file that cannot be attached; its message is for the reader. */
export class Unfit extends Error {}

/**
 * Makes a part of a file.
 * @param {File} file
 * @param {number} bytesMax of the part as base64
 */
export async function partOf(file, bytesMax) {
  const picture = PICTURE.test(file.type);
  let blob = /** @type {Blob} */ (file);
  if (encodedSize(blob.size) > bytesMax) {
    if (!picture || file.type === "image/gif") throw new Unfit(`${file.name} is too large to send`);
    blob = await smaller(file, bytesMax);
  }
  const mediaType = blob.type || "application/octet-stream";
  return { type: picture ? "image" : "file", data: await base64(blob), mediaType, filename: file.name || "picture" };
}

const encodedSize = (bytes) => Math.ceil(bytes / 3) * 4;

async function smaller(file, bytesMax) {
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Unfit(`${file.name} is too large to send, and no picture that can be made smaller`);
  });
  for (const side of SIDES_PX) {
    const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", QUALITY));
    if (blob && encodedSize(blob.size) <= bytesMax) return blob;
  }
  throw new Unfit(`${file.name} is too large to send`);
}

async function base64(blob) {
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(/** @type {string} */ (reader.result));
    reader.onerror = () => reject(new Unfit("The file cannot be read"));
    reader.readAsDataURL(blob);
  });
  return url.slice(url.indexOf(",") + 1);
}
