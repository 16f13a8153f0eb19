"""Every token of a continuation from one forward pass.

No token of a causal model sees those after it. So the logits of a whole text are those of each of its
beginnings, and so are the gradients at its embeddings: one forward pass serves all tokens of a continuation.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tokenlight.accel.precision import compute_rounding_eps
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import NextToken, ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.explaining.attribution_fields import AttributionFields, build_shared_fields
from tokenlight.explaining.explain_options import ExplainOptions, TargetedRow
from tokenlight.explaining.pending_scores import launch_scores
from tokenlight.explaining.session import Session, verify_model_for_rows
from tokenlight.explaining.text_result import AttributionsByMethod
from tokenlight.hooks.locks import call_between_passes
from tokenlight.methods.base import Method
from tokenlight.trace.record import record
from tokenlight.trace.recording import Recording
from tokenlight.trace.replay import estimate_multiplications
from tokenlight.trace.sites import Site

# Sites with values that do not depend on later tokens. Attention received does: it is a mean over all.
PREFIX_INVARIANT_SITES = frozenset(
    {
        Site.EMBEDDINGS,
        Site.EMBEDDING_GRADIENT,
        Site.RELEVANCE_GRADIENT,
        Site.NO_MODEL_GRADIENT,
    }
)

# Multiplications of a forward pass over the whole text up to which a GPU in half precision waits for Python
# to launch kernels. A batch of all beginnings computes every token again for each of them, in one forward and
# one backward pass; a batch of gradients computes it forward once, but has twice the launches of a backward
# pass. Of a Llama of 8 billion parameters on an H200 these take 23 and 57 ms, so that for 8 tokens the rows
# are faster up to 16 F / 2.5e14 per second = 23 ms + 2 · 57 ms.
MAX_LAUNCH_BOUND_MULTIPLICATIONS = 2e12
# By how much of the largest score, in rounding steps, a batch of gradients may change a score.
BATCH_TOLERANCE_STEPS = 2.0**13
MAX_BATCH_TOLERANCE = 0.1


def can_share_forward(
    session: Session, targeted_rows: Sequence[TargetedRow], options: ExplainOptions
) -> bool:
    """Return whether the rows are beginnings of one text, and every method may read them from one pass.

    To a token, the tokens after it are padding: a model that padding changes needs a row for each. Short
    texts on a GPU have a row for each as well, since that is faster.

    Args:
        session: The model, which is verified here if it was not before.
        targeted_rows: A prompt, and the same prompt with more and more of its continuation.
        options: The methods; an ``explain_mask`` rules sharing out.
    """
    if len(targeted_rows) < 2 or options.explain_mask != "none":
        return False
    if not all(map(is_prefix_invariant, options.methods)) or not _are_prefixes(targeted_rows):
        return False
    rows = [row for row, _ in targeted_rows]
    if _is_launch_bound(session, rows[-1]):
        return False
    # Verifying the model also finds out whether padding changes its logits.
    verify_model_for_rows(session, rows, options.methods)
    batching = session.runner.batching
    computations = {batching.compute_regime_key(row) for row in rows}
    if len(computations) > 1:
        return False  # The model computes a beginning differently than the whole text.
    return session.runner.is_padding_invariant and batching.is_batch_invariant


def _is_launch_bound(session: Session, whole_row: TokenRow) -> bool:
    """Return whether a pass over the text takes as long as launching it, so that more rows cost nothing."""
    runner = session.runner
    if not runner.is_half_precision_gpu:
        return False
    return estimate_multiplications(runner, 1, len(whole_row)) <= MAX_LAUNCH_BOUND_MULTIPLICATIONS


def _are_prefixes(targeted_rows: Sequence[TargetedRow]) -> bool:
    """Return whether all rows are beginnings of the last one, each asked for its next token."""
    whole_row, _ = targeted_rows[-1]
    if whole_row.image is not None:
        return False
    for row, target in targeted_rows:
        if not isinstance(target, NextToken) or row.texts != whole_row.texts:
            return False
    return True


def is_prefix_invariant(method: Method) -> bool:
    """Return whether the scores need one pass, and nothing that depends on later tokens."""
    return (
        bool(method.needs)
        and method.recorded_sites <= PREFIX_INVARIANT_SITES
        and method.count_passes(1).forwards == 1
    )


def explain_continuation(
    session: Session, targeted_rows: Sequence[TargetedRow], options: ExplainOptions
) -> AttributionsByMethod:
    """Explain each token of a continuation by one forward pass, and one backward pass per token.

    On a GPU several backward passes of relevance run as one, over a batch of gradients.

    Args:
        session: The model, its tokenizer and its limits.
        targeted_rows: The beginnings of one text, the longest last, each with its next token.
        options: Resolved keyword arguments of ``explain()``, with the methods.

    Returns:
        For each method one Attribution per token.
    """
    rows = [row for row, _ in targeted_rows]
    # One forward pass over the whole text, with logits at the last token of each beginning.
    last_positions = tuple(len(row) - 1 for row in rows)
    recording = record(
        session.runner,
        [replace(rows[-1], target_positions=last_positions)],
        options.recorded_sites,
        batch_tokens=options.batch_tokens,
    )
    logits = list(recording.finite_logits[0])
    # The target of each beginning is its next token.
    targets = []
    for (row, target), row_logits in zip(targeted_rows, logits, strict=True):
        targets.append(session.runner.head.resolve(target, row_logits, row)[0])
    targets_of_tapes = _place_targets(targets)
    group_size = _count_targets_at_once(session, recording, targets_of_tapes, options.methods)
    scores_by_token, notes = _score_tokens(recording, targets_of_tapes, options.methods, group_size)
    attributions_by_method: AttributionsByMethod = []
    for method_index in range(len(options.methods)):
        attribution_fields = AttributionFields(
            session,
            rows,
            recording.has_attention_sink,
            targets,
            build_shared_fields(session, options, method_index, [notes[method_index]]),
        )
        scores = np.array([token_scores[method_index] for token_scores in scores_by_token])
        attribution_fields.fill(
            logits=logits, predicting_logits=logits, scores=scores, layer_scores=None, extras=None
        )
        attributions = []
        for index in range(len(rows)):
            attributions.append(Attribution.lazy(partial(attribution_fields.build_fields, index)))
        attributions_by_method.append(attributions)
    return attributions_by_method


def _place_targets(targets: Sequence[ResolvedTarget]) -> list[list[ResolvedTarget]]:
    """Return the target of each token as that of a batch of one row with logits at every token.

    Those logits are ``batch token vocabulary``: the first index selects the token.
    """
    placed = []
    for index, target in enumerate(targets):
        terms = tuple(((index, *position), weight) for position, weight in target.terms)
        placed.append([replace(target, terms=terms)])
    return placed


def _count_targets_at_once(
    session: Session,
    recording: Recording,
    targets_of_tapes: Sequence[Sequence[ResolvedTarget]],
    methods: Sequence[Method],
) -> int:
    """Return how many backward passes run as one: one where that gains nothing, or changes the scores."""
    # A CPU computes as long for eight gradients at once as for one after another.
    if recording.backward_mode is None or not can_batch_gradients(session):
        return 1
    # Of a batch of gradients only those of one layer are in memory, as of a forward pass without graph.
    group_size = recording.count_passes_at_once(recording.batch_tokens)
    if group_size > 1 and session.facts.batches_gradients is None:
        first_targets = targets_of_tapes[:2]
        session.facts.batches_gradients = _are_equal_in_batch(recording, first_targets, methods)
    return group_size if session.facts.batches_gradients else 1


def can_batch_gradients(session: Session) -> bool:
    """Return whether the device may run several backward passes faster as one than one by one."""
    return session.runner.device.type == "cuda"


def _are_equal_in_batch(
    recording: Recording,
    targets_of_tapes: Sequence[Sequence[ResolvedTarget]],
    methods: Sequence[Method],
) -> bool:
    """Return whether a model's operations take a batch of gradients, and give the scores of single ones.

    Kernels of other libraries may not: torch then raises a RuntimeError.
    """
    tapes = recording.make_tapes(targets_of_tapes)
    try:
        batched = [method.compute_scores(tapes[-1]) for method in methods]
    except RuntimeError:
        return False
    finally:
        tapes.clear()
    tape = recording.make_tape(targets_of_tapes[-1], release_graph=False)
    eps = compute_rounding_eps(recording.runner.device, recording.runner.dtype)
    tolerance = min(BATCH_TOLERANCE_STEPS * eps, MAX_BATCH_TOLERANCE)
    for method, batched_scores in zip(methods, batched, strict=True):
        scores = method.compute_scores(tape)
        difference = (batched_scores - scores).abs().max()
        if not bool(difference <= tolerance * scores.abs().max()):
            return False
    return True


def _score_tokens(
    recording: Recording,
    targets_of_tapes: Sequence[Sequence[ResolvedTarget]],
    methods: Sequence[Method],
    group_size: int,
) -> tuple[list[list[np.ndarray]], list[str | None]]:
    """Score each target, by a backward pass of its own or by one for ``group_size`` of them.

    Returns:
        For each target and method an array over the tokens of the whole row; and the note of each method.
    """
    scores_by_token = []
    notes: list[str | None] = []
    for start in range(0, len(targets_of_tapes), group_size):
        group_targets = targets_of_tapes[start : start + group_size]
        if len(group_targets) > 1:
            tapes = recording.make_tapes(group_targets)
        else:
            is_last = start + 1 == len(targets_of_tapes)
            tapes = [recording.make_tape(group_targets[0], release_graph=is_last)]
        # Everything is launched before anything is fetched.
        pending_by_tape = [launch_scores(methods, tape) for tape in tapes]
        for tape, pending_scores in zip(tapes, pending_by_tape, strict=True):
            token_scores = []
            for pending in pending_scores:
                scores, _ = pending.fetch(recording.rows)
                token_scores.append(scores[0])
            scores_by_token.append(token_scores)
            tape.run_deferred_checks()
        notes = [method.write_note(tapes[-1]) for method in methods]
        # Tapes of a group hold each other, and with them the graph.
        tapes.clear()
        call_between_passes()
    return scores_by_token, notes
