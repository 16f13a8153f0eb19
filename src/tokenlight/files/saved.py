"""Attributions in files: JSON that can be loaded again; HTML, CSV, Parquet and PNG for readers."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput, DamagedFile, MissingExtra, TokenlightError
from tokenlight.files.documents import json_in
from tokenlight.files.rows import Explanations
from tokenlight.files.write import csv_text, json_text, write_bytes, write_parquet, write_text

OWN = (
    "text", "place", "label", "attribution", "method", "target", "predicted", "position", "token", "piece",
    "word", "segment", "special", "score",
)  # fmt: skip


def records(attributions: Iterable[Attribution]) -> list[dict[str, Any]]:
    """One flat record a token: the table behind CSV, Parquet and pandas.

    ``text`` counts the texts, ``attribution`` the explanations: a text may have several. Of texts from a
    table: ``place`` and ``label``, then its other columns, ``given.NAME`` where the name is one of ours.
    """
    given = list(attributions)
    known = _known(given)
    return [
        {
            "text": text,
            **known[number],
            "attribution": number,
            "method": a.label.partition(" → ")[0],
            "target": a.target.name,
            "predicted": a.prediction.label,
            "position": position,
            "token": token,
            "piece": a.row.pieces[position],
            "word": a.row.words[position],
            "segment": a.row.segments[position],
            "special": a.row.special[position],
            "score": float(a.scores[position]),
        }
        for number, (a, text) in enumerate(zip(given, _text_numbers(given), strict=True))
        for position, token in enumerate(a.tokens)
    ]


def _known(attributions: list[Attribution]) -> list[dict[str, Any]]:
    """What the tables that texts came from said of each; a column holds values of one kind."""
    found = []
    for a in attributions:
        columns: Any = a.extras.get("columns", {})
        own = {name: a.extras[name] for name in ("place", "label") if name in a.extras}
        found.append(own | {f"given.{n}" if n in OWN else n: v for n, v in columns.items()})
    for name in dict.fromkeys(name for one in found for name in one):
        kinds = {type(one.get(name)) for one in found} - {type(None)}
        mixed = not (kinds <= {int, float} or kinds in ({str}, {bool}))
        for one in found:
            value = one.setdefault(name, None)
            one[name] = json_text(value) if mixed and not isinstance(value, str | None) else value
    return found


def _text_numbers(attributions: Iterable[Attribution]) -> Iterator[int]:
    """The number of each explanation's text; the same question again means an equal text."""
    number, text, asked = -1, None, set[object]()
    for a in attributions:
        # The tokens of a continuation are explained from a row each, which share their text.
        own = a.row.texts, a.row.names, None if a.row.texts else a.row.fingerprint
        asked_of = a.model, a.steps, a.seed, a.row.at, a.row.asked, len(a.row)
        question = (a.label, a.target.terms, *asked_of)
        if own != text or question in asked:
            number, text, asked = number + 1, own, set()
        asked.add(question)
        yield number


def to_pandas(attributions: Iterable[Attribution]) -> Any:
    """A data frame over several attributions, one row a token."""
    pandas = MissingExtra.importing("pandas", "bench", "to_pandas()")
    return pandas.DataFrame.from_records(records(attributions))


def save(attributions: Iterable[Attribution], path: str | os.PathLike[str]) -> Path:
    """Write several attributions to one file; the ending chooses the format. Several texts become
    an HTML report with an index, in several files if one would be too large."""
    given, place = list(attributions), Path(path)
    if not given:
        raise BadInput(f"there is nothing to save to {place}; give at least one attribution.")
    match place.suffix.lower():
        case ".json":
            content = [a.to_dict() for a in given]
            write_text(place, json_text(content if len(content) != 1 else content[0]))
        case ".html":
            from tokenlight.plots.dataset import write

            write(given, place)
        case ".csv":
            rows = records(given)
            write_text(place, csv_text(list(rows[0]), rows, end="\r\n"))
        case ".parquet":
            write_parquet(place, records(given))
        case ".png" | ".svg" | ".pdf" as ending:
            from tokenlight.plots.figures import file_of

            write_bytes(place, file_of(given, ending))
        case ending:
            known = ".json, .html, .csv, .parquet, .png, .svg, .pdf"
            raise BadInput(f"cannot write {place.name}: {ending!r} is not one of {known}.")
    return place


def load(path: str | os.PathLike[str]) -> list[Attribution] | Explanations:
    """Read the attributions in a JSON file that :func:`save` wrote; for a folder that ``tokenlight
    explain --file DATA -o FOLDER`` wrote, a sequence that reads them on demand."""
    place = Path(path)
    if "://" in str(path) or os.path.isdir(path):  # Path refuses a name that is too long
        return Explanations(str(path))
    try:
        content = json_in(place)
        entries = content if isinstance(content, list) else [content]
        return [Attribution.from_dict(entry) for entry in entries]
    except (OSError, ValueError, TokenlightError) as broken:
        gone = isinstance(broken, FileNotFoundError)
        other = f"is not an attribution file (.json, as save() writes it), or damaged: {broken}"
        wrong = "does not exist; check its name" if gone else other
        raise DamagedFile(f"{place} {wrong.removesuffix('.')}.") from broken
