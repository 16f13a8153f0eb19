// The text a person wrote, cut where the tokens stand: every character once, in its own order.
// Spans count characters as Python does (code points), so texts are cut as arrays of those.

import { carriesOn } from "./characters.js";

/** [{segment, stretches: [{text, places, special}]}]: `places` are token numbers, none between tokens. */
export function passages(row) {
  if (!row.spans.some((span) => span !== null)) return [{ segment: null, stretches: pieces(row) }];
  const homes = homesOfSpecials(row);
  return row.texts.map((text, segment) => ({
    segment,
    stretches: cut(row, segment, Array.from(text), homes),
  }));
}

function pieces(row) {
  return row.pieces.flatMap((piece, place) => {
    const own = { text: piece, places: [place], special: row.special[place] };
    return place ? [{ text: " ", places: [] }, own] : [own];
  });
}

/**
 * Special token → [segment, token it follows there]; -1 where it stands before the segment's first:
 * no text is before it, or its token type says that it opens the text behind it.
 */
function homesOfSpecials(row) {
  const homes = new Map();
  const own = (place) => row.segments[place] !== null && row.spans[place] !== null;
  const types = row.token_types ?? row.segments.map(() => 0);
  let before = -1;
  row.segments.forEach((_, place) => {
    if (own(place)) {
      before = place;
      return;
    }
    const behind = row.segments.findIndex((_, later) => later > place && own(later));
    const turns = () => types[before] !== types[place] && types[place] === types[behind];
    const opens = behind >= 0 && (before < 0 || turns());
    homes.set(place, opens ? [row.segments[behind], -1] : [row.segments[before], before]);
  });
  return homes;
}

function cut(row, segment, characters, homes) {
  const chips = new Map();
  for (const [place, [home, after]] of homes) {
    if (home !== segment) continue;
    const chip = { text: row.pieces[place], places: [place], special: true };
    chips.set(after, [...(chips.get(after) ?? []), chip]);
  }
  const taken = (after) => {
    const found = chips.get(after) ?? [];
    chips.delete(after);
    return found;
  };
  const stretches = taken(-1);
  const groups = overlapping(row, segment, characters);
  let reached = 0;
  groups.forEach(({ start, end, places }, number) => {
    if (start > reached) stretches.push(between(characters.slice(reached, start).join("")));
    stretches.push(...trimmed(characters.slice(start, end).join(""), places));
    reached = end;
    // After the last token chips wait for the end of the text.
    if (number < groups.length - 1) places.forEach((place) => stretches.push(...taken(place)));
  });
  if (reached < characters.length) stretches.push(between(characters.slice(reached).join("")));
  for (const rest of chips.values()) stretches.push(...rest);
  return stretches;
}

/** White space at the edges stands apart; a token that is all white space stays whole. */
function trimmed(text, places) {
  const core = text.trim() || text;
  const lead = text.indexOf(core);
  const parts = [{ text: core, places }];
  if (lead) parts.unshift(between(text.slice(0, lead)));
  if (lead + core.length < text.length) parts.push(between(text.slice(lead + core.length)));
  return parts;
}

/** Spans of a segment in text order, those that share characters joined, or a letter and its mark. */
function overlapping(row, segment, characters) {
  const found = row.spans
    .flatMap((span, place) => (span && row.segments[place] === segment ? [{ span, place }] : []))
    .sort((a, b) => a.span[0] - b.span[0] || a.span[1] - b.span[1] || a.place - b.place);
  const joined = [];
  for (const { span: [start, end], place } of found) {
    const last = joined.at(-1);
    const shares = last && start < last.end && end > last.start;
    if (shares || (last && start === last.end && carriesOn(characters, start))) {
      last.end = Math.max(last.end, end);
      last.places.push(place);
    } else {
      joined.push({ start, end, places: [place] });
    }
  }
  return joined;
}

function between(text) {
  return { text, places: [] };
}
