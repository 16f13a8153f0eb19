// Trust in an explanation, in words: the removal test, then its health.

import { draw, make } from "./dom.js";
import { unitsOf } from "./photo.js";
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
    whyThisGrade(trust, unitsOf(entry.attribution.row)),
  );
}

/** The evidence for a grade: three curves, subtexts, findings. Files of earlier versions have none. */
function whyThisGrade(trust, units) {
  const removals = Array.isArray(trust.removals) ? trust.removals : [];
  if (!removals.length || !Array.isArray(trust.findings)) return null;
  return make("details", { class: "why" },
    make("summary", { text: "Why this grade?" }),
    make("div", { class: "removals" }, removals.map((removal) => make("figure", {},
      make("figcaption", { text: `${units} ${removal.words_are}` }), curve(removal, trust.words, units), subtexts(removal, units)))),
    make("p", { class: "note", text: `Left: the probability as ${units} are removed, highest score first (line), and what random ${units} do `
      + `(band, 90 % of them): a good explanation falls below the band. Right: random ${units === "words" ? "subtexts" : "selections"} with few ${units} removed (●) or half (○): `
      + "with good scores, each kind rises from left to right." }),
    make("ul", { class: "findings" }, trust.findings.map((finding) => make("li", { text: finding, dir: "auto" }))),
  );
}

const WIDTH = 150;
const HEIGHT = 90;

function frame(label, across, up, ...children) {
  return draw("svg", { viewBox: `-36 -18 ${WIDTH + 46} ${HEIGHT + 38}`, class: "small-chart", role: "img", "aria-label": label },
    draw("path", { class: "axis", d: `M0 0V${HEIGHT}H${WIDTH}` }), ...children,
    draw("text", { x: WIDTH, y: HEIGHT + 14, "text-anchor": "end" }, `${across} →`), ...up);
}

function curve({ words_are: how, counts, curve: values, random_low: low, random_high: high }, words, units) {
  const last = words || counts.at(-1) || 1;
  const at = (count, value) => `${(WIDTH * count / last).toFixed(1)} ${(HEIGHT * (1 - value)).toFixed(1)}`;
  const inner = counts.slice(1, 1 + low.length);
  const edge = [at(0, values[0]), ...inner.map((count, i) => at(count, high[i])), ...inner.map((count, i) => at(count, low[i])).reverse()];
  const scale = [["100 %", 4], ["0 %", HEIGHT + 3]].map(([text, y]) => draw("text", { x: -4, y, "text-anchor": "end" }, text));
  return frame(`Probability as ${units} are ${how}, against random ${units}`, `${units === "words" ? units : "parts"} removed`, scale,
    draw("path", { class: "band", d: `M${edge.join("L")}Z` }),
    draw("path", { class: "curve line-0", d: `M${counts.map((count, i) => at(count, values[i])).join("L")}` }));
}

function subtexts({ words_are: how, random_low: low, subtexts: { sums, log_odds: odds, removed } }, units) {
  const scale = (values) => {
    const [least, most] = [Math.min(...values), Math.max(...values)];
    return (value) => (value - least) / (most - least || 1);
  };
  const [x, y] = [scale(sums), scale(odds)];
  // Files of earlier versions do not say how many words were removed: few and half take turns.
  const counts = Array.isArray(removed) ? removed : sums.map((_, i) => i % low.length);
  const half = (i) => counts[i] > Math.min(...counts);
  return frame(`Sums of scores and log-odds of random ${units === "words" ? "subtexts" : "selections"}, ${units} ${how}`, "sum of scores", [draw("text", { x: 0, y: -8 }, "log-odds ↑")],
    ...sums.map((sum, i) => draw("circle", { class: half(i) ? "dot half" : "dot", r: 3, cx: WIDTH * x(sum), cy: HEIGHT * (1 - y(odds[i])) })));
}

function capitalize(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
