// Every value enters the page as text or through a closed list of classes; none becomes markup.
const STEPS = 12, LONG = 2500, SHOWN_COLUMNS = 4, GOOD = ["faithful", "better than chance"];
const texts = JSON.parse(document.getElementById("data").textContent);
// From the best to the worst, as they are sorted.
const GRADES = ["faithful", "better than chance", "cannot tell", "no better than chance", "worse than chance", "untested"];
const form = document.getElementById("filters"), table = document.getElementById("index");
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
  const step = scale ? Math.round(Math.max(-1, Math.min(1, score / scale)) * STEPS) : 0;
  return step ? (step > 0 ? "f" : "a") + Math.abs(step) : "";
}

function drawLine(shape, scores, scale) {
  const line = make("p", "line");
  line.dir = "auto";
  shape.texts.forEach((text, i) => {
    const classes = shape.looks[i] || "", score = Number(scores[i]);
    if (scores[i] === "") { line.append(classes ? make("span", classes, text) : text); return; }
    const isChip = classes.startsWith("chip");
    const span = make("span", isChip ? classes : `token ${stepClass(score, scale)} ${classes}`.trim(), text);
    span.title = `${text.trim()}  ${formatScore(score)}`;
    line.append(span);
  });
  return line;
}

function drawText(entry) {
  const drawn = make("div");
  drawn.append(make("p", "note", entry.chances || ""));
  if (entry.cut) {
    const warning = `The text was too long for the model: its last ${entry.cut} tokens were not read. They are shown in grey.`;
    drawn.append(make("p", "warning", warning));
  }
  for (const explanation of entry.explained) {
    const heading = make("h2", "", "", make("b", "", explanation.target), ` · ${explanation.name}`);
    if (explanation.kind) heading.append(` (${explanation.kind})`);
    const text = make("div", "text");
    for (const [lineNumber, scores] of explanation.lines) {
      const shape = entry.lines[lineNumber];
      if (shape.name) text.append(make("p", "segment", shape.name));
      if (shape.texts.join("").length > LONG) text.classList.add("long");
      text.append(drawLine(shape, scores.split(","), explanation.scale));
    }
    drawn.append(heading, text, ...explanation.told.map(remark => make("p", "note", remark)));
  }
  const columns = Object.entries(entry.columns || {}).map(([name, value]) => `${name}: ${value}`);
  drawn.append(make("p", "note", [entry.place || [], ...columns].flat().join(" · ")));
  return drawn;
}

const plain = entry => entry.lines.filter((_, i) => entry.explained[0].lines.some(l => l[0] === i))
  .map(shape => shape.texts.filter((_, i) => !(shape.looks[i] || "").startsWith("chip")).join(""))
  .join(" · ");

const low = entry => entry.grade && !GOOD.includes(entry.grade);
// Red is for explanations that failed the test, not for those that it could not decide on.
const gradeLook = entry => !low(entry) ? "" : entry.grade.endsWith("than chance") ? "wrong" : "undecided";
const percent = chance => chance > 0.999 && chance < 1 ? ">99.9 %" : `${(100 * chance).toFixed(1)} %`;
const anyHas = name => texts.some(entry => name in entry);
const keptNames = [...new Set(texts.flatMap(entry => Object.keys(entry.columns || {})))].filter(name => name !== "id");
const columns = [
  { name: "row", value: entry => entry.number, on: true },
  { name: "id", value: entry => (entry.columns || {}).id ?? "", on: texts.some(e => (e.columns || {}).id) },
  { name: "true label", value: entry => entry.label ?? "", on: anyHas("label") },
  { name: "predicted", value: entry => entry.predicted ?? "", look: entry => isWrong(entry) ? "wrong" : "", on: anyHas("predicted") },
  { name: "confidence", value: entry => entry.chance ?? -1, show: v => v < 0 ? "" : percent(v), on: anyHas("chance") },
  { name: "trust", value: entry => entry.grade ?? "", rank: entry => GRADES.indexOf(entry.grade), look: gradeLook, on: anyHas("grade") },
  ...keptNames.map(name => ({ name, value: entry => (entry.columns || {})[name] ?? "", on: keptNames.length <= SHOWN_COLUMNS })),
].filter(column => column.on);
const textColumn = { name: "text", value: entry => entry.text };

const rows = texts.map(entry => {
  const row = make("tr"), button = make("button", "", entry.text = plain(entry));
  if (button.textContent.length > 240) button.textContent = button.textContent.slice(0, 239) + "…";
  row.id = `text-${entry.number}`;
  button.type = "button";
  button.dir = "auto";
  button.setAttribute("aria-expanded", "false");
  for (const column of columns) {
    const value = column.value(entry);
    row.append(make("td", column.look ? column.look(entry) : "", String(column.show ? column.show(value) : value)));
  }
  row.append(make("td", "text-cell", "", button));
  const indexRow = { entry, row, button, opened: null };
  button.addEventListener("click", () => toggle(indexRow));
  return indexRow;
});

function toggle(indexRow) {
  const isClosed = indexRow.opened === null;
  indexRow.button.setAttribute("aria-expanded", String(isClosed));
  if (!isClosed) { indexRow.opened.remove(); indexRow.opened = null; return; }
  const cell = make("td", "", "", drawText(indexRow.entry));
  cell.colSpan = columns.length + 1;
  indexRow.opened = make("tr", "opened", "", cell);
  indexRow.row.after(indexRow.opened);
}

let cluster = null; // the texts of the cluster that is shown alone

function isShown(entry, filters, pattern) {
  if (filters.get("wrong") && !isWrong(entry)) return false;
  if (filters.get("low") && !low(entry)) return false;
  for (const name of ["predicted", "label", "grade"])
    if (filters.get(name) && entry[name] !== filters.get(name)) return false;
  if (cluster && !cluster.entries.includes(entry)) return false;
  return !pattern || pattern.test(entry.text);
}

function filter() {
  const filters = new FormData(form), word = filters.get("word").trim();
  const escaped = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const pattern = word && new RegExp(`(?<![\\p{L}\\p{N}])${escaped}`, "iu");
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

const methods = [...new Set(texts.flatMap(entry => entry.explained.filter(e => !e.kind).map(e => e.name)))];
const sharesByMethod = new Map(methods.map(method =>
  [method, new Map(texts.map(entry => [entry, computeShares(entry, method)]))]));

function drawWordRow(ranked, strongest, size) {
  const button = make("button", "name", ranked.word), bar = make("span", "weight");
  button.type = "button";
  button.dir = "auto";
  button.dataset.word = ranked.word;
  button.title = `Show the texts with this word. Example: ${ranked.example.text.slice(0, 160)}`;
  bar.append(make("i", ""));
  bar.firstChild.style.width = `${100 * ranked.weight / strongest}%`;
  const counts = make("span", "value", `${ranked.count} of ${size}`);
  if (ranked.rightTotal) counts.append(`, right ${ranked.rightCount} of ${ranked.rightTotal}`);
  return [button, bar, counts];
}

function drawGroup(group, method) {
  const sharesOf = entry => sharesByMethod.get(method).get(entry);
  const words = rankWords(group, texts, sharesOf);
  if (!words.length) return [];
  const name = group.isError ? `${group.label} → ${group.predicted}` : group.predicted;
  const title = make("button", group.isError ? "wrong" : "", name);
  title.type = "button";
  title.dir = "auto";
  title.title = "Show these texts";
  title.addEventListener("click", () => show({ predicted: group.predicted, label: group.label ?? "", wrong: group.isError }));
  const size = group.entries.length;
  const heading = make("h2", "", "", title, ` · ${size} text${size === 1 ? "" : "s"}${methods.length > 1 ? ` · ${method}` : ""}`);
  const list = make("div", "drivers", "", ...words.flatMap(ranked => drawWordRow(ranked, words[0].weight, size)));
  return [make("article", "", "", heading, list)];
}

function drawCluster(found) {
  const isChosen = cluster !== null && found.entries.every(entry => cluster.entries.includes(entry));
  const button = make("button", "", found.words.join(", "));
  button.type = "button";
  button.setAttribute("aria-pressed", String(isChosen));
  button.title = found.entries.map(entry => entry.text.slice(0, 80)).slice(0, 3).join("\n");
  button.addEventListener("click", () => { cluster = isChosen ? null : found; filter(); });
  return make("li", "", "", button, ` ${found.entries.length} errors`);
}

function drawGroups(shown) {
  const section = document.getElementById("words");
  const groups = groupTexts(shown);
  section.replaceChildren(...groups.slice(0, 24).flatMap(group => methods.flatMap(method => drawGroup(group, method))));
  const which = shown.length === texts.length ? "texts in this file"
    : shown.length === 1 ? "text shown" : `${shown.length} texts shown`;
  document.getElementById("words-note").textContent = !section.children.length ? "" :
    `The words that most support the prediction of the ${which}. For errors (true → predicted), a word counts by `
    + "how much larger its mean share of the scores is than in texts rightly predicted as that class; otherwise by its summed share, rare words counting more.";
  drawOverview(shown);
  const errors = cluster ? cluster.entries : shown.filter(isWrong);
  const sharesOf = entry => sharesByMethod.get(methods[0]).get(entry);
  const clusters = cluster ? [cluster] : methods.length ? clusterErrors(errors, texts, sharesOf) : [];
  document.getElementById("clusters").replaceChildren(...clusters.map(drawCluster));
  document.getElementById("clusters").parentElement.hidden = !clusters.length;
}

function drawOverview(shown) {
  const box = document.getElementById("swarm"), method = methods[0];
  const open = entry => {
    const indexRow = rows.find(row => row.entry === entry);
    if (indexRow.opened === null) toggle(indexRow);
    indexRow.row.scrollIntoView();
  };
  const figure = method === undefined ? null : drawSwarm(shown, texts, entry => sharesByMethod.get(method).get(entry), open);
  box.replaceChildren(...(figure ? [figure] : []));
  box.parentElement.hidden = !figure;
  box.parentElement.querySelector("summary").textContent = `Every text at a glance${methods.length > 1 ? ` · ${method}` : ""}`;
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
  return shares.sort((a, b) => b[1] - a[1]).slice(0, 5).filter(([, share]) => share > 0).map(([word]) => word).join(" ");
}

// The texts that are shown, in their order, as columns; what a text does not have is null.
function collectShown() {
  const entries = rows.filter(({ row }) => !row.hidden).map(({ entry }) => entry);
  const value = (column, entry) => column.name === "confidence" ? entry.chance ?? null : column.value(entry);
  const orNull = cell => cell === "" || cell === undefined ? null : cell;
  const own = columns.filter(column => !keptNames.includes(column.name));
  const listed = [
    ...own.map(column => ({ name: column.name, of: entry => value(column, entry) })), { name: "text", of: entry => entry.text },
    { name: "top words", of: findTopWords }, ...keptNames.map(name => ({ name, of: entry => (entry.columns || {})[name] })),
  ];
  return listed.map(({ name, of }) => ({ name, values: entries.map(entry => orNull(of(entry))) }));
}

function exportCsv() {
  const shown = collectShown(), lines = [shown.map(column => column.name)];
  shown[0].values.forEach((_, i) => lines.push(shown.map(column => column.values[i])));
  download(["\ufeff", lines.map(cells => cells.map(formatCell).join(",")).join("\r\n") + "\r\n"], "csv", "text/csv");
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
  const compare = (a, b) => typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  const rank = column.rank ?? column.value;
  rows.sort((a, b) => sign * compare(rank(a.entry), rank(b.entry)));
  body.append(...rows.flatMap(indexRow => indexRow.opened ? [indexRow.row, indexRow.opened] : [indexRow.row]));
  for (const head of table.tHead.rows[0].cells)
    head.ariaSort = head.textContent === column.name ? (sorted.up ? "ascending" : "descending") : null;
}

table.tHead.append(make("tr", "", "", ...[...columns, textColumn].map(column => {
  const button = make("button", "", column.name);
  button.type = "button";
  button.title = "Sort by this column";
  button.addEventListener("click", () => sort(column));
  return make("th", "", "", button);
})));
body.append(...rows.map(indexRow => indexRow.row));

for (const name of ["predicted", "label", "grade"]) {
  const values = [...new Set(texts.map(entry => entry[name]).filter(value => value !== undefined))].sort();
  form.elements[name].append(...values.map(value => Object.assign(make("option", "", value), { value })));
  form.elements[name].parentElement.hidden = values.length < 2 || values.length > 200;
}
form.elements.wrong.parentElement.hidden = !anyHas("label");
form.elements.low.parentElement.hidden = !anyHas("grade");
form.addEventListener("input", () => { cluster = null; filter(); });
form.addEventListener("submit", event => event.preventDefault());
form.elements.export.addEventListener("click", exportCsv);
form.elements.parquet.addEventListener("click", exportParquet);
form.elements.link.addEventListener("click", copyLink);
document.addEventListener("click", event => {
  const button = event.target.closest("[data-word]");
  if (!button) return;
  form.elements.word.value = button.dataset.word;
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
