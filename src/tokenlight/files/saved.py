"""Save attributions to files: JSON, which can be loaded again; HTML, CSV, Parquet and images for readers."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.data.true_label import find_true_label
from tokenlight.data.trust import read_trust
from tokenlight.errors import BadInput, DamagedFile, MissingExtra, MissingFile, TokenlightError
from tokenlight.errors.arguments import check_items, checked
from tokenlight.files.attribution_parquet import Explanations
from tokenlight.files.parsing import read_json
from tokenlight.files.write import (
    dump_csv,
    dump_json,
    write_bytes,
    write_errors_as_unwritable,
    write_parquet,
    write_text,
)

# Columns that every table has; columns of the source table with these names get a prefix.
TOKEN_COLUMNS = (
    "text_id", "text", "second_text", "location", "label", "attribution", "method", "target", "predicted",
    "probability", "grade", "position", "token", "piece", "word", "segment", "special", "score",
    "standard_error",
)  # fmt: skip
# What save() writes for readers and other programs; only JSON holds all that an Attribution holds.
_UNREADABLE_EXTENSIONS = (".csv", ".parquet", ".html", ".htm", ".png", ".svg", ".pdf")


def to_token_rows(attributions: Iterable[Attribution]) -> list[dict[str, Any]]:
    """Return one flat record per token: the table behind CSV, Parquet and pandas.

    ``text_id`` numbers the texts and ``attribution`` the explanations: a text may have several. ``text`` is
    the text itself, and ``second_text`` the other one where some input has two (a pair, or a question and its
    context). Texts from a table have ``location`` and ``label`` (the true label, under the model's name for
    it), then the other columns of the table, as ``input.NAME`` where the name is one of ours.
    ``probability`` is that of the prediction.
    If any explanation was tested, ``grade`` is its grade of trust.
    The last column, ``standard_error``, is there if some explanation has standard errors.
    """
    attributions = list(attributions)
    source_columns = _collect_source_columns(attributions)
    text_indices = _find_text_indices(attributions)
    has_errors = any(attribution.standard_errors is not None for attribution in attributions)
    grades = _collect_grades(attributions)
    texts = _collect_texts(attributions)
    rows: list[dict[str, Any]] = []
    for index, attribution in enumerate(attributions):
        row = attribution.row
        for position, token in enumerate(attribution.tokens):
            rows.append(
                {
                    "text_id": text_indices[index],
                    **texts[index],
                    **source_columns[index],
                    "attribution": index,
                    "method": attribution.title.partition(" → ")[0],
                    "target": attribution.target.name,
                    "predicted": attribution.prediction.label,
                    "probability": max(attribution.prediction.probabilities, default=None),
                    **grades[index],
                    "position": position,
                    "token": token,
                    "piece": row.pieces[position],
                    "word": row.word_ids[position],
                    "segment": row.segments[position],
                    "special": row.special_tokens_mask[position],
                    "score": float(attribution.scores[position]),
                }
            )
            if has_errors:
                errors = attribution.standard_errors
                rows[-1]["standard_error"] = None if errors is None else float(errors[position])
    return rows


def _collect_texts(attributions: list[Attribution]) -> list[dict[str, Any]]:
    """Return the text of each explanation as columns; a second one only if some input has two texts."""
    has_pairs = any(len(attribution.row.texts) == 2 for attribution in attributions)
    columns: list[dict[str, Any]] = []
    for attribution in attributions:
        texts = attribution.row.texts
        is_pair = len(texts) == 2
        text_columns: dict[str, Any] = {"text": texts[0] if is_pair else attribution.text}
        if has_pairs:
            text_columns["second_text"] = texts[1] if is_pair else None
        columns.append(text_columns)
    return columns


def _collect_grades(attributions: list[Attribution]) -> list[dict[str, Any]]:
    """Return the grade of each explanation as a column; no column if none was tested."""
    grades = []
    for attribution in attributions:
        trust = read_trust(attribution)
        grades.append(None if trust is None else trust.grade)
    if not any(grades):
        return [{} for _ in attributions]
    return [{"grade": grade} for grade in grades]


def _collect_source_columns(attributions: list[Attribution]) -> list[dict[str, Any]]:
    """Return the columns of the tables that the texts came from; a column holds values of one type."""
    source_columns = [_get_source_columns(attribution) for attribution in attributions]
    names: dict[str, None] = {}
    for columns in source_columns:
        names.update(dict.fromkeys(columns))
    # Arrow and pandas need one type per column: values of several types are written as JSON.
    for name in names:
        is_mixed = _has_mixed_types([columns.get(name) for columns in source_columns])
        for columns in source_columns:
            value = columns.get(name)
            if is_mixed and not isinstance(value, str | None):
                value = dump_json(value)
            columns[name] = value
    return source_columns


def _get_source_columns(attribution: Attribution) -> dict[str, Any]:
    """Return what the source table says about one text."""
    columns = {}
    if "location" in attribution.extras:
        columns["location"] = attribution.extras["location"]
    if "label" in attribution.extras:
        columns["label"] = find_true_label(attribution)
    for name, value in attribution.extras.get("columns", {}).items():
        columns[f"input.{name}" if name in TOKEN_COLUMNS else name] = value
    return columns


def _has_mixed_types(values: list[Any]) -> bool:
    """Return whether values need to be written as JSON to stand in one column."""
    types = {type(value) for value in values if value is not None}
    return not (types <= {int, float} or types in ({str}, {bool}))


def _find_text_indices(attributions: Iterable[Attribution]) -> list[int]:
    """Return the index of each explanation's text.

    Explanations of one text follow one another. If the same question is asked again, it is about another
    text with the same words.
    """
    indices = []
    current = -1
    current_text: object = None
    questions: set[object] = set()
    for attribution in attributions:
        row = attribution.row
        # The tokens of a continuation are explained by rows of their own, which share their texts.
        fingerprint = None if row.texts else row.fingerprint
        text = (row.texts, row.segment_names, fingerprint)
        question = (
            attribution.title,
            attribution.target.terms,
            attribution.model,
            attribution.steps,
            attribution.seed,
            row.target_position,
            row.target_positions,
            len(row),
        )
        if text != current_text or question in questions:
            current += 1
            current_text = text
            questions = set()
        questions.add(question)
        indices.append(current)
    return indices


def to_pandas(attributions: Iterable[Attribution]) -> Any:
    """Return a data frame over several attributions, one row per token.

    Raises:
        MissingExtra: pandas is not installed.
    """
    pandas = MissingExtra.import_or_raise("pandas", "bench", "to_pandas()")
    return pandas.DataFrame.from_records(to_token_rows(attributions))


@checked
def save(attributions: Iterable[Attribution], path: str | os.PathLike[str]) -> Path:
    """Write several attributions to one file.

    Args:
        attributions: The explanations.
        path: The file; its extension chooses the format: ``.json``, ``.html``, ``.csv``, ``.parquet``,
            ``.png``, ``.svg`` or ``.pdf``. Several texts become an HTML report with an index, in several
            files if one would be too large.

    Returns:
        The path.

    Raises:
        BadInput: There is nothing to save, or the extension is unknown.
        Unwritable: The file cannot be written.

    Example:
        >>> import tempfile
        >>> import tokenlight
        >>> explainer = tokenlight.Explainer.from_pretrained("tokenlight/sentiment")
        >>> attributions = explainer.explain(["A great film", "A bad film"])
        >>> path = tokenlight.save(attributions, f"{tempfile.mkdtemp()}/films.json")
        >>> len(tokenlight.load(path))
        2
    """
    attributions = list(attributions)
    output_path = Path(path)
    if not attributions:
        raise BadInput(
            f"There is nothing to save to {output_path}. Give at least one attribution.",
            code="nothing-to-save",
        )
    check_items("attributions", attributions, Attribution)
    with write_errors_as_unwritable(output_path):
        _write(attributions, output_path)
    return output_path


def _write(attributions: list[Attribution], path: Path) -> None:
    """Write the file in the format that its extension names."""
    match path.suffix.lower():
        case ".json":
            content = [attribution.to_dict() for attribution in attributions]
            # A single explanation is an object, several are a list.
            write_text(path, dump_json(content if len(content) != 1 else content[0]))
        case ".html":
            from tokenlight.plots.dataset_report import write_html

            write_html(attributions, path)
        case ".csv":
            rows = to_token_rows(attributions)
            # Spreadsheets expect the line ends of RFC 4180.
            write_text(path, dump_csv(list(rows[0]), rows, line_end="\r\n"))
        case ".parquet":
            write_parquet(path, to_token_rows(attributions))
        case ".png" | ".svg" | ".pdf" as extension:
            from tokenlight.plots.figures import render_attributions

            write_bytes(path, render_attributions(attributions, extension))
        case extension:
            raise BadInput(
                f"Cannot write {path.name}: the extension {extension!r} is not one of .json, .html, .csv, "
                ".parquet, .png, .svg, .pdf.",
                code="output-extension",
            )


@checked
def load(path: str | os.PathLike[str]) -> list[Attribution] | Explanations:
    """Read saved attributions.

    Args:
        path: A JSON file that :func:`save` wrote, or a folder that ``tokenlight explain --file DATA -o
            FOLDER`` wrote.

    Returns:
        A list; for a folder, a sequence that reads the attributions when they are needed.

    Raises:
        MissingFile: The file does not exist.
        BadInput: The file was saved in another format than JSON.
        DamagedFile: The file holds something else.

    Example:
        >>> import tempfile
        >>> import tokenlight
        >>> explainer = tokenlight.Explainer.from_pretrained("tokenlight/sentiment")
        >>> path = explainer.explain("A great film").save(f"{tempfile.mkdtemp()}/film.json")
        >>> [attribution.text for attribution in tokenlight.load(path)]
        ['A great film']
    """
    if "://" in str(path) or os.path.isdir(path):  # Path.is_dir raises for a name that is too long
        return Explanations(str(path))
    input_path = Path(path)
    try:
        content = read_json(input_path)
        entries = content if isinstance(content, list) else [content]
        return [Attribution.from_dict(entry) for entry in entries]
    except FileNotFoundError as error:
        raise MissingFile(
            f"{input_path} does not exist. Check its name.", code="attribution-file-missing"
        ) from error
    except (OSError, ValueError, TokenlightError) as error:
        if input_path.suffix.lower() in _UNREADABLE_EXTENSIONS:
            raise BadInput(
                f"{input_path} cannot be loaded again: such files are for other programs. Save as .json too.",
                code="attribution-file-not-json",
            ) from error
        reason = str(error).removesuffix(".")
        raise DamagedFile(
            f"{input_path} is not an attribution file (.json, as save() writes it), or is damaged: {reason}.",
            code="attribution-file-damaged",
        ) from error
