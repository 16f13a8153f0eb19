"""The project itself: import rows, docstrings, guide, README, examples, packaging."""
