"""Snapshots: what the terminal and the pages show, and every message, word for word."""
