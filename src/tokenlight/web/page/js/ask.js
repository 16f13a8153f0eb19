// The form: input fields for what the model reads, examples, and the choice of the model.

import { shortened } from "./characters.js";
import { byId, fill, make } from "./dom.js";
import { isDocumentForm, chosenModel, fieldsInUse, state, update, watch } from "./store.js";
import { clearError, showError } from "./errors.js";
import { clear, explain, reportList, showWelcome } from "./work.js";

const LABELS = {
  text: "Text",
  pair: "Second text",
  question: "Question",
  context: "Context to answer from",
  picture: "Picture",
  prompt: "Prompt",
  documents: "Documents, with an empty line between two",
  answer: "Answer to explain (if left empty, the model writes its own)",
};
const LIST =
  "One text per line, optionally followed by a tab and its true label, as copied from a spreadsheet.";
const ROWS = { text: 2, pair: 2, question: 1, context: 4, prompt: 2, documents: 6, answer: 1, list: 8 };
const DOCUMENT_FIELDS = ["question", "documents", "answer"];
const PICTURE_TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff"];
const MAX_EXAMPLES = 4;
const MAX_EXAMPLE_LENGTH = 48;
let isPairRequested = false;

/** Build the form and update it with the state. */
export function askForm() {
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  byId("ask").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      submit();
    }
  });
  byId("model").addEventListener("change", (event) => chooseModel(event.target.value));
  watch(["models", "model"], drawModel);
  watch(["models", "model", "asksDocuments", "isList", "list", ...Object.keys(LABELS)], drawFields);
  watch(["busy", "isList"], drawBusy);
}

function submit() {
  void (state.isList ? reportList() : explain());
}

/** Put an example into the form and explain it. */
function useExample(example) {
  isPairRequested = false;
  const filled = Object.fromEntries(Object.keys(LABELS).map((name) => [name, example[name] ?? ""]));
  update({
    ...filled,
    pictureName: example.picture ? example.title : "",
    asksDocuments: false,
    isList: false,
    ...defaultChoices(),
  });
  void explain();
}

function chooseModel(name) {
  isPairRequested = false;
  const model = state.models.find((candidate) => candidate.name === name);
  const isSupported = (method) =>
    state.knownMethods.find((candidate) => candidate.name === method)?.models[name]?.is_supported !== false;
  const methods = state.methods.filter(isSupported);
  const shown = state.entries.length > 0;
  clear();
  clearError();
  update({
    model: name,
    asksDocuments: false,
    isList: state.isList && takesList(model),
    methods: methods.length ? methods : [model.method],
    ...defaultChoices(),
  });
  // The old text means nothing to a model with other fields; one with the same answers at once.
  const filled = fieldsInUse().every((field) => state[field]);
  if (state.isList) byId("field-list")?.focus();
  else if (shown && filled) void explain();
  else showWelcome({ filled });
}

/** Default values of the choices that belong to one text and model. */
function defaultChoices() {
  return { target: "", rather: "", pin: null, step: 0, long: "error" };
}

function drawModel() {
  const model = chosenModel();
  byId("ask").hidden = state.models.length === 0;
  fill(
    byId("model"),
    state.models.map((candidate) => {
      const option = make("option", { value: candidate.name, text: candidate.name });
      option.selected = candidate.name === state.model;
      return option;
    }),
  );
  if (!model) return;
  byId("model-about").textContent = model.about ? `· ${model.about}` : "";
  byId("model").title = describeModel(model);
  fill(
    byId("examples"),
    make("span", { class: "note", text: "Try" }),
    model.examples.slice(0, MAX_EXAMPLES).map((example) => {
      const text = example.text ?? example.question ?? example.prompt ?? "";
      const title = [example.text, example.pair, example.question, example.context, example.prompt];
      return make("button", {
        type: "button",
        class: "chip-button",
        text: shortened(example.title || text, MAX_EXAMPLE_LENGTH),
        title: title.filter(Boolean).join("\n"),
        onclick: () => useExample(example),
        dir: "auto",
      });
    }),
    make("span", { id: "pair-place" }),
  );
  byId("fields").dataset.names = ""; // rebuilt, with the button that adds a second text
}

function describeModel(model) {
  if (model.task === "image")
    return `${model.about || "classifies pictures"} · ${model.labels.length} classes`;
  const labels = model.labels.length && model.labels.length <= 8 ? ` · ${model.labels.join(", ")}` : "";
  const labelText = model.labels.length && model.about?.includes(model.labels.at(-1)) ? "" : labels;
  const size = model.layers ? ` · ${model.layers} layers × ${model.heads} heads` : "";
  const maxTokens = model.max_tokens ?? "any number of";
  return `${model.about || model.task}${labelText} · up to ${maxTokens} tokens${size}`;
}

/** The fields that the form shows, in their order. */
function listFieldNames(takesPair) {
  if (state.isList) return ["list"];
  if (isDocumentForm()) return DOCUMENT_FIELDS;
  return isPairRequested && takesPair ? ["text", "pair"] : fieldsInUse();
}

/** Fields are made once for a model, then only their values follow the state: the caret stays. */
function drawFields() {
  const model = chosenModel();
  if (!model) return;
  const takesPair = model.inputs.some((set) => set.includes("pair"));
  const takesDocuments = model.inputs.some((set) => set.includes("documents"));
  const names = listFieldNames(takesPair);
  const container = byId("fields");
  if (container.dataset.names !== names.join() || container.dataset.model !== model.name) {
    container.dataset.names = names.join();
    container.dataset.model = model.name;
    fill(
      container,
      names.map((name) => (name === "picture" ? buildPictureField() : buildField(name))),
    );
    fill(
      byId("pair-place"),
      takesPair && !state.isList && buildPairButton(names.includes("pair")),
      takesDocuments && !state.isList && buildDocumentsButton(isDocumentForm()),
      takesList(model) && buildListButton(),
    );
  }
  for (const name of names) {
    if (name === "picture") {
      drawPicture();
      continue;
    }
    const area = byId(`field-${name}`);
    if (area.value !== state[name]) area.value = state[name];
    fitHeight(area);
  }
}

function buildField(name) {
  const area = make("textarea", {
    id: `field-${name}`,
    name,
    rows: ROWS[name],
    dir: "auto",
    spellcheck: "false",
    placeholder:
      { text: "Type a sentence …", list: "Never dull.\tpositive\nA bore.\tnegative" }[name] ?? null,
  });
  area.addEventListener("input", () => {
    fitHeight(area);
    update({ [name]: area.value, ...defaultChoices() });
  });
  const label = name === "list" ? LIST : LABELS[name];
  return make(
    "label",
    { class: "field" },
    make("span", { class: name === "text" ? "aside" : "", text: label }),
    area,
  );
}

/** A file to choose or to drop, with what was chosen below it. */
function buildPictureField() {
  const file = make("input", { type: "file", id: "field-picture", accept: PICTURE_TYPES.join() });
  file.addEventListener("change", () => {
    if (file.files[0]) void readPicture(file.files[0]);
    file.value = ""; // so that the same file can be chosen again
  });
  return make(
    "div",
    { class: "field picture-field" },
    make("label", { class: "secondary file", text: "Choose a picture" }, file),
    make("img", { id: "picture-preview", alt: "" }),
    make("span", { id: "picture-name" }),
  );
}

function drawPicture() {
  const preview = byId("picture-preview");
  preview.hidden = !state.picture;
  if (state.picture) preview.src = `data:image/png;base64,${state.picture}`;
  byId("picture-name").textContent = state.picture
    ? state.pictureName
    : "PNG, JPEG, WebP, GIF, BMP or TIFF; or drop it here";
}

/** Whether a file is to be the picture of the form, not a saved explanation. */
export function takesPicture(file) {
  return fieldsInUse().includes("picture") && !/json/.test(file.type) && !/\.json$/i.test(file.name);
}

/** Check type and size of a file, and put it into the form. */
export async function readPicture(file) {
  if (!PICTURE_TYPES.includes(file.type)) {
    const types = "PNG, JPEG, WebP, GIF, BMP or TIFF";
    showError(`${file.name} is not a picture that can be read. Choose a ${types} file.`);
    return;
  }
  if (file.size > state.limits.picture_bytes) {
    const megabytes = (bytes) => (bytes / 1024 ** 2).toFixed(1);
    const size = megabytes(file.size);
    const limit = megabytes(state.limits.picture_bytes);
    showError(`${file.name} has ${size} MB, and this page reads ${limit} MB. Make it smaller.`);
    return;
  }
  const bytes = new Uint8Array(await file.arrayBuffer());
  let characters = "";
  for (let start = 0; start < bytes.length; start += 0x8000)
    characters += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
  clearError();
  update({ picture: btoa(characters), pictureName: file.name, ...defaultChoices() });
  void explain();
}

function buildPairButton(shown) {
  return make("button", {
    type: "button",
    class: "quiet pair-switch",
    text: shown ? "One text only" : "Add a second text",
    onclick: () => {
      isPairRequested = !shown;
      update({ pair: "" });
      drawFields();
      byId(shown ? "field-text" : "field-pair")?.focus();
    },
  });
}

/** Whether the model reads one text or prompt, so that a list of them makes sense. */
function takesList(model) {
  return ["text", "prompt"].includes(model.inputs[0].join());
}

function buildListButton() {
  const test = make("input", {
    type: "checkbox",
    onchange: (event) => update({ testAll: event.target.checked }),
  });
  test.checked = state.testAll;
  return [
    make("button", {
      type: "button",
      class: "quiet pair-switch",
      id: "several",
      text: state.isList ? "One text" : "Several texts",
      onclick: () => {
        clear();
        update({ isList: !state.isList, asksDocuments: false });
        byId("status").textContent = state.isList
          ? "Paste a list, then get the report of all texts."
          : "Press Explain, or type a text of your own.";
        byId(state.isList ? "field-list" : `field-${fieldsInUse()[0]}`)?.focus();
      },
    }),
    state.isList && make("label", { class: "inline" }, test, "test each (about a second per text)"),
  ];
}

function buildDocumentsButton(shown) {
  return make("button", {
    type: "button",
    class: "quiet pair-switch",
    text: shown ? "A prompt" : "Documents and a question",
    onclick: () => {
      update({ asksDocuments: !shown, question: "", documents: "", answer: "", ...defaultChoices() });
      byId(shown ? "field-prompt" : "field-question")?.focus();
    },
  });
}

/** Fit the height of a text area to its text, up to the limit of the style sheet. */
function fitHeight(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

function drawBusy() {
  const button = byId("explain");
  button.setAttribute("aria-busy", String(state.busy));
  const label = state.isList ? "Get the report" : "Explain";
  button.textContent = state.busy ? "Explaining …" : label;
  byId("results").setAttribute("aria-busy", String(state.busy));
}
