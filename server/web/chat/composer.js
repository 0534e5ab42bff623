// The field a message is written in, and what goes with it.

import { partOf, Unfit } from "./attachments.js";
import { byId, change, h, sized } from "./dom.js";

const HEIGHT_MAX_PX = 240;
const utf8 = new TextEncoder();

/** Says how many bytes a message takes in the log. */
export const sizeOf = (message) => utf8.encode(JSON.stringify(message)).length;

/** Is the form below the messages. */
export class Composer {
  /** @param {{send: (message: any) => Promise<void>, stop: () => void, keep: (text: string) => void}} hooks */
  constructor(hooks) {
    this.hooks = hooks;
    this.form = byId("composer");
    this.input = /** @type {HTMLTextAreaElement} */ (byId("input"));
    this.list = byId("attachments");
    this.parts = [];
    this.messageMax = 1 << 20; // bytes
    this.busy = 0; // files that are being read
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.input.addEventListener("input", () => this.#changed());
    this.input.addEventListener("keydown", (event) => this.#key(event));
    this.input.addEventListener("paste", (event) => this.#paste(event));
    byId("attach").addEventListener("click", () => byId("files").click());
    byId("files").addEventListener("change", ({ target }) => {
      this.attach(target.files);
      target.value = "";
    });
    byId("stop").addEventListener("click", () => this.hooks.stop());
    this.#acceptDrops(document.body);
  }

  /** Begins with what was written before. */
  restore(text) {
    this.input.value = text;
    this.parts = [];
    this.#changed();
    this.#list();
  }

  enable(enabled) {
    for (const id of ["input", "send", "attach"]) change(byId(id), { disabled: !enabled });
  }

  /** Shows Stop while there is something to stop. */
  running(running) {
    const stop = byId("stop");
    if (stop.hidden !== running) return;
    if (!running && document.activeElement === stop) this.input.focus();
    stop.hidden = !running;
  }

  focus() {
    this.input.focus({ preventScroll: true });
  }

  async attach(files) {
    this.#complain("");
    for (const file of [...files]) {
      this.busy += 1;
      try {
        const part = await partOf(file, this.messageMax - 4096);
        if (this.#size([...this.parts, part]) > this.messageMax)
          throw new Unfit(this.#tooLarge(`With ${part.filename} the message`, this.#size([...this.parts, part])));
        this.parts.push(part);
      } catch (error) {
        if (!(error instanceof Unfit)) throw error;
        this.#complain(error.message);
      } finally {
        this.busy -= 1;
      }
      this.#list();
    }
    this.focus();
  }

  #size(parts) {
    return sizeOf({ role: "user", content: [{ type: "text", text: this.input.value }, ...parts] });
  }

  #tooLarge(what, size) {
    return `${what} is too large: ${sized(size)}, and a message may have ${sized(this.messageMax)}.`;
  }

  #submit() {
    const text = this.input.value.trim() ? this.input.value : "";
    if (this.input.disabled || this.busy || !(text || this.parts.length)) return;
    const content = this.parts.length ? [...(text ? [{ type: "text", text }] : []), ...this.parts] : text;
    const message = { role: "user", content };
    const size = sizeOf(message);
    if (size > this.messageMax) {
      this.#complain(this.#tooLarge("This message", size) + " It was not sent.");
      return;
    }
    const parts = this.parts;
    this.restore("");
    this.hooks.send(message).catch((error) => {
      if (!this.input.value && !this.parts.length) {
        this.restore(text);
        this.parts = parts;
        this.#list();
      }
      this.#complain(`It was not sent: ${error.message}`);
    });
  }

  #paste(event) {
    const files = event.clipboardData.files;
    const size = utf8.encode(event.clipboardData.getData("text")).length;
    if (!files.length && size <= this.messageMax) return;
    event.preventDefault();
    if (files.length) this.attach(files);
    else this.#complain(this.#tooLarge("This text", size) + " It was not pasted.");
  }

  #key(event) {
    // A keyboard on the screen has Enter for a new line, and one that composes a character for that.
    const touch = matchMedia("(pointer: coarse)").matches;
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !touch) {
      event.preventDefault();
      this.#submit();
    }
  }

  #changed() {
    this.#complain("");
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, HEIGHT_MAX_PX)}px`;
    this.hooks.keep(this.input.value);
  }

  #complain(text) {
    const problem = byId("problem");
    problem.textContent = text;
    problem.hidden = !text;
  }

  #list() {
    this.list.hidden = !this.parts.length;
    this.list.replaceChildren(
      ...this.parts.map((part) => {
        const remove = () => {
          this.parts = this.parts.filter((one) => one !== part);
          this.#list();
          this.focus();
        };
        const picture =
          part.type === "image" && h("img", { src: `data:${part.mediaType};base64,${part.data}`, alt: "" });
        const button = h(
          "button",
          { type: "button", class: "icon", "aria-label": `Remove ${part.filename}`, onclick: remove },
          "✕",
        );
        return h("li", {}, picture, h("span", {}, part.filename), button);
      }),
    );
  }

  #acceptDrops(area) {
    const carries = (event) => event.dataTransfer?.types.includes("Files");
    area.addEventListener("dragover", (event) => {
      if (!carries(event)) return;
      event.preventDefault();
      this.form.classList.add("dropping");
    });
    area.addEventListener("dragleave", (event) => event.relatedTarget ?? this.form.classList.remove("dropping"));
    area.addEventListener("drop", (event) => {
      this.form.classList.remove("dropping");
      if (!carries(event)) return;
      event.preventDefault();
      if (!this.input.disabled) this.attach(event.dataTransfer.files);
    });
  }
}
