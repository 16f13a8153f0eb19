"""From explanations to a verdict: measure, compare, choose, and go on where a run stopped."""
