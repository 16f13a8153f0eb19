"""The version, written once in pyproject.toml and read from the installed package."""

from importlib.metadata import PackageNotFoundError, version


def version_of(library: str, otherwise: str = "missing") -> str:
    """Return the version of an installed library; ``otherwise`` if it is not installed."""
    try:
        return version(library)
    except PackageNotFoundError:
        return otherwise


# The fallback is for a source folder that is not installed.
VERSION = version_of("tokenlight", "0+source")
