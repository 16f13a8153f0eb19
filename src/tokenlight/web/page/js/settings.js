// Colours and brightness: stored in the browser; by default those of the system.

import { byId } from "./dom.js";

const DEFAULT_SETTINGS = { palette: "green_red", theme: "system" };

/** Apply what was chosen before, and listen to the buttons. */
export function setUpSettings() {
  for (const [name, usual] of Object.entries(DEFAULT_SETTINGS)) {
    const values = buttons(name).map((button) => button.dataset.value);
    const before = readSetting(name);
    apply(name, values.includes(before) ? before : usual);
    for (const button of buttons(name)) {
      button.addEventListener("click", () => apply(name, button.dataset.value));
    }
  }
}

/** The next palette, for the keyboard. */
export function otherPalette() {
  apply("palette", document.documentElement.dataset.palette === "green_red" ? "blue_orange" : "green_red");
}

/** Dark where it is light, light where it is dark. */
export function otherTheme() {
  apply("theme", dark() ? "light" : "dark");
}

/** Whether the page is dark now. */
function dark() {
  const { theme } = document.documentElement.dataset;
  return theme === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : theme === "dark";
}

function apply(name, value) {
  document.documentElement.dataset[name] = value;
  for (const button of buttons(name)) {
    button.setAttribute("aria-pressed", String(button.dataset.value === value));
  }
  try {
    localStorage.setItem(`tokenlight.${name}`, value);
  } catch {
    // A browser may forbid it; the choice then lasts as long as the page.
  }
}

function readSetting(name) {
  try {
    return localStorage.getItem(`tokenlight.${name}`);
  } catch {
    return null;
  }
}

function buttons(name) {
  return [...byId(name).querySelectorAll("button")];
}
