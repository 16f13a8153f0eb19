"""Tables in memory as texts: a data frame of pandas, a table of Arrow, a Dataset or IterableDataset."""

from collections.abc import Iterator, Mapping
from typing import Any

from tokenlight.errors import BadInput
from tokenlight.files.tables import Example, example


def rows_in(table: Any) -> Iterator[Mapping[str, Any]] | None:
    """The rows of a table; None where it is none. Tables are known by what they offer, so that no
    library need be there."""
    names = getattr(table, "column_names", None)
    if isinstance(names, Mapping):
        raise BadInput(
            f"a {type(table).__name__} holds splits ({', '.join(names)}); give one of them, for example "
            f"x[{next(iter(names), 'test')!r}]."
        )
    if hasattr(table, "column_names"):
        rows: Iterator[Mapping[str, Any]]
        rows = iter(table.to_pylist() if hasattr(table, "to_pylist") else table)
        return rows
    if hasattr(table, "columns") and hasattr(table, "itertuples"):
        return (
            dict(zip(map(str, table.columns), row, strict=True))
            for row in table.itertuples(index=False, name=None)
        )
    return None


def examples_in(table: Any, text: str | None = None) -> Iterator[Example] | None:
    """The texts of a table, in the column ``text`` or found as in files; None where it is none."""
    rows = rows_in(table)
    if rows is None:
        return None
    return (
        example(row, f"row {number} of the table", text=text, marks=False)
        for number, row in enumerate(rows, 1)
    )
