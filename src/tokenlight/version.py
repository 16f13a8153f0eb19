"""The version, written once in pyproject.toml and read from the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _found() -> str:
    try:
        return version("tokenlight")
    except PackageNotFoundError:  # run from a source folder that is not installed
        return "0+source"


VERSION = _found()
