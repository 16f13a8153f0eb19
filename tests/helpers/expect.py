"""Expect an error by its class and its stable code; texts stand in tests/snapshots/messages.txt."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tokenlight.errors import TokenlightError


@contextmanager
def expect_error(
    error_class: type[TokenlightError], code: str, *, mentions: str = ""
) -> Iterator[pytest.ExceptionInfo[TokenlightError]]:
    """Assert that the block raises ``error_class`` with ``code``.

    Args:
        error_class: The class, or a base of it.
        code: The code that the raise statement passes.
        mentions: A value that the message must contain, such as the name that was given.
    """
    with pytest.raises(error_class) as caught:
        yield caught
    assert caught.value.code == code, f"{caught.value.code}: {caught.value}"
    assert mentions in str(caught.value)
