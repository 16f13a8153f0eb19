// Keyboard shortcuts: everything works without a mouse, and ? lists the keys.

import { byId, fill, make } from "./dom.js";
import { goTo, play, canPlay } from "./game.js";
import { togglePicker } from "./methods.js";
import { nextClass } from "./prediction.js";
import { otherPalette, otherTheme } from "./settings.js";
import { state, update } from "./store.js";
import { choose } from "./tabs.js";
import { remember } from "./link.js";

const HELP = [
  ["Ctrl + Enter", "explain the text"],
  ["/", "go to the text"],
  ["1 … 5", "why · hide and see · edit and compare · layers · heads"],
  ["w", "tokens or words"],
  ["c", "explain the next class"],
  ["m", "choose methods"],
  ["← →", "in the game: one token fewer or more; in a text: the next token"],
  ["Space", "in the game: play or stop; on a token: pin it"],
  ["r", "in the game: hide or reveal"],
  ["p", "other colours (blue and orange)"],
  ["d", "dark or light"],
  ["?", "this list"],
];
const TABS = { 1: "why", 2: "game", 3: "edit", 4: "layers", 5: "heads" };

/** Listen to the keyboard and to the help button. */
export function listenForKeys() {
  fill(
    byId("help"),
    make("h2", { id: "help-title", text: "Keys" }),
    make(
      "dl",
      {},
      HELP.flatMap(([key, does]) => [make("dt", {}, make("kbd", { text: key })), make("dd", { text: does })]),
    ),
    make("form", { method: "dialog" }, make("button", { class: "secondary", text: "Close" })),
  );
  byId("help-open").addEventListener("click", () => byId("help").showModal());
  document.addEventListener("keydown", handleKey);
}

function handleKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (byId("help").open || event.target.closest("input[type=text], textarea, select")) return;
  const run = meaning(event);
  if (!run) return;
  event.preventDefault();
  run();
}

function meaning(event) {
  const { key, target } = event;
  const always = {
    "/": () => byId("fields").querySelector("textarea")?.focus(),
    "?": () => byId("help").showModal(),
    m: () => togglePicker(),
    p: otherPalette,
    d: otherTheme,
  };
  if (always[key]) return always[key];
  if (byId("results").hidden) return null;
  if (TABS[key]) return () => choose(TABS[key]);
  if (key === "w")
    return () => {
      update({ view: state.view === "words" ? "tokens" : "words" });
      remember();
    };
  if (key === "c") return () => nextClass();
  // Buttons, sliders and tabs have arrows and the space bar of their own.
  const control = target.closest("button, input, summary, [role=button], [role=tab]");
  return state.tab === "game" && canPlay() ? gameKey(key, control) : null;
}

function gameKey(key, control) {
  if (key === "r") {
    return () => {
      update({ mode: state.mode === "hide" ? "reveal" : "hide", step: 0 });
      remember();
    };
  }
  if (control) return null;
  return (
    {
      ArrowRight: () => goTo(state.step + 1),
      ArrowLeft: () => goTo(state.step - 1),
      Home: () => goTo(0),
      " ": play,
    }[key] ?? null
  );
}
