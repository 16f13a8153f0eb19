"""Tables of texts, for users: ``from tokenlight.datafiles import read``. It lives in files/tables.py."""

from tokenlight.files.tables import Example, read

__all__ = ["Example", "read"]
