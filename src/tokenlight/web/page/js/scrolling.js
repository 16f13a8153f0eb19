// A box that scrolls sideways, with a hint while there is more to the right.
// The hint is a class that JavaScript sets: Chromium 150 crashes on CSS scroll timelines in boxes that are
// redrawn.

import { make } from "./dom.js";

// In the next frame: the hint changes the height of the box, which an observer may not do at once.
const observer = new ResizeObserver((changes) =>
  requestAnimationFrame(() => {
    for (const { target } of changes) markOverflow(target.closest(".scroll"));
  }),
);

/** A box around `content` that can be scrolled sideways. */
export function scrollBox(attributes, content) {
  const box = make("div", { ...attributes, class: "scroll" }, content);
  observer.observe(box); // when the window changes
  observer.observe(content); // when the content does
  box.addEventListener("scroll", () => markOverflow(box), { passive: true });
  return box;
}

function markOverflow(box) {
  const remaining = box.scrollWidth - box.clientWidth - Math.abs(box.scrollLeft);
  box.classList.toggle("overflows", remaining > 1);
}
