// How far an explanation can be believed, in plain words: the removal test, then its health.

import { make } from "./dom.js";
import { state } from "./store.js";

const GRADES = {
  faithful: ["✓", "good", "Faithful"],
  "better than chance": ["✓", "fair", "Better than chance"],
  "cannot tell": ["?", "unknown", "Cannot tell"],
  "no better than chance": ["≈", "poor", "No better than chance"],
  "worse than chance": ["✗", "poor", "Worse than chance"],
  untested: ["?", "unknown", "Not tested"],
};

/** Badge, verdict and health line of one explanation; a waiting line while they are measured. */
export function trustLine(entry) {
  const trust = state.trust.get(entry.id);
  if (!trust) {
    if (state.served) return make("p", { class: "trust note", text: "Testing this explanation on the model …" });
    return make("p", { class: "trust note", text: "Not tested: its model is not loaded here." });
  }
  if (trust.refused) return make("p", { class: "trust note", text: `Not tested. ${trust.refused}` });
  const [sign, kind, words] = GRADES[trust.grade] ?? GRADES.untested;
  return make(
    "div", { class: "trust" },
    make("p", {},
      make("span", { class: `grade ${kind}` }, make("span", { text: sign, "aria-hidden": "true" }), ` ${words}`),
      make("span", { class: "verdict", text: begun(trust.verdict), dir: "auto" })),
    make("p", { class: "health", "aria-label": "Health" }, trust.health.map(({ state: how, says }) => make(
      "span", { class: how }, make("span", { "aria-hidden": "true", text: { good: "✓", doubtful: "!", bad: "✗" }[how] ?? "?" }),
      ` ${says}`,
    ))),
  );
}

function begun(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
