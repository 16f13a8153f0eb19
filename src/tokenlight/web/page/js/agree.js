// Agreement between methods: the rank correlation of every pair, as a small coloured table.

import { make } from "./dom.js";
import { decimals } from "./numbers.js";
import { agreement, mostApart, sameTokens } from "./scores.js";
import { scrollBox } from "./scrolling.js";
import { state } from "./store.js";

const AGREEMENT_LEVELS = [[0.7, "agree"], [0.4, "agree in part"], [0.15, "agree little"], [-0.15, "are unrelated"], [-2, "contradict"]];

const GOOD_GRADES = ["faithful", "better than chance"];

/** Draw the agreement table, with a sentence on the most and least similar pair. */
export function agreementTable() {
  const entries = state.entries.filter((entry) => sameTokens(entry.attribution, state.entries[0].attribution));
  if (entries.length < 2) return null;
  const value = (first, second) => (first === second ? 1 : agreement(first.attribution, second.attribution));
  return make(
    "section", { class: "agreement", "aria-label": "Agreement between methods" },
    make("h3", { text: "Do the methods agree?" }),
    make("p", { text: describeAgreement(entries, value) }),
    make("p", { text: support(entries) }),
    scrollBox({ tabindex: "0", role: "group", "aria-label": "Agreement table" },
      make("table", { class: "matrix" },
        make("thead", {}, make("tr", {}, make("td"), entries.map((entry) => make("th", { scope: "col", text: entry.method })))),
        make("tbody", {}, entries.map((first) => make("tr", {}, make("th", { scope: "row", text: first.method }),
          entries.map((second) => cell(value(first, second), first === second))))))),
    make("p", { class: "note", text: "Spearman's correlation of the ranks they give to the same tokens: 1 same order, 0 unrelated, −1 opposite." }),
  );
}

/** Which methods the tests support, once all of them are tested. */
function support(entries) {
  const grades = entries.map((entry) => state.trust.get(entry.id)?.grade);
  if (!grades.every(Boolean)) return "";
  const good = entries.filter((_, i) => GOOD_GRADES.includes(grades[i])).map((entry) => entry.method);
  if (!good.length) return "The tests support none of them, so they cannot tell which is right.";
  const unsure = entries.filter((_, i) => ["cannot tell", "untested"].includes(grades[i])).map((entry) => entry.method);
  const rest = unsure.length ? ` They cannot tell about ${unsure.join(", ")}.` : "";
  return (good.length === entries.length ? "The tests support all of them." : `The tests support ${good.join(", ")}.`) + rest;
}

/** Blue for agreement, background for no relation, orange for contradiction, in every palette. */
function cell(number, same) {
  const text = number === null ? "–" : decimals(number);
  const element = make("td", { class: same ? "same" : "", text });
  if (!same && number !== null) {
    element.classList.add(number < 0 ? "opposite" : "alike");
    element.style.setProperty("--strength", `${Math.round(70 * Math.abs(number))}%`);
  }
  return element;
}

function describeAgreement(entries, value) {
  const pairs = entries
    .flatMap((first, i) => entries.slice(i + 1).map((second) => [value(first, second), first, second]))
    .filter(([number]) => number !== null)
    .toSorted((first, second) => second[0] - first[0]);
  if (!pairs.length) return "At least one method ranks no token here, so they cannot be compared.";
  const describe = ([number, first, second]) => {
    const [, word] = AGREEMENT_LEVELS.find(([threshold]) => number >= threshold);
    return `${first.method} and ${second.method} ${word} (${decimals(number)})`;
  };
  const [number, first, second] = pairs.at(-1);
  const apart = number < AGREEMENT_LEVELS[0][0] ? `, most apart on ‘${mostApart(first.attribution, second.attribution)}’` : "";
  const least = `${describe(pairs.at(-1))}${apart}.`;
  return pairs.length === 1 ? least : `${describe(pairs[0])}; ${least}`;
}
