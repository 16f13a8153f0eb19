"""One file, one metric; the file's name is the metric's name."""
