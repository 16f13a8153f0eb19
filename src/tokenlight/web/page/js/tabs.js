// The four views of a result, one at a time; the arrow keys move between them.

import { byId } from "./dom.js";
import { remember } from "./link.js";
import { state, update, watch } from "./store.js";

const buttons = () => [...byId("tabs").querySelectorAll("[role=tab]")];

/** Listen to clicks and arrows, and show the tab the state names. */
export function tabs() {
  for (const button of buttons()) {
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
  watch(["tab"], draw);
  draw();
}

/** Show one view. */
export function choose(name) {
  update({ tab: name });
  remember();
}

function draw() {
  for (const button of buttons()) {
    const shown = button.dataset.tab === state.tab;
    button.setAttribute("aria-selected", String(shown));
    button.tabIndex = shown ? 0 : -1;
    byId(button.dataset.tab).hidden = !shown;
  }
}
