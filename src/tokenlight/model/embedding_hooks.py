"""Hooks at the points where the embeddings of a text enter a model.

Where a decoder reads the text as well (the classifiers of BART and T5), each token enters twice: at its own
position of the encoder, and one position later in the decoder. Where a decoder writes after a source, each
token enters once: the source through the encoder, the continuation through the decoder. Tensors over all
these *positions* are laid out hook point by hook point, along one axis.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tokenlight.accel.tensors import upcast
from tokenlight.hooks.patching import forward_hooks

EmbeddingSite = Literal["embeddings", "token_embeddings"]
SwappedAxes = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class HookPoint:
    """An input or output of a module through which the embeddings of a text pass.

    Attributes:
        module_path: Path of the module in the model.
        argument: Index or name of the argument; None for the output.
        swapped_axes: Two axes to swap to get ``batch token hidden``; None if there is nothing to swap.
        call_index: Which call of the module in a pass, since a decoder may share its encoder's table.
        num_prefix_tokens: Number of the model's own tokens that join only after this point.
    """

    module_path: str
    argument: int | str | None = None
    swapped_axes: SwappedAxes = None
    call_index: int = 0
    num_prefix_tokens: int = 0

    def hooked_embeddings(
        self, root: nn.Module, num_tokens: int, replace: Callable[[Tensor], Tensor]
    ) -> AbstractContextManager[None]:
        """Replace the embeddings that pass this point inside the block.

        Args:
            root: The model.
            num_tokens: The number of tokens of the batch; some models append padding of their own, which
                is left as it is.
            replace: Takes ``batch token hidden`` and returns the same shape.
        """
        call_numbers = count()

        def replace_once(tensor: Tensor) -> Tensor:
            if next(call_numbers) != self.call_index:
                return tensor
            return self._replace_embeddings(tensor, num_tokens, replace)

        def post_hook(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> Any:
            if isinstance(output, tuple):
                return (replace_once(output[0]), *output[1:])
            return replace_once(output)

        def pre_hook(_module: nn.Module, args: Any, kwargs: Any) -> Any:
            if isinstance(self.argument, int):
                new_args = list(args)
                new_args[self.argument] = replace_once(args[self.argument])
                return tuple(new_args), kwargs
            return args, {**kwargs, self.argument: replace_once(kwargs[self.argument])}

        module = root.get_submodule(self.module_path)
        if self.argument is None:
            return forward_hooks([module], post_hook=post_hook)
        return forward_hooks([module], pre_hook=pre_hook)

    def _replace_embeddings(
        self, tensor: Tensor, num_tokens: int, replace: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Bring ``tensor`` into the form ``batch token hidden``, replace it, and undo the form."""
        if tensor.dim() == 4:  # output of a convolution: ``batch hidden row column``
            vectors = tensor.flatten(2).transpose(1, 2)
            replaced = self._replace_tokens(vectors, num_tokens, replace)
            return replaced.transpose(1, 2).reshape(tensor.shape)
        vectors = swap_axes(tensor, self.swapped_axes)
        replaced = self._replace_tokens(vectors, num_tokens, replace)
        return swap_axes(replaced, self.swapped_axes)

    def _replace_tokens(
        self, vectors: Tensor, num_tokens: int, replace: Callable[[Tensor], Tensor]
    ) -> Tensor:
        if self.num_prefix_tokens:
            # Zeros stand for the model's own tokens, so that ``replace`` sees a vector for every token.
            prefix = vectors.new_zeros(len(vectors), self.num_prefix_tokens, vectors.shape[2])
            vectors = torch.cat((prefix, vectors), dim=1)
        replaced = replace(vectors[:, :num_tokens])[:, self.num_prefix_tokens :]
        trailing = vectors[:, num_tokens:]
        if trailing.shape[1] == 0:
            return replaced
        return torch.cat((replaced, trailing), dim=1)


def swap_axes(tensor: Tensor, axes: SwappedAxes) -> Tensor:
    """Return ``tensor`` with two axes swapped; as it is for None."""
    return tensor if axes is None else tensor.transpose(*axes)


@dataclass(frozen=True, slots=True)
class EmbeddingHooks:
    """All points at which the embeddings of a text enter a model.

    Attributes:
        hook_points: In the order in which a pass reaches them: the encoder's, then the decoder's.
        decoder_start_id: The id that a decoder puts before the text; None if it puts the last token of
            the text there.
        is_read_twice: Whether encoder and decoder read the same tokens, so that there are twice as many
            positions as tokens.
    """

    hook_points: tuple[HookPoint, ...]
    decoder_start_id: int | None = None
    is_read_twice: bool = False

    def split_by_hook(self, vectors: Tensor, source_length: int | None) -> Sequence[Tensor]:
        """Split ``batch position …`` into one tensor per hook point.

        Args:
            vectors: Values at all positions.
            source_length: Tokens of a row that only the encoder reads; None if one stack reads all.
        """
        return torch.split(vectors, self._split_sizes(vectors.shape[1], source_length), 1)

    def _split_sizes(self, num_positions: int, source_length: int | None) -> list[int]:
        if source_length is not None:
            return [source_length, num_positions - source_length]
        num_hooks = len(self.hook_points)
        return [num_positions // num_hooks] * num_hooks

    def _count_reads(self) -> int:
        """Return how often each token enters the model."""
        return 2 if self.is_read_twice else 1

    @contextmanager
    def hooked_embeddings(
        self,
        root: nn.Module,
        num_tokens: int,
        source_length: int | None,
        replace: Callable[[int, Tensor], Tensor],
    ) -> Iterator[None]:
        """Replace the embeddings at hook point ``i`` by ``replace(i, embeddings)`` inside the block.

        Args:
            root: The model.
            num_tokens: The number of tokens of the batch.
            source_length: Tokens that only the encoder reads, or None.
            replace: Takes the index of a hook point and ``batch token hidden``.
        """
        sizes = self._split_sizes(num_tokens * self._count_reads(), source_length)
        with ExitStack() as stack:
            for index, (hook_point, size) in enumerate(zip(self.hook_points, sizes, strict=True)):
                stack.enter_context(
                    hook_point.hooked_embeddings(root, size, partial(replace, index))
                )
            yield

    def replaced_embeddings(
        self, root: nn.Module, vectors: Tensor, source_length: int | None
    ) -> AbstractContextManager[None]:
        """Let the model read ``vectors``, ``batch position hidden``, for its embeddings inside the block.

        Args:
            root: The model.
            vectors: What the model reads in place of its own embeddings.
            source_length: Tokens that an encoder reads; None if one stack reads all.
        """
        parts = self.split_by_hook(vectors, source_length)
        num_tokens = vectors.shape[1] // self._count_reads()

        def replace(hook_index: int, embeddings: Tensor) -> Tensor:
            # Cloned, because the model may scale its embeddings in place.
            return parts[hook_index].to(embeddings).clone()

        return self.hooked_embeddings(root, num_tokens, source_length, replace)

    def fold_to_tokens(self, values: Tensor, token_mask: Tensor) -> Tensor:
        """Sum ``batch position …`` to ``batch token …``: what a token contributes wherever it is read."""
        if not self.is_read_twice:
            return values
        encoder_values, decoder_values = values.chunk(2, dim=1)
        # The decoder reads each token one position later.
        no_value = torch.zeros_like(decoder_values[:, :1])
        shifted = torch.cat((decoder_values[:, 1:], no_value), dim=1)
        if self.decoder_start_id is None:
            rows, last_positions = _find_last_token_indices(token_mask)
            shifted[rows, last_positions] += decoder_values[:, 0]
        return encoder_values + shifted

    def spread_to_positions(self, values: Tensor, token_mask: Tensor) -> Tensor:
        """Repeat ``batch token …`` at all positions; zero where no token of the text is read."""
        if not self.is_read_twice:
            return values
        no_value = torch.zeros_like(values[:, :1])
        decoder_values = torch.cat((no_value, values[:, :-1]), dim=1)
        if self.decoder_start_id is None:
            decoder_values[:, 0] = values[_find_last_token_indices(token_mask)]
        return torch.cat((values, decoder_values), dim=1)

    def add_decoder_ids(
        self, arguments: dict[str, Tensor], token_mask: Tensor
    ) -> dict[str, Tensor]:
        """Return ``arguments`` with the ids that the decoder reads, derived from ``input_ids``."""
        if not self.is_read_twice:
            return arguments
        position_ids = self.spread_to_positions(arguments["input_ids"], token_mask)
        decoder_ids = position_ids[:, token_mask.shape[1] :]
        if self.decoder_start_id is not None:
            decoder_ids[:, 0] = self.decoder_start_id
        return {**arguments, "decoder_input_ids": decoder_ids}


def _find_last_token_indices(token_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and position of the last real token of each row."""
    rows = torch.arange(len(token_mask), device=token_mask.device)
    return rows, token_mask.sum(dim=1) - 1


@dataclass(frozen=True, eq=False)
class CapturedEmbeddings:
    """The embeddings that entered the model in one forward pass.

    Attributes:
        hooks: The points at which they were captured.
        token_mask: ``batch token``; true at real tokens.
        tensors: One tensor per hook point, ``batch token hidden``, part of the graph if there is one.
    """

    hooks: EmbeddingHooks
    token_mask: Tensor
    tensors: list[Tensor]

    @property
    def values(self) -> Tensor:
        """``batch position hidden``, detached; half precision becomes float32."""
        return self.concatenate([tensor.detach() for tensor in self.tensors])

    def concatenate(self, tensors: Sequence[Tensor]) -> Tensor:
        """Join one tensor per hook point to ``batch position …``."""
        return torch.cat([upcast(tensor, self.token_mask.device) for tensor in tensors], dim=1)

    def fold_to_tokens(self, values: Tensor) -> Tensor:
        """Sum ``batch position …`` to ``batch token …``."""
        return self.hooks.fold_to_tokens(values, self.token_mask)

    def spread_to_positions(self, values: Tensor) -> Tensor:
        """Repeat ``batch token …`` at all positions."""
        return self.hooks.spread_to_positions(values, self.token_mask)
