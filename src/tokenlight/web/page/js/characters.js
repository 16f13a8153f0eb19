// Control characters and direction marks made visible, as tokenlight.plots.characters does.

const CHARACTER_NAMES = new Map([
  [0xad, "SHY"],
  [0x61c, "ALM"],
  [0x180e, "MVS"],
  [0x200b, "ZWSP"],
  [0x200c, "ZWNJ"],
  [0x200d, "ZWJ"],
  [0x200e, "LRM"],
  [0x200f, "RLM"],
  [0x2060, "WJ"],
  [0xfeff, "BOM"],
  [0x202a, "LRE"],
  [0x202b, "RLE"],
  [0x202c, "PDF"],
  [0x202d, "LRO"],
  [0x202e, "RLO"],
  [0x2066, "LRI"],
  [0x2067, "RLI"],
  [0x2068, "FSI"],
  [0x2069, "PDI"],
]);
// Control characters, marks of direction, characters without width, and halves of surrogate pairs.
const CONTROL_CHARACTERS = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f"
    + "\\u202a-\\u202e\\u2060-\\u2064\\u2066-\\u2069\\ufeff]|\\p{Surrogate}",
  "gu",
);
// Joiners beside a Latin letter, a digit or a blank join nothing.
const STRAY_JOINERS = /(?<=[\u0000-\u02ff])[\u200c\u200d]|[\u200c\u200d](?=[\u0000-\u02ff])/gu;
// As Python has it.
const BLANK = /^[\t-\r\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+$/;
// Accents, joiners, skin tones, letters within a flag: they belong to the character before (marks.py).
const MARK = /^[\p{M}\u200c\u200d\uff9e\uff9f\u{1f3fb}-\u{1f3ff}\u{e0020}-\u{e007f}]$/u;
const BREAKS = { "\n": "↵", "\t": "␉", "\u2028": "⟨2028⟩", "\u2029": "⟨2029⟩" };

/** Show control characters as symbols; keep line breaks and tabs. */
export function visible(text) {
  return text.replace(STRAY_JOINERS, symbol).replace(CONTROL_CHARACTERS, symbol);
}

/** The same on one line: for tokens in tables, labels and titles. Nothing but blanks is shown as ␣; an
 * accent that stands alone sits on a dotted circle. */
export function inLine(text) {
  if (text === "\u200c" || text === "\u200d") return symbol(text);
  const shown = visible(text).replace(/[\n\t\u2028\u2029]/g, (character) => BREAKS[character]);
  if (BLANK.test(text)) return shown.replace(/[^␀-␡↵⟨⟩0-9A-F]/g, "␣");
  return /^\p{M}/u.test(text) ? `◌${shown}` : shown;
}

/** Whether the character at `position` is a combining mark of the one before it. */
export function continuesCharacter(characters, position) {
  return (
    position > 0
    && position < characters.length
    && MARK.test(characters[position])
    && !BLANK.test(characters[position - 1])
  );
}

/** Shorten a text to `maxLength` characters, ending in an ellipsis. */
export function shortened(text, maxLength) {
  const characters = Array.from(text);
  return characters.length <= maxLength ? text : `${characters.slice(0, maxLength - 1).join("")}…`;
}

function symbol(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  const name = CHARACTER_NAMES.get(code) ?? code.toString(16).toUpperCase().padStart(2, "0");
  return `⟨${name}⟩`;
}
