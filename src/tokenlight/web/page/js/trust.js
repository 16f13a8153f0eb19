// Trust in an explanation, in words: the removal test, then its health.

import { draw, make } from "./dom.js";
import { unitsOf } from "./image_input.js";
import { state } from "./store.js";

const GRADES = {
  faithful: ["✓", "good", "Faithful"],
  "better than chance": ["✓", "fair", "Better than chance"],
  "cannot tell": ["?", "unknown", "Cannot tell"],
  "no better than chance": ["≈", "poor", "No better than chance"],
  "worse than chance": ["✗", "poor", "Worse than chance"],
  untested: ["?", "unknown", "Not tested"],
};

const HEALTH_SIGNS = { good: "✓", doubtful: "!", bad: "✗" };

/** Whether the tests support an explanation with this grade. */
export function isSupported(grade) {
  return ["good", "fair"].includes(GRADES[grade]?.[1]);
}

/** Whether the tests could not decide on an explanation with this grade. */
export function isUndecided(grade) {
  return GRADES[grade]?.[1] === "unknown";
}

/** Badge, verdict and health line of one explanation; a waiting line while they are measured. */
export function trustLine(entry) {
  const trust = state.trust.get(entry.id);
  if (!trust) {
    if (state.served)
      return make("p", { class: "trust note", text: "Testing this explanation on the model …" });
    return make("p", { class: "trust note", text: "Not tested: its model is not loaded here." });
  }
  if (trust.refused) return make("p", { class: "trust note", text: `Not tested. ${trust.refused}` });
  const [sign, kind, words] = GRADES[trust.grade] ?? GRADES.untested;
  return make(
    "div",
    { class: "trust" },
    make(
      "p",
      {},
      make(
        "span",
        { class: `grade ${kind}` },
        make("span", { text: sign, "aria-hidden": "true" }),
        ` ${words}`,
      ),
      make("span", { class: "verdict", text: capitalize(trust.verdict), dir: "auto" }),
    ),
    make(
      "p",
      { class: "health", "aria-label": "Health" },
      trust.health.map(({ state: level, finding }) =>
        make(
          "span",
          { class: level },
          make("span", { "aria-hidden": "true", text: HEALTH_SIGNS[level] ?? "?" }),
          ` ${finding}`,
        ),
      ),
    ),
    whyThisGrade(trust, unitsOf(entry.attribution.row)),
  );
}

/** The evidence for a grade: three curves, partial texts, findings. Files of earlier versions have none. */
function whyThisGrade(trust, units) {
  const removals = Array.isArray(trust.removals) ? trust.removals : [];
  if (!removals.length || !Array.isArray(trust.findings)) return null;
  return make(
    "details",
    { class: "why" },
    make("summary", { text: "Why this grade?" }),
    make(
      "div",
      { class: "removals" },
      removals.map((removal) =>
        make(
          "figure",
          {},
          make("figcaption", { text: `${units} ${removal.action}` }),
          drawRemovalCurve(removal, trust.num_words, units),
          drawPartialTexts(removal, units),
        ),
      ),
    ),
    make("p", { class: "note", text: describeCharts(units) }),
    make(
      "ul",
      { class: "findings" },
      trust.findings.map((finding) => make("li", { text: finding, dir: "auto" })),
    ),
  );
}

function describeCharts(units) {
  const noun = units === "words" ? "partial texts" : "selections";
  return (
    `Left: the probability as ${units} are removed, highest score first (line), and what random ${units} `
    + "do (band, 90 % of them): a good explanation falls below the band. "
    + `Right: random ${noun} with few ${units} removed (●) or half (○): `
    + "with good scores, each kind rises from left to right."
  );
}

const CHART_WIDTH = 150;
const CHART_HEIGHT = 90;

function drawFrame(label, across, up, ...children) {
  return draw(
    "svg",
    {
      viewBox: `-36 -18 ${CHART_WIDTH + 46} ${CHART_HEIGHT + 38}`,
      class: "small-chart",
      role: "img",
      "aria-label": label,
    },
    draw("path", { class: "axis", d: `M0 0V${CHART_HEIGHT}H${CHART_WIDTH}` }),
    ...children,
    draw("text", { x: CHART_WIDTH, y: CHART_HEIGHT + 14, "text-anchor": "end" }, `${across} →`),
    ...up,
  );
}

/** A function from values to the range 0 to 1 of a chart. */
function scaleToChart(values) {
  const min = Math.min(...values);
  const max = Math.max(...values);
  return (value) => (value - min) / (max - min || 1);
}

/** The path through points of [x, y], each from 0 to 1, y upwards. */
function linePath(points) {
  const place = ([x, y]) => `${(CHART_WIDTH * x).toFixed(1)} ${(CHART_HEIGHT * (1 - y)).toFixed(1)}`;
  return `M${points.map(place).join("L")}`;
}

/** The closed path between an upper and a lower line of points. */
function bandPath(upper, lower) {
  return `${linePath([...upper, ...lower.toReversed()])}Z`;
}

function drawRemovalCurve(removal, numWords, units) {
  const { action: order, counts, curve: probabilities, random_low: low, random_high: high } = removal;
  const lastCount = numWords || counts.at(-1) || 1;
  const points = counts.map((count, i) => [count / lastCount, probabilities[i]]);
  const randomCounts = counts.slice(1, 1 + low.length);
  const upper = randomCounts.map((count, i) => [count / lastCount, high[i]]);
  const lower = randomCounts.map((count, i) => [count / lastCount, low[i]]);
  const ticks = [
    ["100 %", 4],
    ["0 %", CHART_HEIGHT + 3],
  ];
  return drawFrame(
    `Probability as ${units} are ${order}, against random ${units}`,
    `${units === "words" ? units : "parts"} removed`,
    ticks.map(([text, y]) => draw("text", { x: -4, y, "text-anchor": "end" }, text)),
    draw("path", { class: "band", d: bandPath([points[0], ...upper], lower) }),
    draw("path", { class: "curve line-0", d: linePath(points) }),
  );
}

function drawPartialTexts(removal, units) {
  const { sums, log_odds: logOdds, removed } = removal.partial_texts;
  const scaleSum = scaleToChart(sums);
  const scaleLogOdds = scaleToChart(logOdds);
  // Files of earlier versions do not say how many words were removed: few and half take turns.
  const counts = Array.isArray(removed) ? removed : sums.map((_, i) => i % removal.random_low.length);
  const minCount = Math.min(...counts);
  const dots = sums.map((sum, i) =>
    draw("circle", {
      class: counts[i] > minCount ? "dot half" : "dot",
      r: 3,
      cx: CHART_WIDTH * scaleSum(sum),
      cy: CHART_HEIGHT * (1 - scaleLogOdds(logOdds[i])),
    }),
  );
  const noun = units === "words" ? "partial texts" : "selections";
  return drawFrame(
    `Sums of scores and log-odds of random ${noun}, ${units} ${removal.action}`,
    "sum of scores",
    [draw("text", { x: 0, y: -8 }, "log-odds ↑")],
    ...dots,
  );
}

function capitalize(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
