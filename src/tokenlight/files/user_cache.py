"""The folder in which tokenlight remembers, for later runs, what it found out about models."""

import os
from pathlib import Path

DISABLED = "off"


def find_cache_folder() -> Path | None:
    """Return the cache folder, which may not exist yet; None if the user turned it off.

    The environment variable ``TOKENLIGHT_CACHE`` names it, or is ``off``. By default it is the folder
    ``tokenlight`` in the user's cache folder.

    Example:
        >>> from tokenlight.files.user_cache import find_cache_folder
        >>> folder = find_cache_folder()
    """
    configured = os.environ.get("TOKENLIGHT_CACHE")
    if configured == DISABLED:
        return None
    if configured:
        return Path(configured)
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache, "tokenlight")
