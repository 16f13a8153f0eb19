"""All texts that users may read stand in one file that an editor can read."""

import pytest

from tests.helpers.expect import expect_error
from tests.tools.messages import SNAPSHOT, collect_messages
from tokenlight import errors
from tokenlight.errors import BadInput, TokenlightError


def test_the_snapshot_holds_every_text_as_it_is():
    assert SNAPSHOT.read_text(encoding="utf-8") == collect_messages(), (
        "run `python -m tests.tools.messages` and read the difference"
    )


def test_every_class_of_error_has_a_unique_code():
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    codes = [value.code for value in classes if issubclass(value, TokenlightError)]
    assert len(codes) == len(set(codes)) > 10
    assert all(code == code.lower() and " " not in code for code in codes)


def test_an_error_may_have_another_code_than_its_class():
    with expect_error(BadInput, "empty-text"):
        raise BadInput("The text is empty.", code="empty-text")
    with pytest.raises(AssertionError), expect_error(BadInput, "empty-text"):
        raise BadInput("The text is empty.")
