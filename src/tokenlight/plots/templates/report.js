"use strict";
// Every value enters the page as text or through a closed list of classes; no markup is made of any.
const STEPS = 12, LONG = 2500, GOOD = ["faithful", "better than chance"];
const texts = JSON.parse(document.getElementById("data").textContent);
const form = document.getElementById("filters"), table = document.getElementById("index");
const body = table.tBodies[0];

function make(tag, look, content, ...children) {
  const made = document.createElement(tag);
  if (look) made.className = look;
  if (content !== undefined && content !== "") made.textContent = content;
  made.append(...children);
  return made;
}

function number(value) {
  const short = Number(Math.abs(value).toPrecision(3));
  return (value < 0 ? "−" : "+") + short;
}

function look(score, scale) {
  const step = scale ? Math.round(Math.max(-1, Math.min(1, score / scale)) * STEPS) : 0;
  return step ? (step > 0 ? "f" : "a") + Math.abs(step) : "";
}

function drawLine(shape, scores, scale) {
  const line = make("p", "line");
  line.dir = "auto";
  shape.texts.forEach((text, i) => {
    const own = shape.looks[i] || "", score = Number(scores[i]);
    if (scores[i] === "") { line.append(own ? make("span", own, text) : text); return; }
    const chip = own.startsWith("chip");
    const span = make("span", chip ? own : `token ${look(score, scale)} ${own}`.trim(), text);
    span.title = `${text.trim()}  ${number(score)}`;
    line.append(span);
  });
  return line;
}

function drawText(entry) {
  const drawn = make("div");
  drawn.append(make("p", "note", entry.chances || ""));
  if (entry.cut) {
    const many = `its last ${entry.cut} tokens were not read. They are shown in grey.`;
    drawn.append(make("p", "warning", `The text was too long for the model: ${many}`));
  }
  for (const one of entry.explained) {
    const head = make("h2", "", "", make("b", "", one.target), ` · ${one.name}`);
    if (one.kind) head.append(` (${one.kind})`);
    const text = make("div", "text");
    for (const [place, scores] of one.lines) {
      const shape = entry.lines[place];
      if (shape.name) text.append(make("p", "segment", shape.name));
      if (shape.texts.join("").length > LONG) text.classList.add("long");
      text.append(drawLine(shape, scores.split(","), one.scale));
    }
    drawn.append(head, text, ...one.told.map(said => make("p", "note", said)));
  }
  const known = Object.entries(entry.columns || {}).map(([name, value]) => `${name}: ${value}`);
  drawn.append(make("p", "note", [entry.place || [], ...known].flat().join(" · ")));
  return drawn;
}

const plain = entry => entry.lines.filter((_, i) => entry.explained[0].lines.some(l => l[0] === i))
  .map(shape => shape.texts.filter((_, i) => !(shape.looks[i] || "").startsWith("chip")).join(""))
  .join(" · ");

const low = entry => entry.grade && !GOOD.includes(entry.grade);
const wrong = entry => "label" in entry && entry.label !== entry.predicted;
const percent = chance => chance > 0.999 && chance < 1 ? ">99.9 %" : `${(100 * chance).toFixed(1)} %`;
const anyHas = name => texts.some(entry => name in entry);
const columns = [
  { name: "row", value: entry => entry.number, on: true },
  { name: "id", value: entry => (entry.columns || {}).id ?? "", on: texts.some(e => (e.columns || {}).id) },
  { name: "true label", value: entry => entry.label ?? "", on: anyHas("label") },
  { name: "predicted", value: entry => entry.predicted ?? "", look: entry => wrong(entry) ? "wrong" : "", on: anyHas("predicted") },
  { name: "confidence", value: entry => entry.chance ?? -1, show: v => v < 0 ? "" : percent(v), on: anyHas("chance") },
  { name: "trust", value: entry => entry.grade ?? "", look: entry => low(entry) ? "wrong" : "", on: anyHas("grade") },
].filter(column => column.on);

const rows = texts.map(entry => {
  const row = make("tr"), button = make("button", "", entry.said = plain(entry));
  if (button.textContent.length > 240) button.textContent = button.textContent.slice(0, 239) + "…";
  row.id = `text-${entry.number}`;
  button.type = "button";
  button.dir = "auto";
  button.setAttribute("aria-expanded", "false");
  for (const column of columns) {
    const value = column.value(entry);
    row.append(make("td", column.look ? column.look(entry) : "", String(column.show ? column.show(value) : value)));
  }
  row.append(make("td", "said", "", button));
  const one = { entry, row, button, opened: null };
  button.addEventListener("click", () => toggle(one));
  return one;
});

function toggle(one) {
  const open = one.opened === null;
  one.button.setAttribute("aria-expanded", String(open));
  if (!open) { one.opened.remove(); one.opened = null; return; }
  const cell = make("td", "", "", drawText(one.entry));
  cell.colSpan = columns.length + 1;
  one.opened = make("tr", "opened", "", cell);
  one.row.after(one.opened);
}

function filter() {
  const asked = new FormData(form), word = asked.get("word").trim();
  const sought = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const found = word && new RegExp(`(?<![\\p{L}\\p{N}])${sought}`, "iu");
  let count = 0;
  for (const { entry, row, opened } of rows) {
    const seen = (!asked.get("wrong") || wrong(entry)) && (!asked.get("low") || low(entry))
      && (!asked.get("predicted") || entry.predicted === asked.get("predicted"))
      && (!asked.get("label") || entry.label === asked.get("label")) && (!found || found.test(entry.said));
    row.hidden = !seen;
    if (opened) opened.hidden = !seen;
    count += seen;
  }
  form.elements.count.value = `${count} of ${texts.length} texts`;
}

let sorted = { name: "", up: true };
function sort(column) {
  sorted = { name: column.name, up: sorted.name === column.name ? !sorted.up : true };
  const sign = sorted.up ? 1 : -1;
  const compare = (a, b) => typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  rows.sort((a, b) => sign * compare(column.value(a.entry), column.value(b.entry)));
  body.append(...rows.flatMap(one => one.opened ? [one.row, one.opened] : [one.row]));
  for (const head of table.tHead.rows[0].cells)
    head.ariaSort = head.textContent === column.name ? (sorted.up ? "ascending" : "descending") : null;
}

table.tHead.append(make("tr", "", "", ...columns.map(column => {
  const button = make("button", "", column.name);
  button.type = "button";
  button.title = "Sort by this column";
  button.addEventListener("click", () => sort(column));
  return make("th", "", "", button);
}), make("th", "", "text")));
body.append(...rows.map(one => one.row));

for (const name of ["predicted", "label"]) {
  const values = [...new Set(texts.map(entry => entry[name]).filter(value => value !== undefined))].sort();
  form.elements[name].append(...values.map(value => Object.assign(make("option", "", value), { value })));
  form.elements[name].parentElement.hidden = values.length < 2 || values.length > 200;
}
form.elements.wrong.parentElement.hidden = !anyHas("label");
form.elements.low.parentElement.hidden = !anyHas("grade");
form.addEventListener("input", filter);
form.addEventListener("submit", event => event.preventDefault());
for (const button of document.querySelectorAll("[data-word]"))
  button.addEventListener("click", () => {
    form.elements.word.value = button.dataset.word;
    filter();
    form.scrollIntoView();
  });

function follow() {
  const one = rows.find(one => `#${one.row.id}` === location.hash);
  if (!one) return;
  if (one.opened === null) toggle(one);
  one.row.scrollIntoView();
}
addEventListener("hashchange", follow);
filter();
follow();
