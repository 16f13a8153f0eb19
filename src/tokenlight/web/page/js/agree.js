// Agreement between methods: the rank correlation of every pair, as a small coloured table.

import { make } from "./dom.js";
import { decimals } from "./numbers.js";
import { agreement, mostApart, sameTokens } from "./scores.js";
import { scrollBox } from "./scrolling.js";
import { state } from "./store.js";
import { isSupported, isUndecided } from "./trust.js";

const AGREEMENT_LEVELS = [
  [0.7, "agree"],
  [0.4, "agree in part"],
  [0.15, "agree little"],
  [-0.15, "are unrelated"],
  [-2, "contradict"],
];

/** Draw the agreement table, with a sentence on the most and least similar pair. */
export function agreementTable() {
  const entries = state.entries.filter((entry) =>
    sameTokens(entry.attribution, state.entries[0].attribution),
  );
  if (entries.length < 2) return null;
  return make(
    "section",
    { class: "agreement", "aria-label": "Agreement between methods" },
    make("h3", { text: "Do the methods agree?" }),
    make("p", { text: describeAgreement(entries) }),
    make("p", { text: describeSupport(entries) }),
    scrollBox(
      { tabindex: "0", role: "group", "aria-label": "Agreement table" },
      make(
        "table",
        { class: "matrix" },
        make(
          "thead",
          {},
          make(
            "tr",
            {},
            make("td"),
            entries.map((entry) => make("th", { scope: "col", text: entry.method })),
          ),
        ),
        make(
          "tbody",
          {},
          entries.map((first) =>
            make(
              "tr",
              {},
              make("th", { scope: "row", text: first.method }),
              entries.map((second) => drawCell(correlate(first, second), first === second)),
            ),
          ),
        ),
      ),
    ),
    make("p", {
      class: "note",
      text:
        "Spearman's correlation of the ranks they give to the same tokens: "
        + "1 same order, 0 unrelated, −1 opposite.",
    }),
  );
}

/** Say which methods the tests support, once all of them are tested. */
function describeSupport(entries) {
  const tested = entries.map(({ id, method }) => ({ method, grade: state.trust.get(id)?.grade }));
  if (!tested.every(({ grade }) => grade)) return "";
  const supported = tested.filter(({ grade }) => isSupported(grade)).map(({ method }) => method);
  const undecided = tested.filter(({ grade }) => isUndecided(grade)).map(({ method }) => method);
  if (!supported.length) return "None of them has a good grade, so the tests cannot tell which is right.";
  const sentences = [
    supported.length === entries.length
      ? "The tests support all of them."
      : `The tests support ${supported.join(", ")}.`,
  ];
  if (undecided.length) sentences.push(`They cannot tell about ${undecided.join(", ")}.`);
  return sentences.join(" ");
}

/** Blue for agreement, background for no relation, orange for contradiction, in every palette. */
function drawCell(correlation, isSame) {
  const text = correlation === null ? "–" : decimals(correlation);
  const element = make("td", { class: isSame ? "same" : "", text });
  if (!isSame && correlation !== null) {
    element.classList.add(correlation < 0 ? "opposite" : "alike");
    element.style.setProperty("--strength", `${Math.round(70 * Math.abs(correlation))}%`);
  }
  return element;
}

function correlate(first, second) {
  return first === second ? 1 : agreement(first.attribution, second.attribution);
}

/** Say which pair agrees most and which least. */
function describeAgreement(entries) {
  const pairs = [];
  entries.forEach((first, i) =>
    entries.slice(i + 1).forEach((second) => {
      const correlation = correlate(first, second);
      if (correlation !== null) pairs.push({ first, second, correlation });
    }),
  );
  if (!pairs.length) return "At least one method ranks no token here, so they cannot be compared.";
  const ranked = pairs.toSorted((a, b) => b.correlation - a.correlation);
  const least = ranked.at(-1);
  let sentence = `${describePair(least)}.`;
  if (least.correlation < AGREEMENT_LEVELS[0][0]) {
    const word = mostApart(least.first.attribution, least.second.attribution);
    sentence = `${describePair(least)}; they differ most on ‘${word}’.`;
  }
  return ranked.length === 1 ? sentence : `${describePair(ranked[0])}; ${sentence}`;
}

function describePair({ first, second, correlation }) {
  const [, phrase] = AGREEMENT_LEVELS.find(([threshold]) => correlation >= threshold);
  return `${first.method} and ${second.method} ${phrase} (${decimals(correlation)})`;
}
