// The small box beside the pointer or the focused token: its numbers.

import { byId, fill, make } from "./dom.js";

const GAP = 10;

/** Show `lines` ([text, class] pairs or strings) next to `element`, on hover and on focus. */
export function withTooltip(element, lines) {
  const show = () => open(element, lines());
  element.addEventListener("pointerenter", show);
  element.addEventListener("focus", show);
  element.addEventListener("pointerleave", close);
  element.addEventListener("blur", close);
}

/** Hide it. */
export function close() {
  byId("tip").hidden = true;
}

function open(element, lines) {
  const tip = byId("tip");
  fill(
    tip,
    lines.map((line) => {
      const [text, name] = Array.isArray(line) ? line : [line, null];
      return make("div", { class: name, text, dir: "auto" });
    }),
  );
  tip.hidden = false;
  const at = element.getClientRects()[0] ?? element.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const above = at.top - height - GAP;
  const left = Math.min(Math.max(GAP, at.left + at.width / 2 - width / 2), innerWidth - width - GAP);
  tip.style.left = `${Math.max(GAP, left)}px`;
  tip.style.top = `${above > GAP ? above : at.bottom + GAP}px`;
}
