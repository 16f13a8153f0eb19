"""Attribution: one explanation as frozen data, with all that is needed to trust and repeat it."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tokenlight.datafiles import write_bytes, write_parquet
from tokenlight.errors import BadInput, DamagedFile, MissingExtra, NotFinite
from tokenlight.late import late
from tokenlight.pictures import PatchImage
from tokenlight.segments import SegmentShare, segment_names, segment_shares
from tokenlight.sentences import Sentence, sentences_of
from tokenlight.target import Prediction, ResolvedTarget
from tokenlight.tokens import TokenRow

FORMAT = 1  # of the JSON file; raised when a field changes its meaning


@dataclass(frozen=True, eq=False)
class Attribution:
    """Signed raw scores of one text, one method and one target.

    ``scores[token]``: positive speaks for the target, negative against it. ``layers[layer, token]``:
    the terms the scores are the sum of, where a method has them. Nothing is normalised, merged or
    made absolute here: see :mod:`tokenlight.postprocess`.
    """

    row: TokenRow
    scores: np.ndarray
    method: str
    target: ResolvedTarget
    prediction: Prediction
    logits: np.ndarray
    layers: np.ndarray | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    notes: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()  # postprocessing done since, in order
    extras: Mapping[str, Any] = field(default_factory=dict)  # trust, conservation, windows: JSON

    def __post_init__(self) -> None:
        scores = _frozen(self.scores)
        if scores.ndim != 1 or len(scores) != len(self.row):
            raise BadInput(
                f"scores have shape {scores.shape} but the text has {len(self.row)} tokens; "
                "an Attribution has one score a token."
            )
        if not np.isfinite(scores).all():
            raise NotFinite(
                f"the score of token {int(np.flatnonzero(~np.isfinite(scores))[0])} is not finite; "
                "an Attribution holds finite numbers only."
            )
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "logits", _frozen(self.logits))
        if self.layers is not None:
            object.__setattr__(self, "layers", _frozen(self.layers))

    def scored(
        self, scores: np.ndarray, layers: np.ndarray | None, extras: Mapping[str, Any]
    ) -> Attribution:
        """The same explanation with these numbers, which the caller knows to be finite and one a
        token. All else of a batch is made ready while the device works; only this waits for it."""
        found = object.__new__(Attribution)
        found.__dict__.update(self.__dict__, scores=_frozen(scores), extras=extras)
        if layers is not None:
            found.__dict__["layers"] = _frozen(layers)
        return found

    def __len__(self) -> int:
        return len(self.row)

    def __repr__(self) -> str:
        best = ", ".join(f"{token} {score:+.3g}" for token, score in self.top(3))
        return f"<Attribution {self.label}: {best}>"

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens as the person wrote them; special tokens as the tokenizer names them."""
        return self.row.surface

    @property
    def text(self) -> str:
        """The explained text; the parts of a pair stand on lines of their own."""
        return "\n".join(self.row.texts) or " ".join(self.row.pieces)

    @property
    def label(self) -> str:
        """Method with its options, target: one line that names this explanation."""
        chosen = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.method}{f'({chosen})' if chosen else ''} → {self.target.name}"

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The ``k`` tokens with the largest magnitude, special tokens left out; ties in order."""
        order = np.argsort(-np.abs(self.scores), kind="stable")
        kept = [int(i) for i in order if not self.row.special[i]][:k]
        return [(self.tokens[i], float(self.scores[i])) for i in kept]

    def words(self, how: str = "sum") -> list[tuple[str, float]]:
        """Words of the text with their scores, in order; special tokens left out."""
        merged = late("tokenlight.postprocess", "merge_words")(self, how=how)
        return [
            (token, float(score))
            for token, score, special in zip(
                merged.tokens, merged.scores, merged.row.special, strict=True
            )
            if not special
        ]

    def patches(self) -> np.ndarray:
        """The scores of a picture's patches, ``row column``; the model's own tokens left out."""
        image = self.row.image
        if image is None:
            raise BadInput("this explains a text, which has no patches; use scores or words().")
        return self.scores[-image.rows * image.columns :].reshape(image.rows, image.columns)

    def segment_shares(self) -> tuple[SegmentShare, ...]:
        """What each part of the input weighs: its share of Σ|score| and its signed sum, special
        tokens last; ``premise 62 %, hypothesis 31 %, special 7 %``."""
        names = segment_names(
            self.row, span=self.target.kind == "span", labels=self.prediction.labels
        )
        return segment_shares(self.row, self.scores, names)

    def sentences(self) -> list[Sentence]:
        """The sentences of the text in order, each with the sum of its tokens' scores; those of which
        no token was read are left out."""
        return sentences_of(self.row, self.scores)

    # --- files and tables -------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`from_dict` is its inverse."""
        return {
            "format": FORMAT,
            "tokens": list(self.tokens),
            "scores": self.scores.tolist(),
            "layers": None if self.layers is None else self.layers.tolist(),
            "method": self.method,
            "options": dict(self.options),
            "target": dataclasses.asdict(self.target),
            "prediction": dataclasses.asdict(self.prediction),
            # A language model has one for each token of its vocabulary: its likeliest are in
            # ``prediction``, the many others are not written.
            "logits": [] if self.prediction.ids else self.logits.tolist(),
            "row": _row_values(self.row),
            "model": self.model,
            "versions": dict(self.versions),
            "seed": self.seed,
            "notes": list(self.notes),
            "steps": list(self.steps),
            "extras": dict(self.extras),
            # For readers of the file; what is loaded is computed again.
            "segments": [dataclasses.asdict(part) for part in self.segment_shares()],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Attribution:
        """Rebuild from :meth:`to_dict`."""
        found = values.get("format") if isinstance(values, Mapping) else values
        if found != FORMAT or not isinstance(values, Mapping):
            raise DamagedFile(
                f"this is no attribution of format {FORMAT} (found {str(found)[:40]!r}); "
                "it was made by another version of tokenlight or is another kind of file."
            )
        try:
            return cls(
                row=_row(values["row"]),
                scores=np.array(values["scores"], dtype=np.float64),
                layers=None if values["layers"] is None else np.array(values["layers"]),
                method=values["method"],
                options=dict(values["options"]),
                target=_target(values["target"]),
                prediction=_prediction(values["prediction"]),
                logits=np.array(values["logits"], dtype=np.float64),
                model=values["model"],
                versions=dict(values["versions"]),
                seed=values["seed"],
                notes=tuple(values["notes"]),
                steps=tuple(values["steps"]),
                extras=dict(values["extras"]),
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as broken:
            raise DamagedFile(f"this attribution lacks or garbles a field: {broken!r}.") from broken

    @classmethod
    def from_arrays(cls, scores: Any, ids: Any, logits: Any, **known: Any) -> Attribution:
        """An explanation made elsewhere (Captum, shap, inseq, plain arrays), to be measured or drawn
        here; see :func:`tokenlight.evaluation.foreign.from_arrays` for what else may be known of it."""
        made: Attribution = late("tokenlight.evaluation.foreign", "from_arrays")(
            scores, ids, logits, **known
        )
        return made

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write ``.json``, ``.html``, ``.csv``, ``.parquet`` or, for a picture, ``.png``, by the
        file's ending; only JSON can be loaded again."""
        return save([self], path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Attribution:
        """Read back what :meth:`save` wrote as JSON."""
        found = load(path)
        if len(found) != 1:
            raise BadInput(f"{path} holds {len(found)} attributions; use tokenlight.load.")
        return found[0]

    def to_pandas(self) -> Any:
        """A data frame, one row a token."""
        return to_pandas([self])

    # --- pictures: drawn by tokenlight.plots, which stands above this module ----------------------

    def to_html(self) -> str:
        """One self-contained HTML page."""
        return str(late("tokenlight.plots.html", "page")([self]))

    def _repr_html_(self) -> str:
        return str(late("tokenlight.plots.html", "fragment")([self]))

    def show(self) -> None:
        """Print the highlighted text to the terminal."""
        late("tokenlight.plots.terminal", "show")([self])


def _frozen(values: Any) -> np.ndarray:
    array = np.array(values, dtype=np.float64)
    array.flags.writeable = False
    return array


def _row_values(row: TokenRow) -> dict[str, Any]:
    image = row.image
    plain = dataclasses.asdict(dataclasses.replace(row, image=None))
    return plain | {"image": None if image is None else image.to_dict()}


def _row(values: Mapping[str, Any]) -> TokenRow:
    fields: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in values.items()
    }
    fields["spans"] = tuple(None if span is None else tuple(span) for span in values["spans"])
    if values.get("image") is not None:
        fields["image"] = PatchImage.from_dict(values["image"])
    row = TokenRow(**fields)
    lists = (row.attention, row.pieces, row.special, row.spans, row.segments, row.words)
    if any(len(own) != len(row) for own in lists):
        raise ValueError("the row's lists are not one entry a token")
    return row


def _target(values: Mapping[str, Any]) -> ResolvedTarget:
    terms = tuple((tuple(at), float(weight)) for at, weight in values["terms"])
    return ResolvedTarget(values["kind"], values["name"], terms)


def _prediction(values: Mapping[str, Any]) -> Prediction:
    labels, chances = tuple(values["labels"]), tuple(values["probabilities"])
    ids = tuple(values.get("ids", ()))
    scores = values.get("answer_score"), values.get("null_score")
    return Prediction(values["label"], values["index"], labels, chances, ids, *scores)


def records(attributions: Iterable[Attribution]) -> list[dict[str, Any]]:
    """One flat record a token: the table behind CSV, Parquet and pandas.

    ``text`` counts the texts, ``attribution`` the explanations: a text may have several. ``place``:
    where the text stands in its file, if any came from one.
    """
    given = list(attributions)
    placed = any("place" in a.extras for a in given)
    return [
        {
            "text": text,
            **({"place": a.extras.get("place")} if placed else {}),
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


def _text_numbers(attributions: Iterable[Attribution]) -> Iterator[int]:
    """The number of each explanation's text: the one before's, until another text is explained, or the
    same question comes round again, since then it is an equal text."""
    number, text, asked = -1, None, set[object]()
    for a in attributions:
        # The tokens of a continuation are explained from a row each, which share their text.
        own = a.row.texts, a.row.names, None if a.row.texts else a.row.fingerprint
        question = a.label, a.target.terms, a.model, a.steps, a.seed, a.row.at, len(a.row)
        if own != text or question in asked:
            number, text, asked = number + 1, own, set()
        asked.add(question)
        yield number


def to_pandas(attributions: Iterable[Attribution]) -> Any:
    """A data frame over several attributions, one row a token."""
    try:
        import pandas
    except ImportError as missing:
        raise MissingExtra.naming("pandas", "bench", "to_pandas()") from missing
    return pandas.DataFrame.from_records(records(attributions))


def save(attributions: Iterable[Attribution], path: str | os.PathLike[str]) -> Path:
    """Write several attributions to one file; the ending chooses the format."""
    given, place = list(attributions), Path(path)
    match place.suffix.lower():
        case ".json":
            content = [a.to_dict() for a in given]
            text = json.dumps(content if len(content) != 1 else content[0], ensure_ascii=False)
            write_bytes(place, text.encode("utf-8"))
        case ".html":
            write_bytes(place, str(late("tokenlight.plots.html", "page")(given)).encode("utf-8"))
        case ".csv":
            _write_csv(place, records(given))
        case ".parquet":
            write_parquet(place, records(given))
        case ".png":
            write_bytes(place, late("tokenlight.plots.heat_maps", "png")(given))
        case ending:
            raise BadInput(
                f"cannot write {place.name}: the ending {ending!r} is none of .json, .html, .csv, "
                ".parquet, nor .png for pictures."
            )
    return place


def load(path: str | os.PathLike[str]) -> list[Attribution]:
    """Read the attributions in a JSON file that :func:`save` wrote."""
    place = Path(path)
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError as missing:
        raise DamagedFile(f"{place} does not exist.") from missing
    except OSError as broken:  # a folder, or a file that may not be read
        raise DamagedFile(f"{place} cannot be read: {broken.strerror or broken}.") from broken
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise DamagedFile(f"{place} is no attribution file: {broken}.") from broken
    return [
        Attribution.from_dict(entry)
        for entry in (content if isinstance(content, list) else [content])
    ]


def _write_csv(place: Path, rows: list[dict[str, Any]]) -> None:
    import io

    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, fieldnames=list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(place, lines.getvalue().encode("utf-8"))
