// Arithmetic on explanations: words, differences, strengths, ranks, errors. Nothing is drawn here.

const MIN_ERRORS_FROM_ZERO = 2; // as the library's Attribution.uncertain_mask

/** One score per word, the sum of its tokens; special tokens are not merged. `groups` holds the tokens. */
export function mergedWords(attribution) {
  const { row } = attribution;
  const groups = [];
  row.words.forEach((word, position) => {
    const last = groups.at(-1);
    if (last && word !== null && word === row.words[last.at(-1)]) last.push(position);
    else groups.push([position]);
  });
  const sum = (values) => groups.map((group) => group.reduce((total, i) => total + values[i], 0));
  const heads = (values) => groups.map((group) => values[group[0]]);
  const span = (group) => {
    const [first, last] = [row.spans[group[0]], row.spans[group.at(-1)]];
    return first && last ? [first[0], last[1]] : null;
  };
  return {
    ...attribution,
    scores: sum(attribution.scores),
    layers: attribution.layers && attribution.layers.map(sum),
    // The largest error that a sum can have, as the library has it.
    standard_errors: attribution.standard_errors && sum(attribution.standard_errors),
    row: {
      ...row,
      attention: heads(row.attention),
      token_types: row.token_types && heads(row.token_types),
      special: heads(row.special),
      segments: heads(row.segments),
      words: heads(row.words),
      spans: groups.map(span),
      pieces: groups.map((group) => group.map((i) => row.pieces[i]).join("")),
    },
    groups,
  };
}

/** One score per token, in the same form as `mergedWords`. */
export function byToken(attribution) {
  return { ...attribution, groups: attribution.scores.map((_, position) => [position]) };
}

/** This minus the reference, both first divided by their L1 sum (Mask-LRP, figure 6). */
export function difference(attribution, reference) {
  const [own, other] = [shares(attribution.scores), shares(reference.scores)];
  return {
    ...attribution,
    scores: own.map((value, i) => value - other[i]),
    layers: null,
    of: "difference",
    standard_errors: differenceErrors(attribution, reference),
  };
}

/** Standard errors of a difference of shares: the root of the sum of squares; null if neither was sampled. */
function differenceErrors(attribution, reference) {
  const sampled = [attribution, reference].filter((term) => term.standard_errors);
  if (!sampled.length) return null;
  const scaled = sampled.map((term) => term.standard_errors.map((error) => error / totalSize(term.scores)));
  return attribution.scores.map((_, i) => Math.hypot(...scaled.map((errors) => errors[i])));
}

/** How far the sum of some scores may be off, at most; null for a method that does not sample. */
export function errorOf(attribution, positions) {
  const errors = attribution.standard_errors;
  return errors ? positions.reduce((sum, position) => sum + errors[position], 0) : null;
}

/** Whether a score is less than two of its standard errors. */
export function couldBeZero(score, error) {
  return error !== null && Math.abs(score) < MIN_ERRORS_FROM_ZERO * error;
}

/** Largest magnitude over the text's own tokens, or over all where all are special. */
export function strongest(attribution) {
  const textPositions = textPositionsOf(attribution.row);
  const positions = textPositions.length ? textPositions : attribution.scores.map((_, position) => position);
  return positions.reduce((max, i) => Math.max(max, Math.abs(attribution.scores[i])), 0);
}

/** Positions of the tokens that are the text's own. */
function textPositionsOf(row) {
  return row.special.flatMap((special, position) => (special ? [] : [position]));
}

/** Positions by magnitude, strongest first, special ones left out; equal ones keep their order. */
export function byMagnitude(attribution) {
  const size = (position) => Math.abs(attribution.scores[position]);
  return textPositionsOf(attribution.row).sort((first, second) => size(second) - size(first));
}

/** Spearman's correlation of two explanations of one text; null where one ranks nothing. */
export function agreement(first, second) {
  const [x, y] = [unitRanks(first), unitRanks(second)];
  return x && y ? x.reduce((total, value, i) => total + value * y[i], 0) : null;
}

/** The token on which two explanations of one text differ most by rank; empty where one ranks nothing. */
export function mostApart(first, second) {
  const [x, y] = [unitRanks(first), unitRanks(second)];
  if (!x || !y) return "";
  const gaps = x.map((value, i) => Math.abs(value - y[i]));
  const position = textPositionsOf(first.row)[gaps.indexOf(Math.max(...gaps))];
  return first.row.pieces[position].trim();
}

/** Whether two explanations are of the same tokens, so that they can be compared. */
export function sameTokens(first, second) {
  return (
    first.row.ids.length === second.row.ids.length
    && first.row.ids.every((id, position) => id === second.row.ids[position])
  );
}

function unitRanks(attribution) {
  const scores = textPositionsOf(attribution.row).map((position) => attribution.scores[position]);
  const ranks = midranks(scores);
  const mean = ranks.reduce((a, b) => a + b, 0) / ranks.length;
  const centered = ranks.map((rank) => rank - mean);
  const length = Math.sqrt(centered.reduce((total, value) => total + value * value, 0));
  return scores.length > 1 && length > 0 ? centered.map((value) => value / length) : null;
}

/** Ranks from 1, lowest first; equal scores share the mean of their ranks. */
function midranks(scores) {
  const order = scores.map((_, position) => position).sort((a, b) => scores[a] - scores[b]);
  const ranks = new Array(scores.length);
  for (let start = 0; start < order.length;) {
    let end = start;
    while (end < order.length && scores[order[end]] === scores[order[start]]) end += 1;
    for (let i = start; i < end; i += 1) ranks[order[i]] = (start + 1 + end) / 2;
    start = end;
  }
  return ranks;
}

function shares(scores) {
  const total = totalSize(scores);
  return scores.map((value) => value / total);
}

function totalSize(scores) {
  return scores.reduce((sum, value) => sum + Math.abs(value), 0) || 1;
}
