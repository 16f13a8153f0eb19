"""Explanations as columns, one row a text: how they stand in Parquet, and how they are read back, one or
a folder of them.

docs/format.md says what each column holds. Scores and logits are rounded to float32; the terms of each
layer are not kept.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import Any, overload

from tokenlight.data.attribution import FORMAT as ATTRIBUTION
from tokenlight.data.attribution import Attribution
from tokenlight.errors import DamagedFile
from tokenlight.files.write import Folder, arrow_type, filesystem, parquet_bytes

FORMAT = 1  # of the columns; raised when one changes its meaning
PLACE = {"source": "string", "row": "int64"}
OWN = {
    **{"prediction": "string", "probabilities": "list<double>", "target": "string"},
    **{"tokens": "list<string>", "scores": "list<float>"},
    **{"starts": "list<int32>", "ends": "list<int32>", "segments": "list<int8>"},
    **{"words": "list<int32>", "special": "list<bool>"},
    **{"ids": "list<int32>", "pieces": "list<string>"},
    **{"attention": "list<int8>", "token_types": "list<int8>"},
    **{"texts": "list<string>", "labels": "list<string>", "logits": "list<float>"},
    **dict.fromkeys(("method", "options", "model", "fingerprint"), "string"),
    **{"notes": "list<string>", "details": "string"},
}
REASON = {"refused": "string"}
# Columns that hold a field as an Attribution has it, and where it stands there.
FIELDS = {
    **{one: one for one in ("scores", "method", "model", "notes")},
    **{o: f"row.{o}" for o in ("ids", "attention", "token_types", "pieces", "special", "texts")},
    **{one: f"prediction.{one}" for one in ("labels", "probabilities")},
    **{"prediction": "prediction.label", "target": "target.name"},
}
# Fields that have no column of their own.
DETAILS = {
    "target": ("kind", "terms"),
    "prediction": ("index", "ids", "answer_score", "null_score"),
    "row": ("cut", "at", "names", "anchor", "source", "answer", "asked"),
}
NOWHERE = -1  # where a special token stands in the text; a null would make floats of all in pandas


def columns_of(found: Sequence[Attribution | None], fingerprint: str) -> dict[str, list[Any]]:
    """The columns of :data:`OWN`; of a text without an explanation each is null."""
    blank = dict.fromkeys(OWN)
    rows = [blank if one is None else _row(one, fingerprint) for one in found]
    return {name: [row[name] for row in rows] for name in OWN}


def _row(a: Attribution, fingerprint: str) -> dict[str, Any]:
    spans = [span or (NOWHERE, NOWHERE) for span in a.row.spans]
    rest: dict[str, Any] = {name: getattr(a, name) for name in ("seed", "steps")}
    rest |= {name: dict(getattr(a, name)) for name in ("extras", "versions")}
    for part, names in DETAILS.items():
        rest[part] = {name: getattr(getattr(a, part), name) for name in names}
    return {
        **{name: read(a) for name, read in READ.items()},
        "tokens": a.row.surface,
        "starts": [start for start, _ in spans],
        "ends": [end for _, end in spans],
        "segments": [NOWHERE if one is None else one for one in a.row.segments],
        "words": [NOWHERE if one is None else one for one in a.row.words],
        "logits": [] if a.prediction.ids else a.logits,  # a vocabulary's are too many
        "options": _text(dict(a.options)),
        "fingerprint": fingerprint,
        "details": _text(rest),
    }


READ = {name: attrgetter(path) for name, path in FIELDS.items()}
_text = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=str).encode


def table_of(columns: Mapping[str, Any], kept: Any = None) -> Any:
    """An Arrow table of our columns, each of its kind, behind those that were ``kept``."""
    import pyarrow

    kinds = {**PLACE, **OWN, **REASON}
    own = {name: pyarrow.array(found, arrow_type(kinds[name])) for name, found in columns.items()}
    before = {} if kept is None else {name: kept[name] for name in kept.column_names}
    return pyarrow.table({**before, **own})


def parquet_of(table: Any, said: Mapping[str, Any]) -> bytes:
    """A table as the bytes of a Parquet file that ``said`` describes."""
    about = {"tokenlight": _text({"format": FORMAT, **said})}
    described = table.replace_schema_metadata(about)
    return parquet_bytes(described, compression="zstd", write_page_checksum=True)


def attribution_of(row: Mapping[str, Any]) -> Attribution:
    """The explanation that a row of the table holds; columns beside ours are its extras."""
    try:
        values = json.loads(row["details"])
        values |= {"format": ATTRIBUTION, "layers": None, "logits": row["logits"]}
        values["options"] = json.loads(row["options"])
        values["extras"]["kept"] = json.loads(_text({n: row[n] for n in row if n not in OWN}))
        for name, path in FIELDS.items():
            part, _, field = path.rpartition(".")
            (values[part] if part else values)[field] = row[name]
        for name in ("segments", "words"):
            values["row"][name] = [None if one == NOWHERE else one for one in row[name]]
        spans = zip(row["starts"], row["ends"], strict=True)
        values["row"]["spans"] = [None if own[0] == NOWHERE else list(own) for own in spans]
    except (KeyError, TypeError, ValueError) as broken:
        why = "is no explanation, or one of another version"
        raise DamagedFile(f"this row {why} ({broken!r}); explain it again.") from broken
    return Attribution.from_dict(values)


class Explanations(Sequence[Attribution]):
    """What ``tokenlight explain --file … -o FOLDER`` wrote, as Attributions that are made one by one.

    ``explanations[7]`` reads one block, going through all of them holds one at a time.
    ``extras["kept"]`` of each has the columns that were kept, and its place.
    """

    def __init__(self, place: str) -> None:
        self.folder = Folder(place)
        try:
            self.job: dict[str, Any] = json.loads(self.folder.read("job.json") or b"")
            if self.job["format"] != FORMAT:
                raise ValueError(f"its format is {self.job['format']}, not {FORMAT}")
        except (OSError, ValueError, KeyError, TypeError) as broken:
            why = "is a folder without explanations, or its job.json"
            raise DamagedFile(f"{place} {why} cannot be read: {broken}.") from broken

    def __repr__(self) -> str:
        return f"<Explanations of {len(self)} texts in {self.folder.place}>"

    @cached_property
    def dataset(self) -> Any:
        """All rows as a ``pyarrow.dataset``, for filters and for other libraries."""
        return self._dataset("rows")

    @property
    def refused(self) -> Any:
        """The texts that were refused, with the reason, as a data frame."""
        return self._dataset("refused").to_table().to_pandas()

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """A data frame, one row a text; ``columns``: only these, which is faster."""
        return self.dataset.to_table(columns=columns).to_pandas()

    @cached_property
    def _ends(self) -> list[int]:  # how many rows there are up to the end of each file
        return list(accumulate(_asked(one, "count_rows") for one in self._files))

    @cached_property
    def _files(self) -> list[Any]:
        return list(self.dataset.get_fragments())

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, which: int) -> Attribution: ...
    @overload
    def __getitem__(self, which: slice) -> list[Attribution]: ...
    def __getitem__(self, which: int | slice) -> Attribution | list[Attribution]:
        if isinstance(which, slice):
            return [self[i] for i in range(*which.indices(len(self)))]
        place = range(len(self))[which]
        number = bisect_right(self._ends, place)
        first = self._ends[number - 1] if number else 0
        return attribution_of(self._table(number).slice(place - first, 1).to_pylist()[0])

    def __iter__(self) -> Iterator[Attribution]:
        for number in range(len(self._files)):
            for batch in self._table(number).to_batches(max_chunksize=64):
                yield from map(attribution_of, batch.to_pylist())

    @cached_property
    def _table(self) -> Any:
        """The rows of a file by its number; the last ones read are kept."""
        import pyarrow.dataset

        check = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
        return lru_cache(maxsize=2)(
            lambda number: _asked(self._files[number], "to_table", fragment_scan_options=check)
        )

    def _dataset(self, below: str) -> Any:
        import pyarrow.dataset

        system, base = filesystem(self.folder.place)
        names = sorted(f"{base}/{name}" for name in self.folder.sizes(below))
        return pyarrow.dataset.dataset(names, filesystem=system, format="parquet")


def _asked(file: Any, question: str, **how: Any) -> Any:
    """What a method of a file gives; a damaged one is named."""
    import pyarrow

    troubles, end = (pyarrow.ArrowException, OSError), "); delete it, run again."
    with DamagedFile.telling(f"{file.path} is damaged (", *troubles, end=end):
        return getattr(file, question)(**how)
