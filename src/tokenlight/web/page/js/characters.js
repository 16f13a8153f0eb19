// Characters that would act instead of being seen, made visible (as tokenlight.plots.characters does).

const BIDI = new Map([
  [0x202a, "LRE"], [0x202b, "RLE"], [0x202c, "PDF"], [0x202d, "LRO"], [0x202e, "RLO"],
  [0x2066, "LRI"], [0x2067, "RLI"], [0x2068, "FSI"], [0x2069, "PDI"],
]);
// Control characters, direction overrides, and halves of surrogate pairs.
const ACTING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]|\p{Surrogate}/gu;
const BLANK = /^[\t-\r\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+$/; // as Python has it
// Accents, joiners, skin tones, letters within a flag: they belong to the character before (marks.py).
const MARK = /^[\p{M}\u200c\u200d\uff9e\uff9f\u{1f3fb}-\u{1f3ff}\u{e0020}-\u{e007f}]$/u;
const BREAKS = { "\n": "␊", "\t": "␉", "\u2028": "⟨2028⟩", "\u2029": "⟨2029⟩" };

/** The text with acting characters shown as symbols; line breaks and tabs stay. */
export function visible(text) {
  return text.replace(ACTING, symbol);
}

/** The same on one line: for tokens in tables, labels and titles. Nothing but blanks is shown as ␣; an
 * accent that stands alone sits on a dotted circle. */
export function inLine(text) {
  const shown = visible(text).replace(/[\n\t\u2028\u2029]/g, (found) => BREAKS[found]);
  if (BLANK.test(text)) return shown.replace(/[^␀-␡⟨⟩0-9A-F]/g, "␣");
  return /^\p{M}/u.test(text) ? `◌${shown}` : shown;
}

/** Whether at `place` of a text's characters a mark stands behind the one that it belongs to. */
export function carriesOn(characters, place) {
  return place > 0 && place < characters.length && MARK.test(characters[place]) && !BLANK.test(characters[place - 1]);
}

function symbol(found) {
  const code = found.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  const name = BIDI.get(code) ?? code.toString(16).toUpperCase().padStart(2, "0");
  return `⟨${name}⟩`;
}
