// Every value enters the page as text or through a closed list of classes; none becomes markup.
const NUM_COLOUR_STEPS = 12;
const LONG_LINE = 2500;
const MAX_KEPT_COLUMNS = 4;
const MAX_ROW_TEXT = 240;
const MAX_GROUPS = 24;
const texts = JSON.parse(document.getElementById("data").textContent);
const { grades, good: goodGrades } = JSON.parse(document.getElementById("grades").textContent);
const form = document.getElementById("filters");
const table = document.getElementById("index");
const body = table.tBodies[0];

function make(tag, classes, content, ...children) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (content !== undefined && content !== "") element.textContent = content;
  element.append(...children);
  return element;
}

function formatScore(value) {
  const magnitude = Number(Math.abs(value).toPrecision(3));
  return (value < 0 ? "−" : "+") + magnitude;
}

function stepClass(score, scale) {
  if (!scale) return "";
  const step = Math.round(Math.max(-1, Math.min(1, score / scale)) * NUM_COLOUR_STEPS);
  if (step === 0) return "";
  return step > 0 ? `f${step}` : `a${-step}`;
}

function drawLine(shape, scores, scale) {
  const line = make("p", "line");
  line.dir = "auto";
  shape.texts.forEach((text, i) => {
    const classes = shape.classes[i] || "";
    if (scores[i] === "") {
      line.append(classes ? make("span", classes, text) : text);
      return;
    }
    const score = Number(scores[i]);
    const isChip = classes.startsWith("chip");
    const span = make("span", isChip ? classes : `token ${stepClass(score, scale)} ${classes}`.trim(), text);
    span.title = `${text.trim()}  ${formatScore(score)}`;
    line.append(span);
  });
  return line;
}

function drawText(entry) {
  const drawn = make("div");
  drawn.append(make("p", "note", entry.probabilities_text || ""));
  if (entry.num_truncated) {
    const warning =
      `The text was too long for the model: its last ${entry.num_truncated} tokens were not read. `
      + "They are shown in grey.";
    drawn.append(make("p", "warning", warning));
  }
  for (const explanation of entry.explained) {
    const heading = make("h2", "", "", make("b", "", explanation.target), ` · ${explanation.name}`);
    if (explanation.kind) heading.append(` (${explanation.kind})`);
    const text = make("div", "text");
    for (const [lineNumber, scores] of explanation.lines) {
      const shape = entry.lines[lineNumber];
      if (shape.name) text.append(make("p", "segment", shape.name));
      if (shape.texts.join("").length > LONG_LINE) text.classList.add("long");
      text.append(drawLine(shape, scores.split(","), explanation.scale));
    }
    drawn.append(heading, text, ...explanation.remarks.map((remark) => make("p", "note", remark)));
  }
  const columns = Object.entries(entry.columns || {}).map(([name, value]) => `${name}: ${value}`);
  drawn.append(make("p", "note", [entry.location || [], ...columns].flat().join(" · ")));
  return drawn;
}

// The text of an entry without its special tokens.
function joinTexts(entry) {
  const explainedLines = new Set(entry.explained[0].lines.map(([lineNumber]) => lineNumber));
  const lines = entry.lines.filter((_, lineNumber) => explainedLines.has(lineNumber));
  const isWord = (shape, i) => !(shape.classes[i] || "").startsWith("chip");
  return lines.map((shape) => shape.texts.filter((_, i) => isWord(shape, i)).join("")).join(" · ");
}

const hasLowTrust = (entry) => entry.grade && !goodGrades.includes(entry.grade);

// Red is for explanations that failed the test, not for those that it could not decide on.
function gradeClass(entry) {
  if (!hasLowTrust(entry)) return "";
  return entry.grade.endsWith("than chance") ? "wrong" : "undecided";
}

function percent(probability) {
  if (probability >= 0.9995 && probability < 1) return ">99.9 %";
  return `${(100 * probability).toFixed(1)} %`;
}

// A column of the table of inputs that was kept with the text.
function getKept(entry, name) {
  return (entry.columns || {})[name];
}

const anyHas = (name) => texts.some((entry) => name in entry);
const keptNames = [...new Set(texts.flatMap((entry) => Object.keys(entry.columns || {})))].filter(
  (name) => name !== "id",
);
const columns = [
  { name: "row", value: (entry) => entry.number, isShown: true },
  {
    name: "id",
    value: (entry) => getKept(entry, "id") ?? "",
    isShown: texts.some((entry) => getKept(entry, "id")),
  },
  { name: "true label", value: (entry) => entry.label ?? "", isShown: anyHas("label") },
  {
    name: "predicted",
    value: (entry) => entry.predicted ?? "",
    class: (entry) => (isWrong(entry) ? "wrong" : ""),
    isShown: anyHas("predicted"),
  },
  {
    name: "confidence",
    value: (entry) => entry.probability ?? -1,
    format: (value) => (value < 0 ? "" : percent(value)),
    isShown: anyHas("probability"),
  },
  {
    name: "trust",
    value: (entry) => entry.grade ?? "",
    rank: (entry) => grades.indexOf(entry.grade),
    class: gradeClass,
    isShown: anyHas("grade"),
  },
  ...keptNames.map((name) => ({
    name,
    value: (entry) => getKept(entry, name) ?? "",
    isShown: keptNames.length <= MAX_KEPT_COLUMNS,
  })),
].filter((column) => column.isShown);
const textColumn = { name: "text", value: (entry) => entry.text };

const rows = texts.map((entry) => {
  entry.text = joinTexts(entry);
  const row = make("tr");
  const button = make("button", "", entry.text);
  if (entry.text.length > MAX_ROW_TEXT) button.textContent = entry.text.slice(0, MAX_ROW_TEXT - 1) + "…";
  row.id = `text-${entry.number}`;
  button.type = "button";
  button.dir = "auto";
  button.setAttribute("aria-expanded", "false");
  for (const column of columns) {
    const value = column.value(entry);
    const shown = column.format ? column.format(value) : value;
    row.append(make("td", column.class ? column.class(entry) : "", String(shown)));
  }
  row.append(make("td", "text-cell", "", button));
  const indexRow = { entry, row, button, opened: null };
  button.addEventListener("click", () => toggle(indexRow));
  return indexRow;
});

function toggle(indexRow) {
  const isClosed = indexRow.opened === null;
  indexRow.button.setAttribute("aria-expanded", String(isClosed));
  if (!isClosed) {
    indexRow.opened.remove();
    indexRow.opened = null;
    return;
  }
  const cell = make("td", "", "", drawText(indexRow.entry));
  cell.colSpan = columns.length + 1;
  indexRow.opened = make("tr", "opened", "", cell);
  indexRow.row.after(indexRow.opened);
}

let cluster = null; // the texts of the cluster that is shown alone

function isShown(entry, filters, pattern) {
  if (filters.get("wrong") && !isWrong(entry)) return false;
  if (filters.get("low") && !hasLowTrust(entry)) return false;
  for (const name of ["predicted", "label", "grade"])
    if (filters.get(name) && entry[name] !== filters.get(name)) return false;
  if (cluster && !cluster.entries.includes(entry)) return false;
  return !pattern || pattern.test(entry.text);
}

// What the texts with a word match: its beginning, or in quotes the whole word.
function makeWordPattern(typed) {
  const isWhole = /^".+"$/u.test(typed);
  const word = isWhole ? typed.slice(1, -1) : typed;
  if (!word) return null;
  const escaped = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/['’]/g, "['’]");
  const start = /^['’]/u.test(word) ? "" : "(?<![\\p{L}\\p{N}])"; // "'s" ends a word
  const end = isWhole ? "(?![\\p{L}\\p{N}])" : "";
  return new RegExp(start + escaped + end, "iu");
}

function filter() {
  const filters = new FormData(form);
  const pattern = makeWordPattern(filters.get("word").trim());
  const shown = [];
  for (const { entry, row, opened } of rows) {
    row.hidden = !isShown(entry, filters, pattern);
    if (opened) opened.hidden = row.hidden;
    if (!row.hidden) shown.push(entry);
  }
  form.elements.count.value = `${shown.length} of ${texts.length} texts`;
  drawGroups(shown);
}

// --- words of what is shown ------------------------------------------------------------------------

const methods = [
  ...new Set(texts.flatMap((entry) => entry.explained.filter((e) => !e.kind).map((e) => e.name))),
];
const sharesByMethod = new Map(
  methods.map((method) => [method, new Map(texts.map((entry) => [entry, computeShares(entry, method)]))]),
);

function drawWordRow(ranked, strongest, size) {
  const button = make("button", "name", ranked.word);
  const bar = make("span", "weight");
  button.type = "button";
  button.dir = "auto";
  button.dataset.word = ranked.word;
  button.title = `Show the texts with this word. Example: ${ranked.example.text.slice(0, 160)}`;
  bar.append(make("i", ""));
  bar.firstChild.style.width = `${(100 * ranked.weight) / strongest}%`;
  const counts = make("span", "value", `${ranked.count} of ${size}`);
  if (ranked.rightTotal) counts.append(`, right ${ranked.rightCount} of ${ranked.rightTotal}`);
  return [button, bar, counts];
}

function drawGroup(group, method) {
  const sharesOf = (entry) => sharesByMethod.get(method).get(entry);
  const words = rankWords(group, texts, sharesOf);
  if (!words.length) return [];
  const name = group.isError ? `${group.label} → ${group.predicted}` : group.predicted;
  const title = make("button", group.isError ? "wrong" : "", name);
  title.type = "button";
  title.dir = "auto";
  title.title = "Show these texts";
  const filters = { predicted: group.predicted, label: group.label ?? "", wrong: group.isError };
  title.addEventListener("click", () => show(filters));
  const size = group.entries.length;
  const methodNote = methods.length > 1 ? ` · ${method}` : "";
  const heading = make("h2", "", "", title, ` · ${size} text${size === 1 ? "" : "s"}${methodNote}`);
  const list = make(
    "div",
    "drivers",
    "",
    ...words.flatMap((ranked) => drawWordRow(ranked, words[0].weight, size)),
  );
  return [make("article", "", "", heading, list)];
}

function drawCluster({ words, entries }) {
  const isChosen = cluster !== null && entries.every((entry) => cluster.entries.includes(entry));
  const button = make("button", "", words.join(", "));
  button.type = "button";
  button.setAttribute("aria-pressed", String(isChosen));
  button.title = entries
    .slice(0, 3)
    .map((entry) => entry.text.slice(0, 80))
    .join("\n");
  button.addEventListener("click", () => {
    cluster = isChosen ? null : { words, entries };
    filter();
  });
  return make("li", "", "", button, ` ${entries.length} errors`);
}

function drawGroups(shown) {
  const section = document.getElementById("words");
  const articles = [];
  for (const group of groupTexts(shown).slice(0, MAX_GROUPS)) {
    for (const method of methods) articles.push(...drawGroup(group, method));
  }
  section.replaceChildren(...articles);
  const note = document.getElementById("words-note");
  const about = articles.length ? describeWords(shown.length) : "";
  note.textContent = `${about} ${describeErrorLimits(shown, methods)}`.trim();
  drawOverview(shown);
  const clusters = findClusters(shown);
  const list = document.getElementById("clusters");
  list.replaceChildren(...clusters.map(drawCluster));
  list.parentElement.hidden = !clusters.length;
}

function describeWords(numShown) {
  let which = `${numShown} texts shown`;
  if (numShown === texts.length) which = "texts in this file";
  else if (numShown === 1) which = "text shown";
  return (
    `The words that most support the prediction of the ${which}. For errors (true → predicted), `
    + "a word counts by how much larger its mean share of the scores is than in texts correctly predicted "
    + "as that class; "
    + "otherwise by its summed share, rare words counting more."
  );
}

// The chosen cluster, or the clusters of the errors that are shown.
function findClusters(shown) {
  if (cluster) return [cluster];
  if (!methods.length) return [];
  return clusterErrors(shown.filter(isWrong), texts, (entry) => sharesByMethod.get(methods[0]).get(entry));
}

function drawOverview(shown) {
  const box = document.getElementById("swarm");
  const method = methods[0];
  const open = (entry) => {
    const indexRow = rows.find((row) => row.entry === entry);
    if (indexRow.opened === null) toggle(indexRow);
    indexRow.row.scrollIntoView();
  };
  const sharesOf = (entry) => sharesByMethod.get(method).get(entry);
  const figure = method === undefined ? null : drawSwarm(shown, texts, sharesOf, open);
  box.replaceChildren(...(figure ? [figure] : []));
  box.parentElement.hidden = !figure;
  const methodNote = methods.length > 1 ? ` · ${method}` : "";
  box.parentElement.querySelector("summary").textContent = `Every text at a glance${methodNote}`;
  box.parentElement.querySelector(".wrong-note").hidden = !shown.some(isWrong);
}

// --- export and link -------------------------------------------------------------------------------

function show(values) {
  form.reset();
  cluster = null;
  for (const [name, value] of Object.entries(values)) {
    const field = form.elements[name];
    if (field && field.type === "checkbox") field.checked = Boolean(value);
    else if (field) field.value = value;
  }
  filter();
  form.scrollIntoView();
}

function findTopWords(entry) {
  const shares = methods.length ? [...sharesByMethod.get(methods[0]).get(entry)] : [];
  const strongest = shares.sort((a, b) => b[1] - a[1]).slice(0, 5);
  return strongest
    .filter(([, share]) => share > 0)
    .map(([word]) => word)
    .join(" ");
}

// The texts that are shown, in their order, as columns; what a text does not have is null.
function collectShown() {
  const entries = rows.filter(({ row }) => !row.hidden).map(({ entry }) => entry);
  const value = (column, entry) =>
    column.name === "confidence" ? (entry.probability ?? null) : column.value(entry);
  const orNull = (cell) => (cell === "" || cell === undefined ? null : cell);
  const reportColumns = columns.filter((column) => !keptNames.includes(column.name));
  const exported = [
    ...reportColumns.map((column) => ({ name: column.name, read: (entry) => value(column, entry) })),
    { name: "text", read: (entry) => entry.text },
    { name: "top words", read: findTopWords },
    ...keptNames.map((name) => ({ name, read: (entry) => getKept(entry, name) })),
  ];
  return exported.map(({ name, read }) => ({ name, values: entries.map((entry) => orNull(read(entry))) }));
}

function exportCsv() {
  const shown = collectShown();
  const lines = [shown.map((column) => column.name)];
  shown[0].values.forEach((_, i) => lines.push(shown.map((column) => column.values[i])));
  const csv = lines.map((cells) => cells.map(formatCell).join(",") + "\r\n").join("");
  download(["\ufeff", csv], "csv", "text/csv");
}

function exportParquet() {
  const shown = collectShown();
  download(encodeParquet(shown, shown[0].values.length), "parquet", "application/vnd.apache.parquet");
}

function download(parts, ending, type) {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob(parts, { type }));
  link.download = `${document.title.replace(/[^\p{L}\p{N}._-]+/gu, "-")}-shown.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// The address of what is shown: filters that are set, as in #show?wrong=on&word=dull.
function describeFilters() {
  const set = [...new FormData(form)].filter(([, value]) => value !== "");
  if (sorted.name) set.push(["sort", `${sorted.up ? "" : "-"}${sorted.name}`]);
  return set.length ? `#show?${new URLSearchParams(set)}` : "#";
}

async function copyLink() {
  const address = location.href.split("#")[0] + describeFilters();
  history.replaceState(null, "", describeFilters());
  try {
    await navigator.clipboard.writeText(address);
    form.elements.link.textContent = "Link copied";
  } catch {
    form.elements.link.textContent = "Link is in the address bar"; // pages opened as files may not copy
  }
}

let sorted = { name: "", up: true };
function sort(column) {
  sorted = { name: column.name, up: sorted.name === column.name ? !sorted.up : true };
  const sign = sorted.up ? 1 : -1;
  const compareTexts = (a, b) => String(a).localeCompare(String(b), undefined, { numeric: true });
  const compare = (a, b) => (typeof a === "number" ? a - b : compareTexts(a, b));
  const rank = column.rank ?? column.value;
  rows.sort((a, b) => sign * compare(rank(a.entry), rank(b.entry)));
  body.append(
    ...rows.flatMap((indexRow) => (indexRow.opened ? [indexRow.row, indexRow.opened] : [indexRow.row])),
  );
  const direction = sorted.up ? "ascending" : "descending";
  for (const head of table.tHead.rows[0].cells) {
    head.ariaSort = head.textContent === column.name ? direction : null;
  }
}

table.tHead.append(
  make(
    "tr",
    "",
    "",
    ...[...columns, textColumn].map((column) => {
      const button = make("button", "", column.name);
      button.type = "button";
      button.title = "Sort by this column";
      button.addEventListener("click", () => sort(column));
      return make("th", "", "", button);
    }),
  ),
);
body.append(...rows.map((indexRow) => indexRow.row));

for (const name of ["predicted", "label", "grade"]) {
  const values = [
    ...new Set(texts.map((entry) => entry[name]).filter((value) => value !== undefined)),
  ].sort();
  form.elements[name].append(...values.map((value) => Object.assign(make("option", "", value), { value })));
  form.elements[name].parentElement.hidden = values.length < 2 || values.length > 200;
}
form.elements.wrong.parentElement.hidden = !anyHas("label");
form.elements.low.parentElement.hidden = !anyHas("grade");
form.addEventListener("input", () => {
  cluster = null;
  filter();
});
form.addEventListener("submit", (event) => event.preventDefault());
form.elements.export.addEventListener("click", exportCsv);
form.elements.parquet.addEventListener("click", exportParquet);
form.elements.link.addEventListener("click", copyLink);
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-word]");
  if (!button) return;
  form.elements.word.value = `"${button.dataset.word}"`;
  filter();
  form.scrollIntoView();
});

function follow() {
  if (location.hash.startsWith("#show?")) {
    const { sort: order = "", ...filters } = Object.fromEntries(new URLSearchParams(location.hash.slice(6)));
    const column = [...columns, textColumn].find(({ name }) => name === order.replace(/^-/, ""));
    if (column) {
      sorted = { name: column.name, up: order.startsWith("-") }; // sort() turns it round
      sort(column);
    }
    show(filters);
  }
  const linked = rows.find(({ row }) => `#${row.id}` === location.hash);
  if (!linked) return;
  if (linked.opened === null) toggle(linked);
  linked.row.scrollIntoView();
}
addEventListener("hashchange", follow);
filter();
follow();

// A class rather than a CSS scroll timeline, on which Chromium 150 crashes.
function markOverflow(box) {
  const remaining = box.scrollWidth - box.clientWidth - Math.abs(box.scrollLeft);
  box.classList.toggle("overflows", remaining > 1);
}
for (const box of document.querySelectorAll(".scroll")) {
  box.addEventListener("scroll", () => markOverflow(box), { passive: true });
  const observer = new ResizeObserver(() => requestAnimationFrame(() => markOverflow(box)));
  observer.observe(box);
  observer.observe(box.firstElementChild);
}
