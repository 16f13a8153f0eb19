// Trust in an explanation, in words: the removal test, then its health.

import { draw, make } from "./dom.js";
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
      make("span", { class: "verdict", text: capitalize(trust.verdict), dir: "auto" })),
    make("p", { class: "health", "aria-label": "Health" }, trust.health.map(({ state: level, says }) => make(
      "span", { class: level }, make("span", { "aria-hidden": "true", text: { good: "✓", doubtful: "!", bad: "✗" }[level] ?? "?" }),
      ` ${says}`,
    ))),
    whyThisGrade(trust),
  );
}

/** The evidence for a grade: three curves, sub-texts, findings. Files of earlier versions have none. */
function whyThisGrade(trust) {
  const removals = Array.isArray(trust.removals) ? trust.removals : [];
  if (!removals.length || !Array.isArray(trust.findings)) return null;
  return make("details", { class: "why" },
    make("summary", { text: "Why this grade?" }),
    make("div", { class: "removals" }, removals.map((removal) => make("figure", {},
      make("figcaption", { text: removal.words_are }), curve(removal), subtexts(removal)))),
    make("p", { class: "note", text: "Left: the probability as words are removed, highest score first (line), against random words (band). "
      + "Right: the sum of the scores that are left in a random sub-text, against its log-odds; a good explanation rises from left to right." }),
    make("ul", { class: "findings" }, trust.findings.map((finding) => make("li", { text: finding, dir: "auto" }))),
  );
}

const WIDTH = 150;
const HEIGHT = 90;

function frame(label, ...children) {
  return draw("svg", { viewBox: `-4 -4 ${WIDTH + 8} ${HEIGHT + 8}`, class: "small-chart", role: "img", "aria-label": label },
    draw("path", { class: "axis", d: `M0 0V${HEIGHT}H${WIDTH}` }), ...children);
}

function curve({ words_are: how, counts, curve: values, random_low: low, random_high: high }) {
  const last = counts.at(-1) || 1;
  const at = (count, value) => `${(WIDTH * count / last).toFixed(1)} ${(HEIGHT * (1 - value)).toFixed(1)}`;
  const inner = counts.slice(1, -1);
  const edge = [at(0, values[0]), ...inner.map((count, i) => at(count, high[i])), ...inner.map((count, i) => at(count, low[i])).reverse()];
  return frame(`Probability as words are ${how}`,
    draw("path", { class: "band", d: `M${edge.join("L")}Z` }),
    draw("path", { class: "curve line-0", d: `M${counts.map((count, i) => at(count, values[i])).join("L")}` }));
}

function subtexts({ words_are: how, subtexts: { sums, log_odds: odds } }) {
  const scale = (values) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return (value) => (value - low) / (high - low || 1);
  };
  const [x, y] = [scale(sums), scale(odds)];
  return frame(`Sums of scores and log-odds of sub-texts, words ${how}`,
    ...sums.map((sum, i) => draw("circle", { class: "dot", r: 2.5, cx: WIDTH * x(sum), cy: HEIGHT * (1 - y(odds[i])) })));
}

function capitalize(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
