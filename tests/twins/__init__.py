"""Twins: a slow second implementation of each formula, written from the paper; both must agree."""
