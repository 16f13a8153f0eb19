// What each part of the input weighs, as segments.py of the library has it: the share of Σ|score| and
// the signed sum of every text, the special tokens last. Together the shares are one.

import { look } from "./colours.js";
import { make } from "./dom.js";
import { signed } from "./numbers.js";

const HALF = 0.5; // of the weight on special tokens is worth saying
const NOTHING = 0.005; // 0 % tells nothing, even beside other parts

/** [{name, segment, share, total}]; `segment` is null for the special tokens together. */
export function segmentShares({ row, scores, target, prediction }) {
  const homes = homesOf(row);
  const names = namesOf(row, homes, target, prediction);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const whole = sum(scores.map(Math.abs));
  const texts = [...new Set(homes.filter((home) => home !== null))].sort((one, other) => one - other);
  return [...texts, ...(homes.includes(null) ? [null] : [])].map((segment) => {
    const own = scores.filter((_, place) => homes[place] === segment);
    return {
      name: segment === null ? "special" : names[segment], segment,
      share: whole ? sum(own.map(Math.abs)) / whole : 0, total: sum(own),
    };
  });
}

/** A part in words; `of` names what is shared out where it is no plain weight. */
export function weighed({ share, total }, of = "weight") {
  return `${Math.round(100 * share)} % of the ${of}, sum ${signed(total)}`;
}

/** What each source brought, the strongest first; null for fewer than three parts. */
export function sources(reading, of) {
  const parts = segmentShares(reading).filter(({ segment, name }) => segment !== null && name !== "written");
  if (parts.length < 3) return null;
  const ranked = parts.toSorted((one, other) => Math.abs(other.total) - Math.abs(one.total));
  const most = Math.abs(ranked[0].total);
  return make("ol", { class: "sources", "aria-label": "Sources, the strongest first" }, ranked.map((part) => {
    const name = make("span", { class: `name ${look(part.total, most) ?? ""}`, text: part.name, dir: "auto" });
    const text = Array.from(reading.row.texts[part.segment].trim().replace(/\s+/g, " "));
    const begins = text.length > 60 ? `${text.slice(0, 59).join("")}…` : text.join("");
    return make("li", {}, name, make("span", { class: "note", text: weighed(part, of) }),
      make("span", { class: "begins", text: begins, dir: "auto" }));
  }));
}

/** The line about the special tokens; null where they carry little and nobody asked. */
export function specialLine(reading, { always = false, of } = {}) {
  const own = segmentShares(reading).find((part) => part.segment === null);
  const least = always || reading.row.texts.length > 1 ? NOTHING : HALF;
  if (!own || own.share <= least) return null;
  return make("p", {
    class: "segment on-special",
    text: own.share > HALF ? mostOnSpecial(reading, own, of)
      : `${Math.round(100 * own.share)} % of the ${of ?? "weight"} lies on special tokens, which are not words`,
    title: "[CLS], [SEP] and the like are scored like any token, but they are not your words and stay uncoloured.",
  });
}

function mostOnSpecial({ row, scores, method }, { share }, of) {
  const named = [...new Set(row.pieces.filter((_, place) => row.special[place] && scores[place]))];
  const last = named.pop();
  const tokens = named.length ? `${named.join(", ")} and ${last}, which are not words` : `${last}, which is not a word`;
  return `most of ${of ? `this ${of}` : `what ${method} sees`} (${Math.round(100 * share)} %) lies on ${tokens}`;
}

/** The part of every token; a row made from ids knows only its token types. */
function homesOf(row) {
  const types = row.token_types ?? [];
  return row.segments.map((segment, place) => segment ?? (row.special[place] ? null : types[place] ?? 0));
}

function namesOf(row, homes, target, prediction) {
  const count = Math.max(row.texts.length, 1 + Math.max(0, ...homes.map(Number)));
  if ((row.names?.length ?? 0) >= count) return row.names;
  if (count === 1) return ["text"];
  const known = (prediction?.labels ?? []).map((label) => label.toLowerCase());
  const pair = target.kind === "span" ? ["question", "context"]
    : known.includes("entailment") ? ["premise", "hypothesis"] : ["first", "second"];
  return [...pair, ...Array.from({ length: count - 2 }, (_, more) => `part ${more + 3}`)];
}
