"""Public names of files/tables.py: reading tables of texts."""

from tokenlight.files.tables import Example, read_examples

__all__ = ["Example", "read_examples"]
