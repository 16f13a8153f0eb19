// Characters that would act instead of being seen, made visible (as tokenlight.plots.characters does).

const BIDI = new Map([
  [0x202a, "LRE"], [0x202b, "RLE"], [0x202c, "PDF"], [0x202d, "LRO"], [0x202e, "RLO"],
  [0x2066, "LRI"], [0x2067, "RLI"], [0x2068, "FSI"], [0x2069, "PDI"],
]);
// Control characters, direction overrides, and halves of surrogate pairs.
const ACTING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]|\p{Surrogate}/gu;
const BREAKS = { "\n": "␊", "\t": "␉", "\u2028": "⟨2028⟩", "\u2029": "⟨2029⟩" };

/** The text with acting characters shown as symbols; line breaks and tabs stay. */
export function visible(text) {
  return text.replace(ACTING, symbol);
}

/** The same on one line: for tokens in tables, labels and titles. */
export function inLine(text) {
  return visible(text).replace(/[\n\t\u2028\u2029]/g, (found) => BREAKS[found]);
}

function symbol(found) {
  const code = found.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  const name = BIDI.get(code) ?? code.toString(16).toUpperCase().padStart(2, "0");
  return `⟨${name}⟩`;
}
