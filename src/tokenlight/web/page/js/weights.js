// What each part of the input contributes, as data/units.py of the library has it: its share of Σ|score| and
// the signed sum of every text, the special tokens last. Together the shares are one.

import { shortened } from "./characters.js";
import { look } from "./colours.js";
import { make } from "./dom.js";
import { signed } from "./numbers.js";

const MIN_SPECIAL_SHARE = 0.5; // of Σ|score|: from here on the special tokens are mentioned
const MAX_SOURCE_LENGTH = 60;

/** [{name, segment, share, total, percent}]; `segment` is null for the special tokens together. */
export function segmentShares({ row, scores, target, prediction }) {
  const homes = assignSegments(row);
  const names = nameSegments(row, homes, target, prediction);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const whole = sum(scores.map(Math.abs));
  const texts = [...new Set(homes.filter((home) => home !== null))].sort((first, second) => first - second);
  const parts = [...texts, ...(homes.includes(null) ? [null] : [])].map((segment) => {
    const segmentScores = scores.filter((_, position) => homes[position] === segment);
    return {
      name: segment === null ? "special" : names[segment],
      segment,
      share: whole ? sum(segmentScores.map(Math.abs)) / whole : 0,
      total: sum(segmentScores),
    };
  });
  const percents = roundToPercents(parts.map(({ share }) => share));
  return parts.map((part, index) => ({ ...part, percent: percents[index] }));
}

/** Whole percentages that sum to 100, by the largest-remainder method (descriptions.py of the library). */
export function roundToPercents(shares) {
  const percents = shares.map((share) => Math.floor(100 * share));
  const remainders = shares.map((share, index) => Number((100 * share - percents[index]).toFixed(9)));
  const total = Math.round(100 * shares.reduce((sum, share) => sum + share, 0));
  const missing = total - percents.reduce((sum, percent) => sum + percent, 0);
  const byRemainder = shares.map((_, index) => index).sort((a, b) => remainders[b] - remainders[a]);
  for (const index of byRemainder.slice(0, missing)) percents[index] += 1;
  return percents;
}

/** Format a share; `of` names the quantity if it is not the total score. */
export function formatShare({ percent, total }, of = "total score") {
  return `${percent} % of the ${of}, sum ${signed(total)}`;
}

/** Shares of the sources, largest first; null for fewer than three parts. */
export function sources(reading, of) {
  const parts = segmentShares(reading).filter(({ segment, name }) => segment !== null && name !== "written");
  if (parts.length < 3) return null;
  const ranked = parts.toSorted((first, second) => Math.abs(second.total) - Math.abs(first.total));
  const max = Math.abs(ranked[0].total);
  return make(
    "ol",
    { class: "sources", "aria-label": "Sources, the strongest first" },
    ranked.map((part) => {
      const name = make("span", {
        class: `name ${look(part.total, max) ?? ""}`,
        text: part.name,
        dir: "auto",
      });
      const text = reading.row.texts[part.segment].trim().replace(/\s+/g, " ");
      const begins = shortened(text, MAX_SOURCE_LENGTH);
      return make(
        "li",
        {},
        name,
        make("span", { class: "note", text: formatShare(part, of) }),
        make("span", { class: "begins", text: begins, dir: "auto" }),
      );
    }),
  );
}

/** The line about special tokens; null if their weight is small and they are hidden. */
export function specialLine(reading, { always = false, of } = {}) {
  const special = segmentShares(reading).find((part) => part.segment === null);
  const isBesideParts = always || reading.row.texts.length > 1;
  if (!special || (isBesideParts ? special.percent === 0 : special.share <= MIN_SPECIAL_SHARE)) return null;
  return make("p", {
    class: "segment on-special",
    text:
      special.share > MIN_SPECIAL_SHARE
        ? mostOnSpecial(reading, special, of)
        : `${special.percent} % of the ${of ?? "total score"} falls on special tokens, which are not words`,
    title:
      "[CLS], [SEP] and the like are scored like any token, but they are not your words and stay uncoloured.",
  });
}

function mostOnSpecial({ row, scores, method }, { percent }, of) {
  const named = [...new Set(row.pieces.filter((_, position) => row.special[position] && scores[position]))];
  const last = named.pop();
  const tokens = named.length ? `${named.join(", ")} and ${last}` : last;
  return `${percent} % of ${of ? `this ${of}` : `${method}'s total score`} falls on ${tokens}`;
}

/** The part of every token; a row made from ids knows only its token types. */
function assignSegments(row) {
  const types = row.token_types ?? [];
  return row.segments.map(
    (segment, position) => segment ?? (row.special[position] ? null : (types[position] ?? 0)),
  );
}

function nameSegments(row, homes, target, prediction) {
  const count = Math.max(row.texts.length, 1 + Math.max(0, ...homes.map(Number)));
  if ((row.names?.length ?? 0) >= count) return row.names;
  if (count === 1) return ["text"];
  const further = Array.from({ length: count - 2 }, (_, index) => `part ${index + 3}`);
  return [...namePair(target, prediction), ...further];
}

/** The names of two texts: a question and its context, a premise and its hypothesis, or first and second. */
function namePair(target, prediction) {
  if (target.kind === "span") return ["question", "context"];
  const labels = (prediction?.labels ?? []).map((label) => label.toLowerCase());
  return labels.includes("entailment") ? ["premise", "hypothesis"] : ["first", "second"];
}
