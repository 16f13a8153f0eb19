// A pinned token: outlined in every row and map, its numbers side by side.

import { atLeastFaint } from "./colours.js";
import { draw, make } from "./dom.js";
import { inLine } from "./characters.js";
import { remember } from "./link.js";
import { plusMinus, signed } from "./numbers.js";
import { patchPositions } from "./image_input.js";
import { byToken, byMagnitude, errorOf, mergedWords, strongest } from "./scores.js";
import { state, update } from "./store.js";

/** Pin tokens, or unpin them. */
export function togglePin(tokens) {
  update({ pin: tokens.includes(state.pin) ? null : tokens[0] });
  remember();
}

/** The numbers of the pinned token under every method; a hint where none is pinned. */
export function pinnedPanel() {
  const fits = state.pin !== null && state.pin < state.entries[0].attribution.row.ids.length;
  const { image } = state.entries[0].attribution.row;
  const unit = image ? "patch or word" : state.view.slice(0, -1);
  if (!fits)
    return make("p", {
      class: "note hint",
      text: `Hover over a ${unit} for its numbers; click it to pin it.`,
    });
  const name = pinnedName(state.entries[0].attribution);
  return make(
    "section",
    { class: "pinned", "aria-label": `Pinned: ${name}` },
    make(
      "h3",
      {},
      "Pinned: ",
      make("b", { text: `“${name}”`, dir: "auto" }),
      make("button", {
        type: "button",
        class: "quiet",
        text: "Unpin",
        onclick: () => togglePin([state.pin]),
      }),
    ),
    make(
      "table",
      { class: "numbers" },
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          ["method", "score", "", "rank"].map((head) => make("th", { scope: "col", text: head })),
        ),
      ),
      make("tbody", {}, state.entries.map(drawRow)),
    ),
  );
}

function drawRow(entry) {
  const { shown, position } = pinnedIn(entry.attribution);
  const score = shown.scores[position];
  const error = errorOf(shown, [position]);
  const scale = strongest(shown);
  const order = byMagnitude(shown);
  const rank = order.indexOf(position) + 1;
  const share = scale ? Math.min(1, Math.abs(score) / scale) : 0;
  return make(
    "tr",
    {},
    make("th", { scope: "row", text: entry.method }),
    make("td", {
      class: "number",
      text: error === null ? signed(score) : `${signed(score)} ${plusMinus(error)}`,
    }),
    make("td", { class: "bar-cell" }, drawBar(score, scale, share)),
    make("td", { class: "number", text: rank ? `${rank} of ${order.length}` : "special" }),
  );
}

/** A bar from the middle: right for, left against. */
function drawBar(score, scale, share) {
  const width = 50 * share;
  return draw(
    "svg",
    { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "two-sided", "aria-hidden": "true" },
    draw("rect", {
      x: score < 0 ? 50 - width : 50,
      y: 1,
      width,
      height: 8,
      class: atLeastFaint(score, scale),
    }),
    draw("line", { x1: 50, x2: 50, y1: 0, y2: 10, class: "axis" }),
  );
}

function pinnedIn(attribution) {
  const shown = state.view === "words" ? mergedWords(attribution) : byToken(attribution);
  return { shown, position: shown.groups.findIndex((group) => group.includes(state.pin)) };
}

function pinnedName(attribution) {
  const {
    shown: { row },
    position,
  } = pinnedIn(attribution);
  const [span, segment] = [row.spans[position], row.segments[position]];
  if (patchPositions(row).includes(position)) return `patch ${row.pieces[position]}`;
  if (!span || segment === null) return inLine(row.pieces[position]);
  const written = Array.from(row.texts[segment])
    .slice(...span)
    .join("");
  return inLine(written.trim() || written || row.pieces[position]);
}
