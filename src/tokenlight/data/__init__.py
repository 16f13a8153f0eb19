"""Plain values: tokens, targets, images and explanations. No torch, no model."""
