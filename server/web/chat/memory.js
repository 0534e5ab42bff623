// What the page keeps in this browser: the token for this tab, the rest for the next visit too.

const SEEN = "parlatory-page:seen";
const SINCE = "parlatory-page:since";
const VISITED = "parlatory-page:visited";
const TOKEN = "parlatory-page:token";
const WRITTEN = "parlatory-page:written:";
const CONVERSATIONS_MAX = 500;
const WRITTEN_MAX = 100_000; // characters

function read(storage, key, otherwise) {
  try {
    return JSON.parse(storage.getItem(key) ?? "null") ?? otherwise;
  } catch {
    return otherwise; // somebody else's, or cut off
  }
}

function write(storage, key, value) {
  try {
    storage.setItem(key, JSON.stringify(value));
  } catch {
    storage.removeItem(key); // full: it is a convenience
  }
}

const newest = (entries, of) =>
  Object.fromEntries(entries.sort((a, b) => of(b[1]) - of(a[1])).slice(0, CONVERSATIONS_MAX));

/** The token of this tab; never in an address. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? undefined,
  set: (value) => sessionStorage.setItem(TOKEN, value),
  /** The headers that bring it. @returns {Record<string, string>} */
  headers: () => (token.get() ? { Authorization: `Bearer ${token.get()}` } : {}),
};

/** Up to which row each conversation was seen: `{conversation: {seq, at}}`. */
export const seen = {
  of: (conversation) => read(localStorage, SEEN, {})[conversation]?.seq ?? 0,
  note(heads) {
    const all = read(localStorage, SEEN, {});
    const changed = Object.entries(heads).filter(([conversation, seq]) => all[conversation]?.seq !== seq);
    for (const [conversation, seq] of changed) all[conversation] = { seq, at: Date.now() };
    if (changed.length)
      write(
        localStorage,
        SEEN,
        newest(Object.entries(all), (one) => one.at),
      );
  },
  /** Notes those that are listed for the first time: what was said before the first visit does not count as unread. */
  meet(entries) {
    const since = read(localStorage, SINCE, 0) || Date.now();
    write(localStorage, SINCE, since);
    const all = read(localStorage, SEEN, {});
    const old = entries.filter(({ conversation, at }) => !all[conversation] && Date.parse(at) <= since);
    this.note(Object.fromEntries(old.map(({ conversation, head }) => [conversation, head])));
  },
  key: SEEN,
};

/** The conversations that were open here: `{conversation: {title, used, at}}`, where something was said if `used`. */
export const visited = {
  all: () => read(localStorage, VISITED, {}),
  note(conversation, title, used) {
    const all = read(localStorage, VISITED, {});
    const known = all[conversation];
    all[conversation] = { title: title || known?.title || null, used: used || known?.used || false, at: Date.now() };
    write(
      localStorage,
      VISITED,
      newest(Object.entries(all), (one) => one.at),
    );
  },
  last() {
    return Object.entries(visited.all()).sort((a, b) => b[1].at - a[1].at)[0]?.[0];
  },
};

/** What was written and not sent, in this tab. */
export const written = {
  of: (conversation) => read(sessionStorage, WRITTEN + conversation, ""),
  note(conversation, text) {
    if (text && text.length <= WRITTEN_MAX) write(sessionStorage, WRITTEN + conversation, text);
    else sessionStorage.removeItem(WRITTEN + conversation);
  },
};
