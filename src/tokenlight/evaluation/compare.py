"""Two models (or precisions, or prompts) on the same texts: did the prediction, the focus or the faithfulness
of the explanation move? Words, not tokens, are compared, so that tokenizers may differ."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput
from tokenlight.evaluation.results import FEW, Evaluation, evaluate
from tokenlight.explainer import Explainer, MethodLike
from tokenlight.explaining.default import AUTO, is_auto
from tokenlight.files.tables import Example
from tokenlight.metrics._interval import Interval, mean_interval, plain
from tokenlight.metrics._ranking import similarity
from tokenlight.plots.characters import in_line

MOVED = 0.9  # a rank correlation below it is told, text by text
Piece = tuple[float, str, str, str]  # how far, text, before, after
NUMBERS = {
    "flips": "predictions changed",
    "focus": "focus (rank correlation)",
    "before": "AOPC of A",
    "after": "AOPC of B",
    "change": "AOPC, B − A",
}


@dataclass(frozen=True)
class Side:
    """One of the two: an explainer, and the prompt its texts stand in (``{text}``)."""

    explainer: Explainer
    prompt: str = "{text}"

    def __post_init__(self) -> None:
        if self.prompt.count("{text}") != 1:
            raise BadInput(f"the prompt {self.prompt!r} must hold {{text}} exactly once.")

    def explained(self, texts: Sequence[str], **how: Any) -> list[Attribution]:
        """Each text in its prompt."""
        given = [self.prompt.replace("{text}", text) for text in texts]
        return list(self.explainer.explain(given, **how))

    def word_scores(self, text: str, attribution: Attribution) -> np.ndarray:
        """Sum of token scores for each word of the text itself."""
        shift = self.prompt.index("{text}")
        starts = np.array([match.start() for match in re.finditer(r"\S+", text)])
        sums = np.zeros(len(starts))
        for span, score in zip(attribution.row.spans, attribution.scores, strict=True):
            if span is not None and shift <= span[0] and span[1] - shift <= len(text):
                word = int(np.searchsorted(starts, span[1] - shift - 1, side="right")) - 1
                sums[max(word, 0)] += score
        return sums


@dataclass(frozen=True)
class Comparison:
    """What moved from A to B, as means over texts with intervals.

    ``flips``: share of texts predicted otherwise; ``focus``: rank correlation of the word scores;
    ``before``, ``after``, ``change``: AOPC of A, of B, and B − A text by text; ``moved``: the texts
    that are predicted otherwise or whose focus moved most, with their strongest words; ``left_out``:
    those that have no words, by their place.
    """

    method: str
    texts: int
    left_out: tuple[str, ...]
    flips: Interval
    focus: Interval
    before: Interval
    after: Interval
    change: Interval
    moved: tuple[Piece, ...]

    def failures(
        self, flips: float = 0.01, focus: float = 0.8, faithfulness: float = 0.02
    ) -> list[str]:
        """In words, each limit that is overstepped: the share of changed predictions, the mean focus, the
        fall of the mean AOPC."""
        found = []
        if self.flips.mean > flips:
            found.append(f"{self.flips.mean:.1%} of predictions changed (limit {flips:.1%})")
        if self.focus.count and self.focus.mean < focus:
            found.append(f"focus agrees to {self.focus.mean:.3f} only (limit {focus:.3f})")
        if self.change.count and -self.change.mean > faithfulness:
            found.append(f"AOPC fell by {-self.change.mean:.3f} (limit {faithfulness:.3f})")
        return found

    def in_words(self) -> Iterator[str]:
        """The numbers line by line, and what changed."""
        for name, said in NUMBERS.items():
            own = getattr(self, name)
            yield f"{said:26}{own.mean:z.3f} [{own.low:z.3f}, {own.high:z.3f}]"
        if self.texts < FEW:
            yield f"{self.texts} texts are few: a change that none of them shows may still be common."
        if self.moved:
            yield "what changed, by the rank correlation of the scores of words (for A's class):"
        for focus, *words in self.moved:
            text, before, after = map(in_line, words)
            yield f"  {focus:+.2f}  {text[:70]}\n         A {before}\n         B {after}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dict(plain(asdict(self)))


def compare(
    a: Side,
    b: Side,
    examples: Sequence[Example],
    *,
    method: MethodLike = AUTO,
    seed: int = 0,
    long: str = "truncate",
) -> Comparison:
    """Explain every text with both sides for the class that A predicts, and compare."""
    if not all(isinstance(example.text, str) for example in examples):
        raise BadInput("a comparison reads plain texts, not pairs or questions.")
    texts = [text for text in (str(example.text) for example in examples) if text.strip()]
    if not texts:
        raise BadInput(f"none of the {len(examples)} texts has a word; give some that do.")
    left_out = tuple(
        example.place or f"text {number} (counted from 0)"
        for number, example in enumerate(examples)
        if not str(example.text).strip()
    )
    labels_a, labels_b = a.explainer.labels, b.explainer.labels
    if labels_a != labels_b:
        raise BadInput(
            f"the two models have different labels ({', '.join(labels_a) or 'none'}; "
            f"{', '.join(labels_b) or 'none'}), so their predictions cannot be compared; give two "
            "classifiers with the same labels."
        )
    if is_auto(method):  # one method for both sides
        method = a.explainer.default_method()
    how: dict[str, Any] = {"method": [method], "seed": seed, "long": long}
    ours = a.explained(texts, **how)
    theirs = b.explained(texts, target=[one.prediction.index for one in ours], **how)
    pairs = list(zip(texts, ours, theirs, strict=True))
    focus: dict[int, float] = {}
    for i, (text, x, y) in enumerate(pairs):
        with suppress(BadInput):  # either ranks nothing
            focus[i] = similarity(a.word_scores(text, x), b.word_scores(text, y), "spearman")
    flipped = [x.prediction.index != y.prediction.index for _, x, y in pairs]
    aopc = [
        [row["aopc"] for row in evaluate(side.explainer, made, "aopc").rows]
        for side, made in ((a, ours), (b, theirs))
    ]
    both = [(x, y) for x, y in zip(*aopc, strict=True) if x is not None and y is not None]
    # Every changed prediction, then the texts whose focus moved most.
    changed = [i for i in focus if flipped[i] or focus[i] < MOVED]
    order = sorted(changed, key=lambda i: (not flipped[i], focus[i]))
    shown = order[: max(5, min(sum(flipped), 20))]
    over = partial(mean_interval, seed=seed)
    return Comparison(
        ours[0].method,
        len(texts),
        left_out,
        flips=over(flipped),
        focus=over([*focus.values()]),
        before=over([x for x, _ in both]),
        after=over([y for _, y in both]),
        change=over([y - x for x, y in both]),
        moved=tuple(_piece(*pairs[i], focus[i]) for i in shown),
    )


def differences_in_words(evaluation: Evaluation) -> Iterator[str]:
    """How far methods lie apart, line by line, where there are several; few texts are said to be few."""
    if len(evaluation.methods) > 1:
        first = evaluation.methods[0]
        yield f"\ndifference from {first}, text by text (an interval that contains 0 shows none):"
        for metric, gaps in evaluation.differences.items():
            for name, gap in gaps.items():
                apart = "" if gap.low <= 0 <= gap.high else "  (zero lies outside)"
                yield f"  {name}  {metric} {gap.mean:+z.3f} [{gap.low:+z.3f}, {gap.high:+z.3f}]{apart}"
    if evaluation.caution:
        yield evaluation.caution


def _piece(text: str, x: Attribution, y: Attribution, focus: float) -> Piece:
    ranked = [sorted(one.words(), key=lambda word: -abs(word[1]))[:3] for one in (x, y)]
    tops = [", ".join(f"{word.strip()} {score:+.2f}" for word, score in own) for own in ranked]
    return focus, text, f"{x.prediction.label}: {tops[0]}", f"{y.prediction.label}: {tops[1]}"
