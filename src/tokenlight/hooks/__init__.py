"""Instrumenting a live model: locks, temporary patches, the attention hook."""
