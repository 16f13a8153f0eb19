// Requests of the page: explanations first, so that colours appear at once; then trust and the game.

import { ask, waitForServer, Gone, pause, Refused } from "./api.js";
import { entriesOfToken, isContinuation } from "./continuation.js";
import { byId } from "./dom.js";
import { remember } from "./link.js";
import { counted } from "./numbers.js";
import { chosenModel, fieldsInUse, state, update, watch } from "./store.js";
import { clearError, showError } from "./errors.js";

export const RANDOM_ORDERS = 16;
const FIRST_ORDERS = 4; // a first band of random orders, which the others sharpen
const HINTS = {
  // instead of the server's hints for programs
  bad_target: "Choose one of the classes next to the prediction.",
  unsupported: "Choose another method or model.",
  invalid: "Reload the page; if that does not help, its link may be damaged.",
  unknown_name: "",
};
const IDLE_DELAY_MS = 400; // without a new request before trust is tested, which takes a second
const NO_TESTS = { signal: null, done: Promise.resolve() };
let currentRequest = new AbortController();
let hasExplainedAgain = false; // since the server did not know an explanation
let trustTests = NO_TESTS;
const pendingSignals = {}; // view → the signal of the request for its further data

/** Explain the content of the form; `step` adds an entry to the browser's history. */
export async function explain({ step = true } = {}) {
  const fields = fieldsInUse();
  const empty = fields.find((field) => !state[field].trim());
  if (empty !== undefined) {
    showError(
      empty === "picture"
        ? "Choose a picture first, or click an example."
        : `“${empty}” is empty. Type something, or click an example.`,
    );
    byId(`field-${empty}`)?.focus();
    return;
  }
  const signal = resetView();
  update({ busy: true });
  announce("Explaining …");
  const began = performance.now();
  try {
    const response = await ask("/api/explain", buildRequest(fields), signal, announce);
    clearError();
    applyResponse(response, { served: true, source: "" });
    remember({ step });
    announce(describeResult(response, performance.now() - began));
    if (state.sharper) void sharpen();
    else void requestViewData(signal);
  } catch (failure) {
    if (signal.aborted) return;
    if (failure instanceof Refused) clear(); // the answer before belongs to another question
    showFailure(failure, () => explain({ step }));
  } finally {
    if (!signal.aborted) update({ busy: false });
  }
}

/** Methods that sharpen the shown answer, the cheapest first: of one text, by the default or one of these. */
export function sharperMethods() {
  const model = chosenModel();
  const methods = model?.sharper ?? [];
  const isOne =
    state.served && !state.source && state.entries.length === 1 && fieldsInUse().join() === "text";
  if (!isOne || !methods.length) return [];
  const { method } = state.entries[0];
  if (method === model.method) return methods;
  const index = methods.findIndex(({ name }) => name === method);
  return index < 0 ? [] : methods.slice(index + 1);
}

/** Put a sharper answer in place of the shown one, again and again, while the reader looks. */
export async function sharpen() {
  const { signal } = currentRequest;
  try {
    for (const { method } of sharperMethods()) {
      const began = performance.now();
      const response = await ask(
        "/api/explain",
        { ...buildRequest(fieldsInUse()), method },
        signal,
        announce,
      );
      applyResponse(response, { served: true, source: "" });
      announce(describeResult(response, performance.now() - began));
    }
  } catch (failure) {
    if (signal.aborted) return;
    if (!(failure instanceof Refused)) {
      showFailure(failure, () => explain({ step: false }));
      return;
    }
    announce(`No sharper answer: ${describeError(failure)}`); // the one before stays
  }
  // A test of the answer before may still run; that of this one starts anew.
  trustTests = NO_TESTS;
  pendingSignals[state.tab] = null;
  void requestViewData(signal);
}

/** Explain every line of the list, and go to the report of all of them. */
export async function reportList() {
  const lines = state.list.split(/\r?\n/).filter((line) => line.trim());
  if (!lines.length) {
    showError("The list is empty. Paste one text per line.");
    byId("field-list")?.focus();
    return;
  }
  if (lines.length > state.limits.report_texts) {
    showError(
      `These are ${lines.length} texts, and this page takes ${state.limits.report_texts}. `
        + "The command line takes any number: tokenlight explain --file texts.csv --html report.html",
    );
    return;
  }
  const parts = lines.map((line) => line.split("\t"));
  const labelled = parts.some((cells) => cells.length > 1);
  const body = {
    model: state.model,
    method: state.methods.slice(0, state.limits.evaluated_methods),
    trust: state.testAll,
    texts: parts.map(([text, ...labels]) => (labelled ? text : [text, ...labels].join(" "))),
  };
  if (labelled) body.labels = parts.map(([, label]) => label?.trim() || null);
  const signal = resetView();
  update({ busy: true });
  announce(`Explaining ${lines.length} texts …`);
  try {
    const { address, explained } = await ask("/api/texts", body, signal, announce);
    clearError();
    announce(`Explained ${explained} of ${lines.length} texts. Opening the report …`);
    location.assign(address);
  } catch (failure) {
    if (!signal.aborted) showFailure(failure, reportList);
  } finally {
    if (!signal.aborted) update({ busy: false });
  }
}

/** Show explanations that come from a file; the game and trust work where their model is served. */
export function showResponse(response, source) {
  const signal = resetView();
  const first = response.attributions[0].attribution;
  update({ busy: false, methods: [], target: "", rather: "", reference: "", pin: null, step: 0 });
  applyResponse({ ...response, prediction: first.prediction }, { served: response.served ?? false, source });
  announce(`Opened ${source}: ${counted(response.attributions.length, "explanation")}.`);
  if (state.served) void requestViewData(signal);
}

/** Show an example before anything is explained. */
export function showWelcome({ filled = false } = {}) {
  const {
    examples: [example],
    inputs: [fields],
  } = chosenModel();
  if (example && !filled) {
    const filledFields = Object.fromEntries(fields.map((name) => [name, example[name] ?? ""]));
    update({ ...filledFields, pictureName: example.picture ? example.title : "" });
  }
  announce(
    fields.includes("picture")
      ? "Press Explain, or choose a picture of your own."
      : "Press Explain, or type a text of your own.",
  );
  const first = byId(`field-${fields[0]}`);
  first?.focus();
  first?.select();
}

/** Clear all results. */
export function clear() {
  resetView();
  update({
    busy: false,
    entries: [],
    prediction: null,
    refused: [],
    trust: new Map(),
    games: new Map(),
    gamesFailed: "",
    guess: null,
    served: false,
    source: "",
  });
}

/** Report a failed request; wait for a server that cannot be reached. */
export function showFailure(failure, retry) {
  update({ busy: false });
  if (failure instanceof Gone) {
    announce("");
    showError(`${failure.message} Waiting for the server …`, { retry });
    const retryAfterReturn = () => {
      clearError();
      retry();
    };
    waitForServer(currentRequest.signal).then(retryAfterReturn, () => {});
    return;
  }
  announce("");
  if (!(failure instanceof Refused)) {
    showError(`Something on this page went wrong: ${failure.message}`, { retry });
    throw failure; // so that the browser's console shows it too
  }
  showError(describeError(failure), { remedies: listRemedies(failure, retry) });
}

/** Describe a refusal and its remedy, without hints for programs. */
export function describeError({ code, message, hint }) {
  const maxTokens = chosenModel()?.max_tokens;
  if (code === "text_too_long" && maxTokens) {
    return `This text is too long: the model reads at most ${maxTokens} tokens at once.`;
  }
  return [sentence(message), sentence(HINTS[code] ?? hint)].filter(Boolean).join(" ");
}

/** Remedies for a text that is too long: truncate it, or read it in windows. */
function listRemedies({ code }, retry) {
  if (code !== "text_too_long" || state.long !== "error") return [];
  const retryWith = (long) => () => {
    update({ long });
    retry();
  };
  const remedies = [{ label: "Explain the part it can read", run: retryWith("truncate") }];
  if (chosenModel()?.task !== "next token") {
    remedies.push({ label: "Read it in windows", run: retryWith("stride") });
  }
  return remedies;
}

/** Abort running requests, and return the signal of the next ones. */
function resetView() {
  currentRequest.abort();
  currentRequest = new AbortController();
  return currentRequest.signal;
}

/** Build the request for what the form asks. */
export function buildRequest(fields) {
  const body = { model: state.model, method: state.methods, layers: true };
  for (const field of fields) body[field] = state[field];
  if (state.long !== "error") body.long = state.long;
  const target = buildTarget();
  if (target !== null) body.target = target;
  return body;
}

/** Whether several tokens are generated and explained rather than the next one. */
function generatesSeveralTokens() {
  return (
    state.numGeneratedTokens !== "1"
    && fieldsInUse().includes("prompt")
    && (chosenModel()?.targets ?? []).includes("token")
  );
}

/** Build the target as the server reads it; null leaves the predicted one. */
export function buildTarget() {
  const kinds = chosenModel()?.targets ?? [];
  if (generatesSeveralTokens()) return { generate: Number(state.numGeneratedTokens) };
  if (state.target && state.rather) return { for: state.target, rather_than: state.rather };
  if (!state.target) return kinds.length && !kinds.includes("predicted") ? "all" : null;
  return kinds.includes("token") ? { token: state.target } : state.target;
}

/** Show a response of the server, or of a file named `source`. */
function applyResponse(response, { served, source }) {
  update({
    entries: response.attributions,
    prediction: response.prediction,
    refused: response.refused ?? [],
    trust: savedTrust(response.attributions),
    games: new Map(),
    gamesFailed: "",
    guess: null,
    written: 0,
    served,
    source,
  });
}

/** Trust results that come with the explanations. */
function savedTrust(entries) {
  const known = entries.filter((entry) => entry.attribution.extras.trust);
  return new Map(known.map((entry) => [entry.id, entry.attribution.extras.trust]));
}

/** Request the data of a view when it is opened. */
export function loadViewData() {
  watch(["tab"], () => {
    if (state.served && state.entries.length) void requestViewData(currentRequest.signal);
  });
}

/** Request the data that the open view still lacks: trust, or the curves of the game. */
async function requestViewData(signal) {
  const view = state.tab;
  const request = { why: startTrustTests, game: requestGames }[view];
  if (!request || pendingSignals[view] === signal) return;
  pendingSignals[view] = signal;
  try {
    await request(signal);
    hasExplainedAgain = false;
  } catch (failure) {
    if (signal.aborted) return;
    const retry = () => (state.source ? requestViewData(signal) : explain({ step: false }));
    if (!(failure instanceof Refused)) {
      showFailure(failure, retry);
    } else if (failure.code === "not_found" && !hasExplainedAgain && !state.source) {
      // The server has dropped the explanation, or is a new process: explain once more.
      hasExplainedAgain = true;
      void retry();
    } else update({ gamesFailed: describeError(failure) });
  } finally {
    if (pendingSignals[view] === signal) pendingSignals[view] = null;
  }
}

/** Resolve when all shown explanations are tested, so that an exported file holds the results. */
export function waitForTrustTests() {
  return state.served ? startTrustTests(currentRequest.signal) : Promise.resolve();
}

/** Start the trust tests of the shown explanations, once. */
function startTrustTests(signal) {
  if (trustTests.signal !== signal) {
    trustTests = { signal, done: testExplanations(signal) };
    trustTests.done.catch(() => {
      trustTests = NO_TESTS;
    });
  }
  return trustTests.done;
}

/** Test the shown explanations one after the other, once the reader has paused. */
async function testExplanations(signal) {
  await pause(IDLE_DELAY_MS, signal);
  if (isContinuation()) return; // a token is tested when it is explained alone
  for (const { id } of state.entries) {
    if (state.trust.has(id)) continue;
    const result = await testExplanation(id, signal);
    if (signal.aborted) return;
    update({ trust: new Map(state.trust).set(id, result) });
  }
}

/** Test one explanation; resolve to the result, or to why it is not tested: a text may be too long. */
async function testExplanation(id, signal) {
  try {
    return (await ask("/api/trust", { id }, signal, announce)).trust;
  } catch (failure) {
    if (!(failure instanceof Refused) || failure.code === "not_found") throw failure;
    return { refused: describeError(failure) };
  }
}

/** Request the methods' curves first; the band of random orders takes longer, and sharpens in steps. */
async function requestGames(signal) {
  const ids = entriesOfToken().map((entry) => entry.id);
  for (const orders of [0, FIRST_ORDERS, RANDOM_ORDERS]) {
    const known = state.games.get(ids[0]);
    if (known && (known.random?.orders ?? 0) >= orders) continue;
    const response = await ask("/api/perturb", { ids, random_orders: orders }, signal, announce);
    if (signal.aborted) return;
    update({ games: new Map(response.games.map((game) => [game.id, game])), gamesFailed: "" });
  }
}

/** One line for eyes and screen readers. */
function announce(text) {
  byId("status").textContent = text;
}

function describeResult(response, milliseconds) {
  const names = [...new Set(response.attributions.map((entry) => entry.method))];
  const methods = names.length === 1 ? names[0] : `${names.length} methods`;
  const time = milliseconds < 100 ? "under 0.1 s" : `${(milliseconds / 1000).toFixed(1)} s`;
  return `The model says “${response.prediction.label.trim()}”. Explained by ${methods} in ${time}.`;
}

function sentence(text) {
  const trimmed = (text ?? "").trim();
  if (!trimmed) return "";
  const capitalized = trimmed[0].toUpperCase() + trimmed.slice(1);
  return /[.!?…]$/.test(capitalized) ? capitalized : `${capitalized}.`;
}
