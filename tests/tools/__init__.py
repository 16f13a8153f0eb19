"""Scripts that generate or check files of the project: `python -m tests.tools.NAME`."""
