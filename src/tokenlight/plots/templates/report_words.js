"use strict";
// Which words drive a group of texts: pure functions over the entries of the report.
const MAX_WORDS = 10;
const MAX_CLUSTERS = 8;
const LEADING_WORDS = 3;
const MIN_SHARE = 0.05;
const MIN_ERRORS = 10; // with fewer errors of a kind, a word may stand out by chance

const isWrong = (entry) => "label" in entry && entry.label !== entry.predicted;

// The explanation of the predicted class by one method; the differences between methods do not count.
function findExplanation(entry, method) {
  return entry.explained.find(
    (explanation) =>
      explanation.name === method && !explanation.kind && explanation.target === entry.predicted,
  );
}

// "don't" and "it's" come in pieces. A negation is one word with what it negates; "'s" is a word of its own.
// A gap is a piece without text, so that "do n't" stays two words.
function joinApostrophes(pieces) {
  const words = [];
  const append = (word, piece) => {
    word.text += piece.text;
    word.score += piece.score;
  };
  for (const piece of pieces) {
    const previous = words.at(-1);
    const endsWord = previous?.text === "'" && /^(?:s|t|re|ve|ll|d|m)$/u.test(piece.text);
    if (endsWord) append(previous, piece);
    else words.push({ ...piece });
    const host = words.at(-2);
    if (words.at(-1).text === "'t" && host && /\p{L}$/u.test(host.text)) append(host, words.pop());
  }
  return words;
}

// Word → its share of all absolute scores in the text, signed: positive speaks for the predicted class.
function computeShares(entry, method) {
  const explanation = findExplanation(entry, method);
  const shares = new Map();
  if (!explanation) return shares;
  let total = 0;
  for (const [lineNumber, scores] of explanation.lines) {
    const shape = entry.lines[lineNumber];
    const values = scores.split(",");
    const pieces = shape.texts.map((text, i) => {
      const isSpecial = (shape.classes[i] || "").startsWith("chip");
      if (values[i] === "" || values[i] === undefined || isSpecial) return { text: "", score: 0 };
      return { text: text.trim().toLowerCase().replaceAll("’", "'"), score: Number(values[i]) };
    });
    for (const { score } of pieces) total += Math.abs(score);
    for (const { text, score } of joinApostrophes(pieces))
      if (/[\p{L}\p{N}]/u.test(text)) shares.set(text, (shares.get(text) || 0) + score);
  }
  for (const [word, score] of shares) shares.set(word, total ? score / total : 0);
  return shares;
}

// Word → sum of shares and number of texts, over some texts.
function sumShares(entries, sharesOf) {
  const sums = new Map();
  for (const entry of entries)
    for (const [word, share] of sharesOf(entry)) {
      const sum = sums.get(word) || { share: 0, count: 0, example: entry };
      sum.share += share;
      sum.count += 1;
      sums.set(word, sum);
    }
  return sums;
}

// The words that raise a group of errors above the right predictions of the same class; for a group of right
// or unlabeled texts, those with the largest Σ share · ln(N / number of texts with the word).
function rankWords(group, all, sharesOf) {
  const groupSums = sumShares(group.entries, sharesOf);
  const isRightAlike = (entry) => "label" in entry && !isWrong(entry) && entry.predicted === group.predicted;
  const rightTexts = group.isError ? all.filter(isRightAlike) : [];
  const right = sumShares(rightTexts, sharesOf);
  const everywhere = group.isError ? new Map() : sumShares(all, sharesOf);
  const ranked = [];
  for (const [word, { share, count, example }] of groupSums) {
    const rightSum = right.get(word) || { share: 0, count: 0 };
    let weight;
    if (group.isError) {
      const rightMean = rightTexts.length ? rightSum.share / rightTexts.length : 0;
      weight = share / group.entries.length - rightMean;
    } else {
      weight = share * Math.log(all.length / everywhere.get(word).count);
    }
    const rightCounts = { rightCount: rightSum.count, rightTotal: rightTexts.length };
    if (weight > 0) ranked.push({ word, weight, count, example, ...rightCounts });
  }
  return ranked.sort((a, b) => b.weight - a.weight || a.word.localeCompare(b.word)).slice(0, MAX_WORDS);
}

// Texts by true and predicted label: errors first, large groups first.
function groupTexts(entries) {
  const groups = new Map();
  for (const entry of entries) {
    const { label, predicted } = entry;
    const isError = isWrong(entry);
    const key = JSON.stringify([isError ? label : null, predicted]);
    if (!groups.has(key)) groups.set(key, { label, predicted, isError, entries: [] });
    groups.get(key).entries.push(entry);
  }
  return [...groups.values()].sort((a, b) => b.isError - a.isError || b.entries.length - a.entries.length);
}

// What the words of errors cannot tell: of few errors, and of those explained for another label.
function describeErrorLimits(shown, methods) {
  const groups = groupTexts(shown).filter((group) => group.isError);
  const isRead = (entry) => methods.some((method) => findExplanation(entry, method));
  const unread = groups.flatMap((group) => group.entries).filter((entry) => !isRead(entry)).length;
  const isFew = ({ entries }) => entries.length < MIN_ERRORS && entries.some(isRead);
  const limits = [];
  if (groups.some(isFew))
    limits.push(`With fewer than ${MIN_ERRORS} errors of a kind, a word may stand out by chance.`);
  if (unread)
    limits.push(
      `Errors whose explanation is for another label than the predicted one: ${unread}. `
      + "Their words are not listed here.",
    );
  return limits.join(" ");
}

// Errors whose strongest words are the same: each text belongs to the largest cluster that it fits.
function clusterErrors(errors, all, sharesOf) {
  const documents = sumShares(all, sharesOf);
  const rarity = (word) => Math.log(all.length / documents.get(word).count);
  const byRarity = (a, b) => b[1] * rarity(b[0]) - a[1] * rarity(a[0]);
  const leadingWords = (entry) => {
    const candidates = [...sharesOf(entry)].filter(([word, share]) => share >= MIN_SHARE && rarity(word) > 0);
    return candidates
      .sort(byRarity)
      .slice(0, LEADING_WORDS)
      .map(([word]) => word);
  };
  let remaining = errors.map((entry) => ({ entry, words: leadingWords(entry) }));
  const clusters = [];
  while (clusters.length < MAX_CLUSTERS) {
    const counts = new Map();
    for (const { words } of remaining) {
      for (const word of words) counts.set(word, (counts.get(word) || 0) + 1);
    }
    const shared = [...counts]
      .filter(([, count]) => count > 1)
      .sort((a, b) => byRarity(a, b) || a[0].localeCompare(b[0]));
    if (!shared.length) break;
    const [word, ...candidates] = shared.map(([candidate]) => candidate);
    const members = remaining.filter(({ words }) => words.includes(word));
    const isCommon = (other) =>
      2 * members.filter(({ words }) => words.includes(other)).length >= members.length;
    const others = candidates.filter(isCommon);
    clusters.push({
      words: [word, ...others].slice(0, LEADING_WORDS),
      entries: members.map((member) => member.entry),
    });
    remaining = remaining.filter((member) => !members.includes(member));
  }
  return clusters;
}

// One cell of a CSV file; a cell that a spreadsheet would take for a formula is marked as text.
function formatCell(value) {
  let cell = String(value ?? "");
  if (/^[=+\-@\t\r]/.test(cell) && !/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(cell)) cell = "'" + cell;
  return /[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell;
}
