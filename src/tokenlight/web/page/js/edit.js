// "Edit and compare": change words, and see prediction and scores beside those of the text as it was.

import { ask, Refused } from "./api.js";
import { look } from "./colours.js";
import { isContinuation } from "./continuation.js";
import { byId, draw as svg, fill, make } from "./dom.js";
import { highlighted, surface } from "./highlight.js";
import { percent, signed } from "./numbers.js";
import { byMagnitude, strongest } from "./scores.js";
import { scrollBox } from "./scrolling.js";
import { isDocumentForm, fieldsInUse, state, update, watch } from "./store.js";
import { withTooltip } from "./tip.js";
import { buildTarget, describeError, showFailure, buildRequest } from "./work.js";
import { reading } from "./why.js";

const MAX_LABELS = 5;
const MAX_SUGGESTIONS = 4; // words that a button removes
const MAX_ALIGNED = 600; // words of a text that is aligned: the table of the alignment is quadratic
let comparing = new AbortController();
let originals = {}; // field → the text that was explained; the form above may hold another one by now

/** Whether the text on the page can be edited: one that was typed here, for a model that is served. */
export function canEdit() {
  return (
    state.served
    && !state.source
    && !isDocumentForm()
    && !isContinuation()
    && !state.entries[0]?.attribution.row.image
  );
}

/** Draw the view when its tab is open; edits belong to one explanation and end with it. */
export function editPanel() {
  watch(["entries"], () => {
    comparing.abort();
    update({ edited: null, editError: "" });
    if (state.entries.length && canEdit()) drawForm();
  });
  watch(["entries", "tab", "edited", "editError", "view"], drawComparison);
}

function drawForm() {
  originals = Object.fromEntries(fieldsInUse().map((name) => [name, state[name]]));
  const form = make(
    "form",
    { class: "edit-form", autocomplete: "off", "aria-label": "The edited text" },
    Object.keys(originals).map(editField),
    make(
      "div",
      { class: "examples", role: "group", "aria-label": "Edits to try" },
      make("span", { class: "note", text: "Try" }),
      suggestions(),
      restoreButton(),
      make("button", {
        type: "submit",
        class: "primary",
        text: "Compare",
        "aria-keyshortcuts": "Control+Enter",
      }),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void compare();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      void compare();
    }
  });
  fill(
    byId("edit"),
    make("h2", { text: "Change a word and see what the model says" }),
    make("p", {
      class: "note",
      text:
        "Click a word of the coloured text to select it here, type another one, and compare."
        + sameQuestion(),
    }),
    form,
    make("div", { id: "comparison", "aria-live": "polite" }),
  );
}

/** What both texts are asked; a question has an answer of its own for each. */
function sameQuestion() {
  const { kind } = state.entries[0].attribution.target;
  if (kind === "span") return " Each text is explained for its own answer.";
  return kind === "token"
    ? " Both are explained for the same token."
    : " Both texts are explained for the same class.";
}

function editField(name) {
  const area = make("textarea", {
    id: `edit-${name}`,
    rows: name === "context" ? 4 : 2,
    dir: "auto",
    spellcheck: "false",
  });
  area.value = originals[name];
  const isAlone = Object.keys(originals).length === 1;
  return make(
    "label",
    { class: "field" },
    make("span", { class: isAlone ? "aside" : "", text: `Edited ${name}` }),
    area,
  );
}

/** Buttons that remove one of the strongest words. */
function suggestions() {
  const shown = reading(state.entries[0].attribution);
  return byMagnitude(shown)
    .slice(0, MAX_SUGGESTIONS)
    .flatMap((position) => {
      const place = findPlace(shown.row, position);
      if (!place) return [];
      const word = place.characters
        .slice(...place.span)
        .join("")
        .trim();
      return [
        make("button", {
          type: "button",
          class: "chip-button",
          text: `without “${word}”`,
          dir: "auto",
          onclick: () => removeWord(place),
        }),
      ];
    });
}

function restoreButton() {
  return make("button", {
    type: "button",
    class: "chip-button",
    text: "as it was",
    onclick: () => {
      restore();
      comparing.abort();
      update({ edited: null, editError: "" });
    },
  });
}

function restore() {
  for (const [name, text] of Object.entries(originals)) byId(`edit-${name}`).value = text;
}

/** The field and the characters of a word of the text as it was; null if it is not in a field. */
function findPlace(row, position) {
  const text = row.texts[row.segments[position]];
  const name = Object.keys(originals).find((field) => originals[field] === text);
  const span = row.spans[position];
  return name && span ? { name, span, characters: Array.from(text) } : null;
}

function removeWord({ name, span: [start, end], characters }) {
  restore();
  const before = characters.slice(0, start).join("");
  const after = characters.slice(end).join("");
  byId(`edit-${name}`).value = /\s$/.test(before) || !before ? before + after.trimStart() : before + after;
  void compare();
}

/** Select a word in its field, so that typing replaces it; only while the field holds the text as it was. */
function selectWord(row, position) {
  const place = findPlace(row, position);
  const area = place && byId(`edit-${place.name}`);
  if (!area || area.value !== originals[place.name]) {
    area?.focus();
    return;
  }
  const [start, end] = place.span.map((index) => place.characters.slice(0, index).join("").length);
  area.focus();
  area.setSelectionRange(start, end);
}

/** Explain the edited text for the class that is explained already. */
async function compare() {
  const fields = Object.keys(originals);
  const values = Object.fromEntries(fields.map((name) => [name, byId(`edit-${name}`).value]));
  const empty = fields.find((name) => !values[name].trim());
  if (empty !== undefined) {
    update({ editError: `The edited ${empty} is empty. Type something.`, edited: null });
    return;
  }
  comparing.abort();
  comparing = new AbortController();
  const { signal } = comparing;
  const body = { ...buildRequest(fields), ...values, layers: false };
  const target = sameTarget();
  if (target !== null) body.target = target;
  try {
    const response = await ask("/api/explain", body, signal);
    if (!signal.aborted) update({ edited: response, editError: "" });
  } catch (failure) {
    if (signal.aborted) return;
    if (failure instanceof Refused) update({ edited: null, editError: describeError(failure) });
    else showFailure(failure, compare);
  }
}

/** The target of the shown explanation by name, so that both texts are explained for the same one. */
function sameTarget() {
  const chosen = buildTarget();
  if (chosen !== null) return chosen;
  const { kind, name } = state.entries[0].attribution.target;
  if (kind === "class") return name;
  return kind === "token" ? { token: state.prediction.label } : null;
}

function drawComparison() {
  const box = byId("comparison");
  if (state.tab !== "edit" || !box || !state.entries.length) return;
  if (state.editError) {
    fill(box, make("p", { class: "warning", text: state.editError }));
    return;
  }
  const after = state.edited;
  fill(
    box,
    after && predictionTable(state.prediction, after.prediction),
    state.entries.flatMap((entry) => {
      const match = after?.attributions.find((candidate) => candidate.method === entry.method);
      return methodRows(entry, match);
    }),
  );
}

/** One row per label: its probability before and behind the edit. */
function predictionTable(before, after) {
  const summary =
    before.label === after.label
      ? `The model still says “${before.label.trim()}”.`
      : `The model now says “${after.label.trim()}”, not “${before.label.trim()}”.`;
  const lead = make("p", { class: "lead", text: summary, dir: "auto" });
  const chance = (prediction, label) => prediction.probabilities[prediction.labels.indexOf(label)] ?? 0;
  const isComparable =
    before.probabilities.length > 0 && before.labels.length === before.probabilities.length;
  if (!isComparable) return lead;
  const labels = [...new Set([...before.labels, ...after.labels])].sort(
    (a, b) => Math.max(chance(before, b), chance(after, b)) - Math.max(chance(before, a), chance(after, a)),
  );
  const row = (label) => {
    const [first, second] = [chance(before, label), chance(after, label)];
    const points = (100 * (second - first)).toFixed(1).replace("-", "−");
    return make(
      "tr",
      {},
      make("th", { scope: "row", text: label.trim(), dir: "auto" }),
      make("td", { text: percent(first) }),
      make("td", { text: percent(second) }),
      make("td", { text: `${second > first ? "+" : ""}${points} points` }),
      make("td", { class: "bar-cell" }, changeBar(first, second)),
    );
  };
  return [
    lead,
    scrollBox(
      {},
      make(
        "table",
        { class: "edit-table" },
        make(
          "thead",
          {},
          make(
            "tr",
            {},
            ["class", "as it was", "edited", "change", ""].map((name) =>
              make("th", { scope: "col", text: name }),
            ),
          ),
        ),
        make("tbody", {}, labels.slice(0, MAX_LABELS).map(row)),
      ),
    ),
  ];
}

/** Two bars: what it was above, what it is now below. */
function changeBar(first, second) {
  return svg(
    "svg",
    { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true", class: "change" },
    svg("rect", { width: 100, height: 10, class: "rail" }),
    svg("rect", { width: 100 * first, height: 4.5, class: "other" }),
    svg("rect", { y: 5.5, width: 100 * second, height: 4.5, class: "first" }),
  );
}

/** The text before and behind the edit in the colours of one method, on one scale. */
function methodRows(entry, match) {
  const before = reading(entry.attribution);
  const after = match && reading(match.attribution);
  const scale = Math.max(strongest(before), after ? strongest(after) : 0);
  const kept = after ? align(listPositionedWords(before), listPositionedWords(after)) : null;
  const side = (title, shown, isKept, isOriginal) =>
    make(
      "div",
      { class: "edit-side" },
      make("h4", { text: title }),
      colouredText(entry.method, shown, scale, isKept, isOriginal),
    );
  return [
    make("h3", {}, `${entry.method}, for `, make("b", { text: entry.attribution.target.name, dir: "auto" })),
    make(
      "div",
      { class: "edit-sides" },
      side("As it was", before, kept?.first, true),
      after ? side("Edited", after, kept.second, false) : null,
    ),
    after && kept.first ? changes(before, after, kept) : null,
  ];
}

function colouredText(method, shown, scale, kept, isOriginal) {
  return highlighted(shown, {
    label: isOriginal
      ? `${method}, the text as it was: Enter selects a word to replace`
      : `${method}, the edited text`,
    special: false,
    dress(element, stretch) {
      const score = stretch.positions.reduce((sum, position) => sum + shown.scores[position], 0);
      if (!stretch.special) element.classList.add(...[look(score, scale)].filter(Boolean));
      const isChanged = kept && stretch.positions.some((position) => !kept.has(position));
      if (isChanged) element.classList.add("changed");
      element.setAttribute(
        "aria-label",
        `${surface(stretch)}, ${signed(score)}${isChanged ? ", changed" : ""}`,
      );
      withTooltip(element, () => [[`${surface(stretch)}  ${signed(score)}`, "strong"]]);
      if (!isOriginal) return;
      element.setAttribute("role", "button");
      element.tabIndex = -1;
      element.addEventListener("click", () => selectWord(shown.row, stretch.positions[0]));
    },
  });
}

/** The words that both texts have, whose scores moved most. */
function changes(before, after, { pairs }) {
  const moved = pairs
    .map(([first, second]) => ({
      word: before.row.pieces[first],
      was: before.scores[first],
      is: after.scores[second],
    }))
    .filter(({ was, is }) => was !== is)
    .sort((a, b) => Math.abs(b.is - b.was) - Math.abs(a.is - a.was))
    .slice(0, 3);
  if (!moved.length) return null;
  const listed = moved
    .map(({ word, was, is }) => `${word.trim()} ${signed(was)} → ${signed(is)}`)
    .join(" · ");
  return make("p", {
    class: "note",
    text: `Unchanged words whose scores moved most: ${listed}`,
    dir: "auto",
  });
}

function listPositionedWords({ row }) {
  return row.pieces.flatMap((piece, position) => (row.special[position] ? [] : [[position, piece]]));
}

/** Align two lists of words by their longest common subsequence: positions kept on each side, and pairs. */
export function align(first, second) {
  if (Math.max(first.length, second.length) > MAX_ALIGNED) return { first: null, second: null, pairs: [] };
  const lengths = Array.from({ length: first.length + 1 }, () => new Uint16Array(second.length + 1));
  for (let i = first.length - 1; i >= 0; i -= 1) {
    for (let j = second.length - 1; j >= 0; j -= 1) {
      lengths[i][j] =
        first[i][1] === second[j][1]
          ? lengths[i + 1][j + 1] + 1
          : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const pairs = [];
  let [i, j] = [0, 0];
  while (i < first.length && j < second.length) {
    if (first[i][1] === second[j][1]) {
      pairs.push([first[i][0], second[j][0]]);
      i += 1;
      j += 1;
    } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i += 1;
    else j += 1;
  }
  return {
    first: new Set(pairs.map(([position]) => position)),
    second: new Set(pairs.map(([, position]) => position)),
    pairs,
  };
}
