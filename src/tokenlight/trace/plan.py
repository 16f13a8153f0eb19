"""The plan of a recorded pass: everything that follows from the sites, decided before the model runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tokenlight.accel.kernels import has_kernels
from tokenlight.data.tokens import TokenRow
from tokenlight.hooks.attention_hook import RecordMode
from tokenlight.hooks.model_cache import ModelCache, get_model_cache
from tokenlight.lrp.call_plans import BackwardRequirements
from tokenlight.model.batch_inputs import ModelInputs, get_shared_source_length
from tokenlight.model.embedding_hooks import EmbeddingHooks, EmbeddingSite
from tokenlight.model.embeddings import find_embedding_hooks
from tokenlight.model.runner import ModelRunner
from tokenlight.trace.sites import (
    ATTENTION_MAP_SITES,
    EMBEDDING_SITES,
    GRADIENT_SITES,
    RELEVANCE_SITES,
    Site,
    Sites,
)

# What is computed again, when it is read or in the backward pass, rather than kept in memory.
Recompute = Literal["nothing", "maps", "maps and blocks"]
SITES_BY_EMBEDDING: dict[EmbeddingSite, Sites] = {
    "embeddings": frozenset({Site.EMBEDDINGS, Site.EMBEDDING_GRADIENT}),
    "token_embeddings": frozenset({Site.TOKEN_EMBEDDINGS}),
}
INPUT_GRADIENT_SITES: Sites = RELEVANCE_SITES | {Site.HIDDEN_GRADIENT}
# Sites that read maps, values or the graph through them, which a kernel without maps does not provide.
WHOLE_MAP_SITES: Sites = frozenset({Site.RELEVANCE, Site.ATTENTION_VALUES, Site.MIXING})


@dataclass(frozen=True, eq=False)
class RecordingPlan:
    """The recording plan of one pass.

    Attributes:
        runner: The model to run.
        rows: The rows of the batch.
        sites: The sites to record.
        arguments: The arguments of the model.
        token_mask: ``batch token``: true where a token is not padding.
        pad_id: The padding id for a model without one.
        source_length: Tokens that an encoder reads; None for encoder-only and decoder-only models.
        recomputes_blocks: Whether blocks are computed again in the backward pass.
        record_mode: Which form of attention is recorded.
        attention: The attention implementation of the pass.
        embedding_hooks: By embedding site: where its embeddings are captured.
        backward_requirements: Requirements of backward passes over the recorded graph.
        traces_attention: Whether fused attention counts as one operation with a rewritten gradient.
        returns_hidden_states: Whether the model returns its hidden states.
        captures_first_block: Whether the input of the first block is captured.
        has_padding: Whether some row is shorter than the batch.
    """

    runner: ModelRunner
    rows: Sequence[TokenRow]
    sites: Sites
    arguments: dict[str, Tensor]
    token_mask: Tensor
    pad_id: int | None
    source_length: int | None
    recomputes_blocks: bool
    record_mode: RecordMode
    attention: str
    embedding_hooks: dict[EmbeddingSite, EmbeddingHooks]
    backward_requirements: BackwardRequirements
    traces_attention: bool
    returns_hidden_states: bool
    captures_first_block: bool
    has_padding: bool

    @property
    def model_cache(self) -> ModelCache:
        """The cached layout of the model."""
        return get_model_cache(self.runner.model)

    @property
    def records_attention(self) -> bool:
        """Whether anything is recorded of attention."""
        return self.record_mode != "nothing"

    @property
    def reads_eager_maps(self) -> bool:
        """Whether the maps are those that the model itself returns."""
        return self.runner.attention_route == "eager" and self.records_attention

    @property
    def needs_gradients(self) -> bool:
        """Whether the pass records a graph."""
        return bool(GRADIENT_SITES & self.sites)

    @property
    def needs_gradients_at_embeddings(self) -> bool:
        """Whether gradients go below the last hidden state."""
        return bool((GRADIENT_SITES & self.sites) - {Site.READOUT})

    @property
    def needs_rules(self) -> bool:
        """Whether operations get backward passes other than their gradient."""
        return (
            self.backward_requirements.needs_relevance
            or self.backward_requirements.needs_rewritten_gradients
        )

    @property
    def uses_fused_kernels(self) -> bool:
        """Whether attention may run fused; relevance by rules must see every operation."""
        return not self.backward_requirements.needs_relevance

    @property
    def pass_key(self) -> tuple[Sites, int, bool]:
        """Passes of one model with the same key run the same operations."""
        return self.sites, self.token_mask.shape[1], self.has_padding

    @property
    def is_unchecked(self) -> bool:
        """Whether the operations of such a pass were not yet checked for rules."""
        return self.pass_key not in self.model_cache.checked_passes


def plan_recording(
    runner: ModelRunner,
    rows: Sequence[TokenRow],
    sites: Sites,
    *,
    recompute: Recompute = "nothing",
    inputs: ModelInputs | None = None,
) -> RecordingPlan:
    """Plan a pass over ``rows`` that records ``sites``.

    Args:
        runner: The model to run.
        rows: The rows of the batch.
        sites: The sites to record.
        recompute: Compute blocks again in the backward pass, and maps whenever they are read; ``"maps"``
            computes only maps again.
        inputs: The inputs of the model, where they are already built.
    """
    inputs = inputs or runner.build_inputs(rows)
    source_length = get_shared_source_length(rows)
    record_mode = _choose_record_mode(
        runner, sites, source_length, lazy_maps=recompute != "nothing"
    )
    records_attention = record_mode != "nothing"
    # Where gradients are rewritten, attention through the hook is one operation.
    traces_attention = Site.RELEVANCE_GRADIENT in sites and runner.is_hook_verified
    # A method that reads no attention sees the bare model, whatever its attention is.
    attention = runner.recorded_attention if traces_attention or records_attention else "unchanged"
    backward_requirements = BackwardRequirements(
        needs_relevance=Site.RELEVANCE in sites,
        needs_rewritten_gradients=Site.RELEVANCE_GRADIENT in sites,
        needs_model_gradients=(
            Site.NO_MODEL_GRADIENT not in sites and bool((GRADIENT_SITES & sites) - RELEVANCE_SITES)
        ),
    )
    needs_block_states = records_attention or source_length is not None
    captures_first_block = not needs_block_states and _needs_first_state_only(sites)
    return RecordingPlan(
        runner=runner,
        rows=rows,
        sites=sites,
        arguments=inputs.arguments,
        token_mask=inputs.token_mask,
        pad_id=inputs.pad_id,
        source_length=source_length,
        recomputes_blocks=recompute == "maps and blocks" and record_mode != "maps",
        record_mode=record_mode,
        attention=attention,
        embedding_hooks=_find_all_embedding_hooks(runner, rows[0], sites),
        backward_requirements=backward_requirements,
        traces_attention=traces_attention,
        returns_hidden_states=_must_return_hidden_states(
            runner, sites, needs_block_states=needs_block_states
        ),
        captures_first_block=captures_first_block,
        has_padding=inputs.has_padding,
    )


def _choose_record_mode(
    runner: ModelRunner, sites: Sites, source_length: int | None, *, lazy_maps: bool
) -> RecordMode:
    """Choose what is recorded of attention."""
    needs_received = Site.ATTENTION_RECEIVED in sites
    # A decoder's attention to its source is recorded as whole maps or not at all.
    needs_maps = bool(ATTENTION_MAP_SITES & sites) or (needs_received and source_length is not None)
    if not needs_maps:
        return "received attention" if needs_received else "nothing"
    if runner.attention_route == "eager" or Site.MIXING in sites:
        return "maps"
    if lazy_maps or _prefers_lazy_maps(runner, sites, source_length):
        return "operands"
    return "maps"


def _prefers_lazy_maps(runner: ModelRunner, sites: Sites, source_length: int | None) -> bool:
    """Return whether kernels compute what methods read of attention faster than it is read from maps."""
    return runner.is_half_precision_gpu and reads_maps_by_kernel(runner, sites, source_length)


def reads_maps_by_kernel(runner: ModelRunner, sites: Sites, source_length: int | None) -> bool:
    """Return whether kernels compute what methods read of attention, so that no map need be kept.

    Args:
        runner: The model, for its device and dtype.
        sites: What is recorded; some sites need whole maps.
        source_length: Tokens that an encoder reads: kernels know no cross-attention.
    """
    if source_length is not None or not sites.isdisjoint(WHOLE_MAP_SITES):
        return False
    return has_kernels(torch.empty(0, device=runner.device, dtype=runner.dtype))


def _find_all_embedding_hooks(
    runner: ModelRunner, row: TokenRow, sites: Sites
) -> dict[EmbeddingSite, EmbeddingHooks]:
    """Find where embeddings are captured; this may run the model, so it comes before any hook."""
    hooks: dict[EmbeddingSite, EmbeddingHooks] = {}
    for site, reading_sites in SITES_BY_EMBEDDING.items():
        if sites & reading_sites:
            hooks[site] = find_embedding_hooks(runner, row, site)
        elif (
            site == "embeddings"
            and runner.vision_inputs is not None
            and sites & INPUT_GRADIENT_SITES
        ):
            # This refuses a model whose image enters at other points, too.
            find_embedding_hooks(runner, row, site)
    return hooks


def _needs_first_state_only(sites: Sites) -> bool:
    """Return whether a rewritten gradient reads h^0, and nothing reads other hidden states."""
    embedding_sites = EMBEDDING_SITES | {Site.RELEVANCE_GRADIENT, Site.NO_MODEL_GRADIENT}
    return Site.RELEVANCE_GRADIENT in sites and sites <= embedding_sites


def _must_return_hidden_states(
    runner: ModelRunner, sites: Sites, *, needs_block_states: bool
) -> bool:
    """Return whether the model must return its hidden states, which cost a sixteenth of a graph."""
    if needs_block_states:
        return True
    if sites <= EMBEDDING_SITES:
        return False
    if _needs_first_state_only(sites):
        # Once the first block was seen to take h^0 as its input, that input is enough.
        return not get_model_cache(runner.model).first_block_takes_embeddings
    return True
