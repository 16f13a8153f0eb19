"""LRP as another backward pass: pure torch, knows no model."""
