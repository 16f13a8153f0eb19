// Layer by layer: the terms a score is the sum of, one row a layer (AttCAT, figure 5).

import { inLine } from "./characters.js";
import { look } from "./colours.js";
import { byId, fill, make, refill } from "./dom.js";
import { remember } from "./link.js";
import { signed } from "./numbers.js";
import { togglePin } from "./pin.js";
import { state, update, watch } from "./store.js";
import { tipped } from "./tip.js";
import { legend, selection, specialChoice, viewChoice } from "./tools.js";
import { specialLine } from "./weights.js";
import { reading } from "./why.js";

const MOST = 300; // columns; a book would make a table no browser draws

/** Draw the map whenever what it shows has changed. */
export function layersPanel() {
  watch(["entries", "view", "special", "pin", "layered"], draw);
}

function draw() {
  if (!state.entries.length) return;
  const layered = state.entries.filter((entry) => entry.attribution.layers);
  const title = make("h2", { text: "Which layer contributed what" });
  if (!layered.length) {
    const known = state.known.filter((method) => method.per_layer).map((method) => method.name);
    const ways = known.length ? ` Choose ${known.join(" or ")} above.` : "";
    fill(byId("layers"), title, make("p", { class: "note", text: `None of the chosen methods has per-layer terms.${ways}` }));
    return;
  }
  const entry = layered.find((one) => one.method === state.layered) ?? layered[0];
  const shown = reading(entry.attribution);
  const table = layerTable(shown);
  refill(
    byId("layers"), title,
    make("p", { class: "lead", text: `${entry.method} adds up one term per layer. The rows follow the text through the model; the last row is their sum, the score.` }),
    make("div", { class: "tools" },
      layered.length > 1 ? selection("Method", entry.method, layered.map((one) => [one.method, one.method]), (name) => change({ layered: name })) : null,
      viewChoice(), specialChoice(), legend()),
    heat(table),
    specialLine(shown, { always: true }),
    table.left ? make("p", { class: "note", text: `${table.left} weaker columns are left out.` }) : null,
    make("p", { class: "note", text: `The layers share one colour scale; the sum has its own.${table.saturates ? " Colours are scaled to the words; special tokens may exceed the scale." : ""}` }),
  );
}

/** Columns (tokens or words) and rows (layers, then their sum) with the scale of their colours. */
function layerTable(shown) {
  const { row } = shown;
  const sums = shown.layers[0].map((_, place) => shown.layers.reduce((total, terms) => total + terms[place], 0));
  let places = row.pieces.map((_, place) => place).filter((place) => state.special || !row.special[place]);
  const peak = (place) => shown.layers.reduce((most, terms) => Math.max(most, Math.abs(terms[place])), Math.abs(sums[place]));
  const left = Math.max(0, places.length - MOST);
  if (left) places = places.toSorted((a, b) => peak(b) - peak(a)).slice(0, MOST).sort((a, b) => a - b);
  const strongest = (terms) => places.reduce((most, place) => (row.special[place] ? most : Math.max(most, Math.abs(terms[place]))), 0);
  const scale = Math.max(...shown.layers.map(strongest));
  return {
    places, left, groups: shown.groups,
    saturates: places.some((place) => row.special[place]) && places.some((place) => !row.special[place]),
    names: row.pieces.map((piece, place) => name(row, place, piece)),
    rows: [
      ...shown.layers.map((terms, layer) => ({ name: `layer ${layer}`, terms, scale })),
      { name: "sum", terms: sums, scale: strongest(sums) },
    ],
  };
}

function heat({ places, names, rows, groups }) {
  const pinned = (place) => state.pin !== null && groups[place].includes(state.pin);
  return make(
    "div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Heat map, scrolls sideways" },
    make("table", { class: "heat" },
      make("thead", {}, make("tr", {}, make("td"), places.map((place) => make(
        "th", { scope: "col", class: pinned(place) ? "pinned-column" : "" },
        make("button", { type: "button", class: "column", text: names[place], dir: "auto", "aria-pressed": String(pinned(place)), onclick: () => togglePin(groups[place]) }),
      )))),
      make("tbody", {}, rows.map((row) => make("tr", { class: row.name === "sum" ? "sum" : null },
        make("th", { scope: "row", text: row.name }),
        places.map((place) => {
          const value = row.terms[place];
          const cell = make("td", { class: `${look(value, row.scale) || "none"}${pinned(place) ? " pinned-column" : ""}` },
            row.name === "sum" ? signed(value) : make("span", { class: "aside", text: signed(value) }));
          tipped(cell, () => [[`${names[place]}  ${signed(value)}`, "strong"], row.name === "sum" ? "sum over the layers" : row.name]);
          return cell;
        }))))),
  );
}

function name(row, place, piece) {
  const [span, segment] = [row.spans[place], row.segments[place]];
  if (!span || segment === null) return inLine(piece);
  const written = Array.from(row.texts[segment]).slice(...span).join("");
  return inLine(written.trim() || written || piece);
}

function change(changes) {
  update(changes);
  remember();
}
