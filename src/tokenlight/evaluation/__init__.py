"""Evaluate explanations: measure, test, compare, choose, and resume interrupted runs."""
