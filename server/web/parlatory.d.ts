/** The types of parlatory.js. What they say of frames is PROTOCOL's; of messages, the message model's. */

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

export interface Part {
  readonly type: string;
  readonly [key: string]: Json | undefined;
}

export interface Message {
  readonly role: "user" | "assistant" | "system" | "tool";
  readonly content: string | readonly Part[];
  readonly [key: string]: unknown;
}

/** A committed message. `finish` is there only where it is not `done`. */
export interface Row {
  readonly seq: number;
  readonly at: string;
  readonly by: string;
  readonly clientId?: string;
  readonly turn?: number | string;
  readonly finish?: "stopped" | "error" | "interrupted";
  readonly message: Message;
  readonly text: string;
  readonly pending?: undefined;
  readonly draft?: undefined;
}

/**
 * A message of this client that is not a row yet. `pending` until the server acknowledges it; then `seq` is there until
 * the row takes its place. With `error` it was refused for good: send it again under its `clientId`, or `discard` it.
 */
export interface Sent {
  readonly clientId: string;
  readonly message: Message;
  readonly text: string;
  readonly pending: boolean;
  readonly seq?: number;
  readonly error?: ParlatoryError;
  readonly draft?: undefined;
}

/** What the agent is writing. */
export interface Draft {
  readonly draft: true;
  readonly id: string;
  readonly turn: number | string;
  readonly message: Message;
  readonly text: string;
  readonly seq?: undefined;
  readonly pending?: undefined;
}

export type Entry = Row | Sent | Draft;

export interface Turn {
  readonly state: "idle" | "queued" | "running" | "waiting" | "done" | "stopped" | "error";
  readonly id: number | string | undefined;
  readonly queued: number;
}

export interface Status {
  /** `waiting` for the next attempt, at `retryAt`; `offline` is the same while the browser says that it is offline. */
  readonly state: "connecting" | "open" | "waiting" | "offline" | "closed";
  /** The seq of the last row applied. */
  readonly head: number;
  readonly turn: Turn;
  /** In the milliseconds of `now`. */
  readonly retryAt: number | null;
  /** Why there is no connection, or why it is over. */
  readonly error: ParlatoryError | null;
  /** How many messages the server has not acknowledged. */
  readonly unsent: number;
  /** Whether everything up to now is here. */
  readonly caughtUp: boolean;
  /** Whether rows precede those in `messages`: `page` gets them. */
  readonly more: boolean;
  /** Who the server takes this client for: `by` of its rows. */
  readonly principal: string | null;
}

export interface Presence {
  readonly count: number;
  readonly principals?: readonly string[];
}

export interface Snapshot {
  readonly messages: readonly Entry[];
  readonly status: Status;
  readonly state: Json | undefined;
  readonly presence: Presence | null;
}

export type ChatEvent =
  | { readonly type: "row"; readonly row: Row }
  | { readonly type: "draft"; readonly draft: Draft }
  | { readonly type: "draftEnd"; readonly id: string; readonly finish: string; readonly seq?: number }
  | { readonly type: "turn"; readonly turn: Turn }
  | { readonly type: "signal"; readonly name: string; readonly by: string; readonly data?: Json }
  | { readonly type: "event"; readonly seq: number; readonly name: string; readonly data: Json; readonly at: string }
  | { readonly type: "state"; readonly rev: number; readonly state: Json }
  | ({ readonly type: "presence" } & Presence)
  | { readonly type: "status"; readonly status: Status }
  /** The log is another one than before: the rows so far are void. */
  | { readonly type: "reset"; readonly reason: "epoch" | "ahead" | "trimmed" }
  /** Something went wrong that no promise tells. */
  | { readonly type: "error"; readonly error: ParlatoryError };

/** A promise of the result; iterated at once it yields the items of a streaming method. */
export interface Call<T> extends Promise<T> {
  [Symbol.asyncIterator](): AsyncIterableIterator<Json>;
}

export interface Options {
  /** What proves who you are, or a function that gets a fresh one: at first, and when one is refused. */
  token?: string | (() => string | undefined | Promise<string | undefined>);
  /** Begin with the last so many rows; without it with the first one there is. */
  tail?: number;
  /** The random id of this installation, 22 to 64 of `[A-Za-z0-9_-]`: without authentication it is who you are. */
  client?: string;
  /** Such as `localStorage`: messages that are not acknowledged, and `client`, survive a reload in it. */
  storage?: Pick<Storage, "length" | "key" | "getItem" | "setItem" | "removeItem">;
  /** False: `send` without a connection is refused. Default true: it waits. */
  outbox?: boolean;
  /** Rows kept in `messages`, beside those that `page` got; default 1000. */
  keep?: number;
  /** Characters of rows kept, those of `page` included; default 16 Mi. */
  keepChars?: number;
  /** Default the one of the browser or of Node 22. */
  WebSocket?: new (url: string, protocols: string[]) => WebSocket;
  /** Milliseconds; default `Date.now`. */
  now?: () => number;
  /** Draws the jitter; default `Math.random`. */
  random?: () => number;
}

export interface Chat extends AsyncIterable<ChatEvent> {
  readonly conversation: string;
  /** Rows, then what is not acknowledged, then the draft: frozen; a new array only if something changed. */
  readonly messages: readonly Entry[];
  readonly status: Status;
  readonly state: Json | undefined;
  readonly presence: Presence | null;
  getSnapshot(): Snapshot;
  /** Calls the listener now and after every change; fits `useSyncExternalStore` and is a Svelte store. */
  subscribe(listener: (snapshot: Snapshot) => void): () => void;
  send(
    message: string | readonly Part[] | Message,
    options?: { clientId?: string },
  ): Promise<{ seq: number; duplicate: boolean }>;
  discard(clientId: string): boolean;
  cancel(options?: { turn?: number | string }): Promise<boolean>;
  call<T = Json>(method: string, args?: { [key: string]: unknown }, options?: { key?: string }): Call<T>;
  signal(name: string, data?: unknown): boolean;
  page(options?: { before?: number; limit?: number }): Promise<{ rows: readonly Row[]; more: boolean }>;
  close(): void;
  [Symbol.asyncIterator](): AsyncIterableIterator<ChatEvent>;
}

/**
 * `code` is stable. The server's are PROTOCOL's; this client's are `misuse` `closed` `cancelled` `lost` `offline`
 * `outbox_full` `storage` `token` `unauthorized` `connection` `silence` `protocol`.
 */
export class ParlatoryError extends Error {
  readonly code: string;
  readonly retryMs?: number;
  readonly closeCode?: number;
}

export function connect(url: string | URL, conversation: string, options?: Options): Chat;

export function randomId(): string;

export function textOf(message: Pick<Message, "content">): string;
