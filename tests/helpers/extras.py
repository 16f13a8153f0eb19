"""Libraries that only ``make test-extras`` installs: there a missing one fails, elsewhere it skips."""

import importlib
import os
from typing import Any

import pytest


def import_extra(*names: str) -> Any:
    """Return the first of these modules that can be imported; skip the test, or fail, without any."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    reason = f"{' or '.join(names)} is not installed; run: make test-extras"
    if os.environ.get("TOKENLIGHT_EXTRAS") == "1":
        return pytest.fail(reason)
    return pytest.skip(reason)
