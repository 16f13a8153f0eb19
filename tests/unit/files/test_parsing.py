"""JSON and YAML of others: read as ever within the limits, refused in words beyond them."""

from __future__ import annotations

import json

import pytest
import yaml

from tokenlight.files.parsing import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_DOCUMENT_BYTES,
    parse_json,
    parse_yaml,
    read_text,
)


def make_nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, 2.5, null, "é[{"]}',
        make_nested(MAX_DEPTH),
        "9" * MAX_DIGITS,
        '"' + "[" * 5000 + '"',
    ],
)
def test_json_within_the_limits_is_read_as_before(text):
    assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (make_nested(MAX_DEPTH + 2), "64 deep"),
        ("[" * 100_000, "64 deep"),
        ('{"a":' * 300 + "1" + "}" * 300, "64 deep"),
        ("9" * (MAX_DIGITS + 1), "301 digits"),
        ("-" + "9" * 5000, "5,001 digits"),
    ],
)
def test_json_beyond_a_limit_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        parse_json(text)


def test_yaml_without_aliases_is_read_as_before():
    text = "a: &a {x: 1, y: [1, 2]}\nb: {z: 3}\n"
    assert parse_yaml(text) == yaml.safe_load(text)
    assert parse_yaml("") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &a [1]\nb: [*a, *a]", r"an alias, \*a; write out"),
        ("&a [*a]", "an alias"),
        (make_nested(MAX_DEPTH + 2), "64 deep"),
        ("a: !!timestamp x", "not what its tag says"),
    ],
)
def test_yaml_beyond_a_limit_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        parse_yaml(text)


def test_an_endless_file_is_read_only_to_the_limit():
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        read_text("/dev/zero", 1000)
    assert MAX_DOCUMENT_BYTES == 1 << 28
