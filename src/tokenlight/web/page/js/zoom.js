// Plotly, fetched from our own server when someone first wants to zoom, under the strict policy:
// what it would write as inline styles goes through the style objects the policy allows.

import { fill, make } from "./dom.js";
import { trouble } from "./trouble.js";

let loading = null;

/** A button that puts a zoomable chart of `content()` under the panel, or takes it away. */
export function zoomButton(panel, content) {
  return make("button", {
    type: "button", class: "secondary zoom", text: "Zoom",
    onclick: async (event) => {
      const button = event.currentTarget;
      const old = panel.querySelector(".zoomed");
      if (old) {
        old.remove();
        button.textContent = "Zoom";
        return;
      }
      const place = make("div", { class: "zoomed" }, make("p", { class: "note", text: "Loading the chart …" }));
      panel.append(place);
      try {
        await drawn(place, content());
        button.textContent = "Close the zoom";
        place.scrollIntoView({ block: "nearest" });
      } catch {
        place.remove();
        trouble("The chart library could not be loaded. The map above shows the same numbers.");
      }
    },
  });
}

async function drawn(place, { title, columns, rows, values }) {
  const plotly = await library();
  const style = getComputedStyle(document.body);
  const ink = style.getPropertyValue("color");
  const colour = (name) => sample(name);
  const most = Math.max(...values.flat().map(Math.abs)) || 1;
  const box = make("div", { class: "plot" });
  fill(place, box);
  // Names may repeat ("the" twice), so columns are numbers with names as their ticks.
  const places = columns.map((_, i) => i);
  const hover = values.map((line, i) => line.map((_, j) => `${escaped(columns[j])} · ${rows[i]}`));
  await plotly.newPlot(box, [{
    type: "heatmap", z: values, x: places, y: rows, text: hover, hovertemplate: "%{text}<br>%{z:+.3g}<extra></extra>",
    zmin: -most, zmax: most, xgap: 1, ygap: 1, colorbar: { thickness: 12 },
    colorscale: [[0, colour("a12")], [0.5, colour("none")], [1, colour("f12")]],
  }], {
    title: { text: title, font: { size: 16 } }, font: { color: ink, family: style.fontFamily, size: 14 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", height: 420, margin: { t: 48, l: 80, r: 10, b: 90 },
    xaxis: { tickvals: places, ticktext: columns.map(escaped), tickangle: -45, showgrid: false },
    yaxis: { autorange: "reversed", showgrid: false },
  }, { displaylogo: false, responsive: true, displayModeBar: false, scrollZoom: true });
}

/** The background a class of the palette has now. */
function sample(name) {
  const probe = make("i", { class: `${name} probe` });
  document.body.append(probe);
  const found = getComputedStyle(probe).backgroundColor;
  probe.remove();
  return found;
}

/** Plotly reads a few tags in its texts; a token is never one. */
function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function library() {
  loading ??= load().catch((failure) => {
    loading = null; // so that a second try is one
    throw failure;
  });
  return loading;
}

async function load() {
  await sheet();
  const makeElement = document.createElement;
  lawfulStyles();
  // While it starts, plotly adds the styles of its maps, which we do not use and the policy refuses:
  // they land in an element that styles nothing.
  document.createElement = function createElement(name, ...rest) {
    return makeElement.call(document, String(name).toLowerCase() === "style" ? "template" : name, ...rest);
  };
  try {
    await added(unstyled(makeElement, "script", { src: "/vendor/plotly.min.js" }));
  } finally {
    delete document.createElement;
  }
  return globalThis.Plotly;
}

/** The empty sheet plotly adds its rules to; with this id it makes none of its own. */
function sheet() {
  return added(make("link", { id: "plotly.js-style-global", rel: "stylesheet", href: "/page/plotly.css" }));
}

/** Style attributes written by script become declarations on the style object. */
function lawfulStyles() {
  const { setAttribute } = Element.prototype;
  Element.prototype.setAttribute = function lawful(name, value) {
    if (name === "style") this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };
}

function unstyled(makeElement, tag, attributes) {
  return Object.assign(makeElement.call(document, tag), attributes);
}

function added(element) {
  return new Promise((resolve, reject) => {
    element.addEventListener("load", resolve);
    element.addEventListener("error", () => reject(new Error("not loaded")));
    document.head.append(element);
  });
}
