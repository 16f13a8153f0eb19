"""Probes: a few passes before the first use of a model that show whether its numbers can be trusted.

They refuse a model with weights that are not finite, that draws random numbers, that is not causal although
it generates text, or that computes other logits while its attention is recorded. They also find out whether
padding, or another row in the batch, changes the logits of a row. Each model is probed once; the results are
kept in ``probe_results.py``, and for later processes by ``verified_models.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tokenlight.accel.precision import compute_rounding_eps
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import NotFinite, UnsupportedModel
from tokenlight.hooks import attention_hook
from tokenlight.hooks.first_token import first_token_alone
from tokenlight.hooks.patching import forward_hooks
from tokenlight.model.objective import describe_first_nonfinite
from tokenlight.model.probe_results import FirstTokenProbe, ProbeResults, get_probe_results
from tokenlight.model.probe_rows import (
    PROBE_PADDING,
    is_checkable,
    make_other_row,
    make_probe_row,
    shorten_row,
)
from tokenlight.model.verified_models import (
    fingerprint_model,
    remember_results,
    restore_results,
)

if TYPE_CHECKING:
    from tokenlight.model.runner import ModelRunner

MORE_PADDING = 20  # tokens of padding that are tried after PROBE_PADDING
FLOAT32_EPS = torch.finfo(torch.float32).eps
ROUNDING_FACTOR = 32  # by how many eps two passes that compute the same may differ


@torch.inference_mode(mode=False)
def verify_model(runner: ModelRunner, row: TokenRow, *, reads_attention: bool) -> bool:
    """Probe a model that has not been probed before.

    Args:
        runner: The model; its ``attention_route`` and ``batching`` are updated.
        row: A row like those that will be explained.
        reads_attention: Whether its attention will be recorded.

    Returns:
        Whether padding leaves the logits of a row unchanged.

    Raises:
        UnsupportedModel: The numbers of this model would be wrong.
        NotFinite: A weight or an activation is NaN or infinite.
    """
    results = get_probe_results(runner.model)
    row = replace(row, continuation_ids=())
    if results.verified_route is not None:
        runner.attention_route = results.verified_route
    needs_attention_check = reads_attention and results.verified_route is None
    if results.is_padding_invariant is None or needs_attention_check:
        _restore_or_verify(runner, row, results, needs_attention_check, reads_attention)
    assert results.is_padding_invariant is not None
    assert results.is_batch_invariant is not None
    runner.batching.is_batch_invariant &= results.is_batch_invariant
    _verify_other_regime(runner, row, reads_attention=reads_attention)
    return results.is_padding_invariant


def _restore_or_verify(
    runner: ModelRunner,
    row: TokenRow,
    results: ProbeResults,
    needs_attention_check: bool,
    reads_attention: bool,
) -> None:
    """Take over what an earlier process found out about this very model, or probe it now."""
    fingerprint = fingerprint_model(runner)
    is_known = fingerprint is not None and restore_results(
        fingerprint, results, needs_route=needs_attention_check
    )
    if is_known:
        if results.verified_route is not None:
            runner.attention_route = results.verified_route
        return
    _verify_short_row(runner, make_probe_row(runner, row), reads_attention=reads_attention)
    if fingerprint is not None:
        remember_results(fingerprint, results)


def _verify_short_row(runner: ModelRunner, row: TokenRow, *, reads_attention: bool) -> None:
    """Verify a model on a row below all lengths at which it computes differently."""
    results = get_probe_results(runner.model)
    logits, nonfinite_weights = _check_finite(runner, row)
    _check_deterministic(runner, row, logits)
    if runner.head.task == "text-generation" and runner.vision_inputs is None:
        _check_causal(runner, row, _compute_loose_tolerance(runner, logits))
    rounding = _compute_padding_tolerance(runner, logits)
    # Images are never padded: those of one size go together.
    is_text = runner.patch_inputs is None
    results.is_padding_invariant = is_text and _measure_padding_gap(runner, row) <= rounding
    can_share_batch = is_text and runner.vision_inputs is None
    results.is_batch_invariant = (
        not can_share_batch or _measure_batch_gap(runner, row, logits) <= rounding
    )
    if reads_attention:
        tolerance = _compute_attention_tolerance(runner, row, logits)
        _check_recorded_attention(runner, row, logits, tolerance, nonfinite_weights)
        results.verified_route = runner.attention_route


def _verify_other_regime(runner: ModelRunner, row: TokenRow, *, reads_attention: bool) -> None:
    """Verify a model once for each length regime in which it computes differently from a short row."""
    batching = runner.batching
    if not batching.has_thresholds or runner.vision_inputs is not None:
        return
    sides = batching.find_threshold_sides(row)
    if sides == batching.find_threshold_sides(make_probe_row(runner, row)):
        return
    # The attention hook is the same function at any length, so only eager attention is checked again.
    checks_attention = reads_attention and runner.attention_route == "eager"
    padding_invariance = get_probe_results(runner.model).padding_invariance_by_sides
    key = (sides, checks_attention)
    if key not in padding_invariance:
        read_length = row.source_length or len(row)  # of the encoder, if there is one
        probe_row = make_probe_row(
            runner, row, batching.find_shortest_length_on_sides_of(read_length)
        )
        logits = _probe_logits(runner, probe_row)
        if not bool(torch.isfinite(logits).all()):
            raise NotFinite(
                f"{type(runner.model).__name__} returns NaN or infinity for a text of {len(probe_row)} "
                f"tokens, first in {_locate_nonfinite(runner, probe_row, ())}. Use a shorter text, or load "
                "the model in float32.",
                code="long-text-not-finite",
            )
        is_invariant = _measure_padding_gap(runner, probe_row) <= _compute_padding_tolerance(
            runner, logits
        )
        padding_invariance[key] = is_invariant
        if checks_attention:
            tolerance = _compute_attention_tolerance(runner, probe_row, logits)
            _check_recorded_attention(runner, probe_row, logits, tolerance, ())
    if not padding_invariance[key]:
        batching.padding_sensitive.add(sides)


@torch.inference_mode(mode=False)
def reads_first_token_alone(runner: ModelRunner, row: TokenRow, last_block: nn.Module) -> bool:
    """Return whether a classifier reads the last hidden state of the first token and of no other.

    Args:
        runner: The model.
        row: A row that it reads.
        last_block: The last block, which :func:`find_last_feed_forward` returned.
    """
    # An index beyond the first token is an error that can be caught on a CPU, but ends all work on a GPU.
    if runner.head.task != "text-classification" or runner.device.type != "cpu":
        return False
    # The probe reads a short row; beyond a threshold the model may cut its hidden states to their length.
    if runner.batching.has_thresholds:
        return False
    results = get_probe_results(runner.model)
    probe = results.first_token_probe
    if probe is None or not probe.holds_for(runner.model):
        is_confirmed = _has_logits_of_first_token(runner, row, last_block)
        probe = FirstTokenProbe(runner.model, is_confirmed=is_confirmed)
        results.first_token_probe = probe
    return probe.is_confirmed


def _has_logits_of_first_token(runner: ModelRunner, row: TokenRow, last_block: nn.Module) -> bool:
    """Return whether the logits stay the same without the other tokens of the last block."""
    probe_row = make_probe_row(runner, replace(row, continuation_ids=()))
    if len(probe_row) == 1:
        return False
    logits = _probe_logits(runner, probe_row)
    inputs = runner.build_inputs([probe_row])
    try:
        first_token_logits = runner.run(inputs, first_token_alone(last_block))[1].cpu().double()
    except (RuntimeError, IndexError, UnsupportedModel):
        return False
    rounding = ROUNDING_FACTOR * _compute_float_eps(runner) * _compute_logit_scale(logits)
    return _compute_max_gap(logits, first_token_logits) <= rounding


# --- how far logits may move -----------------------------------------------------------------------


def _compute_max_gap(logits: Tensor, other_logits: Tensor) -> float:
    return float((logits - other_logits).abs().max())


def _compute_float_eps(runner: ModelRunner) -> float:
    # Norms and softmax of many families compute in float32 whatever the dtype of the model is.
    return max(compute_rounding_eps(runner.device, runner.dtype), FLOAT32_EPS)


def _compute_logit_scale(logits: Tensor) -> float:
    return max(1.0, float(logits.abs().max()))


def _compute_loose_tolerance(runner: ModelRunner, logits: Tensor) -> float:
    """Return a gap that no other order of summation reaches, and most other computations exceed."""
    return float(_compute_float_eps(runner) ** 0.5 * _compute_logit_scale(logits))


def _compute_attention_tolerance(runner: ModelRunner, row: TokenRow, logits: Tensor) -> float:
    """Return how far recording attention may move the logits of ``row``.

    Where logits hardly depend on the text, a different computation moves them as little as another text
    does, so the tolerance is at most a hundredth of that.
    """
    tolerance = _compute_loose_tolerance(runner, logits)
    if runner.patch_inputs is not None:
        return tolerance
    text_gap = _compute_max_gap(logits, _probe_logits(runner, make_other_row(runner, row)))
    rounding = ROUNDING_FACTOR * _compute_float_eps(runner) * float(logits.abs().max())
    return min(tolerance, rounding + text_gap / 100)


def _compute_padding_tolerance(runner: ModelRunner, logits: Tensor) -> float:
    """Return how far rounding may move the logits of a padded row.

    It follows the dtype of the model: MPT counts its bias from the end of the padded row and rounds the
    sum to float32, which divisions by small numbers then magnify.
    """
    model_eps = compute_rounding_eps(runner.device, runner.dtype)
    relative = min(max(model_eps, FLOAT32_EPS) ** 0.5, 1e4 * model_eps)
    return float(relative * _compute_logit_scale(logits))


# --- checks ----------------------------------------------------------------------------------------


def _check_finite(runner: ModelRunner, row: TokenRow) -> tuple[Tensor, list[str]]:
    """Return the logits of the unmodified model, and the names of its weights that are not finite.

    Refuses the model if its logits are not finite, or if such a weight takes part in the pass: fused
    attention may hide it. Of an embedding table only the rows that are read count, so a table is
    refused through the logits alone.
    """
    model = runner.model
    nonfinite_weights = []
    for name, weight in model.named_parameters():
        if not _is_finite(weight):
            nonfinite_weights.append(name)
    owners = [model.get_submodule(name.rpartition(".")[0]) for name in nonfinite_weights]
    called_modules: set[nn.Module] = set()
    with forward_hooks({*owners} - {model}, pre_hook=lambda module, *_: called_modules.add(module)):
        logits = _probe_logits(runner, row)
    active_weights = []
    for name, owner in zip(nonfinite_weights, owners, strict=True):
        if owner in called_modules and not isinstance(owner, nn.Embedding):
            active_weights.append(name)
    if active_weights or not bool(torch.isfinite(logits).all()):
        location = _locate_nonfinite(runner, row, active_weights or nonfinite_weights)
        raise NotFinite(
            f"{type(model).__name__} returns NaN or infinity, first in {location}. Check its weights or load "
            "it in float32.",
            code="model-not-finite",
        )
    return logits, nonfinite_weights


def _is_finite(weight: nn.Parameter) -> bool:
    """Return whether no entry is NaN or infinite; a frozen weight may hold −inf, as masks do."""
    if not is_checkable(weight):
        return True
    extremes = torch.stack(weight.detach().aminmax())  # NaN if any entry is
    if weight.requires_grad:
        return bool(torch.isfinite(extremes).all())
    return not bool(extremes.isnan().any())


def _check_deterministic(runner: ModelRunner, row: TokenRow, logits: Tensor) -> None:
    gap = _compute_max_gap(logits, _probe_logits(runner, row))
    if not gap <= ROUNDING_FACTOR * _compute_float_eps(runner) * _compute_logit_scale(logits):
        raise UnsupportedModel(
            f"{type(runner.model).__name__} returns different logits each time it reads the same text (they "
            f"differ by {gap:.2g}), so it draws random numbers. Fix its seed, such as config.hash_seed.",
            code="random-logits",
        )


def _check_causal(runner: ModelRunner, row: TokenRow, tolerance: float) -> None:
    """Refuse a language model in which earlier tokens attend to later ones."""
    half = max(len(row) // 2, (row.source_length or 0) + 1)
    if half in (0, len(row)):
        return
    first_half_logits = _probe_logits(runner, row.take(range(half)))
    full_logits = _probe_logits(runner, replace(row, target_position=half - 1))
    gap = _compute_max_gap(full_logits, first_half_logits)
    if not gap <= tolerance:
        raise UnsupportedModel(
            f"{type(runner.model).__name__} cannot generate text as it is configured: its tokens attend to "
            f"later tokens (logits move by {gap:.2g}). Set config.is_decoder, or load it with a head for "
            "its task.",
            code="not-causal",
        )


def _check_recorded_attention(
    runner: ModelRunner,
    row: TokenRow,
    logits: Tensor,
    tolerance: float,
    nonfinite_weights: Sequence[str],
) -> None:
    """Refuse a model that computes other logits while its attention is recorded."""
    recorded_logits = _probe_logits(runner, row, records_attention=True)
    if not bool(torch.isfinite(recorded_logits).all()):
        location = _locate_nonfinite(runner, row, nonfinite_weights, records_attention=True)
        raise NotFinite(
            f"{type(runner.model).__name__} returns NaN or infinity where attention maps are computed, first "
            f"in {location}; fused attention hides it. Check its weights, or load it in float32.",
            code="attention-not-finite",
        )
    gap = _compute_max_gap(logits, recorded_logits)
    if gap <= tolerance:
        return
    if runner.attention_route == "hook":
        # A part of the model may bypass the attention interface; eager attention may still work.
        runner.attention_route = "eager"
        _check_recorded_attention(runner, row, logits, tolerance, nonfinite_weights)
        return
    raise UnsupportedModel(
        f"{type(runner.model).__name__} computes different logits when its attention maps are requested "
        f"(they differ by {gap:.2g}), so a method that reads attention would explain another model. Use a "
        "method that does not read attention, such as occlusion.",
        code="attention-changes-logits",
    )


def _measure_padding_gap(runner: ModelRunner, row: TokenRow) -> float:
    """Return how far padding moves the logits of a row; infinite if any padding leaves its length regime."""
    max_length = runner.max_tokens
    if max_length is None:
        max_length = 2 * len(row) + PROBE_PADDING
    padding = min(PROBE_PADDING, max_length // 2)
    amounts = {padding}
    if runner.vision_inputs is None:
        row = shorten_row(row, max_length - padding)
        amounts.add(min(MORE_PADDING, max_length - len(row)))
    logits = _probe_logits(runner, row)
    length = len(row) - (row.source_length or 0)  # of the part that is padded
    gaps = []
    for amount in amounts:
        if runner.batching.may_be_padded(length, length + amount):
            gap = (logits - _probe_logits(runner, row, padding=amount)).abs().max()
            gaps.append(float(gap.nan_to_num(torch.inf)))
    return max(gaps, default=torch.inf)


def _measure_batch_gap(runner: ModelRunner, row: TokenRow, logits: Tensor) -> float:
    """Return how far another row of the same length in the batch moves the logits of ``row``."""
    inputs = runner.build_inputs([row, make_other_row(runner, row)])
    batch_logits = runner.run(inputs)[1][:1].cpu().double()
    if runner.head.task == "question-answering":
        batch_logits = batch_logits[:, : len(row)]
    return float((logits - batch_logits).abs().max().nan_to_num(torch.inf))


# --- passes of one row -----------------------------------------------------------------------------


def _probe_logits(runner: ModelRunner, row: TokenRow, **options: Any) -> Tensor:
    """Return the logits of one row in float64, without those of padding; options as in ``_run_row``."""
    logits = _run_row(runner, row, **options)[1].cpu().double()
    if runner.head.task == "question-answering":
        logits = logits[:, : len(row)]
    return logits


def _run_row(
    runner: ModelRunner,
    row: TokenRow,
    *,
    records_attention: bool = False,
    padding: int = 0,
    **flags: Any,
) -> tuple[Any, Tensor]:
    """Run one row, with ``padding`` more tokens; return the outputs of the model and its logits."""
    inputs = runner.build_inputs([row], len(row) + padding)
    token_mask = inputs.token_mask
    attention = "unchanged"
    record_mode: attention_hook.RecordMode = "nothing"
    if records_attention:
        attention = runner.recorded_attention
        record_mode = "maps"
        if runner.attention_route == "eager":
            flags["output_attentions"] = True
    recorder = attention_hook.AttentionRecorder(
        record_mode,
        token_mask,
        runner.recorded_modules,
        records_cross_attention=runner.generates_from_source,
    )
    recording = attention_hook.attention_recorded_by(recorder)
    return runner.run(inputs, recording, attention=attention, **flags)


def _locate_nonfinite(
    runner: ModelRunner,
    row: TokenRow,
    nonfinite_weights: Sequence[str],
    *,
    records_attention: bool = False,
) -> str:
    """Name the first weight or hidden state that is not finite."""
    if nonfinite_weights:
        return f"the weight {nonfinite_weights[0]}"
    outputs, _ = _run_row(
        runner, row, records_attention=records_attention, output_hidden_states=True
    )
    return describe_first_nonfinite(runner.read_hidden_states(outputs))
