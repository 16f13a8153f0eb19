// Requests to the server; every failure becomes an error with a message and a hint.

const REQUEST_TIMEOUT_MS = 150_000; // of one request; the server has its own, shorter limits
const BUSY_RETRIES = 8;
const LONGEST_WAIT = 15; // seconds until a busy server is asked again

/** A request that the server refused, with its message. */
export class Refused extends Error {
  constructor(status, { code, message, hint }) {
    super(message);
    this.status = status;
    this.code = code;
    this.hint = hint ?? "";
  }
}

/** The server cannot be reached. */
export class Gone extends Error {}

/** GET, or POST where a body is given; JSON in, JSON out. `signal` gives up early; `queued` is called
 * with a sentence where others come first. */
export async function ask(path, body, signal, queued = () => {}) {
  for (let attempt = 0; ; attempt += 1) {
    const answer = await send(path, body, signal);
    if (answer.status !== 429 || attempt === BUSY_RETRIES) return read(answer);
    const wait = Math.min(Number(answer.headers.get("Retry-After")) || 1, LONGEST_WAIT);
    const { error } = await answer.json();
    queued(`${error.message.replace("this one", "yours")} Retrying in ${wait} s …`);
    await pause(wait * 1000 * (1 + Math.random() / 2), signal);
  }
}

/** Fetch a file from the server, unchanged. */
export async function fetched(path) {
  const answer = await send(path);
  return answer.ok ? answer.blob() : read(answer);
}

/** Resolve once the server answers again; retry with growing pauses. */
export async function waitForServer(signal) {
  for (let wait = 500; ; wait = Math.min(wait * 1.5, 5000)) {
    await pause(wait, signal);
    try {
      if ((await send("/healthz", undefined, signal)).ok) return;
    } catch (failure) {
      if (!(failure instanceof Gone)) throw failure;
    }
  }
}

async function send(path, body, signal) {
  const limits = [AbortSignal.timeout(REQUEST_TIMEOUT_MS), ...(signal ? [signal] : [])];
  const options = { signal: AbortSignal.any(limits), cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  try {
    return await fetch(path, options);
  } catch (failure) {
    if (signal?.aborted) throw failure;
    throw new Gone("The server is not answering.");
  }
}

async function read(answer) {
  let content;
  try {
    content = await answer.json();
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    // The server was killed while it answered, or another one listens there.
    throw new Gone("The connection was lost before the answer was complete.");
  }
  if (answer.ok) return content;
  throw new Refused(
    answer.status,
    content.error ?? { code: "internal", message: `Status ${answer.status}.` },
  );
}

/** Wait; `signal` ends it early with its reason. */
export function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
