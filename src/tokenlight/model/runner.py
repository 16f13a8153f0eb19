"""ModelRunner: prepares the inputs of a transformers model, runs passes and reads logits."""

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tokenlight.accel.graphs import GraphCache
from tokenlight.accel.transfer import to_device
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, NotFinite, UnsupportedModel
from tokenlight.hooks import attention_hook
from tokenlight.hooks.embedding_layers import find_token_embeddings
from tokenlight.hooks.instrument import instrumented, locked_model, supports_attention_hook
from tokenlight.hooks.offloaded import find_execution_device
from tokenlight.hooks.patching import patched_attributes
from tokenlight.model import outputs as model_outputs
from tokenlight.model import padding
from tokenlight.model.batch_inputs import (
    READOUT_ARGUMENTS,
    ModelInputs,
    build_model_inputs,
)
from tokenlight.model.head_detection import detect_head, unwrap_pretrained
from tokenlight.model.model_row import ModelRow
from tokenlight.model.packing import CPU_PADDING_POLICY, GPU_PADDING_POLICY, pack_batches
from tokenlight.model.probe import verify_model
from tokenlight.model.probe_results import get_probe_results
from tokenlight.model.regimes import BatchRules
from tokenlight.model.vision import (
    PATCH_VOCAB_SIZE,
    PatchInputs,
    VisionLanguageInputs,
    find_image_token_id,
)

CPU_BATCH_TOKENS = 2048  # default tokens per batch on a CPU; a GPU takes more
# How many hidden states per token the graph of one block holds, roughly.
HIDDEN_STATES_PER_BLOCK = 20
Pooling = Literal["mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len"]
Similarity = Literal["cosine", "dot"]
# How attention maps are read: through transformers' attention interface, or from eager attention.
AttentionRoute = Literal["hook", "eager"]


class ModelRunner:
    """A transformers model with its head detected, its attention route chosen and its padding known.

    Args:
        model: A ``PreTrainedModel``, possibly wrapped by ``torch.compile`` or PEFT.
        tokenizer: Its tokenizer, which names special tokens that a config does not.
        pooling: How a model without a head turns token embeddings into a sentence embedding.
        similarity: How a model without a head compares two sentence embeddings.
        graph_bytes: GPU memory that captured CUDA graphs may take; None for the default.

    Attributes:
        head: The meaning of the logits.
        attention_route: How attention maps are read; may change when the model is verified.
        forward_parameters: Names of the arguments of ``model.forward``.
        patch_inputs: How an image classifier reads images; None for other models.
        vision_inputs: How a vision-language model reads images; None for other models.
        vocab_size: Ids must be below this number.
        batch_tokens: Default number of tokens per batch; None to choose by the device.
        batch_size: Default number of rows per batch; None for no limit.
        batching: Which rows may share a batch.
        is_padding_invariant: Whether padding leaves the other tokens of a row unchanged. If not, rows share
            a batch only with rows of the same length. Known after :meth:`verify`.
        generates_from_source: Whether a decoder writes after a source that an encoder reads.
        encoder: The part that reads the text. For an encoder-decoder classifier, tokens and layers are
            those of the encoder.
        recorded_modules: All modules that process tokens with scores.

    Raises:
        UnsupportedModel: The model has no supported head or no weights.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        pooling: Pooling = "mean",
        similarity: Similarity = "cosine",
        graph_bytes: int | None = None,
    ) -> None:
        self.model = unwrap_pretrained(model)
        self._graph_bytes = graph_bytes
        self.tokenizer = tokenizer
        self.head = detect_head(self.model, tokenizer)
        self.pooling = pooling
        self.similarity = similarity
        if self.head.task == "sentence-similarity" and similarity == "dot":
            self.head = replace(self.head, labels=("dot product",))
        config = self.model.config.get_text_config()
        with locked_model(self.model):  # a pass of another thread may set a padding id for a while
            self.pad_id: int | None = getattr(config, "pad_token_id", None)
        self._can_use_hook = supports_attention_hook(self.model)
        self.attention_route: AttentionRoute = "hook" if self._can_use_hook else "eager"
        self.forward_parameters = set(inspect.signature(self.model.forward).parameters)
        self._embedding = find_token_embeddings(self.model)[0]
        self.patch_inputs: PatchInputs | None = None
        self.vision_inputs: VisionLanguageInputs | None = None
        self._find_image_inputs()
        self._check_has_weights()
        self.vocab_size = self._count_ids()
        self.batch_tokens: int | None = None
        self.batch_size: int | None = None
        # Heads of language models that the decoding methods have loaded, by their option lm.
        self.lm_heads: dict[str | None, Any] = {}
        self.batching = BatchRules(self.model)
        self.is_padding_invariant = True
        is_encoder_decoder = bool(self.model.config.is_encoder_decoder)
        if self.vision_inputs is not None and not is_encoder_decoder:
            # Positions of patches are not counted one by one, so the regime of a row is not known.
            self.batching.is_batch_invariant &= not self.batching.has_thresholds
        self.generates_from_source = is_encoder_decoder and self.head.task == "text-generation"
        self.encoder = self._find_encoder()
        recorded_part = self.model if self.generates_from_source else self.encoder
        self.recorded_modules = set(recorded_part.modules())

    def _find_encoder(self) -> nn.Module:
        """Return the part of the model that reads the text."""
        encoder: nn.Module = self.model
        if self.model.config.is_encoder_decoder:
            encoder = self.model.get_encoder()
        elif self.vision_inputs is not None:
            # The attention of the vision tower is not between tokens of the text.
            encoder = self.vision_inputs.language_model
        return encoder

    def _find_image_inputs(self) -> None:
        """Set ``patch_inputs`` or ``vision_inputs`` for a model that reads images."""
        if self.head.task == "image-classification":
            self.patch_inputs = PatchInputs(self.model)
        elif self.head.task == "text-generation":
            image_token_id = find_image_token_id(self.model)
            if image_token_id is not None:
                self.vision_inputs = VisionLanguageInputs(
                    self.model, image_token_id, self.forward_parameters
                )

    def _check_has_weights(self) -> None:
        # Weights that accelerate offloads to disk are meta tensors, too, until their module is called.
        is_offloaded = any(hasattr(module, "_hf_hook") for module in self.model.modules())
        if not is_offloaded and self.device.type == "meta":
            raise UnsupportedModel(
                f"{type(self.model).__name__} is on the meta device: its weights have shapes but no values. "
                "Load them with from_pretrained.",
                code="model-on-meta-device",
            )

    def _count_ids(self) -> int:
        if self.patch_inputs is not None:
            return PATCH_VOCAB_SIZE
        num_embeddings = len(self._embedding.weight)  # type: ignore[arg-type]
        if self.vision_inputs is None:
            return num_embeddings
        # The id of an image token may be outside the embedding table.
        return max(num_embeddings, self.vision_inputs.image_token_id + 1)

    # --- facts about the model ---------------------------------------------------------------------

    @property
    def recorded_attention(self) -> str:
        """The attention implementation under which attention maps can be read."""
        return attention_hook.ATTENTION_NAME if self.attention_route == "hook" else "eager"

    @property
    def eos_ids(self) -> set[int]:
        """Ids at which an encoder-decoder classifier reads its text; the text must keep them."""
        reads_whole_text = self.head.task in ("text-classification", "question-answering")
        if self.encoder is self.model or not reads_whole_text:
            return set()
        eos_token_id = self.model.config.eos_token_id
        if isinstance(eos_token_id, list):
            return set(eos_token_id)
        return {eos_token_id}

    @property
    def device(self) -> torch.device:
        """The device that token ids are sent to; a model on several devices moves the rest itself."""
        if self.patch_inputs is not None:
            return self.patch_inputs.weight.device
        weight = self._embedding.weight
        assert isinstance(weight, Tensor)
        return find_execution_device(self._embedding, weight)

    @property
    def dtype(self) -> torch.dtype:
        """The floating dtype that the model computes in."""
        return self.model.dtype  # type: ignore[no-any-return]

    @property
    def max_tokens(self) -> int | None:
        """The number of tokens that the positions of this model reach; None if nothing limits them."""
        if self.patch_inputs is not None:
            return None  # an image has as many patches as its processor makes
        for name, module in self.encoder.named_modules():
            if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
                # RoBERTa and its relatives count positions from after the padding index.
                num_unused = 0 if module.padding_idx is None else module.padding_idx + 1
                return int(module.num_embeddings - num_unused)
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if isinstance(limit, int) and limit > 0:
            return limit
        return None

    @property
    def is_hook_verified(self) -> bool:
        """Whether recording attention through the attention hook is known to leave the logits unchanged."""
        is_verified = get_probe_results(self.model).verified_route is not None
        return self.attention_route == "hook" and is_verified

    @cached_property
    def is_half_precision_gpu(self) -> bool:
        """Whether it computes in half precision on a GPU, where small passes are limited by Python."""
        return self.device.type == "cuda" and self.dtype in (torch.float16, torch.bfloat16)

    @cached_property
    def graph_cache(self) -> GraphCache:
        """CUDA graphs captured for this model."""
        return GraphCache(self.model, self.dtype, self._graph_bytes)

    # --- inputs ------------------------------------------------------------------------------------

    def build_inputs(self, rows: Sequence[ModelRow], width: int | None = None) -> ModelInputs:
        """Build the arguments of one pass over ``rows``.

        Args:
            rows: Rows or perturbed inputs that may share a batch.
            width: The width of the batch; by default as ``padding.py`` decides.

        Returns:
            The right-padded arguments of the model, with what else a pass must know of its padding.
        """
        return build_model_inputs(self, rows, width)

    @property
    def padding_multiple(self) -> int:
        """The number of tokens of which the width of a padded batch is a multiple."""
        return padding.choose_padding_multiple(self)

    def choose_pad_id(self, rows: Sequence[ModelRow]) -> int | None:
        """Return the id that pads ``rows``; None if no id is free, and for images."""
        return padding.choose_pad_id(self, rows)

    def check_ids(self, low: int, high: int) -> None:
        """Refuse ids outside the vocabulary: on a GPU they do not raise but break the CUDA context."""
        if low < 0 or high >= self.vocab_size:
            raise BadInput(
                f"The token ids run from {low} to {high}, but this model knows 0 to {self.vocab_size - 1}. "
                "Use the tokenizer it was trained with.",
                code="id-outside-vocabulary",
            )

    # --- passes ------------------------------------------------------------------------------------

    def forward(self, arguments: dict[str, Tensor], **flags: Any) -> Any:
        """Call the model without key-value caches, which are not used here.

        Args:
            arguments: The arguments that :meth:`build_inputs` returned.
            **flags: Further arguments, such as ``output_hidden_states``.

        Raises:
            UnsupportedModel: The model itself refuses its arguments.
        """
        if not self.forward_parameters.isdisjoint(("use_cache", "past_key_values")):
            flags["use_cache"] = False
        if "read_positions" in arguments and "logits_to_keep" in self.forward_parameters:
            # A vocabulary is large: logits are computed only where they are read.
            flags["logits_to_keep"] = to_device(
                torch.unique(arguments["read_positions"]), self.device
            )
        model_arguments = {}
        for name, value in arguments.items():
            if name not in READOUT_ARGUMENTS:
                model_arguments[name] = value
        rope_modules: list[nn.Module] = []
        if self.vision_inputs is not None:
            pixels = model_arguments["pixel_values"]
            model_arguments |= self.vision_inputs.build_pixel_arguments(pixels)
            rope_modules = self.vision_inputs.rope_modules
        try:
            with patched_attributes(rope_modules, rope_deltas=None):
                return self.model(**model_arguments, return_dict=True, **flags)
        except (ValueError, AssertionError, NotImplementedError) as error:
            raise UnsupportedModel(
                f"{type(self.model).__name__} raises an error in this pass: {error}",
                code="pass-refused",
            ) from error

    def run(
        self,
        inputs: ModelInputs,
        *contexts: AbstractContextManager[Any],
        attention: str = "unchanged",
        gradients: bool = False,
        examples: Tensor | None = None,
        **flags: Any,
    ) -> tuple[Any, Tensor]:
        """Run one pass of the instrumented model.

        Args:
            inputs: The output of :meth:`build_inputs`.
            *contexts: Context managers that hold during the pass.
            attention: The attention implementation; ``unchanged`` keeps that of the model.
            gradients: Whether to build a graph from the embeddings on.
            examples: Indices of the examples to run, repetitions allowed; None for all.
            **flags: Further arguments of the model.

        Returns:
            The outputs of the model, and the logits that :meth:`read_logits` reads from them.
        """
        arguments = inputs.arguments
        if examples is not None:
            selected = {}
            for name, table in arguments.items():
                selected[name] = table[examples.to(table.device)]
            arguments = selected
        with ExitStack() as stack:
            stack.enter_context(
                instrumented(
                    self.model,
                    attention=attention,
                    gradients=gradients,
                    pad_id=inputs.pad_id,
                    regime=self.batching.find_regime_of_pass(arguments, inputs.token_mask),
                )
            )
            for context in contexts:
                stack.enter_context(context)
            outputs = self.forward(arguments, **flags)
            return outputs, self.read_logits(outputs, arguments)

    def generate(self, source: TokenRow, max_new_tokens: int) -> list[int]:
        """Generate from a source by the model's own generation config; return all ids, start included."""
        input_ids = to_device([source.ids], self.device)
        attention_mask = to_device([source.attention_mask], self.device)
        with instrumented(self.model, attention="unchanged", gradients=False):
            generated = self.model.generate(
                input_ids=input_ids, attention_mask=attention_mask, max_new_tokens=max_new_tokens
            )
        return [int(token_id) for token_id in generated[0]]

    def verify(
        self, row: TokenRow, *, reads_attention: bool, try_attention_hook: bool = False
    ) -> None:
        """Verify the model before its first use; later calls return immediately.

        Checks that its weights are finite, whether padding changes its logits and, if
        ``reads_attention``, that recording attention does not change them.

        Args:
            row: A row like those that will be explained.
            reads_attention: Whether attention maps will be recorded.
            try_attention_hook: Whether the pass may go through the attention hook for speed, if that
                turns out to change nothing.

        Raises:
            UnsupportedModel: The numbers of this model would be wrong.
            NotFinite: A weight or an activation is NaN or infinite.
        """
        self.is_padding_invariant = verify_model(self, row, reads_attention=reads_attention)
        if try_attention_hook and self._can_use_hook and not self.is_hook_verified:
            route_before = self.attention_route
            try:
                verify_model(self, row, reads_attention=True)
            except (UnsupportedModel, NotFinite):
                # Only a trial for speed: passes go on without the hook, by the route they had before.
                self.attention_route = route_before
                self._can_use_hook = False

    # --- outputs -----------------------------------------------------------------------------------

    def read_logits(
        self, outputs: Any, arguments: dict[str, Tensor], *, is_linear: bool = False
    ) -> Tensor:
        """Return the logits that a target refers to.

        Args:
            outputs: The outputs of the model.
            arguments: The arguments of the pass.
            is_linear: Whether they must be sums of the model's logits and constants, for rules of
                relevance. The normalizer of a continuation is then linearized at its value.

        Returns:
            ``batch label`` for a classifier; ``batch token 2`` (start, end) for a span head. For a head
            with logits at every token, those at the target position. For a continuation,
            ``batch written 2``: each token's logit, and ln Σ exp of the logits of all other tokens.

        Raises:
            UnsupportedModel: The logits do not have one entry per label.
        """
        return model_outputs.read_logits(self, outputs, arguments, is_linear=is_linear)

    def pool_embeddings(self, outputs: Any, arguments: dict[str, Tensor]) -> Tensor:
        """Pool the last hidden states into one embedding per text, ``batch hidden``."""
        return model_outputs.pool_embeddings(self, outputs, arguments)

    def read_hidden_states(self, outputs: Any) -> tuple[Tensor, ...]:
        """Return h^0 … h^L, each ``batch token hidden``; empty if the model does not give them.

        For a model that generates from a source, those of the encoder, followed by the decoder's.
        """
        return model_outputs.read_hidden_states(self, outputs)

    # --- size of batches ---------------------------------------------------------------------------

    def limit_rows_per_batch(self, requested: int | None = None) -> int | None:
        """Return the largest number of rows in a batch; None if only tokens are limited."""
        if not self.batching.is_batch_invariant:
            return 1
        return requested or self.batch_size

    def pack_rows(
        self, rows: Sequence[ModelRow], batch_tokens: int, batch_size: int | None = None
    ) -> list[list[int]]:
        """Group rows into batches of similar length.

        Args:
            rows: Rows or perturbed inputs, each with ``ids``, in any order.
            batch_tokens: The most tokens of a batch, padding included.
            batch_size: The most rows of a batch; None for the model's default.

        Returns:
            The indices of the rows of each batch.
        """
        is_gpu = self.device.type == "cuda"
        return pack_batches(
            padding.pad_lengths(self, [len(row.ids) for row in rows]),
            batch_tokens,
            may_pad=self.is_padding_invariant,
            max_rows=self.limit_rows_per_batch(batch_size),
            batch_keys=self.batching.compute_batch_keys(rows),
            padding_policy=GPU_PADDING_POLICY if is_gpu else CPU_PADDING_POLICY,
        )

    @cached_property
    def default_batch_tokens(self) -> int:
        """Tokens per batch unless a caller says otherwise.

        Enough to keep the device busy, but at most a quarter of its memory.
        """
        if self.device.type != "cuda":
            return CPU_BATCH_TOKENS
        config = self.model.config.get_text_config()
        hidden_size = getattr(config, "hidden_size", 0) or 0
        num_blocks = getattr(config, "num_hidden_layers", 0) or 0
        token_bytes = HIDDEN_STATES_PER_BLOCK * hidden_size * num_blocks * self.dtype.itemsize
        available_bytes = torch.cuda.get_device_properties(self.device).total_memory // 4
        num_fitting = available_bytes // max(1, token_bytes)
        factor = 32 if self.is_half_precision_gpu else 16
        return max(CPU_BATCH_TOKENS, min(factor * CPU_BATCH_TOKENS, num_fitting))
