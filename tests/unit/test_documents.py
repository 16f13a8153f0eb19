"""JSON and YAML of others: read as ever within the limits, refused in words beyond them."""

from __future__ import annotations

import json

import pytest
import yaml

from tokenlight.files.documents import BYTES, DEPTH, DIGITS, json_of, text_of, yaml_of


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "text", ['{"a": [1, 2.5, null, "é[{"]}', nested(DEPTH), "9" * DIGITS, '"' + "[" * 5000 + '"']
)
def test_json_within_the_limits_is_read_as_ever(text):
    assert json_of(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (nested(DEPTH + 2), "64 deep"),
        ("[" * 100_000, "64 deep"),
        ('{"a":' * 300 + "1" + "}" * 300, "64 deep"),
        ("9" * (DIGITS + 1), "301 digits"),
        ("-" + "9" * 5000, "5,001 digits"),
    ],
)
def test_json_beyond_a_limit_is_refused_in_words(text, why):
    with pytest.raises(ValueError, match=why):
        json_of(text)


def test_yaml_without_aliases_is_read_as_ever():
    text = "a: &a {x: 1, y: [1, 2]}\nb: {z: 3}\n"
    assert yaml_of(text) == yaml.safe_load(text)
    assert yaml_of("") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &a [1]\nb: [*a, *a]", r"an alias, \*a; write out"),
        ("&a [*a]", "an alias"),
        (nested(DEPTH + 2), "64 deep"),
        ("a: !!timestamp x", "not what its tag says"),
    ],
)
def test_yaml_beyond_a_limit_is_refused_in_words(text, why):
    with pytest.raises(ValueError, match=why):
        yaml_of(text)


def test_a_file_that_never_ends_is_left_at_the_limit():
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        text_of("/dev/zero", 1000)
    assert BYTES == 1 << 28
