"""Arguments checked against signatures: each kind of type, and the messages of the errors."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Unpack

import numpy as np
import pytest

from tests.helpers.expect import expect_error
from tokenlight import Attribution
from tokenlight.errors import BadInput, BadTarget, UnknownKeyword, Unwritable
from tokenlight.errors.arguments import (
    UNCHECKED,
    Count,
    Range,
    Seed,
    check_fields,
    check_items,
    checked,
)


@pytest.mark.parametrize(
    ("kind", "good", "bad", "words"),
    [
        (int, (3, np.int64(2), -1), (True, 0.5, "3", None), "a whole number"),
        (float, (0.5, 3, np.float32(1)), (True, "x", 1j), "a number"),
        (str, ("", "x"), (b"x", 3, None), "a text"),
        (bool, (True, np.bool_(False)), (0, "yes"), "True or False"),
        (str | os.PathLike[str], ("a", Path("a")), (b"a", 3, ["a"]), "a text or a path"),
        (int | None, (3, None), ("x",), "a whole number or None"),
        (Count, (1, 1 << 20), (0, 10**9, True), "a whole number from 1 to 1,048,576"),
        (Seed, (0, 10**30), (-1, inf), "a whole number, 0 or more"),
        (Annotated[float, Range(0, 1)], (0, 0.5), (-0.1, float("nan")), "a number from 0 to 1"),
        (Literal["a", "b"], ("a",), ("c", 0, np.array([])), "'a' or 'b'"),
        (Sequence[str], (["x"], ("x",), [], np.array(["x"])), ("x", b"x", [1], {"x"}, 3), "a list of a text"),
        (Iterable[int], ([1], iter("ab"), {1}), ("x", ["x"], {}, 3, np.array(1)), "a list of a whole number"),
        (tuple[int, ...], ((), (1, 2)), ([1], ("x",)), "a list of a whole number"),
        (tuple[str, dict[str, Any]], (("x", {}),), (("x",), ("x", 1), (1, {})), "a tuple (a text, a dict)"),
        (Mapping[str, int], ({}, {"a": 1}), ([], None), "a mapping such as a dict"),
        (Callable[[int], None], (print,), (3, "print"), "a function"),
        (Path, (Path("a"),), ("a",), "a Path object"),
        (Any, (3, None, object()), (), ""),
        (np.ndarray, ([1.0], np.zeros(2)), (), ""),
        (Annotated[int, UNCHECKED], ("x", 3), (), ""),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused(kind, good, bad, words):
    def take(value):
        return value

    take.__annotations__ = {"value": kind}
    function = checked(take)
    for value in good:
        assert function(value) is value
    for value in bad:
        with expect_error(BadInput, "invalid-argument") as caught:
            function(value)
        assert str(caught.value).startswith("value=")
        assert str(caught.value).endswith(f"is not valid for take. Give {words}.")


class Options(TypedDict, total=False):
    seed: int
    limit: int | None


@checked
def measure(texts: "Nowhere", *, method: str = "a", **options: Unpack[Options]) -> Any:  # noqa: F821
    return texts, method, options


def test_an_unknown_keyword_is_refused_with_similar_names():
    assert measure(1, seed=2) == (1, "a", {"seed": 2})
    with pytest.raises(
        UnknownKeyword, match=r"'sede'\. Did you mean 'seed'\? Known: limit, method, seed"
    ):
        measure(1, sede=2)
    with pytest.raises(TypeError):
        measure(1, methd="b")
    with expect_error(BadInput, "invalid-argument", mentions="seed='x' is not valid for measure"):
        measure(1, seed="x")


def test_a_missing_argument_keeps_the_message_of_python():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'texts'"):
        measure()


@dataclass(frozen=True)
class Plan:
    workers: Count
    name: str = ""

    def __post_init__(self):
        check_fields(self, "workers", error=BadTarget)


def test_only_the_named_fields_are_checked():
    assert Plan(2, name=3).name == 3
    with expect_error(BadTarget, "invalid-argument", mentions="workers=0 is not valid for Plan"):
        Plan(0)


def test_an_invalid_entry_of_a_list_is_named_by_its_index():
    check_items("texts", ["a"], str)
    with expect_error(BadInput, "invalid-list-entry", mentions="1 of texts (counted from 0) is 3"):
        check_items("texts", ["a", 3], str)


def test_an_unwritable_path_keeps_the_error_number(tmp_path):
    attribution = Attribution.from_arrays([0.5, 0.1], [4, 5], [0.2, 0.8])
    (tmp_path / "file").write_text("")
    with pytest.raises(
        Unwritable, match=r"Cannot write .*a\.json: .*\. Give another path"
    ) as caught:
        attribution.save(tmp_path / "file" / "a.json")
    assert isinstance(caught.value, OSError)
    assert caught.value.errno
    with pytest.raises(Unwritable, match="invalid character"):
        attribution.save("a\0.json")


@pytest.mark.parametrize("k", [-1, "x", 2.5, None, True])
def test_an_invalid_number_of_tokens_is_refused(k):
    attribution = Attribution.from_arrays([0.5, 0.1], [4, 5], [0.2, 0.8])
    valid = "is not valid for top. Give a whole number, 0 or more"
    with expect_error(BadInput, "invalid-argument", mentions=valid):
        attribution.top(k)
