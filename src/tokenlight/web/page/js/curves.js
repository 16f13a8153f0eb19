// Lines over a share, with a band behind them: the chart of the game and of benchmarks, in SVG.

import { draw, make } from "./dom.js";
import { clamped } from "./numbers.js";

// Drawn in the size it is seen in, about: letters neither shrink on a phone nor swell on a wall.
const WIDE = { width: 760, height: 320, left: 62, right: 16, top: 14, bottom: 46 };
const NARROW = { ...WIDE, width: 400, height: 270 };
let size = WIDE;
const LINES = 8; // classes line-0 … line-7 of the style sheet: colour and dash

/**
 * series: [{name, xs, ys, line}], band: {xs, low, high, mean} or null, cursor: x or null,
 * low, high: ends of the y axis; `onmove(x)` hears clicks and drags.
 */
export function chart({ series, band = null, cursor = null, ends = [0, 1], labels, onmove = null }) {
  size = innerWidth < 740 ? NARROW : WIDE;
  const at = scales(ends);
  const picture = draw("svg", {
    viewBox: `0 0 ${size.width} ${size.height}`,
    class: "chart",
    role: "img",
    "aria-label": labels.title,
  });
  picture.append(...axes(at, ends, labels));
  if (band) {
    const edge = [
      ...band.xs.map((x, i) => [x, band.high[i]]),
      ...band.xs.map((x, i) => [x, band.low[i]]).reverse(),
    ];
    picture.append(draw("path", { class: "band", d: `${path(at, edge)}Z` }));
    picture.append(
      draw("path", {
        class: "band-mean",
        d: path(
          at,
          band.xs.map((x, i) => [x, band.mean[i]]),
        ),
      }),
    );
  }
  for (const { xs, ys, line } of series) {
    const points = xs.map((x, i) => [x, ys[i]]);
    picture.append(draw("path", { class: `curve line-${line % LINES}`, d: path(at, points) }));
  }
  if (cursor !== null) picture.append(cursorMarks(at, cursor, series));
  if (onmove) addDragging(picture, onmove);
  return picture;
}

/** Names of the lines, as they are drawn. */
export function chartLegend(series, band) {
  const key = (name) =>
    draw(
      "svg",
      { viewBox: "0 0 30 10", class: "key", "aria-hidden": "true" },
      draw("path", { class: name, d: "M1 5H29" }),
    );
  return make(
    "ul",
    { class: "keys" },
    series.map(({ name, line, note }) =>
      make("li", {}, key(`curve line-${line % LINES}`), name, note && make("small", { text: note })),
    ),
    band
      && make(
        "li",
        {},
        draw(
          "svg",
          { viewBox: "0 0 30 10", class: "key", "aria-hidden": "true" },
          draw("rect", { class: "band", width: 30, height: 10 }),
          draw("path", { class: "band-mean", d: "M1 5H29" }),
        ),
        band,
      ),
  );
}

/** The value of a line at x, by linear interpolation. */
export function valueAt(xs, ys, x) {
  const next = xs.findIndex((point) => point >= x);
  if (next <= 0) return ys[next === 0 ? 0 : ys.length - 1];
  const share = (x - xs[next - 1]) / (xs[next] - xs[next - 1]);
  return ys[next - 1] + share * (ys[next] - ys[next - 1]);
}

function scales([low, high]) {
  const wide = size.width - size.left - size.right;
  const tall = size.height - size.top - size.bottom;
  return {
    x: (share) => size.left + wide * share,
    y: (value) => size.top + tall * (1 - clamped((value - low) / (high - low || 1), 0, 1)),
  };
}

function axes(at, [low, high], { x, y, format }) {
  const parts = [];
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const value = low + share * (high - low);
    parts.push(
      draw("line", { class: "grid", x1: at.x(0), x2: at.x(1), y1: at.y(value), y2: at.y(value) }),
      draw("text", {
        class: "tick",
        x: at.x(0) - 8,
        y: at.y(value) + 5,
        "text-anchor": "end",
        text: format(value),
      }),
      draw("text", {
        class: "tick",
        x: at.x(share),
        y: at.y(low) + 20,
        "text-anchor": share === 1 ? "end" : share ? "middle" : "start",
        text: `${100 * share} %`,
      }),
    );
  }
  parts.push(
    draw("text", { class: "axis-name", x: at.x(0.5), y: size.height - 4, "text-anchor": "middle", text: x }),
    draw("text", {
      class: "axis-name",
      transform: `translate(13 ${(at.y(low) + at.y(high)) / 2}) rotate(-90)`,
      "text-anchor": "middle",
      text: y,
    }),
  );
  return parts;
}

function cursorMarks(at, cursor, series) {
  const marks = draw(
    "g",
    { class: "cursor" },
    draw("line", { x1: at.x(cursor), x2: at.x(cursor), y1: size.top, y2: size.height - size.bottom }),
  );
  for (const { xs, ys, line } of series) {
    marks.append(
      draw("circle", {
        class: `dot line-${line % LINES}`,
        cx: at.x(cursor),
        cy: at.y(valueAt(xs, ys, cursor)),
        r: 6,
      }),
    );
  }
  return marks;
}

function path(at, points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${at.x(x).toFixed(1)} ${at.y(y).toFixed(1)}`).join("");
}

/** Report the share under the pointer while it is pressed or dragged. */
function addDragging(picture, onmove) {
  const drawn = size;
  picture.classList.add("movable");
  const tell = (event) => {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * drawn.width;
    onmove(clamped((x - drawn.left) / (drawn.width - drawn.left - drawn.right), 0, 1));
  };
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    tell(event);
  });
  picture.addEventListener("pointermove", (event) => {
    if (event.buttons) tell(event);
  });
}
