// The link: the request and the view, in the part of the address behind the #. A browser never sends that
// part, so opening a shared link discloses nothing to the server beyond its requests.

import { DEFAULTS, state } from "./store.js";

const FIELDS = ["text", "pair", "question", "context", "prompt", "documents", "answer"];
const NAMES = {
  model: "model",
  target: "for",
  rather: "rather-than",
  numGeneratedTokens: "tokens",
  long: "long",
  view: "view",
  reference: "against",
  tab: "tab",
  mode: "game",
  layered: "layers",
  head: "head",
};
const CHOICES = {
  view: ["tokens", "words"],
  tab: ["why", "game", "edit", "layers", "heads"],
  mode: ["hide", "reveal"],
  long: ["error", "truncate", "stride"],
  numGeneratedTokens: ["1", "4", "8"],
};

let rememberTimer = 0; // the timer of scheduleRemember

/** The state as the fragment of the address. */
function buildQuery() {
  const link = new URLSearchParams();
  for (const field of FIELDS) if (state[field]) link.set(field, state[field]);
  for (const method of state.methods) link.append("method", method);
  for (const [key, name] of Object.entries(NAMES)) {
    if (state[key] !== DEFAULTS[key]) link.set(name, state[key]);
  }
  if (state.sharper) link.set("sharper", "1");
  if (state.special) link.set("special", "1");
  if (state.pin !== null) link.set("pin", state.pin);
  if (state.step) link.set("step", state.step);
  return link.toString();
}

/** Parse a link; missing and invalid values become defaults. */
export function read(hash) {
  const link = new URLSearchParams(hash.replace(/^#/, ""));
  const settings = { ...DEFAULTS };
  for (const field of FIELDS) settings[field] = link.get(field) ?? "";
  settings.methods = [...new Set(link.getAll("method"))];
  for (const [key, name] of Object.entries(NAMES)) {
    const value = link.get(name);
    if (value !== null && (!CHOICES[key] || CHOICES[key].includes(value))) settings[key] = value;
  }
  settings.sharper = link.get("sharper") === "1";
  settings.special = link.get("special") === "1";
  settings.pin = wholeNumber(link.get("pin"));
  settings.step = wholeNumber(link.get("step")) ?? 0;
  return settings;
}

/** Whether a link asks for an explanation, not only for a model. */
export function asks(settings) {
  return FIELDS.some((field) => settings[field]);
}

/** Write the state into the address, as a new history entry or in place. */
export function remember({ step = false } = {}) {
  clearTimeout(rememberTimer);
  const address = `#${buildQuery()}`;
  if (address === location.hash) return;
  if (step) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

/** Write it after a delay: browsers throttle pages that write at every slider event. */
export function scheduleRemember() {
  clearTimeout(rememberTimer);
  rememberTimer = setTimeout(remember, 250);
}

function wholeNumber(text) {
  return text !== null && /^\d{1,6}$/.test(text) ? Number(text) : null;
}
