"""Attribution: one explanation as frozen data, with everything that is needed to repeat it."""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from tokenlight.data import units, validation
from tokenlight.data.alternatives import Alternative
from tokenlight.data.export import ExportMixin
from tokenlight.data.lazy import LazyDataclass
from tokenlight.data.old_names import rename_old_extras, rename_old_target
from tokenlight.data.prediction import Prediction
from tokenlight.data.probabilities import softmax
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, DamagedFile, NotFinite, TokenlightError
from tokenlight.errors.arguments import Range, check_fields, checked

AtLeastZero = Annotated[int, Range(0, math.inf)]
FORMAT_VERSION = 1  # of the JSON file; raised when a field changes its meaning
# A score of fewer standard errors than this could be 0: two are the usual 95 %.
MIN_ERRORS_FROM_ZERO = 2.0
METHOD_CODE = "method_code"  # key in extras: a digest of that class's code
METHOD_CLASS = "method_class"  # key in extras: the class of a method that is not registered


@dataclass(frozen=True, eq=False)
class Attribution(LazyDataclass, ExportMixin):
    """Signed raw scores for one text, one method and one target.

    Nothing is normalized, merged or made absolute here: see :mod:`tokenlight.postprocess`. An Attribution
    of a large batch computes its fields when one of them is first read.

    Args:
        row: The tokens.
        scores: ``token``; positive scores speak for the target, negative ones against it.
        method: Name of the method.
        target: The explained target.
        prediction: The model's prediction.
        logits: The model's output for this text.
        layers: ``layer token``: the terms that sum to ``scores``, for methods that have them.
        options: Options of the method.
        model: Name of the model.
        versions: Versions of the libraries.
        seed: Seed of all random draws.
        notes: Remarks for the reader.
        steps: Postprocessing steps, in order.
        extras: Further results as JSON values, such as trust, conservation and windows.
        standard_errors: ``token``: how far each score may be off because the method sampled; None for
            methods that do not sample, or do not know.

    Raises:
        BadInput: ``scores``, ``layers`` or ``standard_errors`` do not have one entry per token, or a field
            has a wrong type.
        NotFinite: An array holds NaN or infinity.

    Example:
        >>> from tokenlight import Explainer
        >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
        >>> attribution = explainer.explain("A great film")
        >>> len(attribution.scores) == len(attribution.tokens)
        True
    """

    row: TokenRow
    scores: np.ndarray
    method: str
    target: ResolvedTarget
    prediction: Prediction
    logits: np.ndarray
    # All defaults are factories: a plain default would be a class attribute, so reading it from a lazy
    # instance would never load the field.
    layers: np.ndarray | None = field(default_factory=lambda: None)
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = field(default_factory=str)
    versions: Mapping[str, str] = field(default_factory=dict)
    seed: int = field(default_factory=int)
    notes: tuple[str, ...] = field(default_factory=tuple)
    steps: tuple[str, ...] = field(default_factory=tuple)
    extras: Mapping[str, Any] = field(default_factory=dict)
    standard_errors: np.ndarray | None = field(default_factory=lambda: None)

    def __post_init__(self) -> None:
        check_fields(self)
        num_tokens = len(self.row)
        if np.shape(self.scores) != (num_tokens,):
            raise BadInput(
                f"scores have shape {np.shape(self.scores)}, but the text has {num_tokens} tokens. Give one "
                "score per token.",
                code="scores-shape",
            )
        if self.layers is not None and np.shape(self.layers)[1:] != (num_tokens,):
            raise BadInput(
                f"layers have shape {np.shape(self.layers)}, but the text has {num_tokens} tokens. Give one "
                "row per layer with one term per token.",
                code="layers-shape",
            )
        self._freeze_array("scores")
        self._freeze_array("logits")
        if self.layers is not None:
            self._freeze_array("layers")
        if self.standard_errors is not None:
            self._freeze_array("standard_errors")
            self._check_standard_errors(self.standard_errors)

    def _check_standard_errors(self, errors: np.ndarray) -> None:
        if errors.shape != (len(self.row),) or errors.min(initial=0.0) < 0:
            raise BadInput(
                f"standard_errors have shape {errors.shape} and the least is {errors.min(initial=0.0):.3g}, "
                f"but the text has {len(self.row)} tokens. Give one number of at least 0 per token.",
                code="standard-errors",
            )

    def _freeze_array(self, name: str) -> None:
        """Replace a field by a read-only array of finite numbers."""
        try:
            values = to_read_only_array(getattr(self, name))
        except (TypeError, ValueError) as error:
            raise BadInput(
                f"The {name} are not numbers: {error}. Give an array of numbers.",
                code="array-not-numeric",
            ) from error
        is_finite = np.isfinite(values)
        if not is_finite.all():
            raise NotFinite(
                f"The {name} hold NaN or infinity, first at index {int(np.argmin(is_finite))}. Give finite "
                "numbers.",
                code="array-not-finite",
            )
        object.__setattr__(self, name, values)

    def __len__(self) -> int:
        return len(self.row)

    def __eq__(self, other: object) -> bool:
        """Return whether both would be saved as the same values, so that a loaded copy is equal."""
        if self is other:
            return True
        if not isinstance(other, Attribution):
            return NotImplemented
        if self.method != other.method or self.row.ids != other.row.ids:
            return False  # most differ in these, which cost little to compare
        return self._to_json_values() == other._to_json_values()

    def __hash__(self) -> int:
        return hash((self.method, self.row.ids))

    def _to_json_values(self) -> object:
        """Return what a JSON file would hold, where tuples are lists."""
        values: object = json.loads(json.dumps(self.to_dict(), default=str))
        return values

    def __repr__(self) -> str:
        strongest = sorted(self.words(), key=lambda pair: -abs(pair[1]))[:3]
        words = ", ".join(f"{word.strip()} {score:+.3g}" for word, score in strongest)
        return f"<Attribution {self.title}: {words}>"

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens as the person wrote them; special tokens as the tokenizer names them."""
        return self.row.surface_forms

    @property
    def text(self) -> str:
        """The explained text; the parts of a pair on lines of their own."""
        return "\n".join(self.row.texts) or " ".join(self.row.pieces)

    @property
    def title(self) -> str:
        """Method with its options, and the question that it answers, on one line."""
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        method = f"{self.method}({options})" if options else self.method
        return f"{method} → {self.question}"

    @property
    def question(self) -> str:
        """What is explained: a class, a token rather than its alternatives, or a token's logit alone."""
        if self.target.kind == "class" and self.prediction.ids:
            return f"{self.target.name}, its logit alone"
        return self.target.title

    @property
    def uncertain_mask(self) -> np.ndarray:
        """``token``: true where a score could be 0, being less than two of its standard errors.

        All false for a method without standard errors.
        """
        if self.standard_errors is None:
            return np.zeros(len(self.row), dtype=bool)
        is_uncertain: np.ndarray = np.abs(self.scores) < MIN_ERRORS_FROM_ZERO * self.standard_errors
        return is_uncertain

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """What the token is contrasted with, likeliest first; of a whole vocabulary the likeliest.

        Empty for targets that are not one token of a language model rather than its likely others.
        """
        names = self.target.alternatives
        # The term of the token itself comes first, then those of its alternatives.
        terms = self.target.terms[1 : 1 + len(names)]
        probabilities = self._alternative_probabilities(terms)
        alternatives = []
        for name, (coordinate, _), probability in zip(names, terms, probabilities, strict=True):
            alternatives.append(Alternative(name, coordinate[0], probability))
        return tuple(alternatives)

    def _alternative_probabilities(
        self, terms: tuple[tuple[tuple[int, ...], float], ...]
    ) -> list[float | None]:
        """Return the probabilities of alternatives: from the logits or, in a saved file, their weights."""
        if self.logits.size:
            probabilities = softmax(self.logits)
            return [float(probabilities[coordinate[0]]) for coordinate, _ in terms]
        # The weights are probabilities up to one factor, which the predicted tokens have in common.
        known = dict(zip(self.prediction.ids, self.prediction.probabilities, strict=False))
        for coordinate, weight in terms:
            if coordinate[0] in known and weight:
                factor = known[coordinate[0]] / weight
                return [other_weight * factor for _, other_weight in terms]
        return [None] * len(terms)

    @checked
    def top(self, k: AtLeastZero = 5) -> list[tuple[str, float]]:
        """Return the tokens with the largest magnitude.

        Args:
            k: Number of tokens.

        Returns:
            Pairs of token and score, without special tokens; equal magnitudes in the order of the text.

        Example:
            >>> from tokenlight import Explainer
            >>> attribution = Explainer.from_pretrained("tokenlight/sentiment").explain("A great film")
            >>> len(attribution.top(2))
            2
        """
        order = np.argsort(-np.abs(self.scores), kind="stable")
        regular = [int(i) for i in order if not self.row.special_tokens_mask[i]]
        return [(self.tokens[i], float(self.scores[i])) for i in regular[:k]]

    def words(self, reduction: str = "sum") -> list[tuple[str, float]]:
        """Return the words of the text with their scores, in order, without special tokens.

        Args:
            reduction: How the scores of a word's tokens are merged: ``"sum"``, ``"mean"`` or ``"max"``.

        Returns:
            Pairs of word and score.

        Raises:
            UnknownName: There is no such reduction.

        Example:
            >>> from tokenlight import Explainer
            >>> attribution = Explainer.from_pretrained("tokenlight/sentiment").explain("A great film")
            >>> [word for word, score in attribution.words()]
            ['A', 'great', 'film']
        """
        from tokenlight.data.postprocess import merge_words

        merged = merge_words(self, reduction=reduction)
        words = []
        for i, word in enumerate(merged.tokens):
            if not merged.row.special_tokens_mask[i]:
                words.append((word, float(merged.scores[i])))
        return words

    def patches(self) -> np.ndarray:
        """Return the scores of an image's patches, ``row column``, without special tokens.

        Returns:
            An array with one score per patch, the top left patch first.

        Raises:
            BadInput: This explains a text.

        Example:
            >>> attribution = explainer.explain(Picture("cat.png"))  # doctest: +SKIP
            >>> attribution.patches().shape  # doctest: +SKIP
            (14, 14)
        """
        image = self.row.image
        if image is None:
            raise BadInput(
                "This attribution explains a text, which has no patches. Use scores or words().",
                code="text-has-no-patches",
            )
        return image.to_grid(self.scores)

    def segment_shares(self) -> tuple[units.SegmentShare, ...]:
        """Return how much each segment of the input matters, special tokens last.

        Returns:
            The share of Σ|score| and the signed sum for each segment, such as ``premise 62 %,
            hypothesis 31 %, special 7 %``.

        Example:
            >>> from tokenlight import Explainer
            >>> attribution = Explainer.from_pretrained("tokenlight/sentiment").explain("A great film")
            >>> [share.name for share in attribution.segment_shares()]
            ['text', 'special']
        """
        names = self._segment_names()
        positions: dict[int | None, list[int]] = {}
        for position, segment in enumerate(units.find_segments(self.row)):
            positions.setdefault(segment, []).append(position)
        total_magnitude = self._total_magnitude()
        shares = []
        for segment in sorted(positions, key=lambda segment: (segment is None, segment)):
            name = units.SPECIAL_SEGMENT if segment is None else names[segment]
            segment_scores = self.scores[positions[segment]]
            share, total = units.compute_share_and_sum(segment_scores, total_magnitude)
            shares.append(units.SegmentShare(name=name, segment=segment, share=share, total=total))
        return tuple(shares)

    def group_by(self, unit: units.Unit) -> list[units.UnitScore]:
        """Return the sum of scores of each unit, in order, without special tokens.

        Args:
            unit: ``"token"``, ``"word"``, ``"sentence"``, ``"document"`` (a text, a message, half of a
                pair) or ``"role"`` (all messages of one role of a chat).

        Returns:
            One entry per unit, with its text and its sum.

        Raises:
            UnknownName: There is no such unit.
            BadInput: Sentences of a text given as ids were asked for.

        Example:
            >>> from tokenlight import Explainer
            >>> attribution = Explainer.from_pretrained("tokenlight/sentiment").explain("Great. Too long.")
            >>> [unit.text for unit in attribution.group_by("sentence")]
            ['Great.', 'Too long.']
        """
        units.check_unit(unit)
        names = self._segment_names()
        segments = units.find_segments(self.row)
        intervals = self._unit_intervals(unit)
        total_magnitude = self._total_magnitude()
        unit_scores = []
        for group in units.group_by_unit(self.row, unit):
            segment = segments[group[0]]
            text = self._unit_text(group, unit)
            name = text
            if unit in ("document", "role") and segment is not None:
                name = names[segment]
            share, total = units.compute_share_and_sum(self.scores[group], total_magnitude)
            low, high = intervals.get(tuple(group), (None, None))
            unit_scores.append(
                units.UnitScore(
                    name=name,
                    text=text,
                    segment=segment,
                    positions=tuple(group),
                    share=share,
                    total=total,
                    low=low,
                    high=high,
                )
            )
        return unit_scores

    def _unit_intervals(self, unit: units.Unit) -> dict[tuple[int, ...], tuple[float, float]]:
        """Return the confidence interval of each unit, by its tokens, if the method measured these units."""
        measured = self.extras.get("units", {})
        if measured.get("unit") != unit:
            return {}
        intervals = {}
        bounds = zip(measured["low"], measured["high"], strict=True)
        for positions, interval in zip(measured["positions"], bounds, strict=True):
            intervals[tuple(positions)] = interval
        return intervals

    def _unit_text(self, positions: list[int], unit: units.Unit) -> str:
        if unit != "role":
            return self.row.extract_text(positions, " ").strip()
        # The messages of a role need not be adjacent.
        segments = dict.fromkeys(self.row.segments[i] for i in positions)
        texts = [self.row.texts[i].strip() for i in segments if i is not None]
        return " … ".join(texts)

    def _total_magnitude(self) -> float:
        """Return Σ|score|, or 1 where all scores are 0, so that shares are 0 then."""
        return float(np.abs(self.scores).sum()) or 1.0

    def _segment_names(self) -> tuple[str, ...]:
        """Return the names of the segments: the row's own, else those that suit the task."""
        row = self.row
        last_segment = max((segment or 0) for segment in units.find_segments(row))
        num_segments = max(len(row.texts), 1 + last_segment)
        if len(row.segment_names) >= num_segments:
            return row.segment_names
        if num_segments == 1:
            return ("text" if row.image is None else "image",)
        label_names = {label.lower() for label in self.prediction.labels}
        if self.target.kind == "span":
            pair = ("question", "context")
        elif "entailment" in label_names:
            pair = ("premise", "hypothesis")
        else:
            pair = ("first", "second")
        return (*pair, *(f"part {number}" for number in range(3, num_segments + 1)))

    def sentences(self) -> list[units.Sentence]:
        """Return the sentences that the model read, each with the sum of its tokens' scores.

        Returns:
            One entry per sentence, in the order of the text.

        Example:
            >>> from tokenlight import Explainer
            >>> attribution = Explainer.from_pretrained("tokenlight/sentiment").explain("Great. Too long.")
            >>> [sentence.text for sentence in attribution.sentences()]
            ['Great.', 'Too long.']
        """
        return units.score_sentences(self.row, self.scores)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; :meth:`from_dict` is the inverse.

        Returns:
            A mapping that ``json.dumps`` accepts.

        Example:
            >>> from tokenlight import Attribution
            >>> Attribution.from_arrays([0.1, 0.7], [5, 6], [0.2, 1.3]).to_dict()["scores"]
            [0.1, 0.7]
        """
        return {
            "format": FORMAT_VERSION,
            "tokens": list(self.tokens),
            "scores": self.scores.tolist(),
            "standard_errors": None
            if self.standard_errors is None
            else self.standard_errors.tolist(),
            "layers": None if self.layers is None else self.layers.tolist(),
            "method": self.method,
            "options": dict(self.options),
            "target": dataclasses.asdict(self.target),
            "prediction": dataclasses.asdict(self.prediction),
            # A language model has one logit per token of its vocabulary: the most likely tokens are in
            # ``prediction``, the many others are not saved.
            "logits": [] if self.prediction.ids else self.logits.tolist(),
            "row": self.row.to_dict(),
            "model": self.model,
            "versions": dict(self.versions),
            "seed": self.seed,
            "notes": list(self.notes),
            "steps": list(self.steps),
            "extras": dict(self.extras),
            # For people who read the file; from_dict() computes these again.
            "segments": [dataclasses.asdict(share) for share in self.segment_shares()],
            "alternatives": [dataclasses.asdict(other) for other in self.alternatives],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Attribution":
        """Rebuild an Attribution from :meth:`to_dict`.

        Args:
            values: The output of :meth:`to_dict`, for example read from a JSON file.

        Returns:
            The Attribution, equal to the one that was written.

        Raises:
            DamagedFile: The values are of another format, incomplete or inconsistent.

        Example:
            >>> from tokenlight import Attribution
            >>> values = Attribution.from_arrays([0.1, 0.7], [5, 6], [0.2, 1.3]).to_dict()
            >>> Attribution.from_dict(values).scores.tolist()
            [0.1, 0.7]
        """
        if not isinstance(values, Mapping) or values.get("format") != FORMAT_VERSION:
            raise DamagedFile(
                f"This is not an attribution of format {FORMAT_VERSION}. It was made by another version of "
                "tokenlight or is another kind of file.",
                code="attribution-format",
            )
        validation.check_serializable(values)
        try:
            # Files of earlier versions have no standard errors.
            values = {"standard_errors": None, **values}
            values["extras"] = rename_old_extras(values["extras"])
            values["target"] = rename_old_target(values["target"])
            fields = {item.name: values[item.name] for item in dataclasses.fields(cls)}
            attribution: Attribution = validation.parse_dataclass(cls, fields, "")
        except TokenlightError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = str(error).replace("NoneType", "null")  # as JSON calls it
            raise DamagedFile(
                f"This attribution lacks a field or has an invalid value ({reason}). Save it again.",
                code="attribution-fields",
            ) from error
        validation.check_attribution(attribution)
        return attribution

    @classmethod
    def from_arrays(cls, scores: Any, ids: Any, logits: Any, **metadata: Any) -> "Attribution":
        """Create an Attribution from results of another library (Captum, SHAP, Inseq, plain arrays).

        Args:
            scores: ``token``.
            ids: Token ids.
            logits: The model's output.
            metadata: See :func:`tokenlight.evaluation.external.from_arrays`.

        Returns:
            The Attribution.

        Example:
            >>> from tokenlight import Attribution
            >>> attribution = Attribution.from_arrays([0.1, 0.7], [5, 6], [0.2, 1.3])
            >>> attribution.scores.tolist()
            [0.1, 0.7]
        """
        from tokenlight.evaluation.external import from_arrays

        return from_arrays(scores, ids, logits, **metadata)

    @classmethod
    @checked
    def load(cls, path: str | os.PathLike[str]) -> "Attribution":
        """Read the one Attribution of a JSON file that :meth:`save` wrote.

        Args:
            path: The file.

        Returns:
            The Attribution.

        Raises:
            BadInput: The file holds several; use :func:`tokenlight.load`.
            DamagedFile: The file does not exist or holds something else.

        Example:
            >>> import tempfile
            >>> from tokenlight import Attribution
            >>> attribution = Attribution.from_arrays([0.1, 0.7], [5, 6], [0.2, 1.3])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = attribution.save(f"{folder}/attribution.json")
            ...     Attribution.load(path).scores.tolist()
            [0.1, 0.7]
        """
        from tokenlight.files.saved import load

        attributions = load(path)
        if len(attributions) != 1:
            raise BadInput(
                f"{path} holds {len(attributions)} attributions. Use tokenlight.load.",
                code="several-attributions",
            )
        return attributions[0]


class AttributionList(list[Attribution], ExportMixin):
    """Several Attributions, as explain() returns them: a list that can be shown and saved."""


def to_read_only_array(values: Any) -> np.ndarray:
    """Copy to a read-only array of float64."""
    array = np.array(values, dtype=np.float64)
    array.flags.writeable = False
    return array
