"""A model: its runner, head, inputs, outputs, embeddings and padding, and the probe of its logits."""
