// Do the methods agree? Rank correlation of every two, as a small table in words and colour.

import { make } from "./dom.js";
import { decimals } from "./numbers.js";
import { agreement, sameTokens } from "./scores.js";
import { state } from "./store.js";

const WORDS = [[0.7, "agree"], [0.4, "agree in part"], [0.15, "agree little"], [-0.15, "are unrelated"], [-2, "contradict"]];

/** The table over all methods, with the closest and the farthest pair in words. */
export function agreementTable() {
  const entries = state.entries.filter((entry) => sameTokens(entry.attribution, state.entries[0].attribution));
  if (entries.length < 2) return null;
  const value = (one, other) => (one === other ? 1 : agreement(one.attribution, other.attribution));
  return make(
    "section", { class: "agreement", "aria-label": "Agreement between methods" },
    make("h3", { text: "Do the methods agree?" }),
    make("p", { text: inWords(entries, value) }),
    make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Agreement table" },
      make("table", { class: "matrix" },
        make("thead", {}, make("tr", {}, make("td"), entries.map((entry) => make("th", { scope: "col", text: entry.method })))),
        make("tbody", {}, entries.map((one) => make("tr", {}, make("th", { scope: "row", text: one.method }),
          entries.map((other) => cell(value(one, other), one === other))))))),
    make("p", { class: "note", text: "Spearman's correlation of the ranks they give to the same tokens: 1 same order, 0 unrelated, −1 opposite." }),
  );
}

/** Blue where alike, paper where unrelated, orange where opposite, whatever the palette. */
function cell(number, same) {
  const text = number === null ? "–" : decimals(number);
  const element = make("td", { class: same ? "same" : "", text });
  if (!same && number !== null) {
    element.classList.add(number < 0 ? "opposite" : "alike");
    element.style.setProperty("--strength", `${Math.round(70 * Math.abs(number))}%`);
  }
  return element;
}

function inWords(entries, value) {
  const pairs = entries
    .flatMap((one, i) => entries.slice(i + 1).map((other) => [value(one, other), one.method, other.method]))
    .filter(([number]) => number !== null)
    .toSorted((one, other) => other[0] - one[0]);
  if (!pairs.length) return "At least one method ranks no token here, so they cannot be compared.";
  const told = ([number, one, other]) => {
    const [, word] = WORDS.find(([least]) => number >= least);
    return `${one} and ${other} ${word} (${decimals(number)})`;
  };
  return pairs.length === 1 ? `${told(pairs[0])}.` : `${told(pairs[0])}; ${told(pairs.at(-1))}.`;
}
