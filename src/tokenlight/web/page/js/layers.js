// Layer by layer: the terms a score is the sum of, one row per layer (AttCAT, figure 5).

import { inLine } from "./characters.js";
import { look } from "./colours.js";
import { byId, fill, make, refill } from "./dom.js";
import { remember } from "./link.js";
import { choose } from "./methods.js";
import { signed } from "./numbers.js";
import { togglePin } from "./pin.js";
import { scrollBox } from "./scrolling.js";
import { state, update, watch } from "./store.js";
import { withTooltip } from "./tip.js";
import { legend, selection, specialChoice, viewChoice } from "./tools.js";
import { specialLine } from "./weights.js";
import { reading } from "./why.js";

const MAX_COLUMNS = 300; // columns; a book would make a table no browser draws

/** Draw the map whenever what it shows has changed. */
export function layersPanel() {
  watch(["entries", "view", "special", "pin", "layered"], draw);
}

// One click adds a method that has layers; its map is then drawn here.
function drawAddButton(name) {
  return make("button", {
    type: "button",
    class: "chip-button",
    text: `+ ${name}`,
    onclick: () => choose([...state.methods, name]),
  });
}

function draw() {
  if (!state.entries.length) return;
  const layered = state.entries.filter((entry) => entry.attribution.layers);
  const title = make("h2", { text: "Which layer contributed what" });
  if (!layered.length) {
    const methodNames = state.knownMethods.filter((method) => method.per_layer).map((method) => method.name);
    fill(
      byId("layers"),
      title,
      make("p", { class: "note", text: "None of the chosen methods has per-layer terms. These have:" }),
      make("p", { class: "tools" }, methodNames.map(drawAddButton)),
    );
    return;
  }
  const entry = layered.find((entry) => entry.method === state.layered) ?? layered[0];
  const shown = reading(entry.attribution);
  const table = layerTable(shown);
  const saturation = table.saturates
    ? " Colours are scaled to the words; special tokens may exceed the scale."
    : "";
  refill(
    byId("layers"),
    title,
    make("p", {
      class: "lead",
      text:
        `${entry.method} adds up one term per layer. The rows follow the text through the model; `
        + "the last row is their sum, the score.",
    }),
    make(
      "div",
      { class: "tools" },
      layered.length > 1
        ? selection(
            "Method",
            entry.method,
            layered.map((entry) => [entry.method, entry.method]),
            (name) => change({ layered: name }),
          )
        : null,
      viewChoice(),
      specialChoice(),
      legend(),
    ),
    drawHeatMap(table),
    specialLine(shown, { always: true }),
    table.numHidden
      ? make("p", { class: "note", text: `${table.numHidden} weaker columns are left out.` })
      : null,
    make("p", {
      class: "note",
      text: `The layers share one colour scale; the sum has its own.${saturation}`,
    }),
  );
}

/** Columns (tokens or words) and rows (layers, then their sum) with the scale of their colours. */
function layerTable(shown) {
  const { row } = shown;
  const sums = shown.layers[0].map((_, position) =>
    shown.layers.reduce((total, terms) => total + terms[position], 0),
  );
  let positions = row.pieces
    .map((_, position) => position)
    .filter((position) => state.special || !row.special[position]);
  const peak = (position) => {
    const terms = [...shown.layers.map((layer) => layer[position]), sums[position]];
    return Math.max(...terms.map(Math.abs));
  };
  const numHidden = Math.max(0, positions.length - MAX_COLUMNS);
  if (numHidden) {
    const strongestFirst = positions.toSorted((a, b) => peak(b) - peak(a));
    positions = strongestFirst.slice(0, MAX_COLUMNS).sort((a, b) => a - b);
  }
  const regular = positions.filter((position) => !row.special[position]);
  const strongest = (terms) => Math.max(0, ...regular.map((position) => Math.abs(terms[position])));
  const scale = Math.max(...shown.layers.map(strongest));
  return {
    positions,
    numHidden,
    groups: shown.groups,
    saturates:
      positions.some((position) => row.special[position])
      && positions.some((position) => !row.special[position]),
    names: row.pieces.map((piece, position) => nameColumn(row, position, piece)),
    rows: [
      ...shown.layers.map((terms, layer) => ({ name: `layer ${layer}`, terms, scale })),
      { name: "sum", terms: sums, scale: strongest(sums) },
    ],
  };
}

function drawHeatMap({ positions, names, rows, groups }) {
  const pinned = (position) => state.pin !== null && groups[position].includes(state.pin);
  return scrollBox(
    { tabindex: "0", role: "group", "aria-label": "Heat map, scrolls sideways" },
    make(
      "table",
      { class: "heat" },
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          make("td"),
          positions.map((position) =>
            make(
              "th",
              { scope: "col", class: pinned(position) ? "pinned-column" : "" },
              make("button", {
                type: "button",
                class: "column",
                text: names[position],
                dir: "auto",
                "aria-pressed": String(pinned(position)),
                onclick: () => togglePin(groups[position]),
              }),
            ),
          ),
        ),
      ),
      make(
        "tbody",
        {},
        rows.map((row) =>
          make(
            "tr",
            { class: row.name === "sum" ? "sum" : null },
            make("th", { scope: "row", text: row.name }),
            positions.map((position) => {
              const value = row.terms[position];
              const cell = make(
                "td",
                { class: `${look(value, row.scale) || "none"}${pinned(position) ? " pinned-column" : ""}` },
                row.name === "sum" ? signed(value) : make("span", { class: "aside", text: signed(value) }),
              );
              withTooltip(cell, () => [
                [`${names[position]}  ${signed(value)}`, "strong"],
                row.name === "sum" ? "sum over the layers" : row.name,
              ]);
              return cell;
            }),
          ),
        ),
      ),
    ),
  );
}

function nameColumn(row, position, piece) {
  const [span, segment] = [row.spans[position], row.segments[position]];
  if (!span || segment === null) return inLine(piece);
  const written = Array.from(row.texts[segment])
    .slice(...span)
    .join("");
  return inLine(written.trim() || written || piece);
}

function change(changes) {
  update(changes);
  remember();
}
