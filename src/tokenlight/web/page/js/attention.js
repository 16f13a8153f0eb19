// The attention map of one head: one square per pair of tokens, darker is more attention.

import { ask, Refused } from "./api.js";
import { inLine, shortened } from "./characters.js";
import { draw, fill, make } from "./dom.js";
import { percent } from "./numbers.js";
import { scrollBox } from "./scrolling.js";
import { fieldsInUse, state } from "./store.js";
import { withTooltip } from "./tip.js";
import { showFailure } from "./work.js";

const CELL_SIZE = 22;
const NAME_WIDTH = 110;
const MAX_NAME_LENGTH = 12;
const maps = new Map(); // request → its response: users open the same heads again and again

/** The map of the chosen head, filled when the server has answered; nothing if no head is chosen. */
export function attentionMap(head) {
  if (!head) return null;
  const container = make(
    "section",
    { class: "attention", "aria-live": "polite" },
    make("p", { class: "note", text: "Loading …" }),
  );
  void drawAttention(container, head);
  return container;
}

async function drawAttention(container, { layer, head }) {
  const request = { model: state.model, layer, head };
  for (const field of fieldsInUse()) request[field] = state[field];
  const key = JSON.stringify(request);
  try {
    if (!maps.has(key)) maps.set(key, await ask("/api/attention", request));
  } catch (failure) {
    if (!(failure instanceof Refused))
      return showFailure(failure, () => drawAttention(container, { layer, head }));
    fill(container, make("p", { class: "note", text: `${failure.message} ${failure.hint}` }));
    return undefined;
  }
  const { tokens, weights } = maps.get(key);
  fill(
    container,
    make("h3", { text: `Layer ${layer}, head ${head}: where each token looks` }),
    make("p", { class: "note", text: "Each row shows what one token attends to; a row adds up to 100 %." }),
    scrollBox(
      { tabindex: "0", role: "group", "aria-label": "Attention map, scrolls" },
      drawMatrix(tokens.map(inLine), weights),
    ),
  );
  return undefined;
}

function drawMatrix(tokens, weights) {
  const size = NAME_WIDTH + CELL_SIZE * tokens.length + 4;
  const picture = draw("svg", {
    viewBox: `0 0 ${size} ${size}`,
    width: size,
    height: size,
    class: "attention-map",
    role: "img",
    "aria-label": describeStrongest(tokens, weights),
  });
  tokens.forEach((token, i) => {
    const middle = NAME_WIDTH + CELL_SIZE * (i + 0.5);
    picture.append(
      draw("text", {
        class: "tick",
        x: NAME_WIDTH - 8,
        y: middle + 5,
        "text-anchor": "end",
        text: shortened(token, MAX_NAME_LENGTH),
      }),
      draw("text", {
        class: "tick",
        transform: `translate(${middle + 5} ${NAME_WIDTH - 8}) rotate(-90)`,
        text: shortened(token, MAX_NAME_LENGTH),
      }),
    );
  });
  weights.forEach((row, from) =>
    row.forEach((weight, to) => {
      const cell = draw("rect", {
        class: "look",
        x: NAME_WIDTH + CELL_SIZE * to + 1,
        y: NAME_WIDTH + CELL_SIZE * from + 1,
        width: CELL_SIZE - 2,
        height: CELL_SIZE - 2,
        rx: 3,
        "fill-opacity": (0.05 + 0.95 * Math.min(1, weight)).toFixed(3),
      });
      withTooltip(cell, () => [[`${tokens[from]} → ${tokens[to]}`, "strong"], percent(weight)]);
      picture.append(cell);
    }),
  );
  return picture;
}

/** Describe the highest attention weight for screen readers. */
function describeStrongest(tokens, weights) {
  let [strongest, from, to] = [0, "", ""];
  weights.forEach((row, query) =>
    row.forEach((weight, key) => {
      if (weight > strongest) [strongest, from, to] = [weight, tokens[query], tokens[key]];
    }),
  );
  return `Attention map. Strongest: ${from} looks at ${to} with ${percent(strongest)}.`;
}
