// The attention map of one head: one square per pair of tokens, darker is more attention.

import { ask, Refused } from "./api.js";
import { inLine } from "./characters.js";
import { draw, fill, make } from "./dom.js";
import { percent } from "./numbers.js";
import { scrollBox } from "./scrolling.js";
import { fieldsInUse, state } from "./store.js";
import { withTooltip } from "./tip.js";
import { failed } from "./work.js";

const CELL = 22;
const NAMES = 110; // room for the tokens' names
const answers = new Map(); // question → its answer: heads are looked at again and again

/** The map of the chosen head, filled when the server has answered; nothing if no head is chosen. */
export function attentionMap(head) {
  if (!head) return null;
  const container = make("section", { class: "attention", "aria-live": "polite" }, make("p", { class: "note", text: "Loading …" }));
  void drawAttention(container, head);
  return container;
}

async function drawAttention(container, { layer, head }) {
  const question = { model: state.model, layer, head };
  for (const field of fieldsInUse()) question[field] = state[field];
  const key = JSON.stringify(question);
  try {
    if (!answers.has(key)) answers.set(key, await ask("/api/attention", question));
  } catch (failure) {
    if (!(failure instanceof Refused)) return failed(failure, () => drawAttention(container, { layer, head }));
    fill(container, make("p", { class: "note", text: `${failure.message} ${failure.hint}` }));
    return undefined;
  }
  const { tokens, weights } = answers.get(key);
  fill(container, make("h3", { text: `Layer ${layer}, head ${head}: where each token looks` }),
    make("p", { class: "note", text: "Each row shows what one token attends to; a row adds up to 100 %." }),
    scrollBox({ tabindex: "0", role: "group", "aria-label": "Attention map, scrolls" }, matrix(tokens.map(inLine), weights)));
  return undefined;
}

function matrix(tokens, weights) {
  const size = NAMES + CELL * tokens.length + 4;
  const picture = draw("svg", {
    viewBox: `0 0 ${size} ${size}`, width: size, height: size, class: "attention-map", role: "img", "aria-label": describe(tokens, weights),
  });
  tokens.forEach((token, i) => {
    const middle = NAMES + CELL * (i + 0.5);
    picture.append(
      draw("text", { class: "tick", x: NAMES - 8, y: middle + 5, "text-anchor": "end", text: short(token) }),
      draw("text", { class: "tick", transform: `translate(${middle + 5} ${NAMES - 8}) rotate(-90)`, text: short(token) }),
    );
  });
  weights.forEach((row, from) => row.forEach((weight, to) => {
    const cell = draw("rect", {
      class: "look", x: NAMES + CELL * to + 1, y: NAMES + CELL * from + 1, width: CELL - 2, height: CELL - 2, rx: 3,
      "fill-opacity": (0.05 + 0.95 * Math.min(1, weight)).toFixed(3),
    });
    withTooltip(cell, () => [[`${tokens[from]} → ${tokens[to]}`, "strong"], percent(weight)]);
    picture.append(cell);
  }));
  return picture;
}

/** Describe the highest attention weight for screen readers. */
function describe(tokens, weights) {
  const looks = weights.flatMap((row, from) => row.map((weight, to) => [weight, tokens[from], tokens[to]]));
  const [strongest, from, to] = looks.reduce((best, look) => (look[0] > best[0] ? look : best), [0, "", ""]);
  return `Attention map. Strongest: ${from} looks at ${to} with ${percent(strongest)}.`;
}

function short(token) {
  const characters = Array.from(token);
  return characters.length > 12 ? `${characters.slice(0, 11).join("")}…` : token;
}
