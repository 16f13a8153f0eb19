// Start: settings, panels, what the server has, then what the link asks for.

import { ask } from "./api.js";
import { askForm } from "./ask.js";
import { byId } from "./dom.js";
import { editPanel } from "./edit.js";
import { gamePanel } from "./game.js";
import { headsPanel } from "./heads.js";
import { keys } from "./keys.js";
import { layersPanel } from "./layers.js";
import { asks, read } from "./link.js";
import { methodPicker } from "./methods.js";
import { fileOpening, listOpened } from "./opened.js";
import { predictionPanel } from "./prediction.js";
import { settings } from "./settings.js";
import { shareButtons } from "./share.js";
import { fieldsInUse, state, update } from "./store.js";
import { tabs } from "./tabs.js";
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
  const settings = read(location.hash);
  const model = state.models.find((candidate) => candidate.name === settings.model) ?? state.models[0];
  if (!model) {
    byId("status").textContent = "No model is loaded: you are looking at saved files.";
    return;
  }
  settings.model = model.name;
  if (!settings.methods.length) settings.methods = [model.method];
  update(settings);
  // A link carries no picture: it is chosen again.
  const isComplete = !fieldsInUse().includes("picture") || state.picture;
  if (asks(settings) && isComplete) void explain({ step: false });
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

settings();
askForm();
methodPicker();
predictionPanel();
whyPanel();
gamePanel();
editPanel();
layersPanel();
headsPanel();
shareButtons();
tabs();
loadViewData();
keys();
fileOpening();
// A link pasted into the open page, and the browser's back button.
addEventListener("hashchange", () => {
  if (state.ready) follow();
});
addEventListener("scroll", close, { passive: true });
void start();
