// The swarm: one row per word, one dot per text, as far to the side as the word's share of the text's scores.
const SWARM_WORDS = 14;
const SWARM_DOTS = 300;
const ROW_HEIGHT = 30;
const DOT = 4;
const REACH = 49;
const SWARM_WIDTH = 560;
const SVG_NAME = "http:" + "//www.w3.org/2000/svg"; // a name, not an address: nothing is fetched from it

// The words of at least two of the texts shown with the largest Σ |share| · ln(N / number of texts with it).
function rankSpread(entries, all, sharesOf) {
  const documents = sumShares(all, sharesOf);
  const spread = new Map();
  for (const entry of entries) {
    for (const [word, share] of sharesOf(entry)) {
      if (!spread.has(word)) spread.set(word, { word, weight: 0, dots: [] });
      const row = spread.get(word);
      row.weight += Math.abs(share) * Math.log(all.length / documents.get(word).count);
      row.dots.push({ entry, share });
    }
  }
  return [...spread.values()]
    .filter((row) => row.weight > 0 && row.dots.length > 1)
    .sort((a, b) => b.weight - a.weight || a.word.localeCompare(b.word))
    .slice(0, SWARM_WORDS);
}

// Dots in the same column of pixels stack up and down from the middle of the row, closer if there are many.
function stackDots(columns) {
  const heights = new Map();
  const fullest = new Map();
  for (const column of columns) fullest.set(column, (fullest.get(column) || 0) + 1);
  return columns.map((column) => {
    const height = heights.get(column) || 0;
    heights.set(column, height + 1);
    const gap = Math.min(2 * DOT, (ROW_HEIGHT - 2 * DOT) / Math.max(1, fullest.get(column) - 1));
    return Math.ceil(height / 2) * (height % 2 ? 1 : -1) * gap;
  });
}

function drawShape(tag, attributes, ...children) {
  const element = document.createElementNS(SVG_NAME, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// With two classes the sides are the classes; with more, for and against the predicted one.
function describeSides(all) {
  const predicted = [...new Set(all.map((entry) => entry.predicted))].sort();
  if (predicted.length !== 2) return { left: "against the predicted class", right: "for it", sign: () => 1 };
  return {
    left: `for ${predicted[0]}`,
    right: `for ${predicted[1]}`,
    sign: (entry) => (entry.predicted === predicted[1] ? 1 : -1),
  };
}

// Sideways in percent of the width, up and down in pixels: the rows stay beside their words on any screen.
function drawSwarmRow(row, index, reach, sides, open) {
  const middle = index * ROW_HEIGHT + ROW_HEIGHT / 2;
  const dots = row.dots.slice(0, SWARM_DOTS);
  const percents = dots.map(({ entry, share }) => 50 + ((sides.sign(entry) * share) / reach) * REACH);
  const offsets = stackDots(
    percents.map((percent) => Math.round(((percent / 100) * SWARM_WIDTH) / (2 * DOT))),
  );
  const line = drawShape("line", { x1: 0, x2: "100%", y1: middle, y2: middle, class: "row-line" });
  return [
    line,
    ...dots.map(({ entry, share }, i) => {
      const title = drawShape("title", {});
      const signedPercent = `${share < 0 ? "−" : "+"}${(100 * Math.abs(share)).toFixed(0)} %`;
      const text = entry.text.slice(0, 160);
      title.textContent = `${row.word} ${signedPercent} of the scores, for ${entry.predicted}: ${text}`;
      const centre = { cx: `${percents[i].toFixed(2)}%`, cy: (middle + offsets[i]).toFixed(1), r: DOT };
      const dot = drawShape("circle", { ...centre, class: isWrong(entry) ? "dot wrong-dot" : "dot" }, title);
      dot.addEventListener("click", () => open(entry));
      return dot;
    }),
  ];
}

// The figure, or null where no word is in two texts. `open` shows the text of a dot that is clicked.
function drawSwarm(entries, all, sharesOf, open) {
  const words = rankSpread(entries, all, sharesOf);
  if (!words.length) return null;
  const sides = describeSides(all);
  const height = words.length * ROW_HEIGHT;
  const reach = Math.max(...words.flatMap((row) => row.dots.map(({ share }) => Math.abs(share))));
  const picture = drawShape(
    "svg",
    { height, role: "img", "aria-label": "Each word's share of the scores, one dot per text" },
    drawShape("line", { x1: "50%", x2: "50%", y1: 0, y2: height, class: "axis" }),
    ...words.flatMap((row, index) => drawSwarmRow(row, index, reach, sides, open)),
  );
  const names = document.createElement("div");
  names.className = "swarm-words";
  for (const row of words) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", dir: "auto", textContent: row.word });
    button.title = `${row.word}: show the ${row.dots.length} texts with this word`;
    button.dataset.word = row.word;
    names.append(button);
  }
  const scale = document.createElement("p");
  scale.className = "swarm-sides";
  for (const text of [`← ${sides.left}`, `${sides.right} →`]) {
    scale.append(Object.assign(document.createElement("span"), { textContent: text, dir: "auto" }));
  }
  const figure = document.createElement("div");
  figure.className = "swarm-figure";
  figure.append(names, picture, document.createElement("span"), scale);
  return figure;
}
