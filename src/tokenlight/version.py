"""The version, written once in pyproject.toml and read from the installed package."""

from importlib.metadata import PackageNotFoundError, version


def get_version(library: str, default: str = "missing") -> str:
    """Return the version of an installed library; ``default`` if it is not installed."""
    try:
        return version(library)
    except PackageNotFoundError:
        return default


# The fallback is for a source folder that is not installed.
VERSION = get_version("tokenlight", "0+source")
