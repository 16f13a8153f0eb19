"""Explanations as columns, one row a text: how they stand in Parquet, and how one is read back.

docs/format.md says what each column holds. Scores and logits are rounded to float32; the terms of each
layer are not kept.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenlight.data.attribution import FORMAT as ATTRIBUTION
from tokenlight.data.attribution import Attribution
from tokenlight.errors import DamagedFile, MissingExtra

FORMAT = 1  # of the columns; raised when one changes its meaning
PLACE = {"source": "string", "row": "int64"}
OWN = {
    "prediction": "string",
    "probabilities": "list<double>",
    "target": "string",
    "tokens": "list<string>",
    "scores": "list<float>",
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
REASON = {"refused": "string"}
ROW_DETAILS = ("cut", "at", "names", "anchor", "source", "answer", "asked")
ROW = ("ids", "attention", "token_types", "pieces", "special", "texts")  # as a TokenRow has them
PREDICTION = ("index", "ids", "answer_score", "null_score")  # that have no column of their own
NOWHERE = -1  # where a special token stands in the text; a null would make floats of all in pandas


def arrow_type(kind: str) -> Any:
    """``list<float>`` and its like as Arrow has them."""
    import pyarrow

    if kind.startswith("list<"):
        return pyarrow.list_(arrow_type(kind[5:-1]))
    return pyarrow.type_for_alias(kind)


def columns_of(found: Sequence[Attribution | None], fingerprint: str) -> dict[str, list[Any]]:
    """The columns of :data:`OWN`; of a text without an explanation each is null."""
    blank = dict.fromkeys(OWN)
    rows = [blank if one is None else _row(one, fingerprint) for one in found]
    return {name: [row[name] for row in rows] for name in OWN}


def _row(a: Attribution, fingerprint: str) -> dict[str, Any]:
    row = a.row
    spans = [span or (NOWHERE, NOWHERE) for span in row.spans]
    prediction, target = a.prediction, a.target
    rest = {
        "target": {"kind": target.kind, "terms": target.terms},
        "prediction": {k: getattr(prediction, k) for k in PREDICTION},
        "row": {name: getattr(row, name) for name in ROW_DETAILS},
        "extras": dict(a.extras),
        "versions": dict(a.versions),
        "seed": a.seed,
        "steps": a.steps,
    }
    return {
        "prediction": prediction.label,
        "probabilities": prediction.probabilities,
        "target": target.name,
        "tokens": row.surface,
        "scores": a.scores,
        "starts": [start for start, _ in spans],
        "ends": [end for _, end in spans],
        "segments": [NOWHERE if one is None else one for one in row.segments],
        "words": [NOWHERE if one is None else one for one in row.words],
        **{name: getattr(row, name) for name in ROW},
        "labels": prediction.labels,
        "logits": [] if prediction.ids else a.logits,  # a vocabulary's are too many
        "method": a.method,
        "options": _text(dict(a.options)),
        "model": a.model,
        "fingerprint": fingerprint,
        "notes": a.notes,
        "details": _text(rest),
    }


_text = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=str).encode


def table_of(columns: Mapping[str, Any], kept: Any = None) -> Any:
    """An Arrow table of our columns, each of its kind, behind those that were ``kept``."""
    import pyarrow

    kinds = {**PLACE, **OWN, **REASON}
    own = {name: pyarrow.array(found, arrow_type(kinds[name])) for name, found in columns.items()}
    before = {} if kept is None else {name: kept[name] for name in kept.column_names}
    return pyarrow.table({**before, **own})


def parquet_of(table: Any, said: Mapping[str, Any]) -> bytes:
    """A table as the bytes of a Parquet file that ``said`` describes; the same table, the same bytes."""
    parquet = MissingExtra.importing("pyarrow.parquet", "bench", "Parquet output")
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    about = {"tokenlight": _text({"format": FORMAT, **said})}
    parquet.write_table(
        table.replace_schema_metadata(about), sink, compression="zstd", write_page_checksum=True
    )
    content: bytes = sink.getvalue().to_pybytes()
    return content


def attribution_of(row: Mapping[str, Any]) -> Attribution:
    """The explanation that a row of the table holds; columns beside ours are its extras."""
    try:
        rest = json.loads(row["details"])
        spans = zip(row["starts"], row["ends"], strict=True)
        kept = {name: row[name] for name in row if name not in OWN}
        values = {
            "format": ATTRIBUTION,
            **{name: row[name] for name in ("scores", "logits", "method", "model", "notes")},
            **{name: rest[name] for name in ("versions", "seed", "steps")},
            "layers": None,
            "options": json.loads(row["options"]),
            "extras": {**rest["extras"], "kept": json.loads(_text(kept))},
            "target": {**rest["target"], "name": row["target"]},
            "prediction": {
                **rest["prediction"],
                "label": row["prediction"],
                **{name: row[name] for name in ("labels", "probabilities")},
            },
            "row": {
                **rest["row"],
                **{name: row[name] for name in ROW},
                **{
                    name: [None if one == NOWHERE else one for one in row[name]]
                    for name in ("segments", "words")
                },
                "spans": [None if start == NOWHERE else [start, end] for start, end in spans],
            },
        }
    except (KeyError, TypeError, ValueError) as broken:
        raise DamagedFile(
            f"this row is no explanation ({broken!r}); it was made by another version, or is another "
            "kind of table."
        ) from broken
    return Attribution.from_dict(values)
