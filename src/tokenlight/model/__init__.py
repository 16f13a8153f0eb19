"""What a model is: its head, inputs, outputs, embeddings and padding, and whether to trust its numbers."""
