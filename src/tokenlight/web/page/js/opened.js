// Saved files: those the server was started with, and those someone opens here. No model needed.

import { ask } from "./api.js";
import { readPicture, takesPicture } from "./ask.js";
import { benchmark } from "./benchmark.js";
import { byId, fill, make } from "./dom.js";
import { counted } from "./numbers.js";
import { clearError, showError } from "./errors.js";
import { showFailure, showResponse } from "./work.js";

/** Listen to the file button and to files dropped on the page. */
export function fileOpening() {
  byId("open-file").addEventListener("change", (event) => {
    const [file] = event.target.files;
    event.target.value = ""; // so that the same file can be chosen again
    if (file) void openFile(file);
  });
  document.addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    const [file] = event.dataTransfer.files;
    if (!file) return;
    event.preventDefault();
    if (takesPicture(file)) void readPicture(file);
    else void openFile(file);
  });
}

/** List what the server was started with; the first is shown at once where there is no model. */
export async function listOpened(alone) {
  const { attributions, benchmarks } = await ask("/api/opened");
  if (!attributions.length && !benchmarks.length) return;
  const container = make("div", { id: "benchmark" });
  const show = (button, run) => {
    for (const other of byId("files").querySelectorAll("button"))
      other.setAttribute("aria-pressed", String(other === button));
    fill(container);
    run();
  };
  const entry = (text, note, run) =>
    make("button", {
      type: "button",
      class: "chip-button",
      "aria-pressed": "false",
      text: `${text} (${note})`,
      onclick: (event) => show(event.currentTarget, run),
    });
  const buttons = [
    ...attributions.map(({ file, entries, served }) =>
      entry(file, counted(entries.length, "explanation"), () =>
        showResponse({ attributions: entries, served }, file),
      ),
    ),
    ...benchmarks.map((run) =>
      entry(run.name, "benchmark", () => {
        byId("results").hidden = true;
        fill(container, benchmark(run));
      }),
    ),
  ];
  fill(
    byId("files"),
    make("h2", { text: "Saved files" }),
    make("div", { class: "chips" }, buttons),
    container,
  );
  byId("files").hidden = false;
  if (alone) buttons[0].click();
}

async function openFile(file) {
  let content;
  try {
    content = JSON.parse(await file.text());
  } catch {
    showError(`${file.name} is not a JSON file, so it is not a saved explanation.`);
    return;
  }
  try {
    showResponse(await ask("/api/open", content), file.name);
    clearError();
  } catch (failure) {
    showFailure(failure, () => openFile(file));
  }
}
