// A part of the page as an image: positions are read from the page and drawn again, as SVG
// or on a canvas. No style is inlined and nothing is fetched, so the policy has nothing to refuse.

import { draw } from "./dom.js";

const EDGE = 24;
const TITLE = 44;

/** The part as an SVG file. */
export function asSvg(element, options) {
  const { width, height, paper, ink, font, shapes } = cloneWithout(element, options);
  const picture = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  picture.append(draw("rect", { width, height, fill: paper }));
  picture.append(
    draw("text", {
      x: EDGE,
      y: TITLE - 12,
      fill: ink,
      "font-family": font,
      "font-size": 18,
      "font-weight": 600,
      text: options.title,
    }),
  );
  for (const shape of shapes) {
    if (shape.image) {
      picture.append(
        draw("image", {
          x: shape.x,
          y: shape.y,
          width: shape.width,
          height: shape.height,
          href: shape.image,
          filter: shape.filter,
          "image-rendering": shape.rendering,
        }),
      );
    } else if (shape.text === undefined) {
      picture.append(
        draw("rect", {
          x: shape.x,
          y: shape.y,
          width: shape.width,
          height: shape.height,
          rx: shape.radius,
          fill: shape.fill,
          "fill-opacity": shape.opacity,
        }),
      );
    } else {
      picture.append(
        draw("text", {
          x: shape.x,
          y: shape.y,
          fill: shape.fill,
          "font-family": shape.family,
          "font-size": shape.size,
          "font-weight": shape.weight,
          direction: shape.rtl ? "rtl" : null,
          text: shape.text,
          // The reader's fonts may be wider than ours: the words keep their places.
          textLength: shape.width.toFixed(1),
          lengthAdjust: "spacingAndGlyphs",
          "xml:space": "preserve",
        }),
      );
    }
  }
  return new Blob([new XMLSerializer().serializeToString(picture)], { type: "image/svg+xml" });
}

/** The part as a PNG file, at twice the size of the screen. */
export async function asPng(element, options) {
  const { width, height, paper, ink, font, shapes } = cloneWithout(element, options);
  const canvas = document.createElement("canvas");
  const scale = Math.min(2, 16_000 / width, 16_000 / height);
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.fillStyle = paper;
  pen.fillRect(0, 0, width, height);
  pen.fillStyle = ink;
  pen.font = `600 18px ${font}`;
  pen.fillText(options.title, EDGE, TITLE - 12);
  for (const shape of shapes) {
    pen.fillStyle = shape.fill;
    if (shape.image) {
      const photo = new Image();
      photo.src = shape.image;
      await photo.decode();
      pen.filter = shape.filter;
      pen.imageSmoothingEnabled = shape.rendering !== "pixelated";
      pen.drawImage(photo, shape.x, shape.y, shape.width, shape.height);
      pen.filter = "none";
    } else if (shape.text === undefined) {
      pen.globalAlpha = shape.opacity;
      pen.beginPath();
      pen.roundRect(shape.x, shape.y, shape.width, shape.height, shape.radius);
      pen.fill();
      pen.globalAlpha = 1;
    } else {
      pen.font = `${shape.weight} ${shape.size}px ${shape.family}`;
      pen.direction = shape.rtl ? "rtl" : "ltr";
      pen.textAlign = "left";
      pen.fillText(shape.text, shape.x, shape.y, shape.width + 1);
    }
  }
  return new Promise((resolve, reject) => {
    canvas.toBlob(
      (blob) => (blob ? resolve(blob) : reject(new Error("The browser could not create the picture."))),
      "image/png",
    );
  });
}

/** Boxes and texts of the element with their positions, and its size. */
function cloneWithout(element, { without }) {
  const hidden = element.hidden;
  element.hidden = false; // it may stand on another tab
  try {
    const origin = element.getBoundingClientRect();
    const offset = { x: EDGE - origin.left, y: TITLE + EDGE / 2 - origin.top };
    const shapes = [];
    const walk = (node) => {
      if (node.nodeType === Node.TEXT_NODE) shapes.push(...listTexts(node, offset));
      if (node.nodeType !== Node.ELEMENT_NODE || node.matches(without) || node.hidden) return;
      shapes.push(...(node.closest(".photo") ? photoShapes(node, offset) : listBoxes(node, offset)));
      node.childNodes.forEach(walk);
    };
    element.childNodes.forEach(walk);
    const style = getComputedStyle(element);
    const end = (size, from) =>
      Math.ceil(Math.max(0, ...shapes.map((shape) => shape[from] + (shape[size] ?? 0))) + EDGE);
    return {
      width: Math.ceil(origin.width + 2 * EDGE),
      height: end("height", "y"),
      shapes,
      paper: style.backgroundColor,
      ink: style.color,
      font: style.fontFamily,
    };
  } finally {
    element.hidden = hidden;
  }
}

function listBoxes(element, offset) {
  const style = getComputedStyle(element);
  if (/^rgba\(.*, 0\)$|^transparent$/.test(style.backgroundColor) || element.matches("input, select"))
    return [];
  return [...element.getClientRects()].map((at) => ({
    x: at.left + offset.x,
    y: at.top + offset.y,
    width: at.width,
    height: at.height,
    radius: Math.min(parseFloat(style.borderRadius) || 0, at.height / 2),
    fill: style.backgroundColor,
    opacity: 1,
  }));
}

/** The picture of a row, or one of its patches. */
function photoShapes(element, offset) {
  if (!element.matches("image, rect")) return [];
  const at = element.getBoundingClientRect();
  const style = getComputedStyle(element);
  return [
    {
      x: at.left + offset.x,
      y: at.top + offset.y,
      width: at.width,
      height: at.height,
      radius: 0,
      image: element.getAttribute("href"),
      filter: style.filter,
      rendering: style.imageRendering,
      fill: style.fill,
      opacity: Number(style.fillOpacity),
    },
  ];
}

/** Split a text node into one piece per line. */
function listTexts(node, offset) {
  if (!node.data.trim()) return [];
  const style = getComputedStyle(node.parentElement);
  const common = {
    fill: style.color,
    family: style.fontFamily,
    size: parseFloat(style.fontSize),
    weight: style.fontWeight,
    rtl: style.direction === "rtl",
  };
  return splitLines(node).map(({ text, at }) => ({
    ...common,
    text,
    width: at.width,
    x: at.left + offset.x,
    // The base line of the common fonts lies about a quarter of the size above the box's end.
    y: at.top + offset.y + at.height / 2 + common.size * 0.35,
  }));
}

function splitLines(node) {
  const range = document.createRange();
  const lines = [];
  let start = 0;
  const boxOf = (from, to) => {
    range.setStart(node, from);
    range.setEnd(node, to);
    return range.getBoundingClientRect();
  };
  for (let end = 1; end <= node.data.length; end += 1) {
    const low =
      end < node.data.length && node.data.charCodeAt(end) >= 0xdc00 && node.data.charCodeAt(end) < 0xe000;
    if (low) continue; // never between the halves of one character
    const next = boxOf(start, end);
    const lastBox = boxOf(Math.max(start, end - 1), end);
    if (next.height > lastBox.height * 1.5 && lastBox.height) {
      addLine(lines, node.data.slice(start, end - 1), boxOf(start, end - 1));
      start = end - 1;
    }
  }
  addLine(lines, node.data.slice(start), boxOf(start, node.data.length));
  return lines;
}

function addLine(lines, text, at) {
  if (text.trim() && at.width > 0) lines.push({ text, at });
}
