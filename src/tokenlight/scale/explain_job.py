"""The job of explaining files into a folder, as a value that is sent to every worker.

It says what to explain, with which model and options, and holds what a worker does with one part.
"""

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from tokenlight.errors import BadInput, describe_error
from tokenlight.explaining.attribution_fields import get_library_versions
from tokenlight.explaining.default_method import make_sample_input
from tokenlight.files.attribution_parquet import (
    FORMAT_VERSION,
    LOCATION_COLUMNS,
    REFUSAL_COLUMNS,
    build_table,
    to_parquet_bytes,
)
from tokenlight.files.stores import Folder, StoredFile
from tokenlight.files.write import dump_json
from tokenlight.scale.engine import FatalJobError
from tokenlight.scale.manifest import describe_files
from tokenlight.scale.mapper import Mapper
from tokenlight.scale.text_files import FilePart, NumberedRow, PartReader, TextFiles

LINE_EXTENSIONS = (".jsonl", ".txt")  # files whose rows are lines


@dataclass(frozen=True)
class ExplainJob:
    """Explains the rows of files, and writes Parquet files into a folder.

    Args:
        folder: Output folder.
        text_files: Input files.
        load_arguments: Keywords of ``Explainer.from_pretrained()``, with ``name`` and ``device``.
        options: Keywords of ``explain()``.
        fingerprint: Digest of the model's weights; another one is refused.
        part_size: Largest number of rows per part.
    """

    folder: Folder
    text_files: TextFiles
    load_arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    fingerprint: str
    part_size: int = 1024

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that the scores depend on. A folder holds one job with one set of settings."""
        texts = self.text_files
        load_arguments = dict(self.load_arguments)
        settings = {
            "format": FORMAT_VERSION,
            "model": load_arguments.pop("name"),
            "fingerprint": self.fingerprint,
            "device": load_arguments.pop("device").partition(":")[0],
        }
        # Options are written by their names, so that a folder says which one differs.
        for name, value in (load_arguments | dict(self.options)).items():
            settings[name] = _describe_option(value)
        files = {
            source.file.path: f"{source.num_rows} rows, {source.digest}" for source in texts.sources
        }
        return settings | {
            "block": self.part_size,  # the name that job.json has always had
            "text": "+".join(texts.text_columns),
            "keep": ",".join(texts.kept_schema.names),
            "limit": texts.limit,
            "files": files,
            "versions": get_library_versions(),
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the settings; every output file carries it."""
        settings = dump_json(self.settings, sort_keys=True)
        return hashlib.sha256(settings.encode()).hexdigest()

    def prepare(self, device: str) -> Callable[[FilePart], dict[str, Any]]:
        """Load the model and explain a sample text; an error there would occur for every text.

        Args:
            device: Device of this worker.

        Returns:
            A function that explains one part and writes its files.

        Raises:
            FatalJobError: The model, a method, an option or the target does not work.
        """
        load_arguments = {**self.load_arguments, "device": device}
        mapper = Mapper(self.text_files.text_column, self.options, load_arguments)
        try:
            self._try_sample(mapper)
        except Exception as error:
            raise FatalJobError(describe_error(error)) from error
        return partial(self._explain_part, PartReader(self.text_files), mapper)

    def _try_sample(self, mapper: Mapper) -> None:
        """Check that the model is the job's, and that it can be explained with the job's options."""
        explainer = mapper.explainer
        if mapper.fingerprint != self.fingerprint:
            raise BadInput(
                f"The weights of {self.load_arguments['name']} changed since this job was started. "
                "Restore them, or start a new job in another folder.",
                code="weights-changed",
            )
        text, default_target = make_sample_input(explainer)
        options = {**self.options, "long": "truncate", "progress": False}
        head = explainer.runner.head
        if head.task != "text-classification":
            # The targets of such a model depend on the text, so the user's cannot be tried on another.
            options["target"] = default_target
        explainer.explain([text], **options)

    def _explain_part(self, reader: PartReader, mapper: Mapper, part: FilePart) -> dict[str, Any]:
        """Explain a part and write its files; return its entry of the manifest.

        Refused texts are written first: a part counts as finished once its file of rows exists.
        """
        rows, kept_table = reader.read(part)
        table = self._build_part_table(rows, kept_table, part, mapper)
        metadata = {"job": self.digest, "block": part.index}  # as docs/format.md names them
        refused_columns = [*kept_table.column_names, *LOCATION_COLUMNS, *REFUSAL_COLUMNS]
        refused = table.filter(table["refused"].is_valid()).select(refused_columns)
        explained = table.filter(table["refused"].is_null()).drop_columns(list(REFUSAL_COLUMNS))
        refused_content: bytes | None = None
        if len(refused):
            refused_content = to_parquet_bytes(refused, metadata)
            self.folder.write(f"refused/{part.file_name}", refused_content)
        counts = {"texts": part.num_texts, "refused": len(refused)}
        content = to_parquet_bytes(explained, {**metadata, **counts})
        self.folder.write(f"rows/{part.file_name}", content)
        _return_freed_memory()
        entry = {"rows": len(explained), "refused": len(refused)}
        return entry | describe_files(content, refused_content)

    def _build_part_table(
        self, rows: Sequence[NumberedRow], kept_table: Any, part: FilePart, mapper: Mapper
    ) -> Any:
        """Return an Arrow table with one row per text: kept columns, location, and explanation."""
        source = self.text_files.sources[part.source_index].file
        located_rows = [(_describe_location(source, number), row) for number, row in rows]
        location = {
            "source": [source.path] * len(rows),
            "row": [number for number, _ in rows],
        }
        return build_table({**location, **mapper.build_columns(located_rows)}, kept_table)


def _describe_location(source: StoredFile, number: int) -> str:
    """Name a row in the messages about it."""
    if source.name.endswith(LINE_EXTENSIONS):
        return f"line {number} of {source.name}"
    return f"row {number} of {source.name}"


def _return_freed_memory() -> None:
    """Return freed memory to the system; glibc would keep it, part after part."""
    with suppress(OSError, AttributeError):  # other C libraries have no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def _describe_option(value: Any) -> Any:
    """Return a value that JSON can hold; anything else by its repr."""
    if isinstance(value, tuple) and value[1:] == ({},):  # a method without options
        return value[0]
    if isinstance(value, str | int | float | bool | None):
        return value
    return repr(value)
