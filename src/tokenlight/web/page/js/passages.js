// Split the user's text at the tokens: every character appears once, in its order.
// Spans count characters as Python does (code points), so texts are cut as arrays of those.

import { continuesCharacter } from "./characters.js";

/**
 * [{segment, stretches: [{text, positions, special}]}]: `positions` are token numbers, none between tokens.
 */
export function passages(row) {
  if (!row.spans.some((span) => span !== null)) return [{ segment: null, stretches: pieces(row) }];
  const homes = placeSpecialTokens(row);
  return row.texts.map((text, segment) => ({
    segment,
    stretches: splitSegment(row, segment, Array.from(text), homes),
  }));
}

function pieces(row) {
  return row.pieces.flatMap((piece, position) => {
    const stretch = { text: piece, positions: [position], special: row.special[position] };
    return position ? [{ text: " ", positions: [] }, stretch] : [stretch];
  });
}

/**
 * Special token → [segment, token it follows there]; -1 where it stands before the segment's first:
 * no text is before it, or its token type says that it opens the text behind it.
 */
function placeSpecialTokens(row) {
  const homes = new Map();
  const isInText = (position) => row.segments[position] !== null && row.spans[position] !== null;
  const types = row.token_types ?? row.segments.map(() => 0);
  let before = -1;
  row.segments.forEach((_, position) => {
    if (isInText(position)) {
      before = position;
      return;
    }
    const behind = row.segments.findIndex((_, later) => later > position && isInText(later));
    const turns = () => types[before] !== types[position] && types[position] === types[behind];
    const opens = behind >= 0 && (before < 0 || turns());
    homes.set(position, opens ? [row.segments[behind], -1] : [row.segments[before], before]);
  });
  return homes;
}

function splitSegment(row, segment, characters, homes) {
  const chips = new Map();
  for (const [position, [home, after]] of homes) {
    if (home !== segment) continue;
    const chip = { text: row.pieces[position], positions: [position], special: true };
    chips.set(after, [...(chips.get(after) ?? []), chip]);
  }
  const takeChips = (after) => {
    const chipsThere = chips.get(after) ?? [];
    chips.delete(after);
    return chipsThere;
  };
  const stretches = takeChips(-1);
  const groups = overlapping(row, segment, characters);
  let reached = 0;
  groups.forEach(({ start, end, positions }, number) => {
    if (start > reached) stretches.push(plainStretch(characters.slice(reached, start).join("")));
    stretches.push(...trimmed(characters.slice(start, end).join(""), positions));
    reached = end;
    // After the last token chips wait for the end of the text.
    if (number < groups.length - 1) positions.forEach((position) => stretches.push(...takeChips(position)));
  });
  if (reached < characters.length) stretches.push(plainStretch(characters.slice(reached).join("")));
  for (const remaining of chips.values()) stretches.push(...remaining);
  return stretches;
}

/** Split white space off the edges; a token of only white space stays whole. */
function trimmed(text, positions) {
  const core = text.trim() || text;
  const lead = text.indexOf(core);
  const parts = [{ text: core, positions }];
  if (lead) parts.unshift(plainStretch(text.slice(0, lead)));
  if (lead + core.length < text.length) parts.push(plainStretch(text.slice(lead + core.length)));
  return parts;
}

/** Spans of a segment in text order, those that share characters joined, or a letter and its mark. */
function overlapping(row, segment, characters) {
  const spans = row.spans
    .flatMap((span, position) => (span && row.segments[position] === segment ? [{ span, position }] : []))
    .sort((a, b) => a.span[0] - b.span[0] || a.span[1] - b.span[1] || a.position - b.position);
  const joined = [];
  for (const {
    span: [start, end],
    position,
  } of spans) {
    const last = joined.at(-1);
    const shares = last && start < last.end && end > last.start;
    if (shares || (last && start === last.end && continuesCharacter(characters, start))) {
      last.end = Math.max(last.end, end);
      last.positions.push(position);
    } else {
      joined.push({ start, end, positions: [position] });
    }
  }
  return joined;
}

function plainStretch(text) {
  return { text, positions: [] };
}
