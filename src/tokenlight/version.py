"""The version, written once in pyproject.toml and read from the installed package."""

from importlib.metadata import PackageNotFoundError, version


def version_of(library: str, otherwise: str = "missing") -> str:
    """The version of an installed library; ``otherwise`` where there is none."""
    try:
        return version(library)
    except PackageNotFoundError:
        return otherwise


VERSION = version_of("tokenlight", "0+source")  # run from a source folder that is not installed
