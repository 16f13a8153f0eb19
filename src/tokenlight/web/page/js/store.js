// The state of the page. Panels subscribe to the keys that they draw.

/** The state that a link carries; everything else is derived from it. */
export const DEFAULTS = {
  model: "",
  text: "",
  pair: "",
  question: "",
  context: "",
  prompt: "",
  documents: "",
  answer: "",
  methods: [],
  target: "",
  rather: "",
  numGeneratedTokens: "1",
  long: "error",
  sharper: false,
  view: "words",
  special: false,
  reference: "",
  pin: null,
  tab: "why",
  mode: "hide",
  step: 0,
  layered: "",
  head: "",
};

/** State of a link, and what was fetched for it: entries (explanations), trust and games by id. */
export const state = {
  ...DEFAULTS,
  models: [],
  knownMethods: [],
  groups: [],
  limits: {},
  ready: false,
  picture: "", // a file in base64, which no link can carry
  pictureName: "",
  asksDocuments: false,
  isList: false,
  list: "",
  testAll: false,
  busy: false,
  entries: [],
  prediction: null,
  refused: [],
  served: false,
  source: "",
  trust: new Map(),
  games: new Map(),
  gamesFailed: "",
  guess: null,
  written: 0,
  edited: null,
  editError: "",
};

const watchers = [];

/** Call `draw` whenever one of `keys` changed. */
export function watch(keys, draw) {
  watchers.push({ keys: new Set(keys), draw });
}

/** Change the state, then draw each panel that shows a changed key once. */
export function update(changes) {
  const changed = Object.keys(changes).filter((key) => state[key] !== changes[key]);
  Object.assign(state, changes);
  for (const { keys, draw } of watchers) if (changed.some((key) => keys.has(key))) draw();
}

/** The model that is chosen, as the server describes it. */
export function chosenModel() {
  return state.models.find((model) => model.name === state.model) ?? null;
}

/** Whether the form asks a question about documents. */
export function isDocumentForm() {
  return (
    (state.asksDocuments || state.documents !== "")
    && (chosenModel()?.inputs ?? []).some((set) => set.includes("documents"))
  );
}

/** The input fields in use: the largest set that the model reads and that is filled in. */
export function fieldsInUse() {
  const sets = chosenModel()?.inputs ?? [["text"]];
  const fitsForm = (set) => set.includes("documents") === isDocumentForm();
  const filled = sets
    .filter(fitsForm)
    .filter((set) => set.every((name, index) => index === 0 || state[name]));
  return filled.toSorted((first, second) => second.length - first.length)[0] ?? sets.find(fitsForm);
}
