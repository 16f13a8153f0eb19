// The work: explain first, so that colours come at once; trust and the game when they are looked at.

import { ask, back, Gone, pause, Refused } from "./api.js";
import { byId } from "./dom.js";
import { remember } from "./link.js";
import { chosenModel, fieldsInUse, state, update, watch } from "./store.js";
import { calm, trouble } from "./trouble.js";

const RANDOM_ORDERS = 16;
const REST = 400; // milliseconds without a new question before trust is measured: it takes a second
let running = new AbortController();
let renewed = false;
const asking = {}; // view → the signal under which its further numbers are being asked for

/** Explain what stands in the form; `step` makes it a step back in the browser's history. */
export async function explain({ step = true } = {}) {
  const fields = fieldsInUse();
  const empty = fields.find((field) => !state[field].trim());
  if (empty !== undefined) {
    trouble(`There is nothing in “${empty}” yet. Type something, or click an example.`);
    byId(`field-${empty}`)?.focus();
    return;
  }
  const signal = anew();
  update({ busy: true });
  say("Explaining …");
  const began = performance.now();
  try {
    const found = await ask("/api/explain", question(fields), signal);
    calm();
    take(found, { served: true, source: "" });
    remember({ step });
    say(told(found, performance.now() - began));
    void more(signal);
  } catch (failure) {
    if (!signal.aborted) failed(failure, () => explain({ step }));
  } finally {
    if (!signal.aborted) update({ busy: false });
  }
}

/** Show explanations that come from a file; the game and trust work where their model is served. */
export function present(found, source) {
  const signal = anew();
  const first = found.attributions[0].attribution;
  update({ busy: false, methods: [], target: "", rather: "", reference: "", pin: null, step: 0 });
  take({ ...found, prediction: first.prediction }, { served: found.served ?? false, source });
  say(`Opened ${source}: ${found.attributions.length} explanations.`);
  if (state.served) void more(signal);
}

/** Say what happened when a request failed; a server that is gone is waited for. */
export function failed(failure, again) {
  update({ busy: false });
  if (failure instanceof Gone) {
    say("");
    trouble(`${failure.message} Waiting for it to come back …`, { again });
    const signal = running.signal;
    back(signal).then(() => { calm(); again(); }, () => {});
    return;
  }
  say("");
  if (!(failure instanceof Refused)) {
    trouble(`Something on this page went wrong: ${failure.message}`, { again });
    throw failure; // so that it stands in the browser's console too
  }
  const way = failure.code === "text_too_long"
    ? { label: "Explain the part the model can read", run: () => { update({ long: "truncate" }); again(); } }
    : null;
  trouble(`${sentence(failure.message)} ${sentence(failure.hint)}`.trim(), { way });
}

/** Stop what runs; the signal of what comes now. */
function anew() {
  running.abort();
  running = new AbortController();
  return running.signal;
}

function question(fields) {
  const asked = { model: state.model, method: state.methods, layers: true };
  for (const field of fields) asked[field] = state[field];
  if (state.long !== "error") asked.long = state.long;
  const target = asTarget();
  if (target !== null) asked.target = target;
  return asked;
}

/** The target as the server reads it; null leaves the predicted one. */
export function asTarget() {
  const kinds = chosenModel()?.targets ?? [];
  if (state.target && state.rather) return { for: state.target, rather_than: state.rather };
  if (!state.target) return kinds.length && !kinds.includes("predicted") ? "all" : null;
  return kinds.includes("token") ? { token: state.target } : state.target;
}

function take(found, { served, source }) {
  update({
    entries: found.attributions, prediction: found.prediction, refused: found.refused ?? [],
    trust: kept(found.attributions), games: new Map(), gamesFailed: "", guess: null, served, source,
  });
}

/** Trust that explanations bring with them. */
function kept(entries) {
  const known = entries.filter((entry) => entry.attribution.extras.trust);
  return new Map(known.map((entry) => [entry.id, entry.attribution.extras.trust]));
}

/** Ask for what a view needs when it is opened. */
export function furtherWork() {
  watch(["tab"], () => { if (state.served && state.entries.length) void more(running.signal); });
}

/** What the open view still lacks: trust beside the texts, the curves of the game. */
async function more(signal) {
  const view = state.tab;
  const work = { why: trust, game: games }[view];
  if (!work || asking[view] === signal) return;
  asking[view] = signal;
  try {
    await work(signal);
    renewed = false;
  } catch (failure) {
    if (signal.aborted) return;
    const again = () => (state.source ? more(signal) : explain({ step: false }));
    if (!(failure instanceof Refused)) failed(failure, again);
    else if (failure.code === "not_found" && !renewed && !state.source) {
      renewed = true; // the server has forgotten what it explained, or is a new one: once more
      void again();
    } else update({ gamesFailed: sentence(`${failure.message} ${failure.hint}`) });
  } finally {
    if (asking[view] === signal) asking[view] = null;
  }
}

async function trust(signal) {
  await pause(REST, signal);
  for (const { id } of state.entries) {
    if (state.trust.has(id)) continue;
    const found = await tested(id, signal);
    if (signal.aborted) return;
    update({ trust: new Map(state.trust).set(id, found) });
  }
}

/** The trust in one explanation, or why it is not tested: a text may be too long for that. */
async function tested(id, signal) {
  try {
    return (await ask("/api/trust", { id }, signal)).trust;
  } catch (failure) {
    if (!(failure instanceof Refused) || failure.code === "not_found") throw failure;
    return { refused: `${sentence(failure.message)} ${sentence(failure.hint)}`.trim() };
  }
}

/** The methods' curves first; the band of chance takes longer. */
async function games(signal) {
  const ids = state.entries.map((entry) => entry.id);
  for (const orders of [0, RANDOM_ORDERS]) {
    const there = state.games.get(ids[0]);
    if (there && (there.random || !orders)) continue;
    const found = await ask("/api/perturb", { ids, random_orders: orders }, signal);
    if (signal.aborted) return;
    update({ games: new Map(found.games.map((game) => [game.id, game])), gamesFailed: "" });
  }
}

/** One line for eyes and screen readers. */
function say(text) {
  byId("status").textContent = text;
}

function told(found, milliseconds) {
  const names = found.attributions.map((entry) => entry.method);
  const made = names.length === 1 ? names[0] : `${names.length} methods`;
  const time = milliseconds < 100 ? "under 0.1 s" : `${(milliseconds / 1000).toFixed(1)} s`;
  return `The model says “${found.prediction.label.trim()}”. Explained by ${made} in ${time}.`;
}

function sentence(text) {
  const trimmed = (text ?? "").trim();
  if (!trimmed) return "";
  const begun = trimmed[0].toUpperCase() + trimmed.slice(1);
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}
