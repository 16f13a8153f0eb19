"""Every token of a continuation from one forward pass.

No token of a causal model sees those after it. So the logits of a whole text are those of each of its
beginnings, and so are the gradients at its embeddings: one forward pass serves all tokens of a continuation.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.target import NextToken, ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.explaining.attribution_fields import AttributionFields, build_shared_fields
from tokenlight.explaining.explain_options import ExplainOptions, TargetedRow
from tokenlight.explaining.pending_scores import launch_scores
from tokenlight.explaining.replay_batches import estimate_multiplications
from tokenlight.explaining.session import Session, verify_model_for_rows
from tokenlight.explaining.text_result import AttributionsByMethod
from tokenlight.hooks.locks import call_between_passes
from tokenlight.methods.base import Method
from tokenlight.trace.record import record
from tokenlight.trace.recording import Recording
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
# to launch kernels. One backward pass over a batch of all beginnings is then faster than one per token.
MAX_LAUNCH_BOUND_MULTIPLICATIONS = 4e12


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
    scores_by_token, notes = _score_tokens(recording, rows[-1], targets, options.methods)
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


def _score_tokens(
    recording: Recording,
    whole_row: TokenRow,
    targets: Sequence[ResolvedTarget],
    methods: Sequence[Method],
) -> tuple[list[list[np.ndarray]], list[str | None]]:
    """Score each target by a backward pass of its own.

    Returns:
        For each target and method an array over the tokens of the whole row; and the note of each method.
    """
    scores_by_token = []
    notes: list[str | None] = []
    for index, target in enumerate(targets):
        # The logits of the recording are ``batch token vocabulary``: the first index selects the token.
        terms = tuple(((index, *position), weight) for position, weight in target.terms)
        is_last = index == len(targets) - 1
        tape = recording.make_tape([replace(target, terms=terms)], release_graph=is_last)
        token_scores = []
        for pending in launch_scores(methods, tape):
            scores, _ = pending.fetch([whole_row])
            token_scores.append(scores[0])
        scores_by_token.append(token_scores)
        tape.run_deferred_checks()
        notes = [method.write_note(tape) for method in methods]
        call_between_passes()
    return scores_by_token, notes
