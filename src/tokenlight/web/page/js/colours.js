// From a score to the class of a colour: sign chooses the hue, strength the step (palette.css).

const STEPS = 12;
export const LEGEND = Array.from({ length: 2 * STEPS + 1 }, (_, index) => stepName(index - STEPS) || "none");

/** CSS class of a score, `f7` for or `a7` against; empty for a score that is practically zero. */
export function look(score, scale) {
  return stepName(scale ? roundHalfEven(Math.max(-1, Math.min(1, score / scale)) * STEPS) : 0);
}

/** The faintest class of a sign, for bars too short to have a step. */
export function atLeastFaint(score, scale) {
  return look(score, scale) || stepName(Math.sign(score));
}

function stepName(step) {
  return step === 0 ? "" : `${step > 0 ? "f" : "a"}${Math.abs(step)}`;
}

/** Round halves to even like Python, so that page and saved file show the same colour. */
function roundHalfEven(value) {
  const below = Math.floor(value);
  if (value - below !== 0.5) return Math.round(value);
  return below % 2 === 0 ? below : below + 1;
}
