// A continuation as text: each written word, hovered or focused, lights up the words it came from.

import { inLine } from "./characters.js";
import { make } from "./dom.js";
import { state, update } from "./store.js";

/** Whether several tokens of one continuation are explained. */
export function isContinuation() {
  const [first, ...others] = state.entries;
  return others.some(
    (entry) => entry.method === first.method && entry.attribution.row.names?.includes("written"),
  );
}

/** The explanations of one written token, one per method; all where there is no continuation. */
export function entriesOfToken(index = state.written) {
  if (!isContinuation()) return state.entries;
  const count = countTokens();
  return state.entries.filter((_, number) => number % count === Math.min(index, count - 1));
}

/** The written tokens as buttons; `preview(index)` shows the sources of one. */
export function continuationLine(preview) {
  if (!isContinuation()) return null;
  const entries = state.entries.slice(0, countTokens());
  const { texts } = entries.at(-1).attribution.row;
  const buttons = entries.map((entry, index) =>
    make("button", {
      type: "button",
      class: "written-token",
      dir: "auto",
      "aria-pressed": String(index === state.written),
      text: nameToken(entry.attribution.prediction.label),
      onmouseenter: () => preview(index),
      onmouseleave: () => preview(state.written),
      onfocus: () => choose(index),
      onclick: () => choose(index),
    }),
  );
  const choose = (index) => {
    update({ written: index });
    buttons.forEach((button, number) => button.setAttribute("aria-pressed", String(number === index)));
    preview(index);
  };
  return make(
    "div",
    { class: "continuation" },
    make("p", {
      class: "note",
      text: "What the model wrote. Point at a word to see where it came from; click to keep it.",
    }),
    make(
      "p",
      { class: "line", dir: "auto" },
      make("span", { class: "prompt", text: texts[0] }),
      buttons.flatMap((button, index) => [
        /^\s/.test(entries[index].attribution.prediction.label) ? " " : "",
        button,
      ]),
    ),
  );
}

/** A token without the blanks around it; one of blanks alone is shown by symbols, a line break too. */
function nameToken(label) {
  return inLine(label.trim() || label) || "␣";
}

function countTokens() {
  return state.entries.filter((entry) => entry.method === state.entries[0].method).length;
}
