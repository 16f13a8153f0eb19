"""Explanations as columns of a table, one row per text: how they are stored in Parquet and read back.

docs/format.md describes each column. Scores and logits are rounded to float32; the terms of each layer are
not kept.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import Any, overload

from tokenlight.data.attribution import FORMAT_VERSION as ATTRIBUTION_FORMAT
from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import SAVED_FIELD_NAMES
from tokenlight.errors import DamagedFile, TokenlightError
from tokenlight.files.parsing import parse_json
from tokenlight.files.stores import Folder, open_filesystem
from tokenlight.files.write import dump_parquet, to_arrow_type

FORMAT_VERSION = 1  # of the columns; raised when one changes its meaning
LOCATION_COLUMNS = {"source": "string", "row": "int64"}
ATTRIBUTION_COLUMNS = {
    "prediction": "string",
    "probabilities": "list<double>",
    "target": "string",
    "tokens": "list<string>",
    "scores": "list<float>",
    "standard_errors": "list<float>",
    "starts": "list<int32>",
    "ends": "list<int32>",
    "segments": "list<int8>",
    "words": "list<int32>",
    "special": "list<bool>",
    "ids": "list<int32>",
    "pieces": "list<string>",
    "attention": "list<int8>",
    "token_types": "list<int8>",
    "texts": "list<string>",
    "labels": "list<string>",
    "logits": "list<float>",
    "method": "string",
    "options": "string",
    "model": "string",
    "fingerprint": "string",
    "notes": "list<string>",
    "details": "string",
}
REFUSAL_COLUMNS = {"refused": "string"}
# Columns that hold a field of an Attribution unchanged, and the path of that field.
COLUMN_PATHS = {
    "scores": "scores",
    "standard_errors": "standard_errors",
    "method": "method",
    "model": "model",
    "notes": "notes",
    "ids": "row.ids",
    "pieces": "row.pieces",
    "texts": "row.texts",
    "attention": "row.attention_mask",
    "token_types": "row.token_type_ids",
    "special": "row.special_tokens_mask",
    "labels": "prediction.labels",
    "probabilities": "prediction.probabilities",
    "prediction": "prediction.label",
    "target": "target.name",
}
COLUMN_GETTERS = {name: attrgetter(path) for name, path in COLUMN_PATHS.items()}
# Fields without a column of their own; they are stored as JSON in ``details``.
DETAIL_FIELDS = {
    "target": ("kind", "terms", "alternatives"),
    "prediction": ("index", "ids", "answer_score", "null_score"),
    "row": (
        "num_truncated",
        "target_position",
        "segment_names",
        "reference_embedding",
        "source_length",
        "continuation_ids",
        "target_positions",
    ),
}
# Position of a special token in the text; with a null, pandas would convert the column to floats.
NO_POSITION = -1
_encode_json = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=str).encode


def to_columns(
    attributions: Sequence[Attribution | None], fingerprint: str
) -> dict[str, list[Any]]:
    """Return the columns of :data:`ATTRIBUTION_COLUMNS`.

    Args:
        attributions: One per row; all columns are null for a text without one.
        fingerprint: Hash of the model, written to every row.
    """
    columns: dict[str, list[Any]] = {name: [] for name in ATTRIBUTION_COLUMNS}
    empty_row = dict.fromkeys(ATTRIBUTION_COLUMNS)
    for attribution in attributions:
        row = empty_row if attribution is None else _to_row(attribution, fingerprint)
        for name, values in columns.items():
            values.append(row[name])
    return columns


def _to_row(attribution: Attribution, fingerprint: str) -> dict[str, Any]:
    """Return the cells of one row."""
    row = attribution.row
    spans = [span or (NO_POSITION, NO_POSITION) for span in row.spans]
    cells = {name: get_value(attribution) for name, get_value in COLUMN_GETTERS.items()}
    cells["tokens"] = row.surface_forms
    cells["starts"] = [start for start, _ in spans]
    cells["ends"] = [end for _, end in spans]
    cells["segments"] = _replace_missing(row.segments)
    cells["words"] = _replace_missing(row.word_ids)
    # A language model has too many logits: one per token of its vocabulary.
    cells["logits"] = [] if attribution.prediction.ids else attribution.logits
    cells["options"] = _encode_json(dict(attribution.options))
    cells["fingerprint"] = fingerprint
    cells["details"] = _encode_json(_collect_details(attribution))
    return cells


def _replace_missing(positions: Sequence[int | None]) -> list[int]:
    return [NO_POSITION if position is None else position for position in positions]


def _restore_missing(positions: Sequence[int]) -> list[int | None]:
    return [None if position == NO_POSITION else position for position in positions]


def _collect_details(attribution: Attribution) -> dict[str, Any]:
    """Return the fields without a column, under their names in the file format."""
    details: dict[str, Any] = {
        "seed": attribution.seed,
        "steps": attribution.steps,
        "extras": dict(attribution.extras),
        "versions": dict(attribution.versions),
    }
    for part_name, names in DETAIL_FIELDS.items():
        part = getattr(attribution, part_name)
        details[part_name] = {
            SAVED_FIELD_NAMES.get(name, name): getattr(part, name) for name in names
        }
    return details


def build_table(columns: Mapping[str, Any], extra_columns: Any = None) -> Any:
    """Return an Arrow table of our columns, each with its type.

    Args:
        columns: Values by column name.
        extra_columns: A table of the user's columns, which come first.
    """
    import pyarrow

    column_types = {**LOCATION_COLUMNS, **ATTRIBUTION_COLUMNS, **REFUSAL_COLUMNS}
    arrays = {}
    if extra_columns is not None:
        for name in extra_columns.column_names:
            arrays[name] = extra_columns[name]
    for name, values in columns.items():
        arrays[name] = pyarrow.array(values, to_arrow_type(column_types[name]))
    return pyarrow.table(arrays)


def to_parquet_bytes(table: Any, metadata: Mapping[str, Any]) -> bytes:
    """Return a table as the bytes of a Parquet file with ``metadata`` in its schema."""
    schema_metadata = {"tokenlight": _encode_json({"format": FORMAT_VERSION, **metadata})}
    table = table.replace_schema_metadata(schema_metadata)
    return dump_parquet(table, compression="zstd", write_page_checksum=True)


def read_job_digest(folder: Folder, name: str) -> str | None:
    """Return the job that a Parquet file belongs to: empty if it names none, None if it is unreadable."""
    import pyarrow
    import pyarrow.parquet

    system, base = open_filesystem(folder.location)
    try:
        with system.open(f"{base}/{name}", "rb") as stream:
            metadata = pyarrow.parquet.read_schema(stream).metadata or {}
        return str(parse_json(metadata.get(b"tokenlight", b"{}").decode()).get("job", ""))
    except (pyarrow.ArrowException, OSError, ValueError, AttributeError):
        return None


def attribution_from_row(row: Mapping[str, Any]) -> Attribution:
    """Return the explanation that a row of the table holds; other columns become its extras.

    Raises:
        DamagedFile: The row is incomplete or of another version.
    """
    try:
        values = _to_attribution_values(row)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFile(
            f"This row is not an explanation of this format version ({error!r}). Explain the text again.",
            code="row-format",
        ) from error
    return Attribution.from_dict(values)


def _to_attribution_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for :meth:`Attribution.from_dict`."""
    values: dict[str, Any] = json.loads(row["details"])
    values["format"] = ATTRIBUTION_FORMAT
    values["layers"] = None
    values["logits"] = row["logits"]
    values["options"] = json.loads(row["options"])
    user_columns = {name: row[name] for name in row if name not in ATTRIBUTION_COLUMNS}
    # By way of JSON, because a column may hold dates and other values that JSON cannot hold.
    values["extras"]["input_columns"] = json.loads(_encode_json(user_columns))
    # Files of earlier versions have no such column.
    row = {"standard_errors": None, **row}
    for name, path in COLUMN_PATHS.items():
        part_name, _, field = path.rpartition(".")
        part = values[part_name] if part_name else values
        part[SAVED_FIELD_NAMES.get(field, field)] = row[name]
    values["row"]["segments"] = _restore_missing(row["segments"])
    values["row"]["words"] = _restore_missing(row["words"])
    spans: list[list[int] | None] = []
    for start, end in zip(row["starts"], row["ends"], strict=True):
        spans.append(None if start == NO_POSITION else [start, end])
    values["row"]["spans"] = spans
    return values


class Explanations(Sequence[Attribution]):
    """The results of ``tokenlight explain --file … -o FOLDER`` as a sequence of Attributions.

    ``explanations[7]`` reads one part; iterating holds one part at a time. In
    each Attribution, ``extras["input_columns"]`` holds the user's columns and the position of the text.

    Args:
        path: The folder, or its URL.

    Raises:
        DamagedFile: The folder holds no explanations, or those of another version.
    """

    def __init__(self, path: str) -> None:
        self.folder = Folder(path)
        try:
            self.job: dict[str, Any] = json.loads(self.folder.read("job.json") or b"")
            if self.job["format"] != FORMAT_VERSION:
                raise ValueError(f"its format is {self.job['format']}, not {FORMAT_VERSION}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedFile(
                f"{path} is a folder without explanations, or its job.json cannot be read: {error}.",
                code="explanations-folder",
            ) from error

    def __repr__(self) -> str:
        return f"<Explanations of {len(self)} texts in {self.folder.location}>"

    @cached_property
    def dataset(self) -> Any:
        """All rows as a ``pyarrow.dataset``, for filters and for other libraries."""
        return self._open_dataset("rows")

    @property
    def refusals(self) -> Any:
        """The texts that were refused, with the reason, as a data frame."""
        return self._open_dataset("refused").to_table().to_pandas()

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """Return a data frame with one row per text.

        Args:
            columns: Read only these columns, which is faster.
        """
        return self.dataset.to_table(columns=columns).to_pandas()

    @cached_property
    def _row_offsets(self) -> list[int]:
        """Number of rows up to the end of each file."""
        return list(
            accumulate(_call_fragment(fragment, "count_rows") for fragment in self._fragments)
        )

    @cached_property
    def _fragments(self) -> list[Any]:
        return list(self.dataset.get_fragments())

    def __len__(self) -> int:
        return self._row_offsets[-1] if self._row_offsets else 0

    @overload
    def __getitem__(self, index: int) -> Attribution: ...
    @overload
    def __getitem__(self, index: slice) -> list[Attribution]: ...
    def __getitem__(self, index: int | slice) -> Attribution | list[Attribution]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        # A range resolves negative indices, and raises IndexError like a list.
        row_index = range(len(self))[index]
        file_index = bisect_right(self._row_offsets, row_index)
        first_row = self._row_offsets[file_index - 1] if file_index else 0
        table = self._load_table(file_index).slice(row_index - first_row, 1)
        return attribution_from_row(table.to_pylist()[0])

    def __iter__(self) -> Iterator[Attribution]:
        for file_index in range(len(self._fragments)):
            # Small batches, because rows of Python objects take much more memory than Arrow's.
            for batch in self._load_table(file_index).to_batches(max_chunksize=64):
                yield from map(attribution_from_row, batch.to_pylist())

    @cached_property
    def _load_table(self) -> Any:
        """A function that returns the rows of a file by its index, and caches the last two."""
        import pyarrow.dataset

        options = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)

        @lru_cache(maxsize=2)
        def load_table(file_index: int) -> Any:
            fragment = self._fragments[file_index]
            return _call_fragment(fragment, "to_table", fragment_scan_options=options)

        return load_table

    def _open_dataset(self, subfolder: str) -> Any:
        import pyarrow.dataset

        system, base = open_filesystem(self.folder.location)
        paths = sorted(f"{base}/{name}" for name in self.folder.list_sizes(subfolder))
        return pyarrow.dataset.dataset(paths, filesystem=system, format="parquet")


def _call_fragment(fragment: Any, method_name: str, **options: Any) -> Any:
    """Call a method of a dataset's file, naming the file if it is damaged."""
    import pyarrow

    try:
        return getattr(fragment, method_name)(**options)
    except TokenlightError:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise DamagedFile(
            f"{fragment.path} is damaged ({error}). Delete it and run the same command again.",
            code="parquet-damaged",
        ) from error
