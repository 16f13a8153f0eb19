"""Read the header of a GGUF file, and hold what it promises against the size of the file.

GGUF is the file format of llama.cpp: metadata as key-value pairs, a table of tensors, and their data. The
readers of other libraries trust the lengths in it. Here every length is compared with the bytes that are
left before anything is read, so that a short file cannot ask for much memory or time.
"""

import re
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from tokenlight.errors import DamagedFile, MissingExtra, UnsupportedModel, short_repr

SUFFIX = ".gguf"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Code of a value's type → its struct format. Strings and arrays have a length of their own.
SCALAR_FORMATS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
STRING = 8
ARRAY = 9
DEFAULT_ALIGNMENT = 32
# Entries of all arrays together: other readers make an object of each. Large vocabularies have a million.
MAX_ENTRIES = 1 << 22
MAX_DIMENSIONS = 4
MAX_LAYERS = 1000
MAX_WIDTH = 1 << 24
# Fields of the metadata, without the name of the architecture, with their smallest and largest value.
FIELD_RANGES = (
    (r"block_count", 1, MAX_LAYERS),
    (r"(embedding|feed_forward|expert_feed_forward)_length|vocab_size", 1, MAX_WIDTH),
    (r"attention\.head_count(_kv)?", 1, 1 << 16),
    (r"attention\.(key|value)_length", 1, 1 << 16),
    (r"expert(_used)?_count", 0, 1 << 16),
    (r"context_length", 1, 1 << 31),
)


@dataclass(frozen=True)
class GGUFHeader:
    """The header of a GGUF file.

    Attributes:
        path: The file.
        architecture: The family of the model, such as ``"llama"``.
        metadata: The values of the metadata by their key; of an array, the number of its entries.
        shapes: The shape of each tensor by its name, slowest dimension first.
        tensor_types: The names of the types in which tensors are stored, such as ``"Q4_1"``.
        num_bytes: The size of the file.
    """

    path: Path
    architecture: str
    metadata: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    tensor_types: tuple[str, ...]
    num_bytes: int

    @property
    def is_quantized(self) -> bool:
        """Whether a tensor is stored in blocks of a few bits per weight."""
        return not set(self.tensor_types) <= {"F64", "F32", "F16", "BF16"}


def read_header(path: Path) -> GGUFHeader:
    """Read the header of a GGUF file, and check it.

    Args:
        path: The file.

    Returns:
        The header. The data of the tensors is not read.

    Raises:
        DamagedFile: The file is not GGUF, is cut off, or promises what it does not hold.
        MissingExtra: The package ``gguf`` is not installed.
        UnsupportedModel: The file has a version or a type of tensors that is not known.
    """
    sizes = _read_type_sizes()
    num_bytes = path.stat().st_size
    with path.open("rb") as file:
        reader = _HeaderReader(path, file, num_bytes)
        num_tensors, num_fields = reader.read_counts()
        metadata = reader.read_metadata(num_fields)
        table = reader.read_tensor_table(num_tensors)
        end_of_header = file.tell()
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not re.fullmatch(r"[\w-]{1,64}", architecture):
        raise DamagedFile(
            f"{path} does not name its architecture (general.architecture is "
            f"{short_repr(architecture)}). Convert or download the model again.",
            code="gguf-architecture",
        )
    _check_fields(path, architecture, metadata, num_tensors)
    _check_extents(path, table, sizes, _find_data_start(path, metadata, end_of_header), num_bytes)
    return GGUFHeader(
        path=path,
        architecture=architecture,
        metadata=metadata,
        shapes={tensor.name: tensor.shape for tensor in table},
        tensor_types=tuple(sorted({sizes[tensor.type_code].name for tensor in table})),
        num_bytes=num_bytes,
    )


@dataclass(frozen=True)
class _TypeSize:
    """How a type stores numbers: in blocks that hold a fixed number of them in a fixed number of bytes."""

    name: str
    block_length: int
    block_bytes: int


@dataclass(frozen=True)
class _TensorEntry:
    """One row of the table of tensors; ``offset`` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type_code: int
    offset: int


class _HeaderReader:
    """Reads the parts of a header in their order, and never more than the file holds."""

    def __init__(self, path: Path, file: BinaryIO, num_bytes: int) -> None:
        self.path = path
        self.file = file
        self.num_bytes = num_bytes
        self.num_entries = 0

    def read_counts(self) -> tuple[int, int]:
        """Return the number of tensors and of fields, after the magic bytes and the version."""
        if self.file.read(len(MAGIC)) != MAGIC:
            raise DamagedFile(
                f"{self.path} is not a GGUF file: it does not begin with 'GGUF'. Download it again, or give "
                "another file.",
                code="gguf-magic",
            )
        version = self._unpack("I")
        if version not in VERSIONS:
            raise UnsupportedModel(
                f"{self.path} has version {version} of GGUF, but versions 2 and 3, little-endian, are read. "
                "Convert the model again with a recent llama.cpp.",
                code="gguf-version",
            )
        num_tensors = self._unpack("Q")
        num_fields = self._unpack("Q")
        # The shortest tensor takes 24 bytes of the table, the shortest field 13.
        self._check_room(24 * num_tensors + 13 * num_fields)
        return num_tensors, num_fields

    def read_metadata(self, num_fields: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(num_fields):
            key = self._read_string()
            if key in metadata:
                raise DamagedFile(
                    f"{self.path} has the field {short_repr(key)} twice. Convert or download the model "
                    "again.",
                    code="gguf-field-twice",
                )
            metadata[key] = self._read_value(self._unpack("I"))
        return metadata

    def read_tensor_table(self, num_tensors: int) -> list[_TensorEntry]:
        table: dict[str, _TensorEntry] = {}
        for _ in range(num_tensors):
            name = self._read_string()
            num_dimensions = self._unpack("I")
            if not 1 <= num_dimensions <= MAX_DIMENSIONS or name in table:
                raise DamagedFile(
                    f"{self.path} has a damaged table of tensors: {short_repr(name)} is there twice, or has "
                    f"{num_dimensions} dimensions. Convert or download the model again.",
                    code="gguf-tensor-table",
                )
            # The fastest dimension comes first in the file, and last in torch.
            shape = tuple(self._unpack("Q") for _ in range(num_dimensions))[::-1]
            type_code = self._unpack("I")
            table[name] = _TensorEntry(
                name=name, shape=shape, type_code=type_code, offset=self._unpack("Q")
            )
        return list(table.values())

    def _read_value(self, type_code: int) -> Any:
        if type_code in SCALAR_FORMATS:
            return self._unpack(SCALAR_FORMATS[type_code])
        if type_code == STRING:
            return self._read_string()
        if type_code == ARRAY:
            return self._skip_array()
        raise DamagedFile(
            f"{self.path} holds a value of the unknown type {type_code}. Convert or download the model "
            "again.",
            code="gguf-value-type",
        )

    def _skip_array(self) -> int:
        """Skip the entries of an array, and return their number."""
        type_code = self._unpack("I")
        length: int = self._unpack("Q")
        self.num_entries += length
        is_known = type_code == STRING or type_code in SCALAR_FORMATS
        if not is_known or self.num_entries > MAX_ENTRIES:
            raise DamagedFile(
                f"{self.path} holds an array of {length:,} values of type {type_code}, but at most "
                f"{MAX_ENTRIES:,} numbers and strings are read. Convert or download the model again.",
                code="gguf-array",
            )
        if type_code == STRING:
            for _ in range(length):
                self._skip(self._unpack("Q"))
        else:
            self._skip(length * struct.calcsize(f"<{SCALAR_FORMATS[type_code]}"))
        return length

    def _read_string(self) -> str:
        length = self._unpack("Q")
        self._check_room(length)
        try:
            return self.file.read(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DamagedFile(
                f"{self.path} holds a text that is not UTF-8: {error}. Convert or download the model again.",
                code="gguf-text",
            ) from error

    def _unpack(self, value_format: str) -> Any:
        size = struct.calcsize(f"<{value_format}")
        self._check_room(size)
        (value,) = struct.unpack(f"<{value_format}", self.file.read(size))
        return value

    def _skip(self, size: int) -> None:
        self._check_room(size)
        self.file.seek(size, 1)

    def _check_room(self, size: int) -> None:
        """Refuse to read beyond the end of the file."""
        position = self.file.tell()
        if position + size > self.num_bytes:
            raise DamagedFile(
                f"{self.path} is cut off: at byte {position:,} its header asks for {size:,} bytes, but the "
                f"file ends at {self.num_bytes:,}. Download it again.",
                code="gguf-cut-off",
            )


def _read_type_sizes() -> dict[int, _TypeSize]:
    """Return how each type of tensor is stored, as the package gguf knows it."""
    constants = MissingExtra.import_or_raise("gguf.constants", "gguf", "Reading a GGUF file")
    sizes = {}
    for tensor_type, (block_length, block_bytes) in constants.GGML_QUANT_SIZES.items():
        sizes[int(tensor_type)] = _TypeSize(tensor_type.name, block_length, block_bytes)
    return sizes


def _find_data_start(path: Path, metadata: dict[str, Any], end_of_header: int) -> int:
    """Return where the data of the tensors begins: at the next multiple of the alignment."""
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    is_power_of_two = type(alignment) is int and alignment > 0 and alignment & (alignment - 1) == 0
    if not is_power_of_two:
        raise DamagedFile(
            f"{path} says general.alignment = {short_repr(alignment)}, which is not a power of two. Convert "
            "or download the model again.",
            code="gguf-alignment",
        )
    num_units = -(-end_of_header // int(alignment))
    return num_units * int(alignment)


def _check_fields(
    path: Path, architecture: str, metadata: dict[str, Any], num_tensors: int
) -> None:
    """Refuse sizes of the model that cannot be built."""
    for key, value in metadata.items():
        field = key.removeprefix(f"{architecture}.")
        if field == key or isinstance(value, str):
            continue
        for pattern, smallest, largest in FIELD_RANGES:
            if re.fullmatch(pattern, field) and not smallest <= value <= largest:
                raise DamagedFile(
                    f"{path} says {key} = {short_repr(value)}, where a number from {smallest} to {largest:,} "
                    "is expected. Convert or download the model again.",
                    code="gguf-field-value",
                )
    num_blocks = metadata.get(f"{architecture}.block_count", 0)
    if num_blocks > num_tensors:
        raise DamagedFile(
            f"{path} says {architecture}.block_count = {num_blocks:,}, but holds {num_tensors:,} tensors. "
            "Convert or download the model again.",
            code="gguf-block-count",
        )


def _check_extents(
    path: Path,
    table: list[_TensorEntry],
    sizes: dict[int, _TypeSize],
    data_start: int,
    num_bytes: int,
) -> None:
    """Refuse tensors of an unknown type, beyond the end of the file, or that share their bytes."""
    end_of_last = 0
    for tensor in sorted(table, key=lambda tensor: tensor.offset):
        type_size = sizes.get(tensor.type_code)
        if type_size is None:
            raise UnsupportedModel(
                f"{path} stores {tensor.name} in type {tensor.type_code}, which the installed package gguf "
                "does not know. Update it: pip install --upgrade gguf",
                code="gguf-tensor-type",
            )
        num_blocks, remainder = divmod(prod(tensor.shape), type_size.block_length)
        end = tensor.offset + num_blocks * type_size.block_bytes
        is_empty = num_blocks == 0 or remainder != 0
        if is_empty or tensor.offset < end_of_last or data_start + end > num_bytes:
            raise DamagedFile(
                f"{path} is damaged or cut off: {tensor.name}, {list(tensor.shape)} in {type_size.name}, "
                f"would lie at bytes {data_start + tensor.offset:,} to {data_start + end:,}, but the file "
                f"has {num_bytes:,}, and tensors must not overlap. Download it again.",
                code="gguf-tensor-extent",
            )
        end_of_last = end
