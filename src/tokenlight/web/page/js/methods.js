// The method picker: the chosen ones as chips, all of them in groups behind a button.

import { ask } from "./api.js";
import { byId, fill, make } from "./dom.js";
import { chosenModel, state, update, watch } from "./store.js";
import { explain } from "./work.js";

const GROUPS = {
  gradients: "Gradients and attention",
  attention: "Attention alone",
  relevance: "Relevance propagation",
  decoded: "Decoded layers",
  "many passes": "Many passes through the model",
  control: "For comparison",
};

/** Update chips and picker with the state. */
export function methodPicker() {
  watch(["methods", "knownMethods", "model"], draw);
}

/** Open or close the list of all methods. */
export function togglePicker(open = byId("picker").hidden) {
  byId("picker").hidden = !open;
  draw();
  if (!open) return;
  byId("picker").querySelector("input")?.focus();
  // The server finds out in quiet moments which methods work on which model.
  ask("/api/methods").then(
    ({ methods }) => update({ knownMethods: methods }),
    () => {},
  );
}

function draw() {
  const open = !byId("picker").hidden;
  fill(
    byId("chosen"),
    state.methods.map((name) =>
      make(
        "span",
        { class: "chip" },
        make("span", { text: name }),
        state.methods.length > 1
          && make("button", {
            type: "button",
            class: "remove",
            "aria-label": `Remove ${name}`,
            text: "×",
            onclick: () => choose(state.methods.filter((other) => other !== name)),
          }),
      ),
    ),
    make("button", {
      type: "button",
      class: "chip-button more",
      id: "picker-open",
      "aria-expanded": String(open),
      "aria-controls": "picker",
      "aria-keyshortcuts": "m",
      text: open ? "Done" : "+ Compare methods",
      onclick: () => {
        togglePicker();
        byId("picker-open").focus();
      },
    }),
  );
  if (open) drawPicker();
}

/** Set the methods, and explain again if something was explained. */
export function choose(methods) {
  const reference = methods.includes(state.reference) ? state.reference : "";
  update({ methods, reference });
  if (!byId("results").hidden && state.served && !state.source) void explain({ step: false });
}

function drawPicker() {
  const groups = state.groups.filter((group) => state.knownMethods.some((other) => other.group === group));
  // Redrawn while someone tabs through it: the focus stays where it was.
  const focused = document.activeElement?.dataset?.method;
  const top = byId("picker").scrollTop;
  fill(
    byId("picker"),
    make(
      "div",
      {},
      groups.map((group) =>
        make(
          "fieldset",
          {},
          make("legend", { text: GROUPS[group] ?? group }),
          state.knownMethods.filter((other) => other.group === group).map(drawOption),
        ),
      ),
    ),
  );
  byId("picker").scrollTop = top;
  if (focused)
    byId("picker")
      .querySelector(`[data-method="${CSS.escape(focused)}"]`)
      ?.focus({ preventScroll: true });
}

function drawOption(method) {
  const support = method.models[state.model] ?? { is_supported: null, reason: null };
  const maxMethods = state.limits.methods ?? 12;
  const box = make("input", { type: "checkbox", "data-method": method.name });
  box.checked = state.methods.includes(method.name);
  const isUnsupported = support.is_supported === false;
  box.disabled =
    isUnsupported
    || (!box.checked && state.methods.length >= maxMethods)
    || (box.checked && state.methods.length === 1);
  box.addEventListener("change", () =>
    choose(
      box.checked ? [...state.methods, method.name] : state.methods.filter((other) => other !== method.name),
    ),
  );
  const marks = [
    method.name === chosenModel()?.method ? "the default here" : null,
    method.signed ? "for and against" : "for only",
    method.for_target ? null : "same for every class",
    method.per_layer ? "layer by layer" : null,
    method.slow ? "slow" : null,
  ]
    .filter(Boolean)
    .join(" · ");
  const reason = support.reason ?? "unknown reason";
  const note = isUnsupported ? `Does not work on this model: ${reason}` : marks;
  return make(
    "label",
    { class: isUnsupported ? "method off" : "method" },
    box,
    make(
      "span",
      {},
      make("b", { text: method.name }),
      make("span", { text: method.about }),
      make("small", { text: note }),
    ),
  );
}
