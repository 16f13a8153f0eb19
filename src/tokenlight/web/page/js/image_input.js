// A picture with its patches as elements: coloured by score, reached by mouse, touch and arrow keys.

import { draw, make } from "./dom.js";

const MIN_SMOOTH_PIXELS = 64; // below, the edges of pixels stay hard
const STEPS = 12;

/** The token numbers of the patches of a row, row by row from the top left; empty without a picture. */
export function patchPositions(row) {
  if (!row.image) return [];
  if (row.image.places.length) return row.image.places;
  return row.special.flatMap((special, position) => (special ? [] : [position]));
}

/** Whether a row is a picture alone, without a text. */
export function isPictureAlone(row) {
  return Boolean(row.image) && row.image.places.length === 0;
}

/** What the tokens of a row are called. */
export function unitsOf(row) {
  if (!row.image) return "words";
  return isPictureAlone(row) ? "patches" : "words and patches";
}

/** Rows, columns and pixels of a picture. */
function measure(row) {
  const [patchHeight, patchWidth] = row.image.patch;
  const last = row.pieces[patchPositions(row).at(-1)];
  const [rows, columns] = last.split(",").map((index) => Number(index) + 1);
  return { rows, columns, patchHeight, patchWidth, width: columns * patchWidth, height: rows * patchHeight };
}

/**
 * The picture of a row; `dress(element, stretch, tokens)` gives each patch its class, label and listeners.
 */
export function drawPatches(reading, dress) {
  const { row } = reading;
  const size = measure(row);
  const coarse = Math.max(size.width, size.height) < MIN_SMOOTH_PIXELS;
  const picture = draw(
    "svg",
    {
      class: coarse ? "photo coarse" : "photo",
      viewBox: `0 0 ${size.width} ${size.height}`,
      role: "group",
      "aria-label": `${row.image.name}, ${size.rows} × ${size.columns} patches`,
    },
    draw("image", { href: `data:image/png;base64,${row.image.png}`, width: size.width, height: size.height }),
  );
  picture.dataset.columns = size.columns;
  patchPositions(row).forEach((position, index) => {
    const [line, column] = [Math.floor(index / size.columns), index % size.columns];
    const patch = draw("rect", {
      class: "patch",
      x: column * size.patchWidth,
      y: line * size.patchHeight,
      width: size.patchWidth,
      height: size.patchHeight,
    });
    const tokens = reading.groups[position];
    patch.dataset.tokens = tokens.join(" ");
    dress(
      patch,
      { text: `row ${line}, column ${column}`, positions: [position], special: false, patch: true },
      tokens,
    );
    const strength = [...patch.classList].map((name) => /^[af](\d+)$/.exec(name)?.[1]).find(Boolean);
    // The hue is the strongest one, and the strength its opacity: the picture stays visible below.
    if (strength)
      patch.classList.replace(`f${strength}`, `f${STEPS}`)
        || patch.classList.replace(`a${strength}`, `a${STEPS}`);
    patch.setAttribute("fill-opacity", (0.75 * Number(strength ?? 0)) / STEPS);
    picture.append(patch);
  });
  const [width, height] = row.image.size;
  const resized =
    width !== size.width || height !== size.height ? `, read as ${size.width} × ${size.height}` : "";
  return make(
    "figure",
    { class: "picture" },
    picture,
    make("figcaption", {
      class: "note",
      text: `${width} × ${height} pixels${resized}, ${size.rows} × ${size.columns} patches`,
    }),
  );
}
