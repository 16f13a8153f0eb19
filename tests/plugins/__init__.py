"""Pytest plug-ins of this project, loaded by `tests/conftest.py`."""
