// What the model says, and which of it is explained: class switch, "why A rather than B".

import { inLine } from "./characters.js";
import { byId, draw as svg, fill, make, refill } from "./dom.js";
import { percent } from "./numbers.js";
import { isDocumentForm, chosenModel, state, update, watch } from "./store.js";
import { selection } from "./tools.js";
import { explain } from "./work.js";

const MAX_BARS = 6;
let alternatives = { of: null, names: [] }; // those of the last question that had some

/** Update bars and switch with the state. */
export function predictionPanel() {
  watch(["entries", "prediction", "games", "served"], draw);
}

/** Explain the class `step` places after the current one, for the keyboard. */
export function nextClass(step = 1) {
  const labels = state.prediction?.labels ?? [];
  if (!canSwitchClass() || labels.length < 2) return;
  const current = labels.indexOf(explained());
  choose(labels[(current + step + labels.length) % labels.length], "");
}

function draw() {
  byId("results").hidden = !state.prediction;
  if (!state.prediction) return;
  const { label, labels, probabilities } = state.prediction;
  const span = state.entries[0].attribution.target.kind === "span";
  const words =
    span || isDocumentForm()
      ? "The model answers"
      : nextToken()
        ? "The model continues with"
        : "The model says";
  byId("answer-title").textContent = words;
  if (span) {
    fill(
      byId("bars"),
      make("p", { class: "answer-text", text: inLine(label) || "(nothing)", dir: "auto" }),
      probabilities.length
        ? make("p", { class: "note", text: `${percent(probabilities[0])} sure where it begins and ends` })
        : null,
    );
  } else if (!probabilities.length) {
    fill(byId("bars"), make("p", { class: "answer-text", text: label }));
  } else {
    refill(byId("bars"), bars(labels, probabilities));
  }
  refill(byId("target"), targetChoice(labels, span));
}

/** The most probable labels; each is a button that explains it. */
function bars(labels, probabilities) {
  const ranked = labels.map((_, i) => i).sort((a, b) => probabilities[b] - probabilities[a]);
  const shown = ranked.slice(0, MAX_BARS);
  const numHidden = labels.length - shown.length;
  return [
    make(
      "div",
      { class: "bars", role: "group", "aria-label": "Probabilities; click one to explain it" },
      shown.map((i) => {
        const chance = probabilities[i];
        const button = make(
          "button",
          {
            type: "button",
            class: "bar",
            "aria-pressed": String(labels[i] === explained()),
            "data-label": labels[i],
            title: canSwitchClass() ? `Explain “${labels[i]}”` : null,
            onclick: () => choose(labels[i], ""),
          },
          make("span", { class: "name", text: inLine(labels[i]), dir: "auto" }),
          svg(
            "svg",
            { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
            svg("rect", { width: 100, height: 10, class: "rail" }),
            svg("rect", { width: 100 * chance, height: 10, class: i === ranked[0] ? "first" : "other" }),
          ),
          make("span", { class: "number", text: percent(chance) }),
        );
        button.disabled = !canSwitchClass();
        return button;
      }),
    ),
    numHidden > 0
      ? make("p", {
          class: "note",
          text: nextToken() ? "and the rest of its vocabulary" : `and ${numHidden} less probable`,
        })
      : null,
  ];
}

function targetChoice(labels, span) {
  if (span || !canSwitchClass()) return [];
  if (nextToken()) return tokenChoice();
  if (labels.length < 2) return [];
  const others = labels.filter((label) => label !== explained());
  const name = (label) => [label, inLine(label)];
  return [
    selection("Explaining", explained(), labels.map(name), (label) => choose(label, "")),
    selection("rather than", state.rather, [["", "(no other class)"], ...others.map(name)], (label) =>
      choose(explained(), label),
    ),
  ];
}

/** Any token can be asked for: why this one, rather than that one. */
function tokenChoice() {
  const field = (id, label, value, placeholder) =>
    make(
      "label",
      { class: "inline" },
      label,
      make("input", { type: "text", id, value, placeholder, dir: "auto" }),
    );
  const form = make(
    "div",
    { class: "token-target" },
    field("token-for", "Explain the token", state.target, state.prediction.label),
    field("token-rather", "rather than", state.rather, "(no other token)"),
    make("button", {
      type: "button",
      class: "secondary",
      text: "Ask",
      onclick: () =>
        choose(
          byId("token-for").value || (byId("token-rather").value ? state.prediction.label : ""),
          byId("token-rather").value,
        ),
    }),
  );
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter") form.querySelector("button").click();
  });
  const length = selection(
    "Explain",
    state.numGeneratedTokens,
    [
      ["1", "the next token"],
      ["4", "the next 4 tokens"],
      ["8", "the next 8 tokens"],
    ],
    (numGeneratedTokens) => {
      update({ numGeneratedTokens, target: "", rather: "", written: 0, step: 0 });
      void explain({ step: false });
    },
  );
  if (state.numGeneratedTokens !== "1") return [length];
  return [length, alternativeChips(), form];
}

/** What the model might have said instead: a click contrasts with that one, a second one with all. */
function alternativeChips() {
  const { target } = state.entries[0].attribution;
  if (target.alternatives?.length) alternatives = { of: state.prediction, names: target.alternatives };
  const names = alternatives.of === state.prediction || state.rather ? alternatives.names : [];
  if (!names.length) return null;
  const shown =
    state.rather && !names.slice(0, MAX_BARS).includes(state.rather) ? [state.rather, ...names] : names;
  return make(
    "div",
    { class: "alternatives", role: "group", "aria-label": "Rather than" },
    make("span", { class: "note", text: "rather than:" }),
    shown.slice(0, MAX_BARS).map((name) =>
      make("button", {
        type: "button",
        class: "chip-button",
        text: inLine(name),
        dir: "auto",
        "aria-pressed": String(state.rather === name),
        title:
          state.rather === name
            ? "Contrast with all likely alternatives again"
            : `Why ${explained().trim()} rather than ${name.trim()}?`,
        onclick: () =>
          state.rather === name
            ? choose(state.target === state.prediction.label ? "" : state.target, "")
            : choose(explained(), name),
      }),
    ),
    names.length > MAX_BARS
      ? make("span", { class: "note", text: `and ${names.length - MAX_BARS} more` })
      : null,
  );
}

/** The label whose explanation is shown. */
function explained() {
  return (
    state.target
    || (!nextToken() && state.entries[0]?.attribution.target.kind === "class"
      ? state.entries[0].attribution.target.name
      : state.prediction.label)
  );
}

/** Whether the model is a language model, so that any token can be explained. */
function nextToken() {
  return !state.source && (chosenModel()?.targets.includes("token") ?? false);
}

/** Only what a served model explained can be explained again; an answer is a single span. */
function canSwitchClass() {
  return state.served && !state.source && !isDocumentForm();
}

function choose(target, rather) {
  update({ target, rather: rather === target ? "" : rather, step: 0 });
  void explain({ step: false });
}
