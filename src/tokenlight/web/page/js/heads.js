// The map of attention heads: which follow grammar, which look at a neighbor (heads.json).

import { ask, Refused } from "./api.js";
import { attentionMap } from "./attention.js";
import { byId, draw as svg, fill, make } from "./dom.js";
import { remember } from "./link.js";
import { counted } from "./numbers.js";
import { scrollBox } from "./scrolling.js";
import { chosenModel, state, update, watch } from "./store.js";
import { withTooltip } from "./tip.js";
import { showFailure } from "./work.js";

const KINDS = {
  syntactic: ["S", "syntactic", "follows a grammatical relation"],
  positional: ["P", "positional", "looks at a fixed neighbor"],
  both: ["B", "both", "follows a relation that is mostly one neighbor"],
  neither: ["", "neither", "neither of the two"],
};
const RELATION_NAMES = {
  nsubj: "subject",
  obj: "object",
  dobj: "object",
  amod: "adjective",
  advmod: "adverb",
};
const maps = new Map(); // model → its heads file, or null

/** Draw the map when its tab is open. */
export function headsPanel() {
  watch(["entries", "tab", "head", "served"], show);
}

async function show() {
  if (state.tab !== "heads" || !state.entries.length) return;
  const model = state.source ? null : chosenModel();
  const title = make("h2", { text: "What the attention heads do" });
  if (!model) {
    const note = "Attention heads belong to a model, and the model of this file is not loaded.";
    fill(byId("heads"), title, make("p", { class: "note", text: note }));
    return;
  }
  try {
    if (!maps.has(model.name)) {
      maps.set(model.name, model.head_map ? await ask(`/api/heads/${model.name}`) : null);
    }
  } catch (failure) {
    if (!(failure instanceof Refused)) return showFailure(failure, show);
    maps.set(model.name, null);
  }
  if (chosenModel() !== model || state.tab !== "heads") return undefined;
  const headMap = maps.get(model.name);
  fill(
    byId("heads"),
    title,
    headMap ? make("p", { class: "lead", text: describeHeads(headMap) }) : drawUnmeasuredNote(model),
    make(
      "div",
      { class: "heads-map" },
      make("div", {}, drawHeadGrid(model, headMap), headMap && drawLegend(headMap)),
      attentionMap(getChosenHead(model)),
    ),
  );
  return undefined;
}

/** The head a link or a click chose: [layer, head], or null. */
function getChosenHead(model) {
  const [layer, head] = state.head.split("-").map(Number);
  const fits = /^\d+-\d+$/.test(state.head) && layer < model.layers && head < model.heads;
  return fits ? { layer, head } : null;
}

function describeHeads({ sentences, syntactic, positional }) {
  const count = (table) => table.flat().filter((value) => value > 0).length;
  return (
    `Measured on ${sentences.toLocaleString("en")} parsed sentences: `
    + `${count(syntactic)} heads follow grammar, ${count(positional)} look at a fixed neighbor. `
    + "Click a head to see where it looks in your text."
  );
}

function drawUnmeasuredNote(model) {
  return make(
    "p",
    { class: "lead" },
    "Click a head to see where it looks in your text. Which heads are syntactic or positional was not "
      + "measured for this model; ",
    make("code", { text: `tokenlight heads ${model.name} --conllu FILE -o heads.json` }),
    " measures it, and ",
    make("code", { text: "serve --heads" }),
    " shows it.",
  );
}

function drawHeadGrid(model, headMap) {
  const layers = Array.from({ length: model.layers }, (_, layer) => layer).reverse();
  const heads = Array.from({ length: model.heads }, (_, head) => head);
  return scrollBox(
    {},
    make(
      "table",
      { class: "head-grid", "aria-label": "Attention heads" },
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          make("td"),
          heads.map((head) => make("th", { scope: "col", text: head })),
        ),
      ),
      make(
        "tbody",
        {},
        layers.map((layer) =>
          make(
            "tr",
            {},
            make("th", { scope: "row", text: `layer ${layer}` }),
            heads.map((head) => make("td", {}, drawHeadButton(layer, head, headMap))),
          ),
        ),
      ),
    ),
  );
}

function drawHeadButton(layer, head, headMap) {
  const kind = kindOf(layer, head, headMap);
  const [letter, name, means] = KINDS[kind];
  const id = `${layer}-${head}`;
  const isChosen = state.head === id;
  const label = `Layer ${layer}, head ${head}`;
  const toggleHead = () => {
    update({ head: isChosen ? "" : id });
    remember();
    refocus(id);
  };
  const button = make("button", {
    type: "button",
    class: `head ${kind}`,
    text: letter || "·",
    "aria-pressed": String(isChosen),
    "aria-label": headMap ? `${label}, ${name}` : label,
    "data-head": id,
    onclick: toggleHead,
  });
  withTooltip(button, () => [
    [label, "strong"],
    headMap ? `${name}: ${means}` : "not measured",
    ...describeFrequencies(layer, head, headMap),
  ]);
  return button;
}

function refocus(head) {
  byId("heads").querySelector(`[data-head="${head}"]`)?.focus({ preventScroll: true });
}

function kindOf(layer, head, headMap) {
  if (!headMap) return "neither";
  const isSyntactic = headMap.syntactic[layer][head] > 0;
  const isPositional = headMap.positional[layer][head] > 0;
  if (isSyntactic && isPositional) return "both";
  if (isSyntactic) return "syntactic";
  return isPositional ? "positional" : "neither";
}

/** How often the head attends to syntactic relatives, and to its most frequent relative position. */
function describeFrequencies(layer, head, headMap) {
  const relations = Object.entries(headMap?.relations ?? {})
    .filter(([, statistic]) => statistic.heads)
    .map(([relation, statistic]) => {
      const frequency = formatPercent(statistic.heads[layer][head]);
      const threshold = formatPercent(statistic.threshold);
      return [`${RELATION_NAMES[relation] ?? relation}: ${frequency} (threshold ${threshold})`, "soft"];
    });
  const positions = Object.entries(headMap?.positions?.[layer]?.[head] ?? {});
  if (!positions.length) return relations;
  const [offset, frequency] = positions.reduce((best, position) => (position[1] > best[1] ? position : best));
  const threshold = headMap.thresholds?.positional_share;
  const counts = threshold === undefined ? "" : ` (threshold ${formatPercent(threshold)})`;
  return [...relations, [`${describeOffset(Number(offset))}: ${formatPercent(frequency)}${counts}`, "soft"]];
}

function formatPercent(value) {
  return `${Math.round(100 * value)} %`;
}

function describeOffset(offset) {
  const where = offset < 0 ? "before" : "after";
  return offset === 0 ? "the word itself" : `${counted(Math.abs(offset), "word")} ${where}`;
}

function drawLegend(headMap) {
  const key = (kind) =>
    make(
      "li",
      {},
      svg(
        "svg",
        { viewBox: "0 0 20 20", class: `head-key ${kind}`, "aria-hidden": "true" },
        svg("rect", { width: 20, height: 20, rx: 5 }),
      ),
      `${KINDS[kind][1]}: ${KINDS[kind][2]}`,
    );
  const relations = Object.keys(headMap.relations ?? {}).map(
    (relation) => RELATION_NAMES[relation] ?? relation,
  );
  return make(
    "div",
    { class: "head-legend" },
    make("ul", { class: "keys" }, ["syntactic", "positional", "both", "neither"].map(key)),
    relations.length
      ? make("p", { class: "note", text: `Relations tested: ${relations.join(", ")}.` })
      : null,
  );
}
