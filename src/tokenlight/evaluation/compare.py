"""Compare two models (or precisions, or prompts) on the same texts.

Did the prediction, the focus, or the faithfulness of the explanation change? Scores are compared by word, not
by token, so that the tokenizers may differ.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.intervals import Interval, bootstrap_mean, to_json_value
from tokenlight.data.ranks import rank_correlation
from tokenlight.data.true_label import name_label
from tokenlight.errors import BadInput
from tokenlight.errors.arguments import Seed, check_fields, check_items, checked
from tokenlight.evaluation.evaluate import evaluate_attributions
from tokenlight.evaluation.results import MIN_TEXTS_FOR_INTERVALS, Evaluation
from tokenlight.explainer import Explainer, MethodLike
from tokenlight.explaining.default_method import AUTO_METHOD, is_auto
from tokenlight.files.tables import Example
from tokenlight.plots.characters import to_single_line
from tokenlight.plots.comparison_page import ChangedText, render_comparison

FOCUS_CHANGE_THRESHOLD = 0.9  # a text with a lower rank correlation is listed
MIN_LISTED_TEXTS = 5
MAX_LISTED_FLIPS = 20
NUM_LISTED_WORDS = 3
MAX_LISTED_CHARACTERS = 70  # of a text in the terminal; it is cut between words
INTERVAL_TITLES = {
    "accuracy_before": "accuracy of A",
    "accuracy_after": "accuracy of B",
    "accuracy_change": "accuracy, B − A",
    "flip_rate": "predictions changed",
    "rank_correlation": "rank correlation of word scores",
    "aopc_before": "AOPC of A",
    "aopc_after": "AOPC of B",
    "aopc_change": "AOPC, B − A",
}


@dataclass(frozen=True)
class ComparedModel:
    """One side of a comparison.

    Args:
        explainer: The model.
        prompt: The prompt around each text, with ``{text}`` in its place.
    """

    explainer: Explainer
    prompt: str = "{text}"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.prompt.count("{text}") != 1:
            raise BadInput(
                f"The prompt {self.prompt!r} is not valid. It must contain {{text}} exactly once.",
                code="prompt-without-text",
            )

    def explain_texts(self, texts: Sequence[str], **options: Any) -> list[Attribution]:
        """Explain each text inside the prompt."""
        prompts = [self.prompt.replace("{text}", text) for text in texts]
        return list(self.explainer.explain(prompts, **options))

    def word_scores(self, text: str, attribution: Attribution) -> np.ndarray:
        """Sum the token scores of each word of the text, without those of the prompt."""
        text_start = self.prompt.index("{text}")
        word_starts = np.array([match.start() for match in re.finditer(r"\S+", text)])
        sums = np.zeros(len(word_starts))
        for span, score in zip(attribution.row.spans, attribution.scores, strict=True):
            if span is None:
                continue
            start = span[0] - text_start
            end = span[1] - text_start
            if start >= 0 and end <= len(text):
                # The word of the token's last character: a token may begin with a blank.
                word = int(np.searchsorted(word_starts, end - 1, side="right")) - 1
                sums[max(word, 0)] += score
        return sums


class MovedText(NamedTuple):
    """A text on which the two models differ.

    Attributes:
        rank_correlation: Of the word scores of A and B.
        text: The text.
        before: Prediction and strongest words of A.
        after: Prediction and strongest words of B.
        location: Where the text stands in its file; empty if it is not from a file.
        id: The value of its column ``id``; empty without one.
        label: The true label, under the models' name for it; None without one.
    """

    rank_correlation: float
    text: str
    before: str
    after: str
    location: str = ""
    id: str = ""
    label: str | None = None

    def describe_source(self) -> str:
        """Return id, or location, and true label on one line."""
        parts = [f"id {self.id}" if self.id else self.location]
        if self.label is not None:
            parts.append(f"true label {self.label}")
        return to_single_line(", ".join(filter(None, parts)))


@dataclass(frozen=True)
class Comparison:
    """The changes from model A to model B, as means over texts with 95 % intervals.

    Attributes:
        method: The method that explained both.
        num_texts: Number of texts that were compared.
        omitted: Texts without words, by their location.
        flip_rate: Share of texts with another prediction.
        rank_correlation: Rank correlation of the word scores.
        aopc_before: AOPC of A.
        aopc_after: AOPC of B.
        aopc_change: AOPC of B − AOPC of A, text by text.
        most_changed: Texts with another prediction or the largest change of focus, with the strongest words
            of both sides.
        attributions: The explanations of these texts, those of A before those of B; not part of the JSON.
        accuracy_before: Accuracy of A on the texts that have a true label; None if none has.
        accuracy_after: Accuracy of B on them.
        accuracy_change: Accuracy of B − accuracy of A.
        models: Names of A and B, with precision and prompt where these tell them apart.
    """

    method: str
    num_texts: int
    omitted: tuple[str, ...]
    flip_rate: Interval
    rank_correlation: Interval
    aopc_before: Interval
    aopc_after: Interval
    aopc_change: Interval
    most_changed: tuple[MovedText, ...]
    attributions: tuple[Attribution, ...] = ()
    accuracy_before: Interval | None = None
    accuracy_after: Interval | None = None
    accuracy_change: Interval | None = None
    models: tuple[str, str] | None = None

    def _list_intervals(self) -> Iterator[tuple[str, Interval]]:
        """Yield title and value of all that was measured."""
        for name, title in INTERVAL_TITLES.items():
            interval: Interval | None = getattr(self, name)
            if interval is not None:
                yield title, interval

    def list_failures(
        self,
        max_flip_rate: float = 0.01,
        min_rank_correlation: float = 0.8,
        max_aopc_drop: float = 0.02,
    ) -> list[str]:
        """Return one line for each limit that is exceeded.

        Args:
            max_flip_rate: Largest share of changed predictions.
            min_rank_correlation: Smallest mean rank correlation of the word scores.
            max_aopc_drop: Largest drop of the mean AOPC.
        """
        failures = []
        flip_rate = self.flip_rate.mean
        if flip_rate > max_flip_rate:
            failures.append(f"{flip_rate:.1%} of predictions changed (limit {max_flip_rate:.1%})")
        correlation = self.rank_correlation.mean
        if self.rank_correlation.count and correlation < min_rank_correlation:
            failures.append(
                f"the correlation of word scores is only {correlation:.3f} (limit {min_rank_correlation:.3f})"
            )
        aopc_drop = -self.aopc_change.mean
        if self.aopc_change.count and aopc_drop > max_aopc_drop:
            failures.append(f"AOPC fell by {aopc_drop:.3f} (limit {max_aopc_drop:.3f})")
        return failures

    def describe(self) -> Iterator[str]:
        """Yield the models, the numbers line by line, then the texts that changed."""
        for side, name in zip("AB", self.models or (), strict=False):
            yield f"{side}  {to_single_line(name)}"
        intervals = list(self._list_intervals())
        width = max(len(title) for title, _ in intervals) + 2
        for title, interval in intervals:
            yield f"{title:{width}}{interval.mean:z.3f} [{interval.low:z.3f}, {interval.high:z.3f}]"
        if self.num_texts < MIN_TEXTS_FOR_INTERVALS:
            yield f"Only {self.num_texts} texts: a change that none of them shows may still be common."
        if self.most_changed:
            yield "texts that changed most, by the rank correlation of word scores (for A's class):"
        for changed_text in self.most_changed:
            text = textwrap.shorten(
                to_single_line(changed_text.text), MAX_LISTED_CHARACTERS, placeholder=" …"
            )
            yield f"  {changed_text.rank_correlation:+.2f}  {text}"
            source = changed_text.describe_source()
            if source:
                yield f"         {source}"
            yield f"         A {to_single_line(changed_text.before)}"
            yield f"         B {to_single_line(changed_text.after)}"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        values = {}
        for name, value in asdict(replace(self, attributions=())).items():
            if name != "attributions" and value is not None:
                values[name] = value
        return dict(to_json_value(values))

    def to_html(self) -> str:
        """Return the intervals and the texts that changed most, coloured by both models, as one HTML page."""
        interval_rows = []
        for title, interval in self._list_intervals():
            interval_rows.append(
                (title, f"{interval.mean:z.3f}", f"{interval.low:z.3f} to {interval.high:z.3f}")
            )
        changed = []
        for i, changed_text in enumerate(self.most_changed):
            first, second = self.attributions[2 * i : 2 * i + 2]
            changed.append(
                ChangedText(
                    source=changed_text.describe_source(),
                    rank_correlation=f"{changed_text.rank_correlation:+.2f}",
                    first=first,
                    second=second,
                )
            )
        return render_comparison(
            f"{self.num_texts} texts, explained by {self.method}",
            interval_rows,
            changed,
            models=self.models,
        )


@checked
def compare(
    first: ComparedModel,
    second: ComparedModel,
    examples: Sequence[Example],
    *,
    method: MethodLike = AUTO_METHOD,
    seed: Seed = 0,
    long: str = "truncate",
) -> Comparison:
    """Explain every text with both models, for the class that the first one predicts, and compare.

    Args:
        first: Model A.
        second: Model B, with the same labels.
        examples: The texts.
        method: The method for both; by default that of the first model.
        seed: Seed of the method and of the intervals.
        long: What to do with a text that is too long: ``truncate`` or ``error``.

    Returns:
        The changes of predictions, focus and faithfulness.

    Raises:
        BadInput: The labels differ, or no example is a plain text with words.

    Example:
        >>> from tokenlight import Explainer
        >>> from tokenlight.evaluation.compare import ComparedModel, compare
        >>> from tokenlight.files.tables import Example
        >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
        >>> bare = ComparedModel(explainer)
        >>> prompted = ComparedModel(explainer, prompt="A review: {text}")
        >>> compare(bare, prompted, [Example("A warm and funny film.")], method="attcat").num_texts
        1
    """
    kept_examples, omitted = _select_examples(examples)
    texts = [str(example.text) for example in kept_examples]
    _check_same_labels(first.explainer.labels, second.explainer.labels)
    if is_auto(method):  # both sides use one method
        method = first.explainer.get_default_method()
    options: dict[str, Any] = {"method": [method], "seed": seed, "long": long}
    # B explains the class that A predicts, so that the scores of both are for the same class.
    attributions_a = first.explain_texts(texts, **options)
    targets = [attribution.prediction.index for attribution in attributions_a]
    attributions_b = second.explain_texts(texts, target=targets, **options)

    # Compare predictions, focus and faithfulness.
    pairs = list(zip(attributions_a, attributions_b, strict=True))
    is_flipped = [a.prediction.index != b.prediction.index for a, b in pairs]
    correlations = _correlate_words(first, second, texts, pairs)
    aopc_a, aopc_b = _measure_aopc_pairs(first, second, attributions_a, attributions_b)
    aopc_change = [after - before for before, after in zip(aopc_a, aopc_b, strict=True)]
    accuracies = _measure_accuracies(kept_examples, pairs, seed)
    # Describe the texts that changed most.
    most_changed = []
    shown: list[Attribution] = []
    for i in _select_most_changed(is_flipped, correlations):
        changed_text = _describe_changed_text(kept_examples[i], *pairs[i], correlations[i])
        most_changed.append(changed_text)
        shown += pairs[i]
    return Comparison(
        attributions_a[0].method,
        len(texts),
        omitted,
        flip_rate=bootstrap_mean(is_flipped, seed=seed),
        rank_correlation=bootstrap_mean([*correlations.values()], seed=seed),
        aopc_before=bootstrap_mean(aopc_a, seed=seed),
        aopc_after=bootstrap_mean(aopc_b, seed=seed),
        aopc_change=bootstrap_mean(aopc_change, seed=seed),
        most_changed=tuple(most_changed),
        attributions=tuple(shown),
        models=_name_sides(first, second),
        **accuracies,
    )


def _name_sides(first: ComparedModel, second: ComparedModel) -> tuple[str, str]:
    """Return the names of both models, with precision and prompt where these differ."""
    sides = (first, second)
    names = [side.explainer.name for side in sides]
    dtypes = [str(side.explainer.runner.model.dtype).removeprefix("torch.") for side in sides]
    if dtypes[0] != dtypes[1]:
        names = [f"{name}, {dtype}" for name, dtype in zip(names, dtypes, strict=True)]
    if first.prompt != second.prompt:
        prompts = [f"prompt {side.prompt!r}" for side in sides]
        names = [f"{name}, {prompt}" for name, prompt in zip(names, prompts, strict=True)]
    return names[0], names[1]


def _select_examples(examples: Sequence[Example]) -> tuple[list[Example], tuple[str, ...]]:
    """Return the examples whose texts have words, and the locations of the others."""
    check_items("examples", examples, Example)
    selected_examples = []
    omitted = []
    for index, example in enumerate(examples):
        if not isinstance(example.text, str):
            raise BadInput(
                "A comparison needs plain texts, but got a pair or question. Give plain texts.",
                code="compare-plain-texts",
            )
        if str(example.text).strip():
            selected_examples.append(example)
        else:
            omitted.append(example.location or f"text {index} (counted from 0)")
    if not selected_examples:
        raise BadInput(
            f"None of the {len(examples)} texts contains a word. Give texts with words.",
            code="compare-empty-texts",
        )
    return selected_examples, tuple(omitted)


def _check_same_labels(labels_a: Sequence[str], labels_b: Sequence[str]) -> None:
    if labels_a != labels_b:
        raise BadInput(
            f"The two models have different labels ({', '.join(labels_a) or 'none'}; "
            f"{', '.join(labels_b) or 'none'}), so their predictions cannot be compared. Give two "
            "classifiers with the same labels.",
            code="different-labels",
        )


def _correlate_words(
    first: ComparedModel,
    second: ComparedModel,
    texts: Sequence[str],
    pairs: Sequence[tuple[Attribution, Attribution]],
) -> dict[int, float]:
    """Return the rank correlation of the word scores, by the index of the text."""
    correlations = {}
    for i, (text, (a, b)) in enumerate(zip(texts, pairs, strict=True)):
        # A text whose words all have the same score on one side has no correlation.
        with suppress(BadInput):
            correlations[i] = rank_correlation(
                first.word_scores(text, a), second.word_scores(text, b), "spearman"
            )
    return correlations


def _measure_aopc_pairs(
    first: ComparedModel,
    second: ComparedModel,
    attributions_a: Sequence[Attribution],
    attributions_b: Sequence[Attribution],
) -> tuple[list[float], list[float]]:
    """Return the AOPC of both sides, for the texts that both could measure."""
    rows_a = evaluate_attributions(first.explainer, attributions_a, "aopc").rows
    rows_b = evaluate_attributions(second.explainer, attributions_b, "aopc").rows
    aopc_a = []
    aopc_b = []
    for row_a, row_b in zip(rows_a, rows_b, strict=True):
        if row_a["aopc"] is not None and row_b["aopc"] is not None:
            aopc_a.append(row_a["aopc"])
            aopc_b.append(row_b["aopc"])
    return aopc_a, aopc_b


def _measure_accuracies(
    examples: Sequence[Example], pairs: Sequence[tuple[Attribution, Attribution]], seed: int
) -> dict[str, Interval]:
    """Return the accuracy of A, of B, and their difference; nothing without true labels."""
    right_a: list[float] = []
    right_b: list[float] = []
    for example, (first, second) in zip(examples, pairs, strict=True):
        true_label = name_label(example.label, first.prediction.labels)
        if true_label is not None:
            right_a.append(float(first.prediction.label == true_label))
            right_b.append(float(second.prediction.label == true_label))
    if not right_a:
        return {}
    change = [after - before for before, after in zip(right_a, right_b, strict=True)]
    return {
        "accuracy_before": bootstrap_mean(right_a, seed=seed),
        "accuracy_after": bootstrap_mean(right_b, seed=seed),
        "accuracy_change": bootstrap_mean(change, seed=seed),
    }


def _select_most_changed(is_flipped: Sequence[bool], correlations: dict[int, float]) -> list[int]:
    """Return the texts to list: changed predictions first, then the largest changes of focus."""
    changed = []
    for i, correlation in correlations.items():
        if is_flipped[i] or correlation < FOCUS_CHANGE_THRESHOLD:
            changed.append(i)
    changed.sort(key=lambda i: (not is_flipped[i], correlations[i]))
    num_listed = max(MIN_LISTED_TEXTS, min(sum(is_flipped), MAX_LISTED_FLIPS))
    return changed[:num_listed]


def describe_differences(evaluation: Evaluation) -> Iterator[str]:
    """Yield how much each method differs from the first, and a warning if there are few texts."""
    if len(evaluation.methods) > 1:
        first = evaluation.methods[0]
        yield f"\ndifference from {first}, text by text (an interval that contains 0 shows no difference):"
        for metric, intervals in evaluation.differences.items():
            for name, interval in intervals.items():
                mean = f"{interval.mean:+z.3f} [{interval.low:+z.3f}, {interval.high:+z.3f}]"
                is_significant = not interval.low <= 0 <= interval.high
                remark = "  (0 is outside)" if is_significant else ""
                yield f"  {name}  {metric} {mean}{remark}"
    if evaluation.sample_size_warning:
        yield evaluation.sample_size_warning


def _describe_changed_text(
    example: Example, first: Attribution, second: Attribution, correlation: float
) -> MovedText:
    return MovedText(
        correlation,
        str(example.text),
        _describe_side(first),
        _describe_side(second),
        location=example.location,
        id=str(example.extra_columns.get("id", "")),
        label=name_label(example.label, first.prediction.labels),
    )


def _describe_side(attribution: Attribution) -> str:
    """Return the prediction with its strongest words."""
    strongest = sorted(attribution.words(), key=lambda word: -abs(word[1]))[:NUM_LISTED_WORDS]
    words = ", ".join(f"{word.strip()} {score:+.2f}" for word, score in strongest)
    return f"{attribution.prediction.label}: {words}"
