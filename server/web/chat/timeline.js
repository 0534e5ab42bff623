// The rows on the screen: a window of elements over however many rows there are, which moves as the reader scrolls.

const STEP = 60; // rows added at a time
const KEPT = 240; // elements at most
const EDGE_PX = 1200; // so near to an end of the window it moves
const END_PX = 48; // so near to the end the reader is at it

/** Shows rows whose `seq` count up without a gap. */
export class Timeline {
  /**
   * @param {{scroller: HTMLElement, list: HTMLElement, head: HTMLElement, tail: HTMLElement}} elements `head` stands
   *   before the first row of the conversation, `tail` behind the last one
   * @param {{element: (row: any, previous: any) => HTMLElement, older: () => void, moved: () => void}} hooks `element`
   *   makes the element of a row, `older` asks for rows before the first one, `moved` tells that the reader scrolled
   */
  constructor({ scroller, list, head, tail }, hooks) {
    this.scroller = scroller;
    this.list = list;
    this.head = head;
    this.tail = tail;
    this.hooks = hooks;
    this.rows = [];
    this.from = 0; // seqs of the window: from <= seq < to
    this.to = 0;
    this.stuck = true; // the reader is at the end and stays there
    this.height = 0; // and place, as of the last scroll
    this.top = 0;
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    // A phone's keyboard, a picture that has loaded, a field that grows.
    new ResizeObserver(() => this.stuck && this.#toEnd()).observe(scroller);
    list.addEventListener("load", () => this.stuck && this.#toEnd(), true);
  }

  /** The seq behind the last row. */
  get end() {
    return this.rows.length ? this.rows[this.rows.length - 1].seq + 1 : 0;
  }

  /** How many rows are there that the reader has not scrolled to. */
  get below() {
    return this.end - this.to;
  }

  clear() {
    this.rows = [];
    this.from = this.to = 0;
    this.stuck = true;
    this.list.replaceChildren();
  }

  /**
   * Takes all rows as they are now: more at either end, or others altogether.
   * @param {any[]} rows
   * @param {boolean} complete the first of them is the first there is
   */
  update(rows, complete) {
    if (!this.#continues(rows)) {
      this.clear();
      this.rows = rows;
      this.head.hidden = !complete || !rows.length;
      this.from = this.to = Math.max(rows[0]?.seq ?? 0, this.end - STEP);
      this.#grow(this.end);
    } else this.#hold(() => this.#advance(rows, complete));
    this.#settle();
  }

  #advance(rows, complete) {
    const [first, end] = [this.rows[0].seq, this.end];
    this.rows = rows;
    this.head.hidden = !complete;
    if (rows[0].seq > this.from) this.#drop(rows[0].seq, this.to);
    // Its day may stand above an older row now.
    if (rows[0].seq < first && this.from === first) this.list.firstElementChild?.replaceWith(this.#element(first));
    if (this.to !== end || !(this.stuck || this.end - this.from <= KEPT)) return;
    this.#grow(this.end);
    if (this.stuck) this.#drop(Math.max(this.from, this.to - KEPT), this.to);
  }

  /** Says whether the rows are those that were there, and more: of another log they have the same seqs. */
  #continues(rows) {
    if (!rows.length || !this.rows.length) return false;
    const seq = Math.max(rows[0].seq, this.rows[0].seq);
    const kept = this.rows[seq - this.rows[0].seq];
    return kept !== undefined && kept === rows[seq - rows[0].seq] && rows[rows.length - 1].seq + 1 >= this.end;
  }

  /** Shows the last rows. */
  jump() {
    if (this.below) {
      this.list.replaceChildren();
      this.from = this.to = Math.max(this.rows[0]?.seq ?? 0, this.end - STEP);
      this.#grow(this.end);
    }
    this.stuck = true;
    this.#settle();
    this.hooks.moved();
  }

  /** Says that what stands behind the last row has changed. */
  #settle() {
    this.tail.hidden = this.below > 0;
    if (this.stuck) this.#toEnd();
    else this.#fill();
  }

  /** Keeps the end in view, if the reader is there. */
  follow() {
    if (this.stuck) this.#toEnd();
  }

  #toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.top = this.scroller.scrollTop;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const away = scrollHeight - scrollTop - clientHeight;
    // Who begins to scroll up is let go at once. A window that got lower moves the reader without being scrolled.
    if (scrollTop < this.top - 1 && away > 1) this.stuck = this.stuck && clientHeight !== this.height;
    else if (away < END_PX) this.stuck = this.below === 0;
    else if (clientHeight === this.height) this.stuck = false;
    this.height = clientHeight;
    this.top = scrollTop;
    this.#fill();
    this.hooks.moved();
  }

  #fill() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    if (scrollTop < EDGE_PX) {
      if (this.from > (this.rows[0]?.seq ?? 0)) this.#up();
      else if (this.rows.length) this.hooks.older();
    } else if (this.below && scrollHeight - scrollTop - clientHeight < EDGE_PX) this.#down();
  }

  #up() {
    this.#hold(() => {
      const from = Math.max(this.rows[0].seq, this.from - STEP);
      const fragment = document.createDocumentFragment();
      for (let seq = from; seq < this.from; seq++) fragment.append(this.#element(seq));
      this.list.prepend(fragment);
      this.from = from;
      this.#drop(from, Math.min(this.to, from + KEPT));
    });
    this.tail.hidden = this.below > 0;
  }

  #down() {
    this.#hold(() => {
      this.#grow(Math.min(this.end, this.to + STEP));
      this.#drop(Math.max(this.from, this.to - KEPT), this.to);
    });
    this.tail.hidden = this.below > 0;
  }

  /** Changes the window and keeps the first row that is seen where it is on the screen. */
  #hold(change) {
    const top = this.scroller.getBoundingClientRect().top;
    const index = [...this.list.children].findIndex((one) => one.getBoundingClientRect().bottom > top);
    const seq = this.from + index;
    const before = this.list.children[index]?.getBoundingClientRect().bottom;
    change();
    const held = this.list.children[seq - this.from];
    if (before !== undefined && held) this.scroller.scrollTop += held.getBoundingClientRect().bottom - before;
  }

  /** Appends elements up to a seq. */
  #grow(to) {
    const fragment = document.createDocumentFragment();
    for (let seq = this.to; seq < to; seq++) fragment.append(this.#element(seq));
    this.list.append(fragment);
    this.to = Math.max(this.to, to);
  }

  /** Drops the elements outside of these seqs. */
  #drop(from, to) {
    for (; this.from < from; this.from++) this.list.firstElementChild?.remove();
    for (; this.to > to; this.to--) this.list.lastElementChild?.remove();
  }

  #element(seq) {
    const index = seq - this.rows[0].seq;
    return this.hooks.element(this.rows[index], this.rows[index - 1]);
  }
}
