"""What number is explained: a class logit, a contrast of two, or the two logits of an answer span.

A target resolves, for one example, to a weighted sum of that example's logits: ``[label]`` of a classifier,
``[token, 0]`` (start) and ``[token, 1]`` (end) of a span head. Never probabilities: their gradient dies
where the model is sure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np

from tokenlight.data import answers
from tokenlight.data.answers import SpanTarget, log_probability, softmax
from tokenlight.data.tokenizer import Vocabulary
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import type_name
from tokenlight.errors import BadTarget, UnknownName, few, way

LIKELIEST = 10  # next tokens that a prediction keeps of a whole vocabulary
SMALLEST = float(np.finfo(np.float64).tiny)  # of 1 − p, where all of p is taken


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a language model wrote, or might have written; each of its tokens is explained by itself.

    ``text``: the continuation; None lets the model write ``tokens`` tokens, always the likeliest.
    ``span``: only the tokens of these words in it. ``together``: all of them at once, by one pass over
    the whole answer: the sum of their logits, each predicted from the prompt and the tokens before
    it; so gradients of the parts sum to those of the whole.
    """

    text: str | None = None
    tokens: int = 20
    span: str | None = None
    together: bool = False


@dataclass(frozen=True, slots=True)
class Contrast:
    """Why ``this`` rather than ``that``: the difference of two class logits, or of two answers'; of two
    continuations, that of their logits' sums, each by a pass of its own."""

    this: str | int | SpanTarget | Continuation
    that: str | int | SpanTarget | Continuation


@dataclass(frozen=True, slots=True)
class Above:
    """Why the second text of a pair scores above ``than`` in its place, by two passes; ``label``: whose logit
    ranks, where a model has several."""

    than: str
    label: str | int = "predicted"


@dataclass(frozen=True, slots=True)
class NextToken:
    """The logit of one next token of a language model: its text, or its id."""

    token: str | int


@dataclass(frozen=True, slots=True)
class TokenTarget:
    """One token of the text, for a head with an output per token: a word or a token number.

    Words in a row (``"New York"``) are one target: the sum of their labels' logits. ``label``: a label,
    a Contrast of two, or what B- and I- tags have in common (``"LOC"``), which stands for the likeliest
    of them at each word; ``occurrence``: which of several equal words, counted from 0.
    """

    at: str | int
    label: str | int | Contrast = "predicted"
    occurrence: int | None = None


Reads = Literal["text", "next", "mask", "token", "pair", "image"]


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """A target of one example: ``value = Σ weight · logits[coordinate]``."""

    kind: Literal["class", "contrast", "span", "answer"]
    name: str
    terms: tuple[tuple[tuple[int, ...], float], ...]

    def value(self, logits: Any) -> Any:
        """The number that is explained, from this example's logits (array or tensor)."""
        return sum(weight * logits[coordinate] for coordinate, weight in self.terms)

    @property
    def index(self) -> int | None:
        """The class index of a class target."""
        return self.terms[0][0][0] if self.kind == "class" else None

    @property
    def sides(self) -> list[Self]:
        """What a span target says of the start, and what of the end; any other target by itself."""
        if self.kind != "span":
            return [self]
        by_side = [tuple(term for term in self.terms if term[0][1] == side) for side in (0, 1)]
        return [replace(self, terms=terms) for terms in by_side if terms]


Asked = str | int | Contrast | Above | SpanTarget | NextToken | Continuation | TokenTarget
TargetLike = Asked | ResolvedTarget


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says: the label (or answer), its index, and every label's probability. A regression
    head has none; a span head gives those of its start and end; of a language model the likeliest tokens
    are kept, ``ids`` says which."""

    label: str
    index: int
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    ids: tuple[int, ...] = ()
    answer_score: float | None = None  # start + end logit of the best span
    null_score: float | None = None  # that of "no answer", where the input has a token for it

    @property
    def unanswered(self) -> bool | None:
        """Whether "no answer" has the higher score; only models trained on it mean it."""
        if self.answer_score is None or self.null_score is None:
            return None
        return self.null_score > self.answer_score

    @property
    def place(self) -> int:
        """Where the predicted label stands among ``labels``."""
        return self.ids.index(self.index) if self.ids else self.index

    @property
    def probability(self) -> float | None:
        """Probability of the predicted label, where the head has probabilities."""
        return self.probabilities[self.place] if self.probabilities else None


# What a model with each head does, and what to give it: in Python, and on the command line.
DOES = {
    "span": (
        "it answers questions",
        "Question(question=…, context=…), and as target 'predicted', an answer's words or SpanTarget(…)",
        "--question and --context; --target WORDS and --no-answer say what to explain",
    ),
    "text": (
        "it is a classifier with the labels {}",
        "a text or a (text, text) pair",
        "TEXT, or TEXT and --pair TEXT",
    ),
    "next": (
        "it writes on",
        "a prompt, and as target 'predicted', NextToken(…), Continuation(…) or Contrast(…)",
        "TEXT or --chat; --target TOKEN, --rather-than TOKEN, --continue WORDS or --generate N say "
        "what to explain",
    ),
    "mask": (
        "it fills in a masked token",
        "a text with one, and as target 'predicted', a token or Contrast(…)",
        "TEXT with one; --target WORD and --rather-than WORD say what to explain",
    ),
    "token": (
        "it labels each token with one of {}",
        "a text, and as target TokenTarget(words), 'all' or 'entities'",
        "TEXT and --token WORDS, --target all or --target entities",
    ),
    "pair": ("it compares two texts", "a (text, text) pair", "TEXT and --pair TEXT"),
    "image": (
        "it classifies images as {}",
        "Picture(file), a PIL image or an array height × width × 3 of uint8",
        "--image FILE",
    ),
}


@lru_cache(typed=True)
def _class(name: str, index: int) -> ResolvedTarget:
    """One class: of many texts the same object, which is the fastest to compare."""
    return ResolvedTarget("class", name, (((index,), 1.0),))


@dataclass(frozen=True, slots=True)
class Head:
    """What a model's last layer means: its kind, its labels, how logits become probabilities, and what it
    ``reads``: the whole text, the next token, a masked token, one token, or the likeness of two texts."""

    kind: Literal["classification", "span"]
    labels: Sequence[str] = ()
    problem: Literal["single", "multi", "regression"] = "single"
    reads: Reads = "text"

    @property
    def writes(self) -> bool:
        """Whether its labels are the tokens of a vocabulary."""
        return self.reads in ("next", "mask")

    @property
    def usual(self) -> Literal["predicted", 0]:
        """A target that any text has here; where every output is a number, none is the predicted."""
        return 0 if self.problem == "regression" and len(self.labels) > 1 else "predicted"

    @property
    def chooses(self) -> bool:
        """Whether it chooses between classes, few enough to compare."""
        return self.kind != "span" and not self.writes and len(self.labels) > 1

    @property
    def does(self) -> str:
        """What this model can be asked, in words: the end of a message about a wrong use."""
        said, python, flags = DOES["span" if self.kind == "span" else self.reads]
        return f"{said.format(few(self.labels, 6))}: give {way(python, flags)}"

    def predict(self, logits: np.ndarray, row: TokenRow) -> Prediction:
        """Read one example's prediction off its logits."""
        if row.answer:
            count = len({*row.asked}) or len(row.answer)  # behind them stand those of a contrast
            labels = [self.labels[i] for i in row.answer[:count]]
            wrote = (row.texts[-1] if row.texts else "".join(labels)).strip()
            wrote = type_name(labels) if row.asked else wrote
            chance = float(np.exp(log_probability(logits[:count])))
            return Prediction(wrote, 0, (wrote,), (chance,))
        if self.kind == "span":
            start, end = answers.best_span(logits, row)
            answer = answers.answer_text(row, start, end)
            chance = float(softmax(logits[:, 0])[start] * softmax(logits[:, 1])[end])
            score, null = float(logits[start, 0] + logits[end, 1]), float(logits[0].sum())
            return Prediction(
                answer, 0, (answer,), (chance,), (), score, null if row.special[0] else None
            )
        if self.problem == "regression":
            said = [f"{name} " for name in self.labels] if len(logits) > 1 else [""]
            said = [f"{self.labels[0].split()[0]} "] if self.reads == "pair" else said
            numbers = (f"{name}{float(x):.4g}" for name, x in zip(said, logits, strict=True))
            return Prediction(", ".join(numbers), 0, tuple(self.labels), ())
        chances = 1 / (1 + np.exp(-logits)) if self.problem == "multi" else softmax(logits)
        likeliest = np.argsort(-chances, kind="stable")[:LIKELIEST].tolist() if self.writes else []
        ids = likeliest or range(len(chances))
        best = ids[0] if self.writes else int(np.argmax(logits))
        names, kept = (tuple(self.labels[i] for i in ids), tuple(float(chances[i]) for i in ids))
        return Prediction(self.labels[best], best, names, kept, tuple(likeliest))

    def depends_on_logits(self, target: TargetLike) -> bool:
        """Whether the model must have spoken before it is known which logits ``target`` means."""
        named = (target.this, target.that) if isinstance(target, Contrast) else (target,)
        return self.kind == "span" or "predicted" in named

    def resolve(
        self, target: TargetLike, logits: np.ndarray, row: TokenRow
    ) -> tuple[ResolvedTarget, ...]:
        """The target as weighted logits; ``"all"`` gives one for every class."""
        if isinstance(target, ResolvedTarget):  # of an explanation that is made again
            span = target.kind == "span"
            known = span or row.answer or all(at[0] < len(self.labels) for at, _ in target.terms)
            if span != (self.kind == "span") or not known:
                raise BadTarget(f"the target {target.name!r} is of another model: {self.does}.")
            return (target,)
        self.takes(target)
        if isinstance(target, Contrast):
            return (self._difference(target, logits, row),)
        if target != "all":
            asked = target.token if isinstance(target, NextToken) else target
            return (self._one(asked, logits, row),)
        if self.writes:
            raise BadTarget(
                f"'all' would be {len(self.labels):,} explanations, one a token of the vocabulary; name "
                "the tokens that interest you, or explain 'predicted'."
            )
        return tuple(self._one(index, logits, row) for index in range(len(self.labels)))

    def _one(self, target: object, logits: np.ndarray, row: TokenRow) -> ResolvedTarget:
        if self.kind == "span":
            return ResolvedTarget("span", *answers.span_terms(answers.as_span(target), logits, row))
        if target != "predicted":
            return self.of_class(self.label_index(target, row))
        if self.usual != "predicted":
            raise BadTarget(
                f"this model predicts {len(self.labels)} numbers, none of them instead of the others, so "
                f"'predicted' names no output; name one ({few(self.labels, 12)}), or explain 'all'."
            )
        return self.of_class(int(np.argmax(logits)))

    def of_class(self, index: int) -> ResolvedTarget:
        """The target that is one class, or one token of a vocabulary."""
        label = self.labels[index]
        return _class(f"‘{label.strip() or label}’" if self.writes else label, index)

    def _difference(self, target: Contrast, logits: np.ndarray, row: TokenRow) -> ResolvedTarget:
        """One class or span rather than another; what both have falls out."""
        this, that = (self._one(one, logits, row) for one in (target.this, target.that))
        weights = dict(this.terms)
        for at, weight in that.terms:
            weights[at] = weights.get(at, 0.0) - weight
        terms = tuple((at, weight) for at, weight in weights.items() if weight)
        if not terms:
            twice = f"the contrast names one {this.kind} twice: {this.name}"
            raise BadTarget(f"{twice}. Give two that differ.")
        name = f"{this.name} rather than {that.name.removeprefix('the answer ')}"
        return ResolvedTarget("span" if self.kind == "span" else "contrast", name, terms)

    def takes(self, target: object) -> None:
        """Refuse a target that is another kind of head's."""
        spans = isinstance(target, str | SpanTarget | Contrast) and target != "all"
        foreign = isinstance(target, SpanTarget if self.reads == "next" else SpanTarget | NextToken)
        if foreign if self.kind != "span" else not spans:
            raise BadTarget(f"target {target!r} is none of this model: {self.does}.")

    def label_index(self, label: object, row: TokenRow | None = None) -> int:
        """Index of a label given by name or number."""
        if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
            raise BadTarget(
                f"target {label!r} is a {type(label).__name__}; give 'predicted', 'all', a label "
                f"({few(self.labels, 12)}), its number, or Contrast(…)."
            )
        if isinstance(label, str) and isinstance(self.labels, Vocabulary):
            written = row.texts[-1] if row is not None and row.texts else ""
            blank = self.reads == "mask" or not written[-1:].isspace()
            return self.labels.id_of(label, blank=blank)
        if isinstance(label, str):
            exact = [i for i, name in enumerate(self.labels) if name == label]
            alike = (i for i, n in enumerate(self.labels) if n.casefold() == label.casefold())
            places = exact or [*alike]
            if len(places) > 1:
                same = f"{len(places)} labels of this model are named {label!r}"
                raise BadTarget(f"{same}; give a number: {' or '.join(map(str, places))}.")
            if places:
                return places[0]
            if not is_number(label):
                raise UnknownName.among("label", label, (*self.labels, "predicted", "all"))
        if not 0 <= int(label) < len(self.labels):
            known = f"this model has {len(self.labels)} labels, 0 to {len(self.labels) - 1}"
            known += f" ({few(self.labels, 12)})"
            raise BadTarget(f"label number {int(label)} does not exist: {known}.")
        return int(label)


def log_chance(head: Head, target: ResolvedTarget, logits: np.ndarray) -> float:
    """ln P of an answer (the product over its tokens) or of a class; of a contrast its share in the two."""
    if target.kind == "answer":
        return log_probability(logits[[place for (place, _), _ in target.terms]])
    return -float(np.logaddexp(0, -log_odds(head, target, logits)))


def log_odds(head: Head, target: ResolvedTarget, logits: np.ndarray) -> float:
    r"""What Cohen-Wang et al. regress on, which does not saturate: :math:`\ln\frac{p}{1-p}` of an answer
    or of a class. A contrast, a label that excludes no other, a number and the two ends of a span stand
    for themselves: they are such differences already, or have no probability."""
    if target.kind == "answer":
        chance = log_chance(head, target, logits)
        return chance - float(np.log(max(-np.expm1(chance), SMALLEST)))
    value = float(target.value(logits))
    if target.index is None or head.problem != "single" or len(logits) < 2:
        return value
    return value - float(np.logaddexp.reduce(np.delete(logits, target.index)))


def is_number(label: str) -> bool:
    """Whether a label's name is a number; ``²`` and ``--1`` are none, though they look like it."""
    return re.fullmatch(r"-?[0-9]{1,18}", label) is not None
