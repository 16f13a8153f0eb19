"""How the states and maps of an encoder and its decoder lie over one row of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tokenlight.errors import UnsupportedModel
from tokenlight.trace.attention_maps import AttentionMap

MapKind = Literal["encoder", "decoder", "cross"]
# Whether the queries, and whether the keys, are tokens of the source.
IS_SOURCE_SIDE = {"encoder": (True, True), "decoder": (False, False), "cross": (False, True)}


@dataclass(frozen=True, slots=True)
class EncoderDecoderLayout:
    """The layout of a model that generates from a source.

    Hidden states are those of the encoder, then those of the decoder. Attention maps are those of the
    encoder's blocks, then of each decoder block the map over its own tokens and the one over the source.

    Attributes:
        source_length: Tokens that the encoder reads.
        target_length: Tokens that the decoder reads.
        num_encoder_states: Number of hidden states of the encoder, including h^0.
    """

    source_length: int
    target_length: int
    num_encoder_states: int

    def pad_state(self, layer: int, tensor: Tensor) -> Tensor:
        """Extend a state to ``batch token hidden`` of all tokens, with zeros at those of the other part."""
        left, right = self._padding(is_source=layer < self.num_encoder_states)
        return pad(tensor, (0, 0, left, right))

    def pad_map(self, map_index: int, tensor: Tensor) -> Tensor:
        """Extend a map to ``batch head query key`` of all tokens, with zeros elsewhere."""
        has_source_queries, has_source_keys = IS_SOURCE_SIDE[self.find_map_kind(map_index)]
        key_padding = self._padding(is_source=has_source_keys)
        query_padding = self._padding(is_source=has_source_queries)
        return pad(tensor, (*key_padding, *query_padding))

    def _padding(self, *, is_source: bool) -> tuple[int, int]:
        """Return how many tokens of the row come before and after those of one part."""
        if is_source:
            return 0, self.target_length
        return self.source_length, 0

    def find_map_kind(self, map_index: int) -> MapKind:
        """Return whether a map is the encoder's, the decoder's, or that between both."""
        decoder_index = map_index - (self.num_encoder_states - 1)
        if decoder_index < 0:
            return "encoder"
        if decoder_index % 2 == 0:
            return "decoder"
        return "cross"

    def compute_mean_received(self, means: Sequence[Tensor], token_mask: Tensor) -> list[Tensor]:
        """Compute the attention that each state receives in the block that reads it.

        Args:
            means: Attention maps averaged over heads, each ``batch query key``.
            token_mask: ``batch token``: true where a token is not padding.

        Returns:
            For each state that enters a block ``batch token``: the mean over the real queries of the part
            that reads it. The encoder's last state is read by all decoder blocks; its entry is their mean.
        """
        received: dict[MapKind, list[Tensor]] = {"encoder": [], "decoder": [], "cross": []}
        for map_index, mean in enumerate(means):
            kind = self.find_map_kind(map_index)
            is_query = token_mask.clone()
            if kind == "encoder":
                is_query[:, self.source_length :] = False
            else:
                is_query[:, : self.source_length] = False
            weights = is_query.to(mean.dtype) / is_query.sum(dim=1, keepdim=True)
            received[kind].append(torch.einsum("bq,bqk->bk", weights, mean))
        last_encoder_state = torch.stack(received["cross"]).mean(dim=0)
        return [*received["encoder"], last_encoder_state, *received["decoder"]]

    def count_maps(self, num_states: int) -> int:
        """Return the number of maps: one per encoder block and two per decoder block."""
        num_encoder_blocks = self.num_encoder_states - 1
        num_decoder_blocks = num_states - self.num_encoder_states - 1
        return num_encoder_blocks + 2 * num_decoder_blocks

    def check_maps(self, maps: Sequence[AttentionMap], model: nn.Module) -> None:
        """Refuse maps in another order, which shows where both parts differ in length."""
        for map_index, attention_map in enumerate(maps):
            expected_shape: list[int] = []
            for is_source in IS_SOURCE_SIDE[self.find_map_kind(map_index)]:
                expected_shape.append(self.source_length if is_source else self.target_length)
            if list(attention_map.shape[2:]) != expected_shape:
                kind = self.find_map_kind(map_index)
                raise UnsupportedModel(
                    f"Attention map {map_index} of {type(model).__name__} is not that of its {kind} "
                    "attention, so methods that read attention do not support this model. Use one that does "
                    "not, such as grad_x_input or occlusion.",
                    code="attention-map-order",
                )
