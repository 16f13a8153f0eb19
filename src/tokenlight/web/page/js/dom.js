// Create elements: text is inserted as text, never as markup, and no style attribute is written.

const SVG = "http:" + "//www.w3.org/2000/svg"; // a name, not an address: nothing is fetched from it

/** An element with attributes (`on…` are listeners, `text` its content) and children. */
export function make(tag, attributes = {}, ...children) {
  return fillElement(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function draw(tag, attributes = {}, ...children) {
  return fillElement(document.createElementNS(SVG, tag), attributes, children);
}

/** The element of the page with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Replace the children of `parent`. */
export function fill(parent, ...children) {
  parent.replaceChildren(...dropEmpty(children));
  return parent;
}

/** Replace the children of `parent` and restore the focus to the same control. */
export function refill(parent, ...children) {
  const controls = () => [...parent.querySelectorAll("button, input, select, .scroll")];
  const index = controls().indexOf(document.activeElement);
  const before = document.activeElement;
  fill(parent, ...children);
  const after = index < 0 ? null : controls()[index];
  if (after?.tagName === before.tagName && after.textContent === before.textContent) {
    after.focus({ preventScroll: true });
  }
  return parent;
}

function fillElement(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...dropEmpty(children));
  return element;
}

/** Drop null and false children. */
function dropEmpty(children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false);
}
