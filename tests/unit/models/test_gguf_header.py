"""The header of a GGUF file: read with every length held against the bytes that are there."""

from __future__ import annotations

import random
import struct
import sys

import pytest

from tests.helpers.expect import expect_error
from tests.helpers.tiny_gguf import byte_tokens, write_tiny_gguf
from tokenlight.errors import DamagedFile, MissingExtra, TokenlightError, UnsupportedModel
from tokenlight.models.gguf_header import MAX_ENTRIES, read_header

UINT32 = 4
STRING = 8
ARRAY = 9


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def pack_string(text):
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def make_file(path, fields=(), tensors=(), data=b"", version=3):
    """Write a file of packed fields and (name, dimensions, type, offset) tensors."""
    content = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(fields) + 1)
    content += pack_string("general.architecture") + struct.pack("<I", STRING)
    content += pack_string("llama")
    for key, value_type, value in fields:
        content += pack_string(key) + struct.pack("<I", value_type) + value
    for name, dimensions, tensor_type, offset in tensors:
        content += pack_string(name) + struct.pack("<I", len(dimensions))
        content += struct.pack(f"<{len(dimensions)}Q", *dimensions)
        content += struct.pack("<IQ", tensor_type, offset)
    content += b"\0" * (-len(content) % 32)
    path.write_bytes(content + data)
    return path


def test_a_header_holds_shapes_types_and_sizes(gguf_path):
    header = read_header(gguf_path)
    assert header.architecture == "llama"
    assert header.shapes["blk.1.ffn_down.weight"] == (32, 64)
    assert header.metadata["tokenizer.ggml.tokens"] == len(byte_tokens())
    assert header.tensor_types == ("F32",)
    assert not header.is_quantized
    assert header.num_bytes == gguf_path.stat().st_size


def test_a_quantized_file_is_recognized(tmp_path):
    header = read_header(write_tiny_gguf(tmp_path / "tiny.gguf", quantized=True))
    assert header.tensor_types == ("F32", "Q8_0")
    assert header.is_quantized


def test_a_file_that_is_cut_off_anywhere_is_refused(gguf_path, tmp_path):
    content = gguf_path.read_bytes()
    cut = tmp_path / "cut.gguf"
    lengths = random.Random(0).sample(range(4, len(content)), 200)
    for length in [*lengths, len(content) - 1]:
        cut.write_bytes(content[:length])
        with pytest.raises(DamagedFile) as refusal:
            read_header(cut)
        assert refusal.value.code in ("gguf-cut-off", "gguf-tensor-extent")


def test_a_file_with_changed_bytes_is_read_or_refused(gguf_path, tmp_path):
    content = gguf_path.read_bytes()
    end_of_header = content.index(b"blk.1.ffn_norm.weight") + 60
    randomness = random.Random(1)
    refused = 0
    for _ in range(300):
        changed = bytearray(content)
        for _ in range(randomness.randint(1, 4)):
            changed[randomness.randrange(end_of_header)] = randomness.randrange(256)
        path = tmp_path / "changed.gguf"
        path.write_bytes(changed)
        try:
            assert read_header(path).num_bytes == len(content)
        except TokenlightError as refusal:
            refused += 1
            assert refusal.code.startswith("gguf-")
    assert refused > 20


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "page.gguf"
    path.write_text("<!doctype html> not found")
    with expect_error(DamagedFile, "gguf-magic"):
        read_header(path)


def test_an_unknown_version_is_refused(tmp_path):
    with expect_error(UnsupportedModel, "gguf-version", mentions="version 1"):
        read_header(make_file(tmp_path / "old.gguf", version=1))


def test_an_array_longer_than_the_file_is_refused_before_it_is_walked(tmp_path):
    value = struct.pack("<IQ", UINT32, 1 << 60)
    path = make_file(tmp_path / "long.gguf", [("llama.numbers", ARRAY, value)])
    with expect_error(DamagedFile, "gguf-array"):
        read_header(path)
    value = struct.pack("<IQ", UINT32, MAX_ENTRIES)
    path = make_file(tmp_path / "cut.gguf", [("llama.numbers", ARRAY, value)])
    with expect_error(DamagedFile, "gguf-cut-off"):
        read_header(path)


def test_an_array_of_arrays_is_refused(tmp_path):
    value = struct.pack("<IQIQ", ARRAY, 1, ARRAY, 0)
    with expect_error(DamagedFile, "gguf-array"):
        read_header(make_file(tmp_path / "deep.gguf", [("llama.numbers", ARRAY, value)]))


def test_a_field_that_is_there_twice_is_refused(tmp_path):
    field = ("llama.block_count", UINT32, struct.pack("<I", 1))
    with expect_error(DamagedFile, "gguf-field-twice"):
        read_header(make_file(tmp_path / "twice.gguf", [field, field]))


@pytest.mark.parametrize("alignment", [0, 3, 1 << 31 | 1])
def test_an_alignment_that_is_no_power_of_two_is_refused(tmp_path, alignment):
    field = ("general.alignment", UINT32, struct.pack("<I", alignment))
    with expect_error(DamagedFile, "gguf-alignment"):
        read_header(make_file(tmp_path / "skewed.gguf", [field]))


def test_tensors_that_share_their_bytes_are_refused(tmp_path):
    """Otherwise a file of one megabyte could hold a thousand tensors of one megabyte each."""
    tensors = [("first", (8,), 0, 0), ("second", (8,), 0, 0)]
    with expect_error(DamagedFile, "gguf-tensor-extent", mentions="second"):
        read_header(make_file(tmp_path / "shared.gguf", (), tensors, b"\0" * 32))


@pytest.mark.parametrize("dimensions", [(1 << 40,), (1 << 63, 1 << 63), (0,)])
def test_a_tensor_larger_than_the_file_or_empty_is_refused(tmp_path, dimensions):
    path = make_file(tmp_path / "large.gguf", (), [("first", dimensions, 0, 0)], b"\0" * 32)
    with expect_error(DamagedFile, "gguf-tensor-extent"):
        read_header(path)


def test_a_tensor_of_an_unknown_type_is_refused(tmp_path):
    path = make_file(tmp_path / "new.gguf", (), [("first", (8,), 9999, 0)], b"\0" * 32)
    with expect_error(UnsupportedModel, "gguf-tensor-type", mentions="first"):
        read_header(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_count", 1 << 31),
        ("embedding_length", 0),
        ("attention.head_count", 0),
        ("block_count", 900),
    ],
)
def test_sizes_that_no_model_has_are_refused(tmp_path, field, value):
    path = write_tiny_gguf(tmp_path / "hostile.gguf", **{field: value})
    with pytest.raises(DamagedFile, match=field) as refusal:
        read_header(path)
    assert refusal.value.code in ("gguf-field-value", "gguf-block-count")


def test_the_missing_package_is_named(gguf_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with expect_error(MissingExtra, "missing-extra", mentions="tokenlight[gguf]"):
        read_header(gguf_path)
