// Start: settings, panels, what the server has, then what the link asks for.

import { ask } from "./api.js";
import { askForm } from "./ask.js";
import { byId } from "./dom.js";
import { editPanel } from "./edit.js";
import { gamePanel } from "./game.js";
import { headsPanel } from "./heads.js";
import { listenForKeys } from "./keys.js";
import { layersPanel } from "./layers.js";
import { asks, read } from "./link.js";
import { methodPicker } from "./methods.js";
import { fileOpening, listOpened } from "./opened.js";
import { predictionPanel } from "./prediction.js";
import { setUpSettings } from "./settings.js";
import { shareButtons } from "./share.js";
import { fieldsInUse, state, update } from "./store.js";
import { setUpTabs } from "./tabs.js";
import { close } from "./tip.js";
import { clearError } from "./errors.js";
import { whyPanel } from "./why.js";
import { clear, explain, showFailure, loadViewData, showWelcome } from "./work.js";

/** Load models and methods from the server. */
async function loadModels() {
  const [{ models, limits }, { methods, groups }, { version }] = await Promise.all([
    ask("/api/models"),
    ask("/api/methods"),
    ask("/healthz"),
  ]);
  update({ models, limits, knownMethods: methods, groups, ready: true });
  byId("version").textContent = `tokenlight ${version}`;
}

/** Apply a link, with the server's defaults for missing values. */
function follow() {
  const linked = read(location.hash);
  const model = state.models.find((candidate) => candidate.name === linked.model) ?? state.models[0];
  if (!model) {
    byId("status").textContent = "No model is loaded: you are looking at saved files.";
    return;
  }
  linked.model = model.name;
  if (!linked.methods.length) linked.methods = [model.method];
  update(linked);
  // A link carries no picture: it is chosen again.
  const isComplete = !fieldsInUse().includes("picture") || state.picture;
  if (asks(linked) && isComplete) void explain({ step: false });
  else {
    clear();
    showWelcome();
  }
}

async function start() {
  try {
    await loadModels();
    clearError();
  } catch (failure) {
    showFailure(failure, start);
    return;
  }
  follow();
  try {
    await listOpened(state.models.length === 0);
  } catch (failure) {
    showFailure(failure, start);
  }
}

setUpSettings();
askForm();
methodPicker();
predictionPanel();
whyPanel();
gamePanel();
editPanel();
layersPanel();
headsPanel();
shareButtons();
setUpTabs();
loadViewData();
listenForKeys();
fileOpening();
// A link pasted into the open page, and the browser's back button.
addEventListener("hashchange", () => {
  if (state.ready) follow();
});
addEventListener("scroll", close, { passive: true });
void start();
