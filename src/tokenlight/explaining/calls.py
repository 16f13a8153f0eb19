"""One call of explain(): check its options, choose its methods, explain a list or an iterator."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, get_args

from tokenlight import registry
from tokenlight.data.tokens import ExplainMask, LongTextPolicy, TokenTypes
from tokenlight.errors import BadInput, check_choice
from tokenlight.explaining.default_method import (
    AUTO_METHOD,
    choose_default_method,
    describe_choice,
    detect_input_kind,
    is_auto,
    list_candidate_methods,
)
from tokenlight.explaining.effort import check_effort, choose_by_effort
from tokenlight.explaining.explain_options import (
    Effort,
    ExplainOptions,
    check_integer,
    check_target_is_scalar,
    iter_rows,
    text_index_in_errors,
)
from tokenlight.explaining.gc_pause import gc_paused
from tokenlight.explaining.session import Session
from tokenlight.explaining.strategies import run_strategies
from tokenlight.explaining.streams import explain_isolated, explain_stream
from tokenlight.explaining.text_result import TextResult
from tokenlight.methods.base import Method, check_declarations


def build_options(  # noqa: PLR0913 - the keywords users set, each by name
    session: Session,
    method: Any = AUTO_METHOD,
    *,
    explain_mask: ExplainMask = "none",
    token_types: TokenTypes = "tokenizer",
    long: LongTextPolicy = "error",
    seed: int = 0,
    effort: Effort | int | None = None,
    stable: float | None = None,
    batch_tokens: int | None = None,
    batch_size: int | None = None,
    progress: bool | None = None,
) -> ExplainOptions:
    """Build the options of a call from the keywords of explain(), checked; the methods are added later.

    Args:
        session: The model, for its default size of a batch.
        method: The method or methods of the call, which may not stand beside ``effort`` or ``stable``.
        explain_mask: Special tokens to mask in the explained pass.
        token_types: Whether the tokenizer's token types are replaced by zeros.
        long: What happens to a text that is longer than the model reads.
        seed: The seed of methods that sample.
        effort: How much compute to spend.
        stable: The share of top tokens that must be stable.
        batch_tokens: The most tokens per batch; None for as many as keep the device busy.
        batch_size: The most texts per batch; None for no limit besides tokens.
        progress: Whether to show a progress bar; None to show one on a terminal.

    Raises:
        BadInput: A keyword has a value that is not valid.
    """
    if batch_tokens is None:
        batch_tokens = session.runner.batch_tokens or session.runner.default_batch_tokens
    if batch_size is not None:
        batch_size = check_integer("batch_size", batch_size, 1)
    if progress is not None and not isinstance(progress, bool):
        raise BadInput(
            f"progress is a {type(progress).__name__}. Give True, False or None (a bar on a terminal).",
            code="progress-type",
        )
    options = ExplainOptions(
        methods=(),
        seed=check_integer("seed", seed, 0),
        explain_mask=check_choice("explain_mask", explain_mask, get_args(ExplainMask)),
        token_types=check_choice("token_types", token_types, get_args(TokenTypes)),
        long=check_choice("long", long, get_args(LongTextPolicy)),
        batch_tokens=check_integer("batch_tokens", batch_tokens, 1),
        batch_size=batch_size,
        progress=progress,
        effort=effort,
        stable=stable,
    )
    check_effort(effort, stable, method)
    return options


def explain_list(
    session: Session,
    texts: Sequence[Any],
    method: Any,
    target: Any,
    options: ExplainOptions,
    *,
    keep_errors: bool = False,
) -> list[TextResult]:
    """Explain a list of texts, all by the same methods.

    Args:
        session: The model, its tokenizer and its limits.
        texts: At least one input.
        method: One method or a list, as users give them.
        target: One target, or a list with one per text.
        options: The checked keywords of the call.
        keep_errors: Return the error of a refused text in its result rather than raise it.

    Returns:
        One result per text, in order.
    """
    targets = _list_targets(session, target, texts, check_labels=not keep_errors)
    # Choosing a default method runs the model.
    options = add_methods(session, options, method, texts[0])

    # A part of the texts with its targets, for isolating the texts that fail.
    def explain_chunk(chunk: list[Any], first_index: int) -> list[TextResult]:
        chunk_targets = targets[first_index : first_index + len(chunk)]
        return run_strategies(session, chunk, chunk_targets, options, first_index=first_index)

    with gc_paused(len(texts) * len(options.methods)):
        if keep_errors:
            return explain_isolated(texts, explain_chunk)
        return run_strategies(session, texts, targets, options)


def _list_targets(
    session: Session, target: Any, texts: Sequence[Any], *, check_labels: bool
) -> list[Any]:
    """Return one target per text, after what can be checked before the model runs.

    Args:
        session: The model, its tokenizer and its limits.
        target: One target, or a list with one per text.
        texts: The inputs.
        check_labels: Refuse the whole call for one unknown label.
    """
    has_target_per_text = isinstance(target, list)
    targets = target if has_target_per_text else [target]
    for index, text_target in enumerate(targets):
        check_target_is_scalar(text_target)
        if check_labels:
            with text_index_in_errors(index if has_target_per_text else None):
                session.runner.head.check_labels(text_target)
    if not has_target_per_text:
        return targets * len(texts)
    if len(targets) != len(texts):
        raise BadInput(
            f"{len(targets)} targets were given for {len(texts)} texts. Give one target, or one per text.",
            code="target-count",
        )
    return targets


def explain_iterator(
    session: Session, inputs: Iterator[Any], method: Any, target: Any, options: ExplainOptions
) -> Iterator[TextResult]:
    """Explain the texts of an iterator, in constant memory.

    Everything but the texts is checked immediately; the texts are read as results are needed, except for the
    first one if it decides on the default method.

    Args:
        session: The model and its tokenizer.
        inputs: The texts, read chunk by chunk as results are asked for.
        method: A method, a name, or a list of them.
        target: One target for all texts.
        options: The other keywords, checked.
    """
    if isinstance(target, list):
        raise BadInput(
            "A list of targets needs a list of texts, not an iterator. Give one target, or a list of texts.",
            code="targets-for-iterator",
        )
    check_target_is_scalar(target)
    session.runner.head.check_labels(target)
    inputs = iter_rows(inputs)
    example = None
    if any(map(is_auto, _as_specs(method))):
        # The first text decides on the default method, and is put back.
        first_inputs = list(islice(inputs, 1))
        inputs = chain(first_inputs, inputs)
        example = first_inputs[0] if first_inputs else None
    options = add_methods(session, options, method, example)
    # A bar for each chunk would flicker.
    quiet_options = replace(options, progress=False)

    def explain_chunk(chunk: list[Any], first_index: int) -> list[TextResult]:
        targets = [target] * len(chunk)
        with gc_paused(len(chunk) * len(options.methods)):
            return run_strategies(session, chunk, targets, quiet_options, first_index=first_index)

    return explain_stream(inputs, explain_chunk, options.batch_tokens)


def _as_specs(method: Any) -> list[Any]:
    return method if isinstance(method, list) else [method]


def add_methods(
    session: Session, options: ExplainOptions, method: Any, example: Any
) -> ExplainOptions:
    """Add the methods to the options, with a method of our choice in place of ``"auto"``.

    Args:
        session: The model, its tokenizer and its limits.
        options: The checked keywords of the call.
        method: One method or a list, as users give them.
        example: The first input, which decides on the default.
    """
    specs = _as_specs(method)
    if options.effort is not None or options.stable is not None:
        name, method_options, reason = choose_by_effort(
            session, options.effort, options.stable, example
        )
        options = replace(options, default_method_reason=(name, reason))
        specs = [(name, method_options)]
    elif any(map(is_auto, specs)):
        kind = detect_input_kind(session, example)
        name = choose_default_method(session, kind, example)
        # The note says whether the preferred method was passed over.
        is_fallback = name != list_candidate_methods(kind)[0]
        reason = describe_choice(kind, name, is_fallback=is_fallback)
        options = replace(options, default_method_reason=(name, reason))
        specs = [name if is_auto(spec) else spec for spec in specs]
    return replace(options, methods=resolve_methods(session, specs, options.seed))


def resolve_methods(session: Session, method: Any, seed: int) -> tuple[Method, ...]:
    """Build the methods of a call.

    Args:
        session: The model, its tokenizer and its limits.
        method: A name, a (name, options) pair, a Method, or a list of these.
        seed: The seed of methods that sample, unless their options set one.

    Raises:
        BadInput: No method is given, or an option has a value that is not valid.
        UnknownName: There is no such method or option.
    """
    specs = _as_specs(method)
    if not specs:
        raise BadInput(
            f"No method was given. Choose from {', '.join(registry.list_names('methods'))}.",
            code="no-method",
        )
    methods = []
    for spec in specs:
        if isinstance(spec, Method):
            methods.append(spec)
            continue
        name, method_options = registry.resolve_spec("methods", spec)
        methods.append(
            Method.build_for_model(name, method_options, seed=seed, model=session.runner.model)
        )
    # Instances may come from anywhere; registered classes were checked when they were written.
    check_declarations([spec for spec in specs if isinstance(spec, Method)])
    return tuple(methods)
