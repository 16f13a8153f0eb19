"""The recording: what one forward pass over a padded batch leaves for methods to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tokenlight.accel.tensors import upcast
from tokenlight.accel.transfer import AsyncTensor
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import NotFinite
from tokenlight.hooks.biased_outputs import BiasedOutput
from tokenlight.lrp.backward import BackwardMode
from tokenlight.model.embedding_hooks import CapturedEmbeddings
from tokenlight.model.memory import limit_pack_tokens
from tokenlight.model.objective import (
    ArgmaxTargets,
    describe_first_nonfinite,
)
from tokenlight.model.runner import ModelRunner
from tokenlight.trace.attention_maps import AttentionMap, read_maps
from tokenlight.trace.encoder_decoder import EncoderDecoderLayout
from tokenlight.trace.gradients import take_gradients
from tokenlight.trace.mixing import Mixing
from tokenlight.trace.sites import Site, Sites

if TYPE_CHECKING:
    from tokenlight.trace.tape import Tape


@dataclass(frozen=True, eq=False)
class Recording:
    """One forward pass over a right-padded batch.

    Attributes:
        rows: The tokens of each example.
        token_mask: ``batch token``: true where a token is not padding.
        logits: The logits, on the graph.
        fetched_logits: The same numbers, on their way from the device.
        hidden_states: h^0 … h^L, each ``batch token hidden``, on the graph.
        attention_maps: A^1 … A^L, kept or computed when they are read.
        received_attention: Attention that each token receives in each block, if maps are not recorded.
        sites: The recorded sites.
        runner: The model to run.
        batch_tokens: Tokens that may go through the model at once in further passes.
        backward_mode: Chooses the rules of backward passes, where relevance is recorded.
        contexts: Products of maps and values, each ``batch head token width``.
        values: Values of each block.
        mixings: How each block adds attention to its input.
        embeddings: h^0 at every point where the text enters the model.
        token_embeddings: Token embeddings before positions and norm.
        has_attention_sink: Whether rows of attention give a share to a sink, which is no token.
        encoder_decoder: The layout of an encoder and a decoder, where both read the rows.
        has_padding: Whether some row is shorter than the batch.
        biased_outputs: Outputs of modules that add a bias inside the blocks, on the graph.
    """

    rows: tuple[TokenRow, ...]
    token_mask: Tensor
    logits: Tensor
    fetched_logits: AsyncTensor
    hidden_states: tuple[Tensor, ...]
    attention_maps: tuple[AttentionMap, ...]
    received_attention: tuple[Tensor, ...]
    sites: Sites
    runner: ModelRunner
    batch_tokens: int
    backward_mode: BackwardMode | None = None
    contexts: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()
    mixings: tuple[Mixing, ...] = ()
    embeddings: CapturedEmbeddings | None = None
    token_embeddings: CapturedEmbeddings | None = None
    has_attention_sink: bool = False
    encoder_decoder: EncoderDecoderLayout | None = None
    has_padding: bool = False
    biased_outputs: tuple[BiasedOutput, ...] = ()

    @cached_property
    def attention(self) -> Sequence[Tensor]:
        """The attention maps as tensors in the model's dtype, each ``batch head query key``."""
        return read_maps(self.attention_maps)

    def count_passes_at_once(self, budget: int, *, gradients: bool = False) -> int:
        """Return how many copies of a row of this recording go through the model together.

        Args:
            budget: The most tokens; fewer where memory does not suffice.
            gradients: Whether the passes are followed by backward passes.
        """
        if not self.runner.batching.is_batch_invariant:
            return 1
        num_tokens = limit_pack_tokens(
            self.runner, budget, gradients=gradients, recorded_tokens=self.token_mask.numel()
        )
        return max(1, num_tokens // self.token_mask.shape[1])

    def check_finite(self) -> None:
        """Wait for the forward pass, and raise :class:`NotFinite` with the layer if a logit is not finite."""
        _ = self.finite_logits

    @cached_property
    def finite_logits(self) -> np.ndarray:
        """The logits in float64. Reading them waits for the forward pass.

        Raises:
            NotFinite: If one of them is NaN or infinite.
        """
        values = self.fetched_logits.numpy()
        is_finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if not is_finite.all():
            text = int(is_finite.argmin())
            states = self._get_all_hidden_states()
            raise NotFinite(
                f"{describe_first_nonfinite(state[text] for state in states)} of text {text} of the batch is "
                "NaN or infinite. Check the weights, or load the model in float32 or bfloat16.",
                code="model-not-finite",
            )
        return values

    def _get_all_hidden_states(self) -> Sequence[Tensor]:
        """Return all hidden states; a pass that read only the embeddings did not record them."""
        if len(self.hidden_states) > 1:
            return self.hidden_states
        inputs = self.runner.build_inputs(self.rows, self.token_mask.shape[1])
        outputs, _ = self.runner.run(inputs, output_hidden_states=True)
        return self.runner.read_hidden_states(outputs)

    @torch.inference_mode(mode=False)
    def make_tape(self, targets: Sequence[ResolvedTarget], *, release_graph: bool) -> Tape:
        """Return the tape that methods read, with gradients for ``targets``.

        Where relevance is recorded, a tape takes its gradients when a method reads them.

        Args:
            targets: One per example.
            release_graph: Whether the graph may be freed, because no other target follows.
        """
        # Imported here, because a tape holds its recording.
        from tokenlight.trace.tape import Tape

        if not isinstance(targets, ArgmaxTargets):
            targets = tuple(targets)
        if self.backward_mode is not None:
            # If gradients can be rewritten, the model's own may not be needed.
            return Tape(self, targets)
        retain_graph = not release_graph or self._needs_graph_again(targets)
        gradients = take_gradients(self, targets, retain_graph=retain_graph)
        return Tape(self, targets, _taken_gradients=gradients)

    def make_tapes(self, targets_of_tapes: Sequence[Sequence[ResolvedTarget]]) -> list[Tape]:
        """Return a tape for each of several targets, whose relevance one backward pass propagates.

        The graph is kept. Gradients that are not relevance take a backward pass per tape.

        Args:
            targets_of_tapes: For each tape, one target per example.
        """
        single_tapes = [
            self.make_tape(targets, release_graph=False) for targets in targets_of_tapes
        ]
        # Each tape holds the list of all of them; it is complete before any tape is read.
        group: list[Tape] = []
        group += [replace(tape, group=group) for tape in single_tapes]
        return group

    def _needs_graph_again(self, targets: Sequence[ResolvedTarget]) -> bool:
        """Return whether the graph is used once more: by an extra pass, or a span's sides."""
        if Site.GRAPH in self.sites:
            return True
        return self.runner.head.task == "question-answering" and any(
            len(target.terms) > 1 for target in targets
        )

    def expand_map(self, map_index: int, tensor: Tensor) -> Tensor:
        """Return a map or its gradient over all tokens, detached, half precision in float32."""
        upcast_map = upcast(tensor.detach(), self.logits.device)
        if self.encoder_decoder is None:
            return upcast_map
        return self.encoder_decoder.pad_map(map_index, upcast_map)
