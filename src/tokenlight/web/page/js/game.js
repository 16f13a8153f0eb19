// The masking game: tokens are masked in each method's order, and the probability is compared with random
// orders. The whole curve is loaded before the first move, so a move sends no request.

import { chart, chartLegend, valueAt } from "./curves.js";
import { byId, draw as svg, fill, make } from "./dom.js";
import { click, canGuess } from "./guess.js";
import { highlighted, surface } from "./highlight.js";
import { remember, scheduleRemember } from "./link.js";
import { clamped, counted, percent } from "./numbers.js";
import { unitsOf } from "./photo.js";
import { byToken } from "./scores.js";
import { state, update, watch } from "./store.js";
import { segments } from "./tools.js";
import { RANDOM_ORDERS } from "./work.js";

const STEP_MS = 650; // milliseconds a step while it plays
let parts = null; // what a move changes, so that nothing else is drawn again
let timer = null;

/** Draw the board for new curves, and update it when the step changes. */
export function gamePanel() {
  watch(["entries", "games", "gamesFailed", "mode", "served"], board);
  watch(["guess"], drawUserTurn);
  watch(["step"], move);
}

/** Go to a step of the curve; the link is updated with a delay. */
export function goTo(step) {
  update({ step: clamped(step, 0, last()) });
  scheduleRemember();
}

/** Play from here to the end, or stop. */
export function play() {
  if (timer !== null) return stop();
  if (!parts) return undefined;
  if (state.step >= last()) goTo(0);
  timer = setInterval(() => (state.step < last() ? goTo(state.step + 1) : stop()), STEP_MS);
  return drawPlay();
}

/** Whether there is a board to play on. */
export function canPlay() {
  return parts !== null;
}

function stop() {
  clearInterval(timer);
  timer = null;
  drawPlay();
}

function played() {
  return state.entries.flatMap((entry, line) => {
    const game = state.games.get(entry.id);
    return game ? [{ entry, game, line }] : [];
  });
}

function last() {
  return Math.max(0, ...played().map(({ game }) => game.counts.length - 1));
}

function board() {
  if (timer !== null) stop();
  parts = null;
  const rows = played();
  if (!rows.length) {
    fill(byId("game"), make("h2", { text: `Hide the ${units()}, watch the model` }), make("p", { class: "note", text: waiting() }));
    return;
  }
  if (state.step > last()) state.step = last();
  parts = { rows: rows.map(boardRow), chart: make("div", { class: "chart-box" }), count: make("output", { class: "count" }), live: make("p", { class: "aside", "aria-live": "polite" }) };
  parts.slider = make("input", {
    type: "range", min: 0, max: last(), step: 1, id: "slider", "aria-label": "How many tokens",
    oninput: (event) => goTo(Number(event.target.value)),
  });
  parts.play = make("button", { type: "button", class: "primary play", id: "play", onclick: play });
  const random = rows[0].game.random;
  fill(
    byId("game"),
    make("h2", { text: `${state.mode === "hide" ? "Hide" : "Show"} the ${units()}, watch the model` }),
    make("p", { class: "lead", text: rules(describeGame(rows[0])) }),
    make("div", { class: "tools" },
      segments("Game", state.mode, { hide: "Hide the strongest first", reveal: "Reveal the strongest first" }, (mode) => {
        update({ mode, step: 0 });
        remember();
      })),
    make("div", { class: "controls" }, parts.play, parts.slider, parts.count),
    make("div", { class: "board" }, parts.rows.map((row) => row.element), canGuess() && drawUserRow(rows[0])),
    make("div", { class: "curves" }, parts.chart,
      chartLegend(
        rows.map(({ entry, game, line }) => ({ name: entry.method, line, note: `mean ${percent(game.area[state.mode])}` })),
        random && `the middle half of ${random.orders} random orders, and their mean (${percent(random.area[state.mode])})`,
      )),
    comparing(random),
    make("div", { class: "says" }, rows.map(({ game }) => make("p", { text: `${game.method}: ${game.says}.`, dir: "auto" }))),
    parts.live,
  );
  drawPlay();
  move();
}

/** How far the comparison with random orders has come; null once it is complete. */
function comparing(random) {
  const count = random?.orders ?? 0;
  if (count >= RANDOM_ORDERS || !state.served || state.gamesFailed) return null;
  return make("p", { class: "note comparing", role: "status" },
    make("progress", { max: RANDOM_ORDERS, value: count, "aria-label": "Random orders" }),
    ` Comparing with random orders: ${count} of ${RANDOM_ORDERS} …`);
}

/** What is hidden: words, or patches of a picture. */
function units() {
  return state.entries.length ? unitsOf(state.entries[0].attribution.row) : "words";
}

function waiting() {
  if (state.gamesFailed) return state.gamesFailed;
  if (!state.served) return "The game needs the model, and the model of this file is not loaded here.";
  return "Running the model for every step …";
}

function rules(watched) {
  return state.mode === "hide"
    ? `Each method first hides what it calls most important. If it is right, the probability of ${watched} falls at once, below the grey band of random orders.`
    : `All ${units()} are hidden; each method first shows what it calls most important. If it is right, the probability of ${watched} returns at once, above the grey band of random orders.`;
}

/** The measured probability, for sentences. */
function describeGame({ entry, game }) {
  return entry.attribution.target.kind === "span" ? "the answer" : `“${game.watched}”`;
}

/** The measured probability, as a formula. */
function formula({ entry, game }) {
  return `P(${entry.attribution.target.kind === "span" ? "answer" : shortened(game.watched)})`;
}

/** The row of one method: its name, the text with hidden tokens, and a meter with the random level. */
function boardRow({ entry, game, line }) {
  const shown = { ...byToken(entry.attribution), weightless: true };
  const text = highlighted(shown, { label: `${entry.method}: the text`, special: false, dress() {} });
  return row(entry, game, text, [entry.method], line);
}

/** The row of the user: the same text with each word as a button. */
function drawUserRow({ entry, game }) {
  const shown = { ...byToken(entry.attribution), weightless: true };
  const text = highlighted(shown, {
    label: `Your turn: click the ${units()} you would hide first`,
    special: false,
    dress(element, stretch, tokens) {
      element.setAttribute("role", "button");
      element.setAttribute("aria-label", surface(stretch));
      element.setAttribute("aria-pressed", "false");
      element.tabIndex = -1;
      element.addEventListener("click", () => click(tokens));
    },
  });
  const note = make("small", { class: "note", text: `Click the ${units()} you would hide first.` });
  parts.yours = { ...row({ ...entry, method: "you" }, game, text, ["You", note], 6), idle: game };
  parts.yours.element.classList.add("yours");
  drawUserTurn();
  return parts.yours.element;
}

function row(entry, game, text, names, line) {
  const tokens = [...text.querySelectorAll("[data-tokens]")].map((element) => ({
    element, tokens: element.dataset.tokens.split(" ").map(Number),
  }));
  const meter = {
    fill: svg("rect", { class: "level", height: 10 }),
    chance: svg("line", { class: "chance", y1: 0, y2: 10 }),
    number: make("span", { class: "big-number" }),
    note: make("span", { class: "meter-note" }),
  };
  const element = make("div", { class: "board-row", "data-method": entry.method },
    make("h3", {}, svg("svg", { viewBox: "0 0 30 10", class: "key", "aria-hidden": "true" }, svg("path", { class: `curve line-${line}`, d: "M1 5H29" })), ...names),
    text,
    make("div", { class: "meter" },
      make("span", { class: "meter-name", text: formula({ entry, game }), dir: "auto" }), meter.number,
      svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { class: "rail", width: 100, height: 10 }), meter.fill, meter.chance), meter.note));
  return { element, tokens, meter, game, entry, line };
}

/** Draw the user's order; before the first choice, and while the model runs, show the whole text. */
function drawUserTurn() {
  if (!parts?.yours) return;
  const { idle } = parts.yours;
  const random = idle.random;
  const whole = idle[state.mode].watched[state.mode === "hide" ? 0 : idle.counts.length - 1];
  const resting = { ...idle, order: state.guess?.order ?? [], counts: [0], random, hide: { watched: [whole] }, reveal: { watched: [whole] } };
  parts.yours.game = state.guess?.game ? { ...state.guess.game, random } : resting;
  for (const { element, tokens } of parts.yours.tokens) {
    element.setAttribute("aria-pressed", String(tokens.some((token) => state.guess?.order.includes(token))));
  }
  move();
}

/** The step of this game's curve at the slider, and its share of tokens. */
function stepOf(game) {
  const position = Math.min(state.step, game.counts.length - 1);
  const count = game.counts[position];
  return { position, count, share: game.order.length ? count / game.order.length : 0 };
}

function move() {
  if (!parts) return;
  parts.rows.forEach(moveRow);
  if (parts.yours) moveUserRow();
  const [first] = parts.rows;
  const { game } = first;
  const { count, share } = stepOf(game);
  const done = state.mode === "hide" ? "hidden" : "shown";
  parts.slider.value = String(state.step);
  parts.count.textContent = `${count} of ${counted(game.order.length, "token")} ${done}`;
  parts.slider.setAttribute("aria-valuetext", parts.count.textContent);
  parts.live.textContent = describeForScreenReader(parts.count.textContent);
  const all = game.order.length || 1;
  const series = [...parts.rows, ...(state.guess?.game ? [parts.yours] : [])].map((row) => ({
    name: row.entry.method, line: row.line, ys: row.game[state.mode].watched,
    xs: row.game.counts.map((count) => count / all),
  }));
  const random = game.random;
  const band = random && { xs: random.shares, ...random[state.mode] };
  fill(parts.chart, chart({
    series, band, cursor: share,
    labels: {
      title: `Probability of ${describeGame(first)} while tokens are ${done}`, x: `share of tokens ${done}`,
      y: formula(first), format: (value) => value.toFixed(2),
    },
    onmove: (x) => goTo(nearest(game, x)),
  }));
}

/** Hide (or show) the user's words up to the slider; the others stay clickable. */
function moveUserRow() {
  const { game, tokens } = parts.yours;
  const { count } = stepOf(game);
  const chosen = new Set(game.order.slice(0, state.guess?.game ? count : game.order.length));
  moveRow(parts.yours);
  for (const stretch of tokens) {
    const picked = stretch.tokens.some((token) => chosen.has(token));
    stretch.element.classList.toggle("gone", state.mode === "hide" && picked);
    stretch.element.classList.toggle("picked", state.mode === "reveal" && picked);
    stretch.element.classList.remove("next");
    stretch.element.removeAttribute("aria-hidden");
  }
  if (state.guess && !state.guess.game) parts.yours.meter.note.textContent = "running the model …";
}

function moveRow({ tokens, meter, game }) {
  const { position, count } = stepOf(game);
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
  const chance = game[state.mode].watched[position];
  meter.number.textContent = percent(chance);
  meter.fill.setAttribute("width", 100 * chance);
  if (!game.random) return;
  const chanceLevel = valueAt(game.random.shares, game.random[state.mode].mean, share);
  const better = state.mode === "hide" ? chance < chanceLevel : chance > chanceLevel;
  meter.fill.classList.toggle("beats", better);
  meter.chance.setAttribute("x1", 100 * chanceLevel);
  meter.chance.setAttribute("x2", 100 * chanceLevel);
  meter.note.textContent = `random order: ${percent(chanceLevel)}`;
}

function describeForScreenReader(count) {
  const chances = parts.rows.map(({ entry, game }) => `${entry.method} ${percent(game[state.mode].watched[stepOf(game).position])}`);
  return `${count}. Probability of ${describeGame(parts.rows[0])}: ${chances.join(", ")}.`;
}

function nearest(game, x) {
  const gaps = game.counts.map((count) => Math.abs(count / game.order.length - x));
  return gaps.indexOf(Math.min(...gaps));
}

function drawPlay() {
  if (!parts) return;
  parts.play.textContent = timer === null ? "▶ Play" : "❚❚ Stop";
}

function shortened(text) {
  const characters = Array.from(text);
  return characters.length > 24 ? `${characters.slice(0, 23).join("")}…` : text;
}
