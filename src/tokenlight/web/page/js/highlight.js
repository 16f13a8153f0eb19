// A text with its tokens as elements: coloured by score, reached by mouse, touch and arrow keys.

import { inLine, visible } from "./characters.js";
import { make } from "./dom.js";
import { passages } from "./passages.js";
import { isPictureAlone, patchPositions, drawPatches } from "./image_input.js";
import { segmentShares, formatShare } from "./weights.js";

const MIN_SCROLLING_TOKENS = 250; // tokens from which a text scrolls in a box of its own

/**
 * The text of a reading (`asTokens` or `mergedWords`) as an element. `dress(stretch, tokens)` gives a
 * stretch its class, label and listeners; `tokens` are the original token numbers on it.
 */
export function highlighted(reading, { label, special, dress }) {
  const { row } = reading;
  const patches = new Set(patchPositions(row));
  const textPassages = passages(row).filter(
    ({ segment }) => !patches.size || segment === null || segment > 0,
  );
  const isLong = row.pieces.length - patches.size > MIN_SCROLLING_TOKENS;
  const box = make("div", { class: isLong ? "text long" : "text", role: "group", "aria-label": label });
  if (isLong) box.tabIndex = 0; // a box that scrolls must be reached by keys
  if (patches.size) {
    if (!isPictureAlone(row)) box.append(segmentName(reading, { segment: 0 }));
    box.append(drawPatches(reading, dress));
  }
  for (const passage of textPassages) {
    const isOfText = ({ positions }) => {
      const isPatch = positions.some((position) => patches.has(position));
      const isSpaceBetweenPatches = positions.length === 0 && isPictureAlone(row);
      return !isPatch && !isSpaceBetweenPatches;
    };
    const stretches = passage.stretches.filter(isOfText);
    if ((textPassages.length > 1 || patches.size) && passage.segment !== null)
      box.append(segmentName(reading, passage));
    const line = make("p", { class: "line", dir: "auto" });
    const last = stretches.findLastIndex((stretch) => stretch.positions.length && !stretch.special);
    stretches.forEach((stretch, index) => {
      if (!stretch.positions.length) line.append(plain(stretch, row.cut && index > last));
      else if (!stretch.special || special) line.append(token(reading, stretch, dress));
    });
    if (line.hasChildNodes()) box.append(line);
  }
  addKeyboardNavigation(box);
  return box;
}

/** Original token numbers that a span target explains: the answer. */
export function answerTokens(attribution) {
  if (attribution.target.kind !== "span") return new Set();
  const positions = attribution.target.terms.map(([[position]]) => position);
  const [first, last] = [Math.min(...positions), Math.max(...positions)];
  return new Set(Array.from({ length: last - first + 1 }, (_, i) => first + i));
}

/** Characters of a stretch's tokens as one line. */
export function surface(stretch) {
  return inLine(stretch.text);
}

function token(reading, stretch, dress) {
  const tokens = stretch.positions.flatMap((position) => reading.groups[position]);
  const element = make("span", {
    class: stretch.special ? "chip special" : "token",
    text: visible(stretch.text),
  });
  element.dataset.tokens = tokens.join(" ");
  dress(element, stretch, tokens);
  return element;
}

function plain(stretch, beyond) {
  const text = visible(stretch.text);
  if (!beyond || !stretch.text.trim()) return document.createTextNode(text);
  return make("span", { class: "cut", text, title: "Too long for the model: this part was not read." });
}

function segmentName(reading, { segment }) {
  const part = segmentShares(reading).find((share) => share.segment === segment);
  if (!part) return ""; // a text of which no token was read
  const text = reading.weightless ? part.name : `${part.name} · ${formatShare(part, reading.of)}`;
  return make("p", { class: "segment", text });
}

/** Make a text one tab stop; arrow keys move through its tokens. */
function addKeyboardNavigation(box) {
  const tokens = [...box.querySelectorAll("[role=button]")];
  if (!tokens.length) return;
  (tokens.find((element) => element.getAttribute("aria-pressed") === "true") ?? tokens[0]).tabIndex = 0;
  box.addEventListener("keydown", (event) => {
    const position = tokens.indexOf(event.target);
    if (position < 0) return;
    const columns = Number(event.target.closest(".photo")?.dataset.columns ?? 1);
    const goals = {
      ArrowRight: position + 1,
      ArrowLeft: position - 1,
      Home: 0,
      End: tokens.length - 1,
      ArrowDown: columns > 1 ? position + columns : -1,
      ArrowUp: columns > 1 ? position - columns : -1,
    };
    const goal = tokens[goals[event.key] ?? -1];
    if (goal) {
      event.preventDefault();
      event.target.tabIndex = -1;
      goal.tabIndex = 0;
      goal.focus();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      event.target.click();
    }
  });
}
