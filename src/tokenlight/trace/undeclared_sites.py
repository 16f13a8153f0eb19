"""The error for a method that reads something it did not declare."""

from enum import Enum
from typing import TypeVar

from tokenlight.errors import BadInput

T = TypeVar("T")


def require_recorded(recorded: T | None, site: Enum) -> T:
    """Return what a pass recorded at ``site``.

    Raises:
        BadInput: If it is None, False or empty, because no method declared the site.
    """
    if not recorded:
        raise BadInput(
            f"A method reads the {site.value} of the tape without declaring it, so it was not recorded. "
            f"Add it to the sites in the method's class: needs = frozenset({{Site.{site.name}}}).",
            code="site-not-declared",
        )
    return recorded
