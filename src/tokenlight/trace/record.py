"""Record one forward pass: plan it from the sites, instrument the model, run it, collect what it left."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tokenlight.accel.executor import get_current_executor
from tokenlight.accel.transfer import AsyncTensor
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import UnsupportedModel
from tokenlight.hooks.attention_hook import AttentionRecorder, attention_recorded_by
from tokenlight.hooks.biased_outputs import BiasedOutput, captured_biased_outputs
from tokenlight.hooks.blocks import captured_first_block_input, recomputed_blocks
from tokenlight.hooks.instrument import instrumented
from tokenlight.hooks.mask_hook import answered_mask_checks
from tokenlight.hooks.patching import patched_attributes
from tokenlight.hooks.state import PassState
from tokenlight.lrp.backward import BackwardMode
from tokenlight.lrp.fused_attention import trace_attention
from tokenlight.lrp.rule_sets import ATTNLRP
from tokenlight.lrp.tracing import trace_operations
from tokenlight.lrp.unsupported import UnsupportedOps
from tokenlight.model.batch_inputs import ModelInputs
from tokenlight.model.embedding_hooks import CapturedEmbeddings, EmbeddingSite
from tokenlight.model.embeddings import capture_embeddings
from tokenlight.model.runner import CPU_BATCH_TOKENS, ModelRunner
from tokenlight.trace.attention_maps import AttentionMap, LazyAttentionMap, StoredAttentionMap
from tokenlight.trace.encoder_decoder import EncoderDecoderLayout
from tokenlight.trace.mixing import MixingRecorder
from tokenlight.trace.plan import Recompute, RecordingPlan, plan_recording
from tokenlight.trace.recording import Recording
from tokenlight.trace.sites import EMBEDDING_SITES, SITES_WITHOUT_ATTENTION, Site, Sites

MAX_ROW_SUM_ERROR = 1e-2  # by how much a row of an attention map may differ from a sum of one


@dataclass(frozen=True, eq=False)
class Instruments:
    """The recorders attached to one forward pass, and after it what they recorded.

    Attributes:
        attention: Records attention.
        mixing: Records linear layers and norms, where Site.MIXING is recorded.
        backward_mode: Chooses the rules of backward passes, where relevance is recorded.
        unsupported_ops: The operations without a rule. It holds nodes of the graph, so it must not outlive
            their check.
        embeddings: By embedding site: what was captured there.
        first_block_input: At most one tensor.
        biased_outputs: Outputs of modules with a bias, where Site.BIAS_GRADIENT is recorded.
    """

    attention: AttentionRecorder
    mixing: MixingRecorder | None
    backward_mode: BackwardMode | None
    unsupported_ops: UnsupportedOps | None
    embeddings: dict[EmbeddingSite, CapturedEmbeddings]
    first_block_input: Sequence[Tensor]
    biased_outputs: Sequence[BiasedOutput] = ()


@dataclass(frozen=True, eq=False)
class PassOutputs:
    """The outputs of the model.

    Attributes:
        logits: The logits, on the graph.
        hidden_states: h^0 … h^L; only h^0, or none, if the model does not return them.
        num_encoder_states: How many of them are an encoder's; None if there is no encoder.
        eager_maps: The maps that the model itself returned, where they are read.
    """

    logits: Tensor
    hidden_states: tuple[Tensor, ...]
    num_encoder_states: int | None
    eager_maps: tuple[Tensor, ...]


@torch.inference_mode(mode=False)
def verify_model_for_sites(runner: ModelRunner, rows: Sequence[TokenRow], sites: Sites) -> None:
    """Verify the model, on each side of its length thresholds, before such sites of it are recorded.

    Args:
        runner: The model to verify.
        rows: Rows that will be recorded; the first one on each side is tried.
        sites: What will be recorded.

    Raises:
        UnsupportedModel: The recorded values would be wrong.
    """
    reads_attention = bool(sites - SITES_WITHOUT_ATTENTION)
    for row in runner.batching.pick_probe_rows(rows):
        runner.verify(
            row,
            reads_attention=reads_attention,
            try_attention_hook=Site.RELEVANCE_GRADIENT in sites,
        )


def record(
    runner: ModelRunner,
    rows: Sequence[TokenRow],
    sites: Sites,
    *,
    batch_tokens: int = CPU_BATCH_TOKENS,
    recompute: Recompute = "nothing",
    inputs: ModelInputs | None = None,
) -> Recording:
    """Run the model once over ``rows`` and record ``sites``.

    Args:
        runner: The model to run.
        rows: The rows of the batch.
        sites: The sites to record.
        batch_tokens: Tokens that further passes over these rows may run at once.
        recompute: Maps are computed whenever they are read, blocks again in the backward pass.
        inputs: The inputs of the model, where they are already built.

    Raises:
        UnsupportedModel: If the model does not provide what ``sites`` needs.
    """
    plan = plan_recording(runner, rows, sites, recompute=recompute, inputs=inputs)
    with attached_instruments(plan) as instruments:
        outputs = _run_model(plan, instruments)
    return collect(plan, instruments, outputs, batch_tokens=batch_tokens)


@contextmanager
def attached_instruments(plan: RecordingPlan) -> Iterator[Instruments]:
    """Attach everything that the plan records to the model inside the block."""
    runner = plan.runner
    recorder = AttentionRecorder(
        plan.record_mode,
        plan.token_mask,
        runner.recorded_modules,
        keeps_values=bool({Site.ATTENTION_VALUES, Site.MIXING} & plan.sites),
        uses_fused_kernels=plan.uses_fused_kernels,
        records_cross_attention=plan.source_length is not None,
    )
    mixing = MixingRecorder(recorder) if Site.MIXING in plan.sites else None
    pass_context = _PassContext(plan)
    with ExitStack() as stack:
        state = stack.enter_context(pass_context.instrumented_model())
        stack.enter_context(
            answered_mask_checks(plan.rows, plan.token_mask.shape, has_padding=plan.has_padding)
        )
        stack.enter_context(attention_recorded_by(recorder))
        if mixing is not None:
            stack.enter_context(mixing.calls_recorded(runner.encoder))
        tracing = stack.enter_context(pass_context.traced_operations(recorder))
        backward_mode, unsupported_ops = tracing or (None, None)
        if plan.recomputes_blocks:
            recompute_context = partial(pass_context.repeated, backward_mode, state)
            stack.enter_context(recomputed_blocks(runner.model, recompute_context))
        embeddings: dict[EmbeddingSite, CapturedEmbeddings] = {}
        for site, hooks in plan.embedding_hooks.items():
            embeddings[site] = stack.enter_context(
                capture_embeddings(runner, hooks, plan.token_mask, plan.rows[0].source_length)
            )
        first_block_input: Sequence[Tensor] = ()
        if plan.captures_first_block:
            first_block_input = stack.enter_context(captured_first_block_input(runner.encoder))
        biased_outputs: Sequence[BiasedOutput] = ()
        if Site.BIAS_GRADIENT in plan.sites:
            biased_outputs = stack.enter_context(
                captured_biased_outputs(runner.model, runner.encoder)
            )
        yield Instruments(
            attention=recorder,
            mixing=mixing,
            backward_mode=backward_mode,
            unsupported_ops=unsupported_ops,
            embeddings=embeddings,
            first_block_input=first_block_input,
            biased_outputs=biased_outputs,
        )


class _PassContext:
    """The contexts of a pass that are entered again when one of its blocks is computed again.

    It outlives the pass together with the graph, so it holds nothing that was recorded.
    """

    def __init__(self, plan: RecordingPlan) -> None:
        self._model = plan.runner.model
        self._batch_size = len(plan.rows)
        self._is_unchecked = plan.is_unchecked
        self._backward_requirements = plan.backward_requirements
        self._needs_rules = plan.needs_rules
        self._traces_attention = plan.traces_attention
        self._uses_fused_kernels = plan.uses_fused_kernels
        regime = plan.runner.batching.find_regime_of_pass(plan.arguments, plan.token_mask)
        self._instrument_model = partial(
            instrumented,
            plan.runner.model,
            attention=plan.attention,
            gradients=plan.needs_gradients,
            gradients_reach_embeddings=plan.needs_gradients_at_embeddings,
            pad_id=plan.pad_id,
            regime=regime,
        )

    def instrumented_model(self) -> AbstractContextManager[PassState]:
        """Switch attention, freeze weights and begin the graph at the embeddings."""
        return self._instrument_model()

    @contextmanager
    def traced_operations(
        self, recorder: AttentionRecorder, backward_mode: BackwardMode | None = None
    ) -> Iterator[tuple[BackwardMode, UnsupportedOps] | None]:
        """Give operations backward passes by rules, where any are needed, fused attention included."""
        if not self._needs_rules:
            yield None
            return
        with trace_operations(
            self._model,
            batch_size=self._batch_size,
            collect_unsupported=self._is_unchecked,
            requirements=self._backward_requirements,
            backward_mode=backward_mode,
        ) as tracing:
            wrapped: AbstractContextManager[None] = nullcontext()
            if self._traces_attention:
                wrap_attention = partial(trace_attention, *tracing)
                wrapped = patched_attributes([recorder], wrap_attention=wrap_attention)
            with wrapped:
                yield tracing

    @contextmanager
    def repeated(self, backward_mode: BackwardMode | None, state: PassState) -> Iterator[None]:
        """Let a block compute what it did in the recorded pass, without recording anything."""
        recorder = AttentionRecorder(
            "nothing", torch.empty(0), (), uses_fused_kernels=self._uses_fused_kernels
        )
        with (
            self.instrumented_model(),
            attention_recorded_by(recorder),
            self.traced_operations(recorder, backward_mode),
        ):
            state.reapply()
            yield


def _run_model(plan: RecordingPlan, instruments: Instruments) -> PassOutputs:
    """Run the instrumented model and read its outputs."""
    runner = plan.runner
    flags: dict[str, Any] = {"output_hidden_states": plan.returns_hidden_states}
    if plan.reads_eager_maps:
        flags["output_attentions"] = True
    outputs = runner.forward(plan.arguments, **flags)
    # Relevance has no rule for the normalizer of a continuation.
    logits = runner.read_logits(outputs, plan.arguments, is_linear=plan.needs_rules)
    hidden_states = tuple(instruments.first_block_input)
    if plan.returns_hidden_states:
        hidden_states = runner.read_hidden_states(outputs)
    num_encoder_states: int | None = None
    if plan.source_length is not None and hidden_states:
        num_encoder_states = len(outputs.encoder_hidden_states)
    eager_maps: tuple[Tensor, ...] = ()
    if plan.reads_eager_maps:
        eager_maps = _read_eager_maps(runner, outputs)
    return PassOutputs(
        logits=logits,
        hidden_states=hidden_states,
        num_encoder_states=num_encoder_states,
        eager_maps=eager_maps,
    )


def collect(
    plan: RecordingPlan, instruments: Instruments, outputs: PassOutputs, *, batch_tokens: int
) -> Recording:
    """Check what the pass left and put it into a :class:`Recording`.

    Args:
        plan: What was to be recorded.
        instruments: What the hooks left behind during the pass.
        outputs: The outputs of the model.
        batch_tokens: The most tokens of further passes that methods start from this recording.
    """
    recorder = instruments.attention
    encoder_decoder = _find_layout(plan, outputs)
    hidden_states = _check_hidden_states(plan, outputs.hidden_states, encoder_decoder)
    attention_maps = _collect_maps(plan, recorder, outputs)
    if plan.records_attention:
        num_recorded = len(attention_maps) or len(recorder.received_attention)
        _check_number_of_maps(plan, num_recorded, len(hidden_states), encoder_decoder)
    if encoder_decoder is not None:
        encoder_decoder.check_maps(attention_maps, plan.runner.model)
    if instruments.unsupported_ops is not None and plan.is_unchecked:
        _check_operations(plan, instruments, outputs.logits, hidden_states)
    return Recording(
        rows=get_current_executor().guard_rows(plan.rows),
        token_mask=plan.token_mask,
        logits=outputs.logits,
        fetched_logits=AsyncTensor(outputs.logits),
        hidden_states=hidden_states,
        attention_maps=attention_maps,
        received_attention=tuple(recorder.received_attention),
        sites=plan.sites,
        runner=plan.runner,
        batch_tokens=batch_tokens,
        backward_mode=instruments.backward_mode,
        contexts=tuple(recorder.contexts),
        values=tuple(recorder.values),
        mixings=instruments.mixing.build_mixings(hidden_states) if instruments.mixing else (),
        embeddings=instruments.embeddings.get("embeddings"),
        token_embeddings=instruments.embeddings.get("token_embeddings"),
        has_attention_sink=recorder.has_sink,
        encoder_decoder=encoder_decoder,
        has_padding=plan.has_padding,
        biased_outputs=tuple(instruments.biased_outputs),
    )


def _find_layout(plan: RecordingPlan, outputs: PassOutputs) -> EncoderDecoderLayout | None:
    if plan.source_length is None or outputs.num_encoder_states is None:
        return None
    target_length = plan.token_mask.shape[1] - plan.source_length
    return EncoderDecoderLayout(plan.source_length, target_length, outputs.num_encoder_states)


def _collect_maps(
    plan: RecordingPlan, recorder: AttentionRecorder, outputs: PassOutputs
) -> tuple[AttentionMap, ...]:
    if plan.record_mode == "operands":
        return tuple(LazyAttentionMap(operands) for operands in recorder.operands)
    maps: Sequence[Tensor] = recorder.maps
    if plan.reads_eager_maps:
        maps = outputs.eager_maps
    needs_graph = {Site.ATTENTION_GRADIENT, Site.RELEVANCE} & plan.sites
    if plan.record_mode == "maps" and not needs_graph:
        maps = [attention_map.detach() for attention_map in maps]
    return tuple(StoredAttentionMap(attention_map) for attention_map in maps)


def _check_number_of_maps(
    plan: RecordingPlan,
    num_recorded: int,
    num_states: int,
    encoder_decoder: EncoderDecoderLayout | None,
) -> None:
    num_expected = num_states - 1
    if encoder_decoder is not None:
        num_expected = encoder_decoder.count_maps(num_states)
    if num_recorded != num_expected:
        raise UnsupportedModel(
            f"{type(plan.runner.model).__name__} has {num_expected} blocks, but {num_recorded} "
            "self-attention maps were recorded. Methods that read attention need exactly one per block, and "
            "state-space and hybrid models have blocks without one. Use grad_x_input, attnlrp or occlusion.",
            code="blocks-without-attention-map",
        )


def _check_operations(
    plan: RecordingPlan,
    instruments: Instruments,
    logits: Tensor,
    hidden_states: Sequence[Tensor],
) -> None:
    """Refuse operations without a rule; remember that passes of this kind have none."""
    assert instruments.unsupported_ops is not None
    if plan.backward_requirements.needs_relevance:
        instruments.unsupported_ops.check([logits], hidden_states[0], None)
    if plan.backward_requirements.needs_rewritten_gradients:
        instruments.unsupported_ops.check([logits], hidden_states[0], ATTNLRP)
    plan.model_cache.checked_passes.add(plan.pass_key)
    first_block_input = instruments.first_block_input
    if first_block_input and first_block_input[0] is hidden_states[0]:
        plan.model_cache.first_block_takes_embeddings = True


def _read_eager_maps(runner: ModelRunner, outputs: object) -> tuple[Tensor, ...]:
    """Read the maps that the model itself returns: an encoder's, then two for each decoder block."""
    name = "encoder_attentions" if runner.model.config.is_encoder_decoder else "attentions"
    maps: list[Any] = list(getattr(outputs, name, None) or ())
    if runner.generates_from_source:
        decoder_maps = getattr(outputs, "decoder_attentions", None)
        cross_maps = getattr(outputs, "cross_attentions", None)
        for decoder_map, cross_map in zip(decoder_maps, cross_maps, strict=True):  # type: ignore[arg-type]
            maps += [decoder_map, cross_map]
    is_square = not runner.generates_from_source
    if not maps or not all(_is_attention_map(value, is_square=is_square) for value in maps):
        raise UnsupportedModel(
            f"{type(runner.model).__name__} neither calls its attention through transformers' interface nor "
            "returns its attention maps, so methods that read attention do not support it. Use grad_x_input, "
            "attnlrp or occlusion.",
            code="no-attention-maps",
        )
    return tuple(maps)


def _is_attention_map(value: object, *, is_square: bool) -> bool:
    """Return whether ``value`` is ``batch head query key`` with rows that sum to one.

    Args:
        value: A value that the model returned.
        is_square: Whether there must be as many keys as queries.
    """
    if not isinstance(value, Tensor) or value.dim() != 4:
        return False
    if is_square and value.shape[2] != value.shape[3]:
        return False
    # The first query is never padding.
    row_sums = value.detach().sum(dim=-1)[:, :, 0]
    return bool(((row_sums - 1).abs() < MAX_ROW_SUM_ERROR).all())


def _check_hidden_states(
    plan: RecordingPlan,
    hidden_states: tuple[Tensor, ...],
    encoder_decoder: EncoderDecoderLayout | None,
) -> tuple[Tensor, ...]:
    """Return h^0 … h^L where each has one vector per token; else none, if no site reads them."""
    if _has_token_vectors(hidden_states, plan.token_mask, encoder_decoder):
        return hidden_states
    if plan.sites <= EMBEDDING_SITES:
        return ()
    name = type(plan.runner.model).__name__
    if not hidden_states:
        raise UnsupportedModel(
            f"{name} does not return its hidden states, but this method reads them token by token. Use one "
            "that needs only the embeddings (grad_x_input, integrated_gradients), or occlusion.",
            code="no-hidden-states",
        )
    shapes = ", ".join(str(tuple(state.shape)) for state in hidden_states)
    raise UnsupportedModel(
        f"{name} changes the number or width of its tokens between layers ({shapes}), but this method reads "
        "hidden states token by token. Use one that needs only the embeddings (grad_x_input, "
        "integrated_gradients), or occlusion.",
        code="hidden-states-change-shape",
    )


def _has_token_vectors(
    hidden_states: Sequence[Tensor],
    token_mask: Tensor,
    encoder_decoder: EncoderDecoderLayout | None,
) -> bool:
    """Return whether every hidden state has one vector for each token that its part reads."""
    if not hidden_states:
        return False
    if encoder_decoder is None:
        shapes = {state.shape for state in hidden_states}
        return len(shapes) == 1 and hidden_states[0].shape[:2] == token_mask.shape
    for layer, state in enumerate(hidden_states):
        is_encoder_state = layer < encoder_decoder.num_encoder_states
        expected = (
            encoder_decoder.source_length if is_encoder_state else encoder_decoder.target_length
        )
        if state.shape[1] != expected:
            return False
    return True
