// The first view: one row per method, with its coloured text and the result of its trust test.

import { agreementTable } from "./agree.js";
import { look } from "./colours.js";
import { continuationLine, entriesOfToken, isContinuation } from "./continuation.js";
import { byId, fill, make, refill } from "./dom.js";
import { answerTokens, highlighted, surface } from "./highlight.js";
import { counted, plusMinus, signed } from "./numbers.js";
import { pinnedPanel, togglePin } from "./pin.js";
import {
  byToken,
  byMagnitude,
  couldBeZero,
  difference,
  errorOf,
  mergedWords,
  sameTokens,
  strongest,
} from "./scores.js";
import { state, watch } from "./store.js";
import { withTooltip } from "./tip.js";
import { viewTools } from "./tools.js";
import { trustLine } from "./trust.js";
import { sources, specialLine } from "./weights.js";

/** Draw the view whenever what it shows has changed. */
export function whyPanel() {
  watch(["entries", "view", "special", "reference", "pin", "trust", "served"], draw);
}

/** An explanation read by tokens or by words, as the reader chose. */
export function reading(attribution) {
  return state.view === "words" ? mergedWords(attribution) : byToken(attribution);
}

function draw() {
  if (!state.entries.length) return;
  const shown = entriesOfToken();
  const first = shown[0];
  const focus = focusedToken();
  refill(
    byId("why"),
    continuationLine(preview),
    drawHeading(first),
    viewTools(),
    drawWarning(first.attribution),
    make("div", { class: "rows" }, shown.flatMap(drawRow)),
    state.refused.map(drawRefusal),
    pinnedPanel(),
    agreementTable(),
  );
  focus?.();
}

/** Show the sources of another token of a continuation; its line stays, since the pointer is on it. */
function preview(index) {
  const shown = entriesOfToken(index);
  byId("why").querySelector(":scope > h2").replaceWith(drawHeading(shown[0]));
  fill(byId("why").querySelector(".rows"), shown.flatMap(drawRow));
}

function drawHeading({ attribution: { target }, question }) {
  const before = ["span", "contrast", "token"].includes(target.kind) ? "Why " : "What supports ";
  return make("h2", {}, before, make("b", { text: question ?? target.name, dir: "auto" }));
}

function drawRow(entry, number) {
  const reference = comparedWith(entry);
  const shown = reading(reference ? difference(entry.attribution, reference.attribution) : entry.attribution);
  const scale = strongest(shown);
  const answer = answerTokens(entry.attribution);
  const order = byMagnitude(shown);
  const text = highlighted(shown, {
    label: `${entry.method}: arrow keys move through the text, Enter pins`,
    special: state.special,
    dress(element, stretch, tokens) {
      const score = stretch.positions.reduce((sum, position) => sum + shown.scores[position], 0);
      const isUncertain = !stretch.special && couldBeZero(score, errorOf(shown, stretch.positions));
      if (isUncertain) element.classList.add("uncertain");
      if (!stretch.special) element.classList.add(...[look(score, scale)].filter(Boolean));
      if (tokens.some((token) => answer.has(token))) element.classList.add("answer-token");
      if (!stretch.positions.some((position) => shown.row.attention[position]))
        element.classList.add("masked");
      const pinned = state.pin !== null && tokens.includes(state.pin);
      element.setAttribute("role", "button");
      element.setAttribute("aria-pressed", String(pinned));
      element.setAttribute(
        "aria-label",
        `${surface(stretch)}, ${describeScore(score, reference)}${isUncertain ? ", could be 0" : ""}`,
      );
      element.tabIndex = -1;
      element.addEventListener("click", () => togglePin(tokens));
      withTooltip(element, () => listNumbers(stretch, score, shown, order, reference));
    },
  });
  return [
    make(
      "div",
      { class: "row-label" },
      make("h3", { text: entry.method }),
      reference && make("p", { class: "note", text: `compared with ${state.reference}` }),
      number === 0 && state.reference === entry.method && make("p", { class: "note", text: "the reference" }),
    ),
    make(
      "div",
      { class: "row-body", "data-method": entry.method },
      reference ? null : decidingLine(entry),
      sources(shown, shown.of),
      text,
      specialLine(shown, { always: state.special, of: shown.of }),
      errorLine(shown),
      [...(reference ? [] : (entry.remarks ?? [])), ...entry.attribution.notes]
        .filter((note) => !note.includes("long="))
        .map((note) => make("p", { class: "note", text: note })),
      reference || isContinuation() ? null : trustLine(entry),
    ),
  ];
}

/** Which document or turn decided, above the list of all; null for a text without such parts. */
function decidingLine({ deciding_part: part }) {
  return part ? make("p", { class: "deciding", text: part }) : null;
}

/** The explanation this one is compared with, where a reference is chosen and fits. */
function comparedWith(entry) {
  if (!state.reference || state.reference === entry.method) return null;
  const other = state.entries.find((entry) => entry.method === state.reference);
  return other && sameTokens(entry.attribution, other.attribution) ? other : null;
}

function describeScore(score, reference) {
  if (score === 0) return "no weight";
  if (reference) return `${signed(score)}, ${score > 0 ? "more" : "less"} weight than in ${reference.method}`;
  return `${signed(score)}, ${score > 0 ? "for" : "against"}`;
}

/** What ± and hatching mean; null for a method that does not sample. */
function errorLine(shown) {
  if (!shown.standard_errors) return null;
  const regular = shown.scores.flatMap((_, position) => (shown.row.special[position] ? [] : [position]));
  const uncertain = regular.filter((position) =>
    couldBeZero(shown.scores[position], shown.standard_errors[position]),
  );
  const { samples, orders } = shown.extras.sampling ?? {};
  const source = samples
    ? ` over ${counted(samples, "partial text")}`
    : orders
      ? ` over ${counted(orders, "order")}`
      : "";
  return make(
    "p",
    { class: "segment errors" },
    `± one standard error${source}; `,
    make("span", { class: "uncertain", text: "hatched" }),
    `: could be 0 (${uncertain.length} of ${regular.length})`,
  );
}

function listNumbers(stretch, score, shown, order, reference) {
  const position = stretch.positions[0];
  const error = errorOf(shown, stretch.positions);
  const errorText =
    error === null ? "" : ` ${plusMinus(error)}${couldBeZero(score, error) ? " (could be 0)" : ""}`;
  const rank = order.indexOf(position) + 1;
  const { pieces } = shown.row;
  const split =
    stretch.positions.length > 1
      ? stretch.positions
          .map((position) => `${pieces[position]} ${signed(shown.scores[position])}`)
          .join(" + ")
      : pieces[position];
  return [
    [`${surface(stretch)}  ${signed(score)}${errorText}`, "strong"],
    describeScore(score, reference).replace(/^[^,]*, /, ""),
    rank ? `number ${rank} of ${order.length} by strength` : "special token, not part of your text",
    stretch.patch ? ["a patch of the picture", "soft"] : [`as the model reads it: ${split}`, "soft"],
  ];
}

function drawWarning({ row: { cut, attention } }) {
  if (!cut) return null;
  return make("p", {
    class: "warning",
    text:
      `The text was too long for the model: its last ${cut} tokens were not read (shown in grey); `
      + `${attention.length} were.`,
  });
}

function drawRefusal({ method, error }) {
  return make("p", { class: "warning", text: `${method}: ${error.message} ${error.hint ?? ""}` });
}

/** After redrawing, return the focus to the token that had it. */
function focusedToken() {
  const focused = document.activeElement;
  const method = focused?.closest?.("#why [data-method]")?.dataset.method;
  const { tokens } = focused?.dataset ?? {};
  if (!method || !tokens) return null;
  return () =>
    byId("why")
      .querySelector(`[data-method="${CSS.escape(method)}"] [data-tokens="${CSS.escape(tokens)}"]`)
      ?.focus({ preventScroll: true });
}
