"""One call of explain(): its options, its rows, and their batches through the model."""
