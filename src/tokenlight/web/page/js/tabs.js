// The views of a result, one at a time; the arrow keys move between them.

import { byId } from "./dom.js";
import { canEdit } from "./edit.js";
import { remember } from "./link.js";
import { chosenModel, state, update, watch } from "./store.js";

const buttons = () => [...byId("tabs").querySelectorAll("[role=tab]:not([hidden])")];

/** Whether a view has something to show: heads where they were measured, and layers of a text. */
export function available(name) {
  const picture = state.entries[0]?.attribution.row.image;
  if (name === "layers") return !picture;
  if (name === "edit") return state.entries.length === 0 || canEdit();
  return name !== "heads" || (!state.source && !picture && Boolean(chosenModel()?.head_map));
}

/** Listen to clicks and arrows, and show the tab the state names. */
export function setUpTabs() {
  for (const button of byId("tabs").querySelectorAll("[role=tab]")) {
    button.addEventListener("click", () => choose(button.dataset.tab));
  }
  byId("tabs").addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const all = buttons();
    const current = all.findIndex((button) => button.dataset.tab === state.tab);
    const next = all[(current + moves[event.key] + all.length) % all.length];
    choose(next.dataset.tab);
    next.focus();
  });
  watch(["tab", "model", "models", "source", "entries"], draw);
  draw();
}

/** Show one view. */
export function choose(name) {
  if (!available(name)) return;
  update({ tab: name });
  remember();
}

function draw() {
  if (state.ready && !available(state.tab)) {
    update({ tab: "why" }); // a link to a view that this model does not have
    return;
  }
  for (const button of byId("tabs").querySelectorAll("[role=tab]")) {
    button.hidden = !available(button.dataset.tab);
    const shown = button.dataset.tab === state.tab;
    button.setAttribute("aria-selected", String(shown));
    button.tabIndex = shown ? 0 : -1;
    byId(button.dataset.tab).hidden = !shown;
  }
}
