// Share and download: a link, an image, a page, or the numbers.

import { fetched } from "./api.js";
import { byId, fill, make } from "./dom.js";
import { asPng, asSvg } from "./export_image.js";
import { percent } from "./numbers.js";
import { state, watch } from "./store.js";
import { showError } from "./errors.js";
import { showFailure, waitForTrustTests } from "./work.js";

/** Buttons next to the prediction. */
export function shareButtons() {
  watch(["entries", "served", "source"], draw);
}

function draw() {
  byId("share").hidden = state.entries.length === 0;
  if (!state.entries.length) return;
  const download = (id, text, title, run) =>
    make("button", { type: "button", class: "quiet", id, text, title, onclick: run });
  fill(
    byId("share"),
    state.source || state.entries[0].attribution.row.image
      ? null
      : download("copy-link", "Copy link", "This text, model, methods and view as a link", copyLink),
    make("span", { class: "note", text: "Download" }),
    download("download-html", "HTML", "One self-contained page", () =>
      createFile("html", () => fromServer("html")),
    ),
    download("download-png", "PNG", "The coloured text as a picture", () =>
      createFile("png", () => asPng(byId("why"), picture())),
    ),
    download("download-svg", "SVG", "The coloured text as a scalable drawing", () =>
      createFile("svg", () => asSvg(byId("why"), picture())),
    ),
    download("download-json", "JSON", "All numbers; tokenlight.load reads it", () =>
      createFile("json", () => fromServer("json")),
    ),
  );
}

async function copyLink() {
  const button = byId("copy-link");
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    // No permission: the address bar holds the same link.
    showError("The browser does not let this page use the clipboard; the link is in the address bar.");
  }
  setTimeout(() => {
    button.textContent = "Copy link";
  }, 2000);
}

/** Create a file; it includes the trust test, so wait for one that is running. */
async function createFile(format, write) {
  const button = byId(`download-${format}`);
  button.setAttribute("aria-busy", "true");
  try {
    await waitForTrustTests();
    save(await write(), format);
  } catch (failure) {
    if (failure.name !== "AbortError") showFailure(failure, () => createFile(format, write));
  } finally {
    button.removeAttribute("aria-busy");
  }
}

/** The server writes these files, so they are what save() writes. */
function fromServer(format) {
  const [first, ...others] = state.entries.map((entry) => entry.id);
  const query = new URLSearchParams({ format });
  for (const id of others) query.append("also", id);
  if (format === "html" && state.view === "words") query.set("words", "true");
  return fetched(`/api/attribution/${encodeURIComponent(first)}?${query}`);
}

function save(blob, ending) {
  const href = URL.createObjectURL(blob);
  const link = make("a", { href, download: `explanation.${ending}` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

/** Elements that the picture omits, and its title. */
function picture() {
  const { label, probabilities, index } = state.prediction;
  const chance = probabilities.length ? ` (${percent(probabilities[index] ?? probabilities[0])})` : "";
  const model = state.entries[0].attribution.model;
  return {
    without: ".tools, .hint, .aside, button:not(.token), .pinned, .agreement, .why",
    title: `${model ? `${model}: ` : ""}${label}${chance}`,
  };
}
