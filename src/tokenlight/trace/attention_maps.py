"""Attention maps behind one interface, whether they are kept, computed when read, or averaged by a kernel."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from tokenlight.accel.kernels import run_kernel
from tokenlight.accel.tensors import MAX_KEPT_BYTES, LazyTensors, upcast, upcast_all
from tokenlight.hooks.attention import AttentionOperands, compute_attention_map, repeat_kv_heads
from tokenlight.lrp.rules import Operation, RuleContext, RuleSet

if TYPE_CHECKING:
    from tokenlight.trace.recording import Recording

# The means over heads that are computed together: of A, of A ⊙ ∂y/∂A, and of its positive part.
MEAN_ATTENTION, MEAN_PRODUCT, MEAN_POSITIVE_PRODUCT = range(3)
NUM_MEANS = 3
FLOAT32_BYTES = 4


class AttentionMap(ABC):
    """The attention map of one block, ``batch head query key``."""

    # Whether the map is in memory, so that reading it costs nothing.
    is_stored: ClassVar[bool]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """``batch head query key``."""

    @property
    @abstractmethod
    def graph_tensor(self) -> Tensor:
        """The recorded tensor at which gradients and relevance of this map are caught."""

    @abstractmethod
    def compute(self) -> Tensor:
        """Return the map in the model's dtype."""

    @abstractmethod
    def compute_gradient_at_map(self, gradient: Tensor, share: float) -> Tensor:
        """Return ∂y/∂A from the gradient at :attr:`graph_tensor`.

        Args:
            gradient: The gradient that was caught.
            share: What a rewritten gradient leaves to the map of a product's gradient.
        """

    @abstractmethod
    def compute_relevance_at_map(
        self, relevance: Tensor, rules: RuleSet, batch_size: int
    ) -> Tensor:
        """Return the relevance of the map from that at :attr:`graph_tensor`.

        Args:
            relevance: The relevance that was caught there.
            rules: The rules of the method, which say how a softmax and a product pass relevance on.
            batch_size: The number of examples.
        """

    @abstractmethod
    def compute_head_means(self, gradient: Tensor | None) -> Tensor | None:
        """Compute means over heads with a kernel that stores no map.

        Args:
            gradient: The gradient at :attr:`graph_tensor`, if products are needed.

        Returns:
            ``mean batch query key``: the mean of the map, and with a gradient also of the map times its
            gradient and of the positive part; None if there is no kernel.
        """


@dataclass(frozen=True, eq=False)
class StoredAttentionMap(AttentionMap):
    """A map that the pass kept, on its graph where gradients are needed."""

    is_stored = True
    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def graph_tensor(self) -> Tensor:
        return self.tensor

    def compute(self) -> Tensor:
        return self.tensor

    def compute_gradient_at_map(self, gradient: Tensor, share: float) -> Tensor:  # noqa: ARG002
        # The map is a factor on the graph, so a rewritten gradient has its share already.
        return gradient

    def compute_relevance_at_map(
        self,
        relevance: Tensor,
        rules: RuleSet,  # noqa: ARG002
        batch_size: int,  # noqa: ARG002
    ) -> Tensor:
        return relevance

    def compute_head_means(self, gradient: Tensor | None) -> None:  # noqa: ARG002
        return None


@dataclass(frozen=True, eq=False)
class LazyAttentionMap(AttentionMap):
    """A map that is computed from its operands each time it is read.

    The map is no node of the graph. Its gradient follows from that of the context C = A V, since
    ∂y/∂A = (∂y/∂C) Vᵀ, and so does its relevance.
    """

    is_stored = False
    operands: AttentionOperands

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.operands.query.shape[:3], self.operands.key.shape[2])

    @property
    def graph_tensor(self) -> Tensor:
        return self.operands.context

    @torch.no_grad()
    def compute(self) -> Tensor:
        query = self.operands.query
        key = repeat_kv_heads(self.operands.key, query.shape[1])
        return compute_attention_map(query, key, self.operands.mask, self.operands.params)

    def compute_gradient_at_map(self, gradient: Tensor, share: float) -> Tensor:
        return share * torch.matmul(gradient, self._expand_values().mT)

    def compute_relevance_at_map(
        self, relevance: Tensor, rules: RuleSet, batch_size: int
    ) -> Tensor:
        attention = upcast(self.compute())
        factors = (attention, upcast(self._expand_values()))
        context = upcast(self.operands.context.detach())
        rule_context = RuleContext(context, factors, batch_size, activation_mask=(True, True))
        map_relevance = rules.rules[Operation.MATMUL](upcast(relevance), rule_context)[0]
        if map_relevance is None:
            return torch.zeros_like(attention)
        return map_relevance

    def compute_head_means(self, gradient: Tensor | None) -> Tensor | None:
        operands = self.operands
        if not operands.params.is_fusable:
            return None
        means: Tensor | None = run_kernel(
            "head_means_kernel.compute_head_means",
            operands.query,
            operands.key,
            operands.value,
            operands.params.scaling,
            **operands.mask.kernel_arguments,
            logsumexp=operands.logsumexp,
            context_gradient=gradient,
        )
        return means

    def _expand_values(self) -> Tensor:
        """Return the values, detached, with one per query head: ``batch head key width``."""
        return repeat_kv_heads(self.operands.value.detach(), self.operands.query.shape[1])


def read_maps(maps: Sequence[AttentionMap]) -> Sequence[Tensor]:
    """Return a sequence of the maps as tensors, each computed when it is read."""
    return LazyTensors(maps, _compute_map, range(len(maps)))


def _compute_map(_index: int, attention_map: AttentionMap) -> Tensor:
    return attention_map.compute()


class AttentionMaps:
    """The attention maps A^1 … A^L of a recording and their gradients ∂y/∂A^l for one target.

    Each is ``batch head query key``; half precision is returned in float32. Gradients are zero at padding
    on both axes.

    Args:
        recording: The recording.
        gradients: The gradient at each map's ``graph_tensor``; None if none was asked for.
        gradient_share: What a rewritten gradient leaves to the map of a product's gradient.
    """

    def __init__(
        self, recording: "Recording", gradients: list[Tensor] | None, gradient_share: float
    ) -> None:
        self._recording = recording
        self._gradients = gradients
        self._gradient_share = gradient_share
        self._padding_mask = _find_padding_pairs(recording)
        is_lazy = not all(attention_map.is_stored for attention_map in recording.attention_maps)
        # A bound method would make this object hold itself and the graph until Python collects cycles.
        convert_gradient = partial(_convert_gradient, recording, gradient_share, self._padding_mask)
        self.attention = upcast_all(recording.attention, recording.expand_map, is_lazy=is_lazy)
        self.gradients = upcast_all(gradients or (), convert_gradient, is_lazy=is_lazy)
        self._means: dict[tuple[int, int], Tensor] = {}

    def mean_attention(self) -> Sequence[Tensor]:
        """Return the mean over heads of each A^l, ``batch query key``."""
        return self._compute_means_lazily(MEAN_ATTENTION)

    def mean_products(self) -> Sequence[Tensor]:
        """Return the mean over heads of each A^l ⊙ ∂y/∂A^l, ``batch query key``."""
        return self._compute_means_lazily(MEAN_PRODUCT)

    def mean_positive_products(self) -> Sequence[Tensor]:
        """Return the mean over heads of each (A^l ⊙ ∂y/∂A^l)⁺, ``batch query key``.

        It is also that of A^l ⊙ (∂y/∂A^l)⁺, since attention is never negative.
        """
        return self._compute_means_lazily(MEAN_POSITIVE_PRODUCT)

    def _compute_means_lazily(self, kind: int) -> Sequence[Tensor]:
        blocks = range(len(self.attention))
        return LazyTensors(blocks, lambda block, _: self._get_mean(kind, block), blocks)

    def _get_mean(self, kind: int, block: int) -> Tensor:
        cached = self._means.get((kind, block))
        if cached is not None:
            return cached
        means = self._compute_means_by_kernel(block)
        if not means:
            means = {kind: self._compute_mean(kind, block)}
        num_elements = means[kind].numel() * len(self.attention)
        if NUM_MEANS * FLOAT32_BYTES * num_elements <= MAX_KEPT_BYTES:
            for computed_kind, mean in means.items():
                self._means[computed_kind, block] = mean
        return means[kind]

    def _compute_mean(self, kind: int, block: int) -> Tensor:
        values = self.attention[block]
        if kind != MEAN_ATTENTION:
            values = values * self.gradients[block]
        if kind == MEAN_POSITIVE_PRODUCT:
            values = values.clamp_(min=0)
        return values.mean(dim=1)

    def _compute_means_by_kernel(self, block: int) -> dict[int, Tensor]:
        """Compute all means of a block without its map; empty if no kernel can."""
        if self._recording.encoder_decoder is not None:
            return {}
        gradient = None if self._gradients is None else self._gradients[block]
        means = self._recording.attention_maps[block].compute_head_means(gradient)
        if means is None:
            return {}
        products = means[1:]
        if self._gradient_share != 1:
            products *= self._gradient_share
        if self._padding_mask is not None:
            products.masked_fill_(self._padding_mask[:, 0], 0.0)
        return dict(enumerate(means))


def _find_padding_pairs(recording: "Recording") -> Tensor | None:
    """Return ``batch 1 query key``: true where the query or the key is padding; None without padding.

    A padded key has attention zero, but its gradient need not be.
    """
    if not recording.has_padding:
        return None
    is_real = recording.token_mask.to(recording.logits.device)
    return ~(is_real[:, None, :, None] & is_real[:, None, None, :])


def _convert_gradient(
    recording: "Recording",
    gradient_share: float,
    padding_mask: Tensor | None,
    map_index: int,
    gradient: Tensor,
) -> Tensor:
    attention_map = recording.attention_maps[map_index]
    map_gradient = attention_map.compute_gradient_at_map(gradient, gradient_share)
    expanded = recording.expand_map(map_index, map_gradient)
    if padding_mask is None:
        return expanded
    return expanded.masked_fill(padding_mask, 0.0)
