// Format numbers for people.

/** Format a score with sign and three digits, with a minus as wide as the plus. */
export function signed(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e-4 && size < 1e5 ? String(Number(size.toPrecision(3))) : power(size);
  return (value > 0 ? "+" : "−") + text;
}

/** Format a standard error with two digits: "± 0.041". */
export function plusMinus(error) {
  return `± ${error >= 1e-4 && error < 1e5 ? Number(error.toPrecision(2)) : power(error)}`;
}

/** Drop digits without information from an exponent: 3.3e−5. */
function power(size) {
  const [digits, exponent] = size.toExponential(2).split("e");
  return `${Number(digits)}e${exponent.replace("-", "−")}`;
}

/** Format a number with this many decimals; what rounds to zero has no sign. */
export function decimals(value, digits = 2) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** Format a probability in percent, never rounding to 0 or 100. */
export function percent(probability) {
  if (probability >= 0.9995 && probability < 1) return ">99.9 %";
  if (probability > 0 && probability < 0.0005) return "<0.1 %";
  return `${(100 * probability).toFixed(1)} %`;
}

/** Format a count with its noun: "3 tokens", "1 token". */
export function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/** Limit a number to a range. */
export function clamped(value, low, high) {
  return Math.min(high, Math.max(low, value));
}
