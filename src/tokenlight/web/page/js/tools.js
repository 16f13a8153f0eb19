// The line above the rows: tokens or words, special tokens, the reference, the legend.

import { LEGEND } from "./colours.js";
import { isContinuation } from "./continuation.js";
import { make } from "./dom.js";
import { remember } from "./link.js";
import { isPictureAlone } from "./image_input.js";
import { chosenModel, state, update } from "./store.js";
import { explain, sharpen, sharperMethods } from "./work.js";

/** Tools of the first view. */
export function viewTools() {
  const several = !isContinuation() && state.entries.length > 1;
  return make(
    "div",
    { class: "tools" },
    isPictureAlone(state.entries[0].attribution.row) ? null : viewChoice(),
    specialChoice(),
    sharperChoice(),
    several && referenceChoice(),
    legend(),
  );
}

/** Tokens or whole words. */
export function viewChoice() {
  return segments("Read by", state.view, { tokens: "Tokens", words: "Words" }, (view) => change({ view }));
}

/** Whether [CLS], [SEP] and their kin are shown. */
export function specialChoice() {
  return check("special tokens", state.special, (special) => change({ special }));
}

/** Whether the first answer is followed by sharper ones; null where there are none. */
function sharperChoice() {
  const isShown =
    sharperMethods().length > 0
    || chosenModel()?.sharper?.some(({ name }) => name === state.entries[0].method);
  if (!isShown || state.entries.length > 1) return null;
  const label = check("sharper while you look", state.sharper, (sharper) => {
    change({ sharper });
    void (sharper ? sharpen() : explain({ step: false }));
  });
  label.title = "The answer of one pass is followed by those of 9 and 65 passes, with error bars.";
  return label;
}

/** A group of buttons with one pressed. */
export function segments(label, value, choices, choose) {
  return make(
    "div",
    { class: "choice", role: "group", "aria-label": label },
    Object.entries(choices).map(([key, text]) =>
      make("button", {
        type: "button",
        "aria-pressed": String(key === value),
        text,
        "data-value": key,
        onclick: () => choose(key),
      }),
    ),
  );
}

/** A list to choose from: [[value, text], …]. */
export function selection(label, value, choices, choose) {
  const select = make(
    "select",
    { onchange: (event) => choose(event.target.value) },
    choices.map(([key, text]) => {
      const option = make("option", { value: key, text });
      option.selected = key === value;
      return option;
    }),
  );
  return make("label", { class: "inline" }, label, select);
}

/** From against to for, in the colours of the page. */
export function legend(against = "against", speaksFor = "for") {
  const words = state.reference ? [`less than ${state.reference}`, "more"] : [against, speaksFor];
  return make(
    "span",
    { class: "legend", title: "Full colour: the strongest token of each row" },
    words[0],
    make(
      "span",
      { class: "scale", "aria-hidden": "true" },
      LEGEND.map((name) => make("i", { class: name })),
    ),
    words[1],
  );
}

function referenceChoice() {
  const choices = [["", "(no other method)"], ...state.entries.map((entry) => [entry.method, entry.method])];
  return selection("Show the difference from", state.reference, choices, (reference) =>
    change({ reference }),
  );
}

function check(label, checked, choose) {
  const box = make("input", { type: "checkbox", onchange: (event) => choose(event.target.checked) });
  box.checked = checked;
  return make("label", { class: "inline" }, box, label);
}

function change(changes) {
  update(changes);
  remember();
}
