"""Columns of texts in, columns of explanations out: what ``datasets.map``, Ray Data and Spark call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput, MissingExtra, TokenlightError
from tokenlight.explainer import Explainer
from tokenlight.explaining.stream import OF_ONE_TEXT, half_by_half
from tokenlight.files.rows import columns_of, table_of
from tokenlight.files.tables import example
from tokenlight.models.embedded import folder_digest
from tokenlight.scale.engine import load


@dataclass
class Mapper:
    """A function of batches, ``{column: values}`` or an Arrow table, that adds one row's explanation a
    text: the columns of docs/format.md, and ``refused`` with the reason where a text has none.

    It can be sent to other processes: the model is loaded again there, by its name, when it is first
    needed.
    """

    text: str | None
    how: Mapping[str, Any]
    loading: Mapping[str, Any] | None
    made: Explainer | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self.loading is None:
            raise BadInput(
                "a model in memory cannot be sent to other processes; use Explainer.from_pretrained(name)."
            )
        return {**self.__dict__, "made": None}

    @property
    def explainer(self) -> Explainer:
        """The model, loaded when it is first asked for."""
        if self.made is None:
            self.made = load(**(self.loading or {}))
        return self.made

    @cached_property
    def fingerprint(self) -> str:
        """Of the weights, where they have a name."""
        return folder_digest(self.loading["name"]) if self.loading else ""

    def explain(self, texts: Sequence[Any]) -> list[Attribution]:
        how: Any = {**self.how, "progress": False}
        found: list[Attribution] = self.explainer.explain(list(texts), **how)
        if len(found) != len(texts):
            raise TokenlightError(
                f"{len(texts)} texts have {len(found)} explanations; ask for one method and one target."
            )
        return found

    def columns(self, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, list[Any]]:
        """Our columns for rows, each with its place in words."""
        given = [self._text(where, row) for where, row in rows]
        texts = [one for one in given if not isinstance(one, BadInput)]
        made = iter(half_by_half(self.explain, texts, OF_ONE_TEXT))
        found = [one if isinstance(one, BadInput) else next(made) for one in given]
        explained = [one if isinstance(one, Attribution) else None for one in found]
        reasons = [None if isinstance(one, Attribution) else str(one) for one in found]
        return {**columns_of(explained, self.fingerprint), "refused": reasons}

    def _text(self, where: str, row: Mapping[str, Any]) -> Any:
        try:
            return example(row, where, text=self.text, marks=False).text
        except BadInput as refused:
            return refused

    def __call__(self, batch: Any) -> Any:
        table = hasattr(batch, "to_pylist")
        cells = [] if table else zip(*batch.values(), strict=True)
        plain = (dict(zip(batch, row, strict=True)) for row in cells)
        rows = batch.to_pylist() if table else plain
        own = self.columns([(f"row {i}", row) for i, row in enumerate(rows, 1)])
        return table_of(own, batch) if table else {**batch, **own}


def explain_dataset(  # noqa: PLR0913 - the wishes a person has, each by name
    ds: Any,
    *,
    model: str,
    method: Any = "auto",
    text: str | None = None,
    workers: int = 1,
    gpus_per_worker: float = 0.0,
    block: int = 1024,
    **how: Any,
) -> Any:
    """A Ray data set with our columns added, one row per text; nothing runs until it is read.

    Batches of ``block`` rows go to ``workers`` actors, each of which holds the model. ``how``: further
    keywords of ``explain()``.
    """
    strategy = MissingExtra.importing("ray.data", "ray", "explain_dataset()").ActorPoolStrategy
    device = "cuda" if gpus_per_worker else "cpu"
    given = {"how": {"method": method, **how}, "loading": {"name": model, "device": device}}
    return ds.map_batches(
        Mapper,
        fn_constructor_kwargs={"text": text, **given},
        batch_size=block,
        batch_format="pyarrow",
        compute=strategy(size=workers),
        num_gpus=gpus_per_worker,
    )
