"""The head of a model: what its logits mean, and how a target is resolved to some of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from tokenlight.data import alternatives, prediction, span_target
from tokenlight.data.prediction import Prediction
from tokenlight.data.resolved_target import ResolvedTarget
from tokenlight.data.span_target import SpanTarget
from tokenlight.data.target import Contrast, NextToken, TargetLike, to_next_token
from tokenlight.data.tokenizer import Vocabulary
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadTarget, UnknownName, join_first

# The tasks of transformers' pipelines, of the hub for similarity.
HeadTask = Literal[
    "text-classification",
    "question-answering",
    "text-generation",
    "fill-mask",
    "token-classification",
    "sentence-similarity",
    "image-classification",
]

# What a model with each head does, and what to give it in Python; cli/flag_hints.py has the options.
USAGE_BY_TASK = {
    "question-answering": (
        "it answers questions",
        "Question(question=…, context=…), and as target 'predicted', an answer's words or SpanTarget(…)",
    ),
    "text-classification": (
        "it is a classifier with the labels {}",
        "a text or a (text, text) pair",
    ),
    "text-generation": (
        "it generates text",
        "a prompt, and as target 'predicted', 'logit', NextToken(…), Continuation(…) or Contrast(…)",
    ),
    "fill-mask": (
        "it fills in a masked token",
        "a text with one, and as target 'predicted', 'logit', a token or Contrast(…)",
    ),
    "token-classification": (
        "it labels each token with one of {}",
        "a text, and as target TokenTarget(words), 'all' or 'entities'",
    ),
    "sentence-similarity": (
        "it compares two texts",
        "a (text, text) pair",
    ),
    "image-classification": (
        "it classifies images as {}",
        "Picture(file), a PIL image or an array height × width × 3 of uint8",
    ),
}


@lru_cache(typed=True)
def _cached_class_target(name: str, index: int) -> ResolvedTarget:
    """Return one shared object per class: comparing targets of many texts is then an identity test."""
    return ResolvedTarget("class", name, (((index,), 1.0),))


@dataclass(frozen=True, slots=True)
class Head:
    """The meaning of a model's output.

    Args:
        task: What the model was made for, by the names of transformers' pipelines. It says what one output is
            about: the whole text, the starts and ends of an answer, the next token, a masked token, each
            token, the similarity of two texts, or an image.
        labels: Names of the classes, or the vocabulary; empty for answers.
        problem_type: How logits become probabilities.
    """

    task: HeadTask
    labels: Sequence[str] = ()
    problem_type: Literal["single", "multi", "regression"] = "single"

    @property
    def is_language_model(self) -> bool:
        """Whether the labels are the tokens of a vocabulary."""
        return self.task in ("text-generation", "fill-mask")

    @property
    def default_target(self) -> Literal["predicted", 0]:
        """A target that every text has: ``"predicted"``, or output 0 if all outputs are numbers."""
        has_several_outputs = self.problem_type == "regression" and len(self.labels) > 1
        return 0 if has_several_outputs else "predicted"

    @property
    def has_classes(self) -> bool:
        """Whether the head chooses between classes, few enough to compare."""
        return not self.is_language_model and len(self.labels) > 1

    @property
    def usage(self) -> str:
        """What this model does and what to give it, as the end of an error message."""
        ability, inputs = USAGE_BY_TASK[self.task]
        return f"{ability.format(join_first(self.labels, 6))}; give {inputs}"

    def predict(self, logits: np.ndarray, row: TokenRow) -> Prediction:
        """Return the prediction for one example, given its logits."""
        if row.continuation_ids:
            return prediction.predict_continuation(logits, row, self.labels)
        if self.task == "question-answering":
            return prediction.predict_span(logits, row)
        if self.problem_type == "regression":
            return prediction.predict_numbers(
                logits, self.labels, is_similarity=self.task == "sentence-similarity"
            )
        if self.is_language_model:
            return prediction.predict_token(logits, self.labels)
        return prediction.predict_class(logits, self.labels, self.problem_type)

    def check_labels(self, target: object) -> None:
        """Refuse a class that this head does not have; nothing but its labels is needed for that.

        Only classes are checked. An answer is looked for in its context, and the spelling of a token depends
        on the text before it: :meth:`resolve` refuses these.

        Raises:
            BadTarget: There is no class with this number, or several have this name; or ``"predicted"`` is
                asked of several independent numbers.
            UnknownName: No class has this name.
        """
        if self.task not in ("text-classification", "image-classification"):
            return
        labels: tuple[object, ...] = (target,)
        if isinstance(target, Contrast):
            labels = (target.this, target.that)
        elif target == "all":
            return
        for label in labels:
            if label == "predicted":
                self._check_has_prediction()
            elif isinstance(label, str | int):
                self.find_label_index(label)

    def _check_has_prediction(self) -> None:
        if self.default_target != "predicted":
            raise BadTarget(
                f"'predicted' is ambiguous: this model predicts {len(self.labels)} independent "
                f"numbers, not one label. Name one ({join_first(self.labels, 12)}), or explain 'all'.",
                code="predicted-of-numbers",
            )

    def depends_on_logits(self, target: TargetLike) -> bool:
        """Return whether the logits must be known before ``target`` can be resolved."""
        if self.task == "question-answering":
            return True
        if isinstance(target, Contrast):
            return "predicted" in (target.this, target.that)
        if not self.is_language_model or isinstance(target, ResolvedTarget):
            return target == "predicted"
        next_token = to_next_token(target)
        # Several alternatives are weighted by their probabilities.
        is_weighted = next_token.against is not None and not isinstance(next_token.against, str)
        return next_token.token == "predicted" or is_weighted or next_token.against == "all"

    def resolve(
        self, target: TargetLike, logits: np.ndarray, row: TokenRow
    ) -> tuple[ResolvedTarget, ...]:
        """Resolve a target to weighted logits.

        Args:
            target: The requested target; ``"all"`` gives one target per class.
            logits: This example's logits.
            row: This example's tokens.

        Returns:
            One target, or one per class.

        Raises:
            UnknownName: This model has no such label.
            BadTarget: This model has no such output.
        """
        if isinstance(target, ResolvedTarget):
            # It comes from an explanation that is computed again.
            self._check_resolved(target, row)
            return (target,)
        self.check_target_type(target)
        if isinstance(target, Contrast):
            return (self._resolve_contrast(target, logits, row),)
        if target != "all" and self.is_language_model:
            return (self._resolve_token(to_next_token(target), logits, row),)
        if target != "all":
            return (self._resolve_single(target, logits, row),)
        if self.is_language_model:
            raise BadTarget(
                f"target='all' would be {len(self.labels):,} explanations, one per token of the "
                "vocabulary. Name the tokens that interest you, or explain 'predicted'.",
                code="all-of-vocabulary",
            )
        return tuple(self._resolve_single(index, logits, row) for index in range(len(self.labels)))

    def _check_resolved(self, target: ResolvedTarget, row: TokenRow) -> None:
        """Refuse a resolved target of another model."""
        is_span = target.kind == "span"
        # Coordinates of spans and continuations are token positions, not labels.
        has_labels = True
        if not is_span and not row.continuation_ids:
            num_labels = len(self.labels)
            has_labels = all(coordinate[0] < num_labels for coordinate, _ in target.terms)
        if is_span != (self.task == "question-answering") or not has_labels:
            raise BadTarget(
                f"The target {target.name!r} belongs to another model: {self.usage}.",
                code="target-of-other-model",
            )

    def _resolve_single(self, target: object, logits: np.ndarray, row: TokenRow) -> ResolvedTarget:
        if self.task == "question-answering":
            span = span_target.to_span_target(target)
            name, terms = span_target.resolve_span(span, logits, row)
            return ResolvedTarget("span", name, terms)
        if target != "predicted":
            return self.build_class_target(self.find_label_index(target, row))
        self._check_has_prediction()
        return self.build_class_target(int(np.argmax(logits)))

    def _resolve_token(
        self, next_token: NextToken, logits: np.ndarray, row: TokenRow
    ) -> ResolvedTarget:
        """Return the target of a token and its alternatives."""
        if next_token.token == "predicted":
            index = int(np.argmax(logits))
        else:
            index = self.find_label_index(next_token.token, row)
        against = next_token.against
        if against is None:
            return self.build_class_target(index)
        if against == "all" or isinstance(against, int):
            return self.build_token_target(index, logits, against)
        labels = [against] if isinstance(against, str) else against
        others = dict.fromkeys(self.find_label_index(label, row) for label in labels)
        return self._contrast_with_tokens(index, list(others), logits)

    def build_token_target(
        self,
        index: int,
        logits: np.ndarray,
        against: int | Literal["all"] = alternatives.DEFAULT_ALTERNATIVES,
    ) -> ResolvedTarget:
        """Return the target of one token rather than the likeliest others.

        Args:
            index: The id of the token.
            logits: Logits of the whole vocabulary, which decide who the others are and how much each
                counts.
            against: How many of the likeliest other tokens; ``"all"`` for the log-odds against the rest
                of the vocabulary.
        """
        others, weights = alternatives.choose_alternatives(logits, index, against)
        token = self.build_class_target(index)
        if not others:
            return token
        named = others[: alternatives.MAX_NAMED] if against == "all" else others
        names = alternatives.name_tokens(self.labels, index, named)
        terms = (*token.terms, *alternatives.subtract_terms(others, weights))
        return ResolvedTarget(kind="token", name=token.name, terms=terms, alternatives=names)

    def _contrast_with_tokens(
        self, index: int, others: Sequence[int], logits: np.ndarray
    ) -> ResolvedTarget:
        """Return the contrast of a token with others that are named, weighted by their probabilities."""
        token = self.build_class_target(index)
        if index in others:
            raise BadTarget(
                f"The contrast names one token twice: {token.name}. Give alternatives that differ from it.",
                code="contrast-of-equal-tokens",
            )
        weights = [1.0]
        if len(others) > 1:
            weights = alternatives.weigh_alternatives(logits, others).tolist()
        names = " or ".join(self.build_class_target(other).name for other in others)
        terms = (*token.terms, *alternatives.subtract_terms(others, weights))
        return ResolvedTarget("contrast", f"{token.name} rather than {names}", terms)

    def build_class_target(self, index: int) -> ResolvedTarget:
        """Return the logit of one class, or of one token of a vocabulary, as a target."""
        name = self.labels[index]
        if self.is_language_model:
            # Quotation marks show that it is a word; a token of only white space stays as it is.
            name = f"‘{name.strip() or name}’"
        return _cached_class_target(name, index)

    def _resolve_contrast(
        self, target: Contrast, logits: np.ndarray, row: TokenRow
    ) -> ResolvedTarget:
        """Return the difference of two targets; terms that both have cancel out."""
        this = self._resolve_single(target.this, logits, row)
        that = self._resolve_single(target.that, logits, row)
        weights = dict(this.terms)
        for coordinate, weight in that.terms:
            weights[coordinate] = weights.get(coordinate, 0.0) - weight
        terms = tuple((coordinate, weight) for coordinate, weight in weights.items() if weight)
        if not terms:
            raise BadTarget(
                f"The contrast names one {this.kind} twice: {this.name}. Give two that differ.",
                code="contrast-of-equal-targets",
            )
        # Two answers read "the answer ‘a’ rather than ‘b’".
        name = f"{this.name} rather than {that.name.removeprefix('the answer ')}"
        kind: Literal["span", "contrast"] = (
            "span" if self.task == "question-answering" else "contrast"
        )
        return ResolvedTarget(kind, name, terms)

    def check_target_type(self, target: object) -> None:
        """Refuse a target of another kind of head."""
        if self.task == "question-answering":
            is_valid = isinstance(target, str | SpanTarget | Contrast) and target != "all"
        elif self.is_language_model:
            is_valid = not isinstance(target, SpanTarget)
        else:
            is_valid = not isinstance(target, SpanTarget | NextToken)
        if not is_valid:
            raise BadTarget(
                f"target={target!r} is not valid for this model: {self.usage}.",
                code="target-of-other-head",
            )

    def find_label_index(self, label: object, row: TokenRow | None = None) -> int:
        """Return the index of a label.

        Args:
            label: Its name or its number; for language models a token or its id.
            row: The input; the end of its text decides whether a token starts with a blank.

        Raises:
            BadTarget: This head has no such label, or several.
            UnknownName: No label has this name.
        """
        # True is an int to Python, but no label number that anyone means.
        if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
            raise BadTarget(
                f"target={label!r} has type {type(label).__name__}. Give 'predicted', 'all', a label "
                f"({join_first(self.labels, 12)}), its number, or Contrast(…).",
                code="target-type",
            )
        if isinstance(label, str):
            index = self._find_label(label, row)
            if index is not None:
                return index
        number = int(label)
        if not 0 <= number < len(self.labels):
            raise BadTarget(
                f"Label number {number} does not exist: this model has {len(self.labels)} labels, "
                f"0 to {len(self.labels) - 1} ({join_first(self.labels, 12)}).",
                code="label-number-range",
            )
        return number

    def _find_token(self, vocabulary: Vocabulary, label: str, row: TokenRow | None) -> int:
        """Return the id of a token that stands in a mask, or follows the text of ``row``."""
        text = row.texts[-1] if row is not None and row.texts else ""
        leading_space = self.task == "fill-mask" or not text[-1:].isspace()
        return vocabulary.token_id(label, leading_space=leading_space)

    def _find_label(self, label: str, row: TokenRow | None) -> int | None:
        """Return the index of a token or of the label with this name; None if the name is a number."""
        if isinstance(self.labels, Vocabulary):
            return self._find_token(self.labels, label, row)
        matches = [i for i, name in enumerate(self.labels) if name == label]
        if not matches:
            # Upper and lower case do not matter where no label is spelled exactly so.
            folded = label.casefold()
            matches = [i for i, name in enumerate(self.labels) if name.casefold() == folded]
        if len(matches) > 1:
            raise BadTarget(
                f"{len(matches)} labels of this model are named {label!r}. Give a number: "
                f"{' or '.join(map(str, matches))}.",
                code="label-ambiguous",
            )
        if matches:
            return matches[0]
        if not is_integer_text(label):
            raise UnknownName.from_choices("label", label, (*self.labels, "predicted", "all"))
        return None


def is_integer_text(label: str) -> bool:
    """Return whether a label's name is a number; ``²`` and ``--1`` are not."""
    return re.fullmatch(r"-?[0-9]{1,18}", label) is not None
