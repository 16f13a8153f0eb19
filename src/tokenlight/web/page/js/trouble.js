// What went wrong, in a sentence, with a way out.

import { byId, fill, make } from "./dom.js";

/** Show a message; `again` retries, `way` is another way out: {label, run}. */
export function trouble(message, { again = null, way = null } = {}) {
  const box = byId("trouble");
  fill(
    box,
    make("span", { text: message, dir: "auto" }),
    way && make("button", { type: "button", class: "secondary", text: way.label, onclick: way.run }),
    again && make("button", { type: "button", class: "secondary", text: "Try again", onclick: again }),
    make("button", { type: "button", class: "quiet", text: "Close", onclick: calm }),
  );
  box.hidden = false;
  box.scrollIntoView({ block: "nearest" });
}

/** All is well again. */
export function calm() {
  byId("trouble").hidden = true;
}
