"""Metrics: one file is one metric, and the name of the file is the name of the metric."""
