"""Build the target of ``tokenlight explain`` from ``--target`` and the options that refine it."""

from collections.abc import Mapping
from typing import Any

from tokenlight.data.alternatives import DEFAULT_ALTERNATIVES
from tokenlight.data.span_target import SpanTarget
from tokenlight.data.target import Continuation, Contrast, NextToken, RankedAbove, TokenTarget
from tokenlight.errors import BadInput

DEFAULT_GENERATED_TOKENS = 20


def build_target(arguments: Mapping[str, Any], *, is_question: bool) -> Any:
    """Build the target from ``--target`` and the options that refine it.

    Args:
        arguments: The value of each option by the name of its parameter.
        is_question: Whether the model marks the answer to a question in a context.

    Returns:
        A label, or one of the target classes of :mod:`tokenlight.data`.

    Raises:
        BadInput: The options do not fit together.
    """
    token = arguments["token"]
    is_generated = arguments["continuation"] is not None or arguments["generate"] is not None
    _check_occurrence(arguments, is_question=is_question)
    if is_question and token is None and not is_generated:
        return _build_answer_target(arguments)
    if arguments["no_answer"]:
        raise BadInput(
            "--no-answer applies only to a question. Give --question and --context too.",
            code="no-answer-without-question",
        )
    build = _build_generated_target if is_generated else _build_label_target
    target = build(arguments)
    if token is None:
        return target
    # Digits are the index of a token; a word is looked up in the text.
    token_or_index = int(token) if token.isdigit() else token
    return TokenTarget(token_or_index, target, arguments["occurrence"])


def _check_occurrence(arguments: Mapping[str, Any], *, is_question: bool) -> None:
    """Check that ``--occurrence`` comes with words that can occur several times."""
    if arguments["occurrence"] is None:
        return
    token = arguments["token"]
    names_a_word = bool(token) and not token.isdigit()
    names_an_answer = is_question and arguments["target"] != "predicted"
    if not names_a_word and not names_an_answer:
        raise BadInput(
            "--occurrence counts the occurrences of a word or an answer. Give --token WORD, or the words "
            "of a question's answer as --target.",
            code="occurrence-without-words",
        )


def _build_answer_target(arguments: Mapping[str, Any]) -> Any:
    """Build the target of a question: the predicted answer, the given words, or no answer."""
    answer = arguments["target"]
    if answer == "predicted":
        answer = None  # the answer that the model gives
    if arguments["no_answer"] and answer is not None:
        raise BadInput(
            f"--target {answer!r} cannot be combined with --no-answer. Leave one of them out.",
            code="answer-and-no-answer",
        )
    target = SpanTarget(
        answer=answer,
        occurrence=arguments["occurrence"],
        no_answer=arguments["no_answer"],
    )
    rival = arguments["rather_than"]
    if rival is None:
        return target
    return Contrast(target, rival)


def _build_generated_target(arguments: Mapping[str, Any]) -> Any:
    """Build the target of a continuation that is given, or that the model generates."""
    rival = arguments["rather_than"]
    num_tokens = arguments["generate"]
    if num_tokens is None:
        num_tokens = DEFAULT_GENERATED_TOKENS
    # Sums per unit explain the continuation as a whole, not token by token.
    is_joint = rival is None and bool(arguments["by"])
    against: Any = DEFAULT_ALTERNATIVES
    if arguments["against"] is not None:
        against = _parse_against(arguments["against"])
    target = Continuation(arguments["continuation"], num_tokens, joint=is_joint, against=against)
    if rival is None:
        return target
    return Contrast(target, Continuation(rival) if rival else rival)


def _build_label_target(arguments: Mapping[str, Any]) -> Any:
    """Build the target of a label or token, possibly against an alternative."""
    target = arguments["target"]
    rival = arguments["rather_than"]
    if arguments["above"] is not None:
        target = RankedAbove(arguments["above"], target)
    if arguments["against"] is not None:
        return NextToken(target, _parse_against(arguments["against"]))
    if rival is None:
        return target
    return Contrast(target, rival)


def _parse_against(value: str) -> int | str | None:
    """Return what a token is contrasted with; ``none`` is its logit alone."""
    if value == "none":
        return None
    if value == "all":
        return value
    if not value.isdecimal() or int(value) < 1:
        raise BadInput(
            f"--against {value} is not valid. Give a number of tokens (1 or more), all or none; one "
            "alternative is named by --rather-than TOKEN.",
            code="against-option",
        )
    return int(value)
