// The masking game: tokens are masked in each method's order, and the probability is compared with random
// orders. The whole curve is loaded before the first move, so a move sends no request.

import { shortened } from "./characters.js";
import { chart, chartLegend, valueAt } from "./curves.js";
import { byId, draw as svg, fill, make } from "./dom.js";
import { click, canGuess } from "./guess.js";
import { highlighted, surface } from "./highlight.js";
import { remember, scheduleRemember } from "./link.js";
import { clamped, counted, percent } from "./numbers.js";
import { unitsOf } from "./image_input.js";
import { byToken } from "./scores.js";
import { state, update, watch } from "./store.js";
import { segments } from "./tools.js";
import { RANDOM_ORDERS } from "./work.js";

const STEP_MS = 650; // milliseconds per step while it plays
const MAX_LABEL_LENGTH = 24;
let parts = null; // what a move changes, so that nothing else is drawn again
let timer = null;

/** Draw the board for new curves, and update it when the step changes. */
export function gamePanel() {
  watch(["entries", "games", "gamesFailed", "mode", "served"], drawBoard);
  watch(["guess"], drawUserTurn);
  watch(["step"], drawStep);
}

/** Go to a step of the curve; the link is updated with a delay. */
export function goTo(step) {
  update({ step: clamped(step, 0, lastStep()) });
  scheduleRemember();
}

/** Play from here to the end, or stop. */
export function play() {
  if (timer !== null) return stop();
  if (!parts) return undefined;
  if (state.step >= lastStep()) goTo(0);
  timer = setInterval(() => (state.step < lastStep() ? goTo(state.step + 1) : stop()), STEP_MS);
  return drawPlayButton();
}

/** Whether there is a board to play on. */
export function canPlay() {
  return parts !== null;
}

function stop() {
  clearInterval(timer);
  timer = null;
  drawPlayButton();
}

function listPlayedGames() {
  return state.entries.flatMap((entry, line) => {
    const game = state.games.get(entry.id);
    return game ? [{ entry, game, line }] : [];
  });
}

function lastStep() {
  return Math.max(0, ...listPlayedGames().map(({ game }) => game.counts.length - 1));
}

function drawBoard() {
  if (timer !== null) stop();
  parts = null;
  const played = listPlayedGames();
  if (!played.length) {
    fill(
      byId("game"),
      make("h2", { text: `Hide the ${nameUnits()}, watch the model` }),
      make("p", { class: "note", text: describeWaiting() }),
    );
    return;
  }
  if (state.step > lastStep()) state.step = lastStep();
  parts = {
    rows: played.map(drawMethodRow),
    chart: make("div", { class: "chart-box" }),
    count: make("output", { class: "count" }),
    live: make("p", { class: "aside", "aria-live": "polite" }),
  };
  const { random } = played[0].game;
  const verb = state.mode === "hide" ? "Hide" : "Show";
  fill(
    byId("game"),
    make("h2", { text: `${verb} the ${nameUnits()}, watch the model` }),
    make("p", { class: "lead", text: describeRules(describeGame(played[0])) }),
    drawModeChoice(),
    drawControls(),
    make(
      "div",
      { class: "board" },
      parts.rows.map((row) => row.element),
      canGuess() && drawUserRow(played[0]),
    ),
    drawCurves(played, random),
    drawRandomProgress(random),
    drawSentences(played),
    parts.live,
  );
  drawPlayButton();
  drawStep();
}

function drawModeChoice() {
  const modes = { hide: "Hide the strongest first", reveal: "Reveal the strongest first" };
  const chooseMode = (mode) => {
    update({ mode, step: 0 });
    remember();
  };
  return make("div", { class: "tools" }, segments("Game", state.mode, modes, chooseMode));
}

/** The button that plays, the slider and the count of hidden tokens. */
function drawControls() {
  parts.play = make("button", { type: "button", class: "primary play", id: "play", onclick: play });
  parts.slider = make("input", {
    type: "range",
    min: 0,
    max: lastStep(),
    step: 1,
    id: "slider",
    "aria-label": "How many tokens",
    oninput: (event) => goTo(Number(event.target.value)),
  });
  return make("div", { class: "controls" }, parts.play, parts.slider, parts.count);
}

/** The chart, which `drawStep` fills, and its legend. */
function drawCurves(played, random) {
  const methods = played.map(({ entry, game, line }) => ({
    name: entry.method,
    line,
    note: `mean ${percent(game.area[state.mode])}`,
  }));
  const band =
    random
    && `the middle half of ${random.orders} random orders, `
      + `and their mean (${percent(random.area[state.mode])})`;
  return make("div", { class: "curves" }, parts.chart, chartLegend(methods, band));
}

/** One sentence per method on how few tokens decide. */
function drawSentences(played) {
  const describe = ({ game }) => make("p", { text: `${game.method}: ${game.summary}.`, dir: "auto" });
  return make("div", { class: "summary" }, played.map(describe));
}

/** How far the comparison with random orders has come; null once it is complete. */
function drawRandomProgress(random) {
  const count = random?.orders ?? 0;
  if (count >= RANDOM_ORDERS || !state.served || state.gamesFailed) return null;
  return make(
    "p",
    { class: "note comparing", role: "status" },
    make("progress", { max: RANDOM_ORDERS, value: count, "aria-label": "Random orders" }),
    ` Comparing with random orders: ${count} of ${RANDOM_ORDERS} …`,
  );
}

/** What is hidden: words, or patches of a picture. */
function nameUnits() {
  return state.entries.length ? unitsOf(state.entries[0].attribution.row) : "words";
}

function describeWaiting() {
  if (state.gamesFailed) return state.gamesFailed;
  if (!state.served) return "The game needs the model, and the model of this file is not loaded here.";
  return "Running the model for every step …";
}

function describeRules(target) {
  if (state.mode === "hide") {
    return (
      "Each method first hides what it calls most important. If it is right, the probability of "
      + `${target} falls at once, below the grey band of random orders.`
    );
  }
  return (
    `All ${nameUnits()} are hidden; each method first shows what it calls most important. If it is right, `
    + `the probability of ${target} returns at once, above the grey band of random orders.`
  );
}

/** The measured probability, for sentences. */
function describeGame({ entry, game }) {
  return entry.attribution.target.kind === "span" ? "the answer" : `“${game.target}”`;
}

/** The measured probability, as a formula. */
function formatTarget({ entry, game }) {
  const isAnswer = entry.attribution.target.kind === "span";
  return `P(${isAnswer ? "answer" : shortened(game.target, MAX_LABEL_LENGTH)})`;
}

/** The row of one method: its name, the text with hidden tokens, and a meter with the random level. */
function drawMethodRow({ entry, game, line }) {
  const shown = { ...byToken(entry.attribution), weightless: true };
  const text = highlighted(shown, { label: `${entry.method}: the text`, special: false, dress() {} });
  return buildRow(entry, game, text, [entry.method], line);
}

/** The row of the user: the same text with each word as a button. */
function drawUserRow({ entry, game }) {
  const shown = { ...byToken(entry.attribution), weightless: true };
  const text = highlighted(shown, {
    label: `Your turn: click the ${nameUnits()} you would hide first`,
    special: false,
    dress(element, stretch, tokens) {
      element.setAttribute("role", "button");
      element.setAttribute("aria-label", surface(stretch));
      element.setAttribute("aria-pressed", "false");
      element.tabIndex = -1;
      element.addEventListener("click", () => click(tokens));
    },
  });
  const note = make("small", { class: "note", text: `Click the ${nameUnits()} you would hide first.` });
  parts.yours = { ...buildRow({ ...entry, method: "you" }, game, text, ["You", note], 6), idle: game };
  parts.yours.element.classList.add("yours");
  drawUserTurn();
  return parts.yours.element;
}

function buildRow(entry, game, text, names, line) {
  const tokens = [...text.querySelectorAll("[data-tokens]")].map((element) => ({
    element,
    tokens: element.dataset.tokens.split(" ").map(Number),
  }));
  const meter = {
    fill: svg("rect", { class: "level", height: 10 }),
    chance: svg("line", { class: "chance", y1: 0, y2: 10 }),
    number: make("span", { class: "big-number" }),
    note: make("span", { class: "meter-note" }),
  };
  const element = make(
    "div",
    { class: "board-row", "data-method": entry.method },
    make(
      "h3",
      {},
      svg(
        "svg",
        { viewBox: "0 0 30 10", class: "key", "aria-hidden": "true" },
        svg("path", { class: `curve line-${line}`, d: "M1 5H29" }),
      ),
      ...names,
    ),
    text,
    make(
      "div",
      { class: "meter" },
      make("span", { class: "meter-name", text: formatTarget({ entry, game }), dir: "auto" }),
      meter.number,
      svg(
        "svg",
        { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { class: "rail", width: 100, height: 10 }),
        meter.fill,
        meter.chance,
      ),
      meter.note,
    ),
  );
  return { element, tokens, meter, game, entry, line };
}

/** Draw the user's order; before the first choice, and while the model runs, show the whole text. */
function drawUserTurn() {
  if (!parts?.yours) return;
  const { idle } = parts.yours;
  const random = idle.random;
  const whole = idle[state.mode].target_probability[state.mode === "hide" ? 0 : idle.counts.length - 1];
  const resting = {
    ...idle,
    order: state.guess?.order ?? [],
    counts: [0],
    random,
    hide: { target_probability: [whole] },
    reveal: { target_probability: [whole] },
  };
  parts.yours.game = state.guess?.game ? { ...state.guess.game, random } : resting;
  for (const { element, tokens } of parts.yours.tokens) {
    element.setAttribute("aria-pressed", String(tokens.some((token) => state.guess?.order.includes(token))));
  }
  drawStep();
}

/** The step of this game's curve at the slider, and its share of tokens. */
function locateStep(game) {
  const position = Math.min(state.step, game.counts.length - 1);
  const count = game.counts[position];
  return { position, count, share: game.order.length ? count / game.order.length : 0 };
}

/** Show the step of the slider in every row and in the chart. */
function drawStep() {
  if (!parts) return;
  parts.rows.forEach(drawRowStep);
  if (parts.yours) drawUserRowStep();
  const [first] = parts.rows;
  const { game } = first;
  const { count, share } = locateStep(game);
  const done = state.mode === "hide" ? "hidden" : "shown";
  parts.slider.value = String(state.step);
  parts.count.textContent = `${count} of ${counted(game.order.length, "token")} ${done}`;
  parts.slider.setAttribute("aria-valuetext", parts.count.textContent);
  parts.live.textContent = describeStepForScreenReader(parts.count.textContent);
  const numTokens = game.order.length || 1;
  const drawnRows = state.guess?.game ? [...parts.rows, parts.yours] : parts.rows;
  const series = drawnRows.map((row) => ({
    name: row.entry.method,
    line: row.line,
    ys: row.game[state.mode].target_probability,
    xs: row.game.counts.map((count) => count / numTokens),
  }));
  const { random } = game;
  const band = random && { xs: random.shares, ...random[state.mode] };
  fill(
    parts.chart,
    chart({
      series,
      band,
      cursor: share,
      labels: {
        title: `Probability of ${describeGame(first)} while tokens are ${done}`,
        x: `share of tokens ${done}`,
        y: formatTarget(first),
        format: percent,
      },
      onmove: (x) => goTo(findNearestStep(game, x)),
    }),
  );
}

/** Hide (or show) the user's words up to the slider; the others stay clickable. */
function drawUserRowStep() {
  const { game, tokens } = parts.yours;
  const { count } = locateStep(game);
  const chosen = new Set(game.order.slice(0, state.guess?.game ? count : game.order.length));
  drawRowStep(parts.yours);
  for (const stretch of tokens) {
    const picked = stretch.tokens.some((token) => chosen.has(token));
    stretch.element.classList.toggle("gone", state.mode === "hide" && picked);
    stretch.element.classList.toggle("picked", state.mode === "reveal" && picked);
    stretch.element.classList.remove("next");
    stretch.element.removeAttribute("aria-hidden");
  }
  if (state.guess && !state.guess.game) parts.yours.meter.note.textContent = "running the model …";
}

function drawRowStep({ tokens, meter, game }) {
  const { position, count } = locateStep(game);
  const share = count / (parts.rows[0].game.order.length || 1);
  const touched = new Set(game.order.slice(0, count));
  const rankable = new Set(game.order);
  const next = game.order[count];
  for (const stretch of tokens) {
    const ranked = stretch.tokens.filter((token) => rankable.has(token));
    const gone = ranked.length > 0 && ranked.every((token) => touched.has(token) === (state.mode === "hide"));
    stretch.element.classList.toggle("gone", gone);
    stretch.element.classList.toggle("next", stretch.tokens.includes(next));
    stretch.element.setAttribute("aria-hidden", String(gone));
  }
  const probability = game[state.mode].target_probability[position];
  meter.number.textContent = percent(probability);
  meter.fill.setAttribute("width", 100 * probability);
  if (!game.random) return;
  const randomLevel = valueAt(game.random.shares, game.random[state.mode].mean, share);
  const beatsRandom = state.mode === "hide" ? probability < randomLevel : probability > randomLevel;
  meter.fill.classList.toggle("beats", beatsRandom);
  meter.chance.setAttribute("x1", 100 * randomLevel);
  meter.chance.setAttribute("x2", 100 * randomLevel);
  meter.note.textContent = `random order: ${percent(randomLevel)}`;
}

function describeStepForScreenReader(count) {
  const probabilities = parts.rows.map(({ entry, game }) => {
    const { position } = locateStep(game);
    return `${entry.method} ${percent(game[state.mode].target_probability[position])}`;
  });
  return `${count}. Probability of ${describeGame(parts.rows[0])}: ${probabilities.join(", ")}.`;
}

function findNearestStep(game, x) {
  const gaps = game.counts.map((count) => Math.abs(count / game.order.length - x));
  return gaps.indexOf(Math.min(...gaps));
}

function drawPlayButton() {
  if (!parts) return;
  parts.play.textContent = timer === null ? "▶ Play" : "❚❚ Stop";
}
