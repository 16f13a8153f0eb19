"""Add columns of explanations to batches of texts, as ``datasets.map``, Ray Data and Spark pass them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput, MissingExtra, TokenlightError, short_repr
from tokenlight.explainer import Explainer
from tokenlight.explaining.streams import TEXT_ERRORS, isolate_failures
from tokenlight.files.attribution_parquet import build_table, to_columns
from tokenlight.files.tables import parse_example
from tokenlight.models.embedded import digest_folder
from tokenlight.scale.engine import load_explainer


@dataclass
class Mapper:
    """A function of batches that explains each text and adds the columns of docs/format.md.

    A batch is a mapping ``{column: values}`` or an Arrow table. The column ``refused`` holds the reason
    where a text could not be explained. A mapper can be sent to other processes: there the model is
    loaded again by its name when it is first needed.

    Args:
        text_column: Column that holds the texts; by default it is recognized by its name.
        options: Keywords of ``explain()``.
        load_arguments: Keywords of ``Explainer.from_pretrained()``; None for a model in memory.
        loaded_explainer: The model, if it is loaded already.
    """

    text_column: str | None
    options: Mapping[str, Any]
    load_arguments: Mapping[str, Any] | None
    loaded_explainer: Explainer | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self.load_arguments is None:
            raise BadInput(
                "A model in memory cannot be sent to other processes. Load it with "
                "Explainer.from_pretrained(name).",
                code="model-in-memory",
            )
        return {**self.__dict__, "loaded_explainer": None}

    @property
    def explainer(self) -> Explainer:
        """The model, loaded on first use."""
        if self.loaded_explainer is None:
            self.loaded_explainer = load_explainer(**(self.load_arguments or {}))
        return self.loaded_explainer

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the weights; empty for a model in memory."""
        if not self.load_arguments:
            return ""
        return digest_folder(self.load_arguments["name"])

    def explain_texts(self, texts: Sequence[Any]) -> list[Attribution]:
        """Explain texts, one attribution each."""
        options: Any = {**self.options, "progress": False}
        attributions: list[Attribution] = []
        for result in self.explainer.explain_texts(list(texts), **options):
            if len(result.attributions) != 1:
                raise TokenlightError(
                    f"A text got {len(result.attributions)} explanations, but a row holds one. Give one "
                    "method and one target.",
                    code="several-explanations-per-row",
                )
            attributions += result.attributions
        return attributions

    def build_columns(self, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, list[Any]]:
        """Explain rows and return the columns to add.

        Args:
            rows: Pairs of a location, for messages, and the row.
        """
        # Each row becomes a text, or the error that refuses it.
        inputs = [self._parse_text(location, row) for location, row in rows]
        texts = [text for text in inputs if not isinstance(text, BadInput)]
        results = iter(isolate_failures(self.explain_texts, texts, TEXT_ERRORS))
        attributions: list[Attribution | None] = []
        reasons: list[str | None] = []
        for text in inputs:
            # A row that could not be read was never sent to explain(); the others follow in order.
            result = text if isinstance(text, BadInput) else next(results)
            if isinstance(result, Attribution):
                attributions.append(result)
                reasons.append(None)
            else:
                attributions.append(None)
                reasons.append(str(result))
        return {**to_columns(attributions, self.fingerprint), "refused": reasons}

    def _parse_text(self, location: str, row: Mapping[str, Any]) -> Any:
        """Return the text of a row, or the error that refuses it."""
        try:
            return parse_example(
                row, location, text_column=self.text_column, with_annotations=False
            ).text
        except BadInput as error:
            return error

    def __call__(self, batch: Any) -> Any:
        """Return ``batch``, of the same kind, with the columns of the explanations added."""
        if hasattr(batch, "to_pylist") and hasattr(batch, "column_names"):  # an Arrow table
            return build_table(self.build_columns(_locate_rows(batch.to_pylist())), batch)
        _check_columns(batch)
        rows = [
            dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)
        ]
        return {**batch, **self.build_columns(_locate_rows(rows))}


def _locate_rows(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Pair each row of a batch with its number, for messages."""
    return [(f"row {number}", row) for number, row in enumerate(rows, 1)]


def _check_columns(batch: Any) -> None:
    """Refuse a batch that is not a mapping of columns of one length."""
    lengths = set(_iter_column_lengths(batch))
    if len(lengths) != 1 or None in lengths:
        raise BadInput(
            f"{short_repr(batch)} is not a batch of rows. Give an Arrow table, or columns of one length by "
            "name, such as {'text': ['a fine film', 'a dull film']}.",
            code="batch-not-columns",
        )


def _iter_column_lengths(batch: Any) -> Iterator[int | None]:
    """Yield the length of each column; None for a value that is no column."""
    if not isinstance(batch, Mapping):
        return
    for column in batch.values():
        is_column = isinstance(column, Sequence) or getattr(column, "shape", ()) != ()
        yield len(column) if is_column else None


def explain_dataset(  # noqa: PLR0913 - a public function with one keyword per option
    dataset: Any,
    *,
    model: str,
    method: Any = "auto",
    text_column: str | None = None,
    workers: int = 1,
    gpus_per_worker: float = 0.0,
    batch_size: int = 1024,
    **options: Any,
) -> Any:
    """Add columns of explanations to a Ray data set; nothing runs until it is read.

    Args:
        dataset: A ``ray.data.Dataset``.
        model: Name or folder of the model; every worker loads it.
        method: Method, as ``explain()`` takes it.
        text_column: Column that holds the texts; by default it is recognized by its name.
        workers: Number of Ray actors.
        gpus_per_worker: Share of a GPU per actor; 0 runs on the CPU.
        batch_size: Rows per batch.
        **options: Further keywords of ``explain()``.

    Returns:
        A data set with the columns of docs/format.md added, one row per text.

    Raises:
        MissingExtra: Ray is not installed.
    """
    ray_data = MissingExtra.import_or_raise("ray.data", "ray", "explain_dataset()")
    device = "cuda" if gpus_per_worker else "cpu"
    mapper_arguments = {
        "text_column": text_column,
        "options": {"method": method, **options},
        "load_arguments": {"name": model, "device": device},
    }
    return dataset.map_batches(
        Mapper,
        fn_constructor_kwargs=mapper_arguments,
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ray_data.ActorPoolStrategy(size=workers),
        num_gpus=gpus_per_worker,
    )
