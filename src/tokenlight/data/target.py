"""Targets: which number of a model's output is explained.

A target resolves, for one example, to a weighted sum of that example's logits: ``[label]`` of a classifier,
``[token, 0]`` (start) and ``[token, 1]`` (end) of a span head. Logits and not probabilities, because the
gradient of a probability vanishes where the model is certain. A token of a language model is contrasted with
its likely alternatives; see :mod:`tokenlight.data.alternatives`. Targets are resolved in
:mod:`tokenlight.data.head`.
"""

from dataclasses import dataclass
from typing import Any, Literal

from tokenlight.data import alternatives
from tokenlight.data.alternatives import Against
from tokenlight.data.resolved_target import ResolvedTarget as ResolvedTarget  # noqa: PLC0414
from tokenlight.data.span_target import SpanTarget
from tokenlight.errors import BadTarget
from tokenlight.errors.arguments import check_fields


@dataclass(frozen=True, slots=True)
class Continuation:
    """A continuation that a language model generated or might generate. Each token is explained separately.

    Args:
        text: The continuation; None lets the model generate it greedily.
        max_new_tokens: Number of tokens to generate where ``text`` is None.
        span: Explain only the tokens of these words of the continuation.
        joint: Explain all tokens at once by one pass: the sum of their log-odds, each predicted from the
            prompt and the tokens before it. Gradients of the parts sum to those of the whole.
        against: What each token is contrasted with: this many of the likeliest other tokens, ``"all"``
            others, or None for its logit alone. A joint target contrasts with all others, unless
            ``against`` is None: then it is the sum of logits.

    Raises:
        BadTarget: An argument has a wrong type.

    Example:
        >>> from tokenlight import Continuation
        >>> Continuation(" Paris, the capital", span="Paris").joint
        False
    """

    text: str | None = None
    max_new_tokens: int = 20
    span: str | None = None
    joint: bool = False
    against: int | Literal["all"] | None = alternatives.DEFAULT_ALTERNATIVES

    def __post_init__(self) -> None:
        check_fields(self, "max_new_tokens", "span", "joint", "against", error=BadTarget)
        alternatives.normalize_against(self.against)


@dataclass(frozen=True, slots=True)
class Contrast:
    """Why ``this`` rather than ``that``: the difference of two logits, or of two answers' logits.

    The contrast of two continuations is the difference of the sums of their logits, by one pass each.

    Args:
        this: A label, a token, an answer or a Continuation.
        that: The alternative, of the same kind.

    Example:
        >>> from tokenlight import Contrast, Explainer
        >>> explainer = Explainer.from_pretrained("tokenlight/topics")
        >>> text = "Shares of the football club rose"
        >>> explainer.explain(text, target=Contrast("Business", "Sports")).target.name
        'Business rather than Sports'
    """

    this: str | int | SpanTarget | Continuation
    that: str | int | SpanTarget | Continuation


@dataclass(frozen=True, slots=True)
class RankedAbove:
    """Why the second text of a pair scores above another text, by one pass for each of the two.

    Args:
        alternative: The text that the pair's second text is compared with.
        label: Which logit ranks, for models with several.

    Example:
        >>> from tokenlight import RankedAbove
        >>> RankedAbove("Hold the button for ten seconds.").label
        'predicted'
    """

    alternative: str
    label: str | int = "predicted"


@dataclass(frozen=True, slots=True)
class NextToken:
    """One token of a language model, the next or the masked one, rather than its likely alternatives.

    The number that is explained is the token's logit minus the mean of the alternatives' logits, weighted
    by their probabilities, which are held constant.

    Args:
        token: The token's text, or its id; ``"predicted"`` for the most likely one.
        against: The alternatives: this many of the likeliest other tokens; ``"all"`` others (the log-odds,
            linearized); a token or a list of tokens, by text or id; or None for the logit alone.

    Raises:
        BadTarget: ``against`` is nothing of this.

    Example:
        >>> from tokenlight import NextToken
        >>> NextToken("Paris", against=["London", "Rome"]).against
        ('London', 'Rome')
    """

    token: str | int = "predicted"
    against: Against = alternatives.DEFAULT_ALTERNATIVES

    def __post_init__(self) -> None:
        object.__setattr__(self, "against", alternatives.normalize_against(self.against))


@dataclass(frozen=True, slots=True)
class TokenTarget:
    """One token of the text, for heads with one output per token.

    Args:
        token: A word of the text, or a token position. Adjacent words (``"New York"``) are one target:
            the sum of their labels' logits.
        label: A label, a Contrast of two, or the part that B- and I- tags have in common (``"LOC"``),
            which stands for the most likely of these tags at each word.
        occurrence: Which of several equal words, counted from 0.

    Raises:
        BadTarget: An argument has a wrong type.

    Example:
        >>> from tokenlight import TokenTarget
        >>> TokenTarget("New York", label="LOC").occurrence is None
        True
    """

    token: str | int
    label: str | int | Contrast | NextToken = "predicted"
    occurrence: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, "label", "occurrence", error=BadTarget)


TargetSpec = (
    str | int | Contrast | RankedAbove | SpanTarget | NextToken | Continuation | TokenTarget
)
TargetLike = TargetSpec | ResolvedTarget


def to_next_token(target: Any) -> NextToken:
    """Return what a target asks of a language model; ``"logit"`` is the predicted token's logit alone."""
    if isinstance(target, NextToken):
        return target
    if target == "logit":
        return NextToken("predicted", against=None)
    return NextToken(target)
