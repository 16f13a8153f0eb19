// The error box: a message, and buttons for what to do about it.

import { byId, fill, make } from "./dom.js";

/** Show a message; `retry` repeats the request, `remedies` are other ways out: [{label, run}]. */
export function showError(message, { retry = null, remedies = [] } = {}) {
  const box = byId("trouble");
  fill(
    box,
    make("span", { text: message, dir: "auto" }),
    remedies.map(({ label, run }) =>
      make("button", { type: "button", class: "secondary", text: label, onclick: run }),
    ),
    retry && make("button", { type: "button", class: "secondary", text: "Try again", onclick: retry }),
    make("button", { type: "button", class: "quiet", text: "Close", onclick: clearError }),
  );
  box.hidden = false;
  box.scrollIntoView({ block: "nearest" });
}

/** Remove the error message. */
export function clearError() {
  byId("trouble").hidden = true;
}
