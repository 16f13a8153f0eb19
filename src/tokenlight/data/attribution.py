"""Attribution: one explanation as frozen data, with all that is needed to trust and repeat it."""

import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tokenlight.data import units, validation
from tokenlight.data.target import Prediction, ResolvedTarget
from tokenlight.data.tokens import Later, TokenRow
from tokenlight.errors import BadInput, DamagedFile, NotFinite

FORMAT = 1  # of the JSON file; raised when a field changes its meaning


class Shown:
    """What an explanation, or a list of them, does with itself by :mod:`tokenlight.files` and ``plots``."""

    __slots__ = ()

    def _all(self) -> list[Any]:
        return self if isinstance(self, list) else [self]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write ``.json``, ``.html``, ``.csv``, ``.parquet``, ``.png``, ``.svg`` or ``.pdf``, by the file's
        ending; only JSON can be loaded again."""
        from tokenlight.files.saved import save

        return save(self._all(), path)

    def to_pandas(self) -> Any:
        """A data frame, one row per token."""
        from tokenlight.files.saved import to_pandas

        return to_pandas(self._all())

    def to_html(self) -> str:
        """One self-contained HTML page."""
        from tokenlight.plots.html import page

        return page(self._all())

    def _repr_html_(self) -> str:
        from tokenlight.plots.html import fragment

        return fragment(self._all())

    def show(self) -> None:
        """Print the highlighted text to the terminal; in a notebook, draw it."""
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if hasattr(shell, "kernel"):
            cell = import_module("IPython.display")
            cell.display(cell.HTML(self._repr_html_()))
            return
        from tokenlight.plots.terminal import show

        show(self._all())

    def plot(self) -> Any:
        """The highlighted text, or heat maps over pictures, as a figure of matplotlib."""
        from tokenlight.plots.figures import drawn

        return drawn(self._all())


@dataclass(frozen=True, eq=False)
class Attribution(Later, Shown):
    """Signed raw scores of one text, one method and one target.

    ``scores[token]``: positive speaks for the target, negative against it. ``layers[layer, token]``:
    the terms the scores are the sum of, where a method has them. Nothing is normalised, merged or
    made absolute here: see :mod:`tokenlight.data.postprocess`. One of a large batch is a light view:
    its fields are made when one of them is first read.
    """

    row: TokenRow
    scores: np.ndarray
    method: str
    target: ResolvedTarget
    prediction: Prediction
    logits: np.ndarray
    # By factories all: a default would be an attribute of the class, and be read from there.
    layers: np.ndarray | None = field(default_factory=lambda: None)
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = field(default_factory=str)
    versions: Mapping[str, str] = field(default_factory=dict)
    seed: int = field(default_factory=int)
    notes: tuple[str, ...] = field(default_factory=tuple)
    steps: tuple[str, ...] = field(default_factory=tuple)  # postprocessing done since, in order
    extras: Mapping[str, Any] = field(default_factory=dict)  # trust, conservation, windows: JSON

    def __post_init__(self) -> None:
        if np.shape(self.scores) != (len(self.row),):
            raise BadInput(
                f"scores have shape {np.shape(self.scores)} but the text has {len(self.row)} tokens; "
                "an Attribution has one score a token."
            )
        for name in ("scores", "logits", *["layers"] * (self.layers is not None)):
            values = frozen(getattr(self, name))
            if not np.isfinite(values).all():
                first = f"the first at {int(np.argmin(np.isfinite(values)))}"
                raise NotFinite(f"the {name} hold NaN or infinity, {first}; give finite numbers.")
            object.__setattr__(self, name, values)

    def __len__(self) -> int:
        return len(self.row)

    def __repr__(self) -> str:
        strongest = sorted(self.words(), key=lambda pair: -abs(pair[1]))[:3]
        best = ", ".join(f"{word.strip()} {score:+.3g}" for word, score in strongest)
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
        from tokenlight.data.postprocess import merge_words

        merged = merge_words(self, how=how)
        rows = zip(merged.tokens, merged.scores.tolist(), merged.row.special, strict=True)
        return [(word, score) for word, score, special in rows if not special]

    def patches(self) -> np.ndarray:
        """The scores of a picture's patches, ``row column``; the model's own tokens left out."""
        image = self.row.image
        if image is None:
            raise BadInput("this explains a text, which has no patches; use scores or words().")
        return image.grid(self.scores)

    def segment_shares(self) -> tuple[units.SegmentShare, ...]:
        """What each part of the input weighs: its share of Σ|score| and its signed sum, special
        tokens last; ``premise 62 %, hypothesis 31 %, special 7 %``."""
        homes, names = units.segments_of(self.row), self._names()
        found, whole = [], float(np.abs(self.scores).sum()) or 1.0
        for part in sorted({*homes}, key=lambda home: (home is None, home)):
            own = self.scores[[i for i, home in enumerate(homes) if home == part]]
            name = units.SPECIAL if part is None else names[part]
            found.append(units.SegmentShare(name, part, *units.weight(own, whole)))
        return tuple(found)

    def by(self, unit: units.Unit) -> list[units.UnitSum]:
        """Each role of a chat, document (text, message, half of a pair), sentence, word or token in order,
        with the sum of its scores; special tokens left out."""
        row, names, ends, found = self.row, self._names(), {}, []
        measured = self.extras.get("units", {})
        if measured.get("unit") == unit:
            pairs = zip(measured["low"], measured["high"], strict=True)
            ends = dict(zip(map(tuple, measured["positions"]), pairs, strict=True))
        homes, whole = units.segments_of(row), float(np.abs(self.scores).sum()) or 1.0
        for group in units.unit_groups(row, unit):
            segment, text = homes[group[0]], row.written(group, " ").strip()
            if unit == "role":
                texts = dict.fromkeys(row.segments[i] for i in group)
                text = " … ".join(row.texts[i].strip() for i in texts if i is not None)
            named = unit in ("document", "role") and segment is not None
            name = names[segment] if named else text  # type: ignore[index]
            sums = *units.weight(self.scores[group], whole), *ends.get(tuple(group), (None, None))
            found.append(units.UnitSum(name, text, segment, tuple(group), *sums))
        return found

    def _names(self) -> tuple[str, ...]:
        """What the parts are called: by the row itself, else by what the model does with a pair."""
        row = self.row
        count = max(len(row.texts), *(1 + (s or 0) for s in units.segments_of(row)))
        if len(row.names) >= count:
            return row.names
        if count == 1:
            return ("text" if row.image is None else "image",)
        inferred = "entailment" in {label.lower() for label in self.prediction.labels}
        pair = ("premise", "hypothesis") if inferred else ("first", "second")
        pair = ("question", "context") if self.target.kind == "span" else pair
        return (*pair, *(f"part {number}" for number in range(3, count + 1)))

    def sentences(self) -> list[units.Sentence]:
        """The sentences of which a token was read, each with the sum of its tokens' scores."""
        return units.sentences_of(self.row, self.scores)

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
            "row": dataclasses.asdict(dataclasses.replace(self.row, image=None))
            | {"image": self.row.image and self.row.image.to_dict()},
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
    def from_dict(cls, values: Mapping[str, Any]) -> "Attribution":
        """Rebuild from :meth:`to_dict`."""
        if not isinstance(values, Mapping) or values.get("format") != FORMAT:
            raise DamagedFile(
                f"this is not an attribution of format {FORMAT}; it was made by another version of "
                "tokenlight or is another kind of file."
            )
        validation.refuse_unwritable(values)
        names = [own.name for own in dataclasses.fields(cls)]
        said, end = "this attribution lacks or garbles a field (", "); save it again."
        troubles = LookupError, TypeError, ValueError, AttributeError, OverflowError
        with DamagedFile.telling(said, *troubles, end=end):
            made: Attribution = validation.part_of(cls, {name: values[name] for name in names}, "")
        validation.check(made)
        return made

    @classmethod
    def from_arrays(cls, scores: Any, ids: Any, logits: Any, **known: Any) -> "Attribution":
        """An explanation made elsewhere (Captum, shap, inseq, plain arrays), to be measured or drawn
        here; see :func:`tokenlight.evaluation.imported.from_arrays` for what else may be known of it."""
        from tokenlight.evaluation.imported import from_arrays

        return from_arrays(scores, ids, logits, **known)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Attribution":
        """Read back what :meth:`save` wrote as JSON."""
        from tokenlight.files.saved import load

        found = load(path)
        if len(found) != 1:
            raise BadInput(f"{path} holds {len(found)} attributions; use tokenlight.load.")
        return found[0]


class Attributions(list[Attribution], Shown):
    """What explain() gives for several: a list that shows and saves itself."""


def frozen(values: Any) -> np.ndarray:
    """Numbers that nobody can write into."""
    array = np.array(values, dtype=np.float64)
    array.flags.writeable = False
    return array
