"""Capture and compute the embeddings of a text, and find where they enter a model.

The points are found once per model by trial: the first candidates through which *all* of the text passes. See
``embedding_hooks.py`` for how the embeddings of a decoder are laid out.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tokenlight.accel.precision import compute_rounding_eps
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import UnsupportedModel
from tokenlight.hooks.embedding_layers import find_token_embeddings
from tokenlight.hooks.patching import forward_hooks
from tokenlight.model.batch_inputs import get_shared_source_length
from tokenlight.model.embedding_hooks import (
    CapturedEmbeddings,
    EmbeddingHooks,
    EmbeddingSite,
    HookPoint,
    SwappedAxes,
    swap_axes,
)
from tokenlight.model.probe_results import get_probe_results
from tokenlight.model.probe_rows import make_other_row, make_probe_row
from tokenlight.model.runner import ModelRunner

# Candidate hook points of encoder or decoder; later ones pass on what came through the first.
MAX_CANDIDATES = 4


@contextmanager
def capture_embeddings(
    runner: ModelRunner,
    embedding_hooks: EmbeddingHooks,
    token_mask: Tensor,
    source_length: int | None,
) -> Iterator[CapturedEmbeddings]:
    """Capture the embeddings of the pass inside the block, and let the graph go through them.

    Args:
        runner: The model to run.
        embedding_hooks: Where the embeddings enter.
        token_mask: ``batch token``; true at real tokens.
        source_length: Number of tokens that only the encoder reads, or None.
    """
    captured = CapturedEmbeddings(embedding_hooks, token_mask, [])

    def capture(_hook_index: int, embeddings: Tensor) -> Tensor:
        if not embeddings.requires_grad:
            embeddings = embeddings.detach().requires_grad_()
        # A node of its own, even if the embeddings are a view of a tensor with padding.
        captured.tensors.append(embeddings.view_as(embeddings))
        return captured.tensors[-1].clone()  # the model may scale it in place

    with embedding_hooks.hooked_embeddings(
        runner.model, token_mask.shape[1], source_length, capture
    ):
        yield captured


class _StopForward(Exception):
    """All embeddings of a pass have been captured."""


@torch.inference_mode(mode=False)
def compute_embeddings(
    runner: ModelRunner,
    rows: Sequence[TokenRow],
    width: int,
    embedding_hooks: EmbeddingHooks,
    *,
    use_model_decoder_ids: bool = False,
) -> Tensor:
    """Compute the embeddings of ``rows``, ``batch position hidden``.

    The pass ends there, before any head could refuse the rows.

    Args:
        runner: The model to run.
        rows: The rows.
        width: The width of the batch.
        embedding_hooks: Where the embeddings enter.
        use_model_decoder_ids: Whether the model itself derives what its decoder reads.
    """
    inputs = runner.build_inputs(rows, width)
    if not use_model_decoder_ids:
        arguments = embedding_hooks.add_decoder_ids(inputs.arguments, inputs.token_mask)
        inputs = inputs._replace(arguments=arguments)
    captured: list[Tensor] = []

    def capture(_hook_index: int, embeddings: Tensor) -> Tensor:
        captured.append(embeddings.clone())
        if len(captured) == len(embedding_hooks.hook_points):
            raise _StopForward
        return embeddings

    with suppress(_StopForward):
        capturing = embedding_hooks.hooked_embeddings(
            runner.model, width, get_shared_source_length(rows), capture
        )
        runner.run(inputs, capturing)
    return torch.cat(captured, dim=1)


@torch.inference_mode(mode=False)
def find_embedding_hooks(runner: ModelRunner, row: TokenRow, site: EmbeddingSite) -> EmbeddingHooks:
    """Find where the embeddings of a text enter the model, once per model.

    Args:
        runner: The model to run.
        row: A row that it reads.
        site: ``embeddings`` for h^0, the input of the first block; ``token_embeddings`` for the output of the
            token tables, before positions, segments and norm. Where h^0 cannot be replaced, the token tables
            stand in for it.

    Raises:
        UnsupportedModel: The text reaches the logits by other ways as well.
    """
    hooks_by_site = get_probe_results(runner.model).embedding_hooks
    if site not in hooks_by_site:
        hooks_by_site[site] = _search_hooks(runner, row, site)
    return hooks_by_site[site]


# --- the search ------------------------------------------------------------------------------------


class _ModuleValue(NamedTuple):
    """A value that a module took in or gave out; ``argument`` is None for an output."""

    path: str
    call_index: int
    argument: int | str | None
    value: Any


@dataclass(frozen=True)
class _ModuleTrace:
    """Findings of one traced pass.

    Attributes:
        paths: The path of each module.
        values: Inputs and outputs of all modules, in the order of their calls.
        first_states: h^0 as the encoder, or encoder and decoder, report it; without padding.
    """

    paths: dict[nn.Module, str]
    values: list[_ModuleValue]
    first_states: list[Tensor]


def _search_hooks(runner: ModelRunner, row: TokenRow, site: EmbeddingSite) -> EmbeddingHooks:
    """Return the first candidate that is the only way of the text into the model."""
    if runner.patch_inputs is None:
        row = make_probe_row(runner, replace(row, continuation_ids=()))
    trace = _trace_modules(runner, row)
    min_parts = 2 if runner.generates_from_source else 1
    num_parts = max(min_parts, len(trace.first_states))
    table_hooks = _find_table_hooks(runner, trace, row, num_parts)
    # In a vision-language model, words and patches are joined only after the token table.
    uses_states = site == "embeddings" or runner.vision_inputs is not None
    state_candidates: list[tuple[HookPoint, ...]] = []
    if uses_states and len(trace.first_states) >= min_parts:
        state_candidates = _list_state_candidates(trace)
    if runner.patch_inputs is not None:
        if state_candidates:
            return EmbeddingHooks(state_candidates[0])
        num_prefix_tokens = runner.patch_inputs.num_prefix_tokens
        hook_point = replace(table_hooks.hook_points[0], num_prefix_tokens=num_prefix_tokens)
        return EmbeddingHooks((hook_point,))
    other_row = make_other_row(runner, row)
    for hook_points in (*state_candidates, table_hooks.hook_points):
        embedding_hooks = replace(table_hooks, hook_points=hook_points)
        if _is_only_input(runner, row, other_row, embedding_hooks):
            return embedding_hooks
    raise UnsupportedModel(
        f"The logits of {type(runner.model).__name__} depend on more of a text than its token "
        "embeddings, so scores at the embeddings would miss a part. Use a method that changes tokens, such "
        "as occlusion or shapley.",
        code="text-bypasses-embeddings",
    )


def _list_state_candidates(trace: _ModuleTrace) -> list[tuple[HookPoint, ...]]:
    """Return all combinations of points at which h^0 passes, one point per part of the model."""
    candidates_by_part = []
    for state in trace.first_states:
        hook_points = _find_hook_points(trace.values, state)
        candidates_by_part.append(hook_points[:MAX_CANDIDATES])
    return list(product(*candidates_by_part))


def _trace_modules(runner: ModelRunner, row: TokenRow) -> _ModuleTrace:
    """Run one pass and record what every module takes in and gives out."""
    paths = {module: path for path, module in runner.model.named_modules() if path}
    call_counts = dict.fromkeys(paths.values(), -1)
    values: list[_ModuleValue] = []

    def pre_hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        path = paths[module]
        call_counts[path] += 1
        for argument, value in (*enumerate(args), *kwargs.items()):
            values.append(_ModuleValue(path, call_counts[path], argument, value))

    def post_hook(module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        path = paths[module]
        if isinstance(output, tuple) and output:
            output = output[0]
        values.append(_ModuleValue(path, call_counts[path], None, output))

    recording = forward_hooks(paths, pre_hook=pre_hook, post_hook=post_hook)
    outputs, _ = runner.run(runner.build_inputs([row]), recording, output_hidden_states=True)
    decoder_states = getattr(outputs, "decoder_hidden_states", None) or ()
    states = [*runner.read_hidden_states(outputs)[:1], *decoder_states[:1]]
    lengths = [len(row), len(row)]
    if row.source_length is not None:
        lengths = [row.source_length, len(row) - row.source_length]
    first_states = []
    for state, length in zip(states, lengths, strict=False):
        first_states.append(state[:, :length])
    return _ModuleTrace(paths, values, first_states)


def _find_hook_points(values: list[_ModuleValue], state: Tensor) -> list[HookPoint]:
    """Find where ``state``, ``batch token hidden``, was given out, then where it was taken in."""
    outputs_first = sorted(values, key=lambda item: item.argument is not None)
    hook_points = []
    for item in outputs_first:
        for axes in _find_matching_axes(item.value, state):
            hook_points.append(
                HookPoint(
                    module_path=item.path,
                    argument=item.argument,
                    swapped_axes=axes,
                    call_index=item.call_index,
                )
            )
    return hook_points


def _find_matching_axes(tensor: Any, state: Tensor) -> list[SwappedAxes]:
    """Return the swap of axes that makes ``tensor`` begin with ``state``; an empty list if none does."""
    if not isinstance(tensor, Tensor) or tensor.dim() != 3 or tensor.dtype != state.dtype:
        return []
    for axes in (None, (0, 1), (1, 2)):
        vectors = swap_axes(tensor.detach(), axes)[:, : state.shape[1]]
        if vectors.shape == state.shape and torch.equal(vectors.to(state.device), state.detach()):
            return [axes]
    return []


def _find_table_hooks(
    runner: ModelRunner, trace: _ModuleTrace, row: TokenRow, num_parts: int
) -> EmbeddingHooks:
    """Return hooks at the output of the token tables: the encoder's and, for two parts, the decoder's."""
    tables: list[Any] = [find_token_embeddings(runner.model)[-1]]
    if num_parts == 2:
        tables.append(runner.model.get_decoder().get_input_embeddings())
    paths = [trace.paths[table] for table in tables]
    hook_points = [_make_table_hook_point(trace, paths[0], 0, len(row))]
    if num_parts == 2:
        # A table that encoder and decoder share is called twice.
        call_index = int(paths[0] == paths[1])
        hook_points.append(_make_table_hook_point(trace, paths[1], call_index, len(row)))
    is_read_twice = num_parts == 2 and row.source_length is None
    hooks = EmbeddingHooks(tuple(hook_points), is_read_twice=is_read_twice)
    if is_read_twice:
        start_id = _find_decoder_start_id(runner, trace, row, hooks)
        hooks = replace(hooks, decoder_start_id=start_id)
    return hooks


def _make_table_hook_point(
    trace: _ModuleTrace, path: str, call_index: int, num_tokens: int
) -> HookPoint:
    """Return the output of a token table; some models look up ``token batch`` (XLNet)."""
    output = next(
        item.value
        for item in trace.values
        if item.path == path and item.call_index == call_index and item.argument is None
    )
    is_token_first = num_tokens > 1 and output.shape[:2] == (num_tokens, 1)
    swapped_axes = (0, 1) if is_token_first else None
    return HookPoint(path, swapped_axes=swapped_axes, call_index=call_index)


def _find_decoder_start_id(
    runner: ModelRunner, trace: _ModuleTrace, row: TokenRow, hooks: EmbeddingHooks
) -> int | None:
    """Return the id before the text in the decoder; None if the last token of the text is put there."""
    # The first token of the decoder depends on the text if it changes with the last token of the text.
    other_last_id = make_other_row(runner, row, replace_last=True).ids[-1]
    changed_row = replace(row, ids=(*row.ids[:-1], other_last_id))
    first_vectors = []
    for candidate in (row, changed_row):
        vectors = compute_embeddings(
            runner, [candidate], len(row), hooks, use_model_decoder_ids=True
        )
        first_vectors.append(vectors[0, len(row)])
    if not torch.equal(*first_vectors):
        return None
    decoder_table = hooks.hook_points[1]
    # The first value recorded for a call is its first argument: the ids.
    decoder_ids = next(
        item.value
        for item in trace.values
        if item.path == decoder_table.module_path and item.call_index == decoder_table.call_index
    )
    return int(decoder_ids[0, 0])


def _is_only_input(
    runner: ModelRunner, row: TokenRow, other_row: TokenRow, embedding_hooks: EmbeddingHooks
) -> bool:
    """Return whether ``row``, run with the embeddings of ``other_row``, gives the logits of ``other_row``.

    If it does, the ids matter only through their embeddings.
    """

    def compute_logits(row: TokenRow, *contexts: AbstractContextManager[None]) -> Tensor:
        return runner.run(runner.build_inputs([row]), *contexts)[1].cpu().double()

    try:
        vectors = compute_embeddings(runner, [other_row], len(row), embedding_hooks)
    except (RuntimeError, IndexError):  # the hook point has another shape in this pass
        return False
    logits = compute_logits(row)
    other_logits = compute_logits(other_row)
    replacing = embedding_hooks.replaced_embeddings(runner.model, vectors, row.source_length)
    replaced_logits = compute_logits(row, replacing)
    text_gap = float((logits - other_logits).abs().max())
    gap = float((replaced_logits - other_logits).abs().max())
    # Both passes sum in the same order, so only rounding remains.
    rounding = (
        64 * compute_rounding_eps(runner.device, runner.dtype) * float(other_logits.abs().max())
    )
    return gap <= rounding + 1e-3 * text_gap
