"""Reduce ``query key`` maps to one score per token, for a whole target or for its sides.

The *sides* of an answer span are its start and its end, each with a logit of its own.
"""

import abc
import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from tokenlight.accel.transfer import to_device
from tokenlight.errors import BadInput
from tokenlight.methods.base import Method
from tokenlight.trace.sites import Site
from tokenlight.trace.tape import Tape

Layer = int | Literal["middle", "all"]
Reduce = Literal["auto", "cls_row", "mean_query"]


def iter_rollout(
    steps: Iterable[Tensor], *, row_normalize: bool, residual: bool = True
) -> Iterator[Tensor]:
    r"""Yield the product :math:`\hat A^l\cdots\hat A^1` for each block l.

    :math:`\hat A = \operatorname{rownorm}(M + I)` of a map M.

    Args:
        steps: The maps M, bottom first, each ``batch query key``.
        row_normalize: Divide each row by its sum.
        residual: Add the identity.
    """
    product: Tensor | None = None
    for step in steps:
        matrix = step
        if residual:
            matrix = matrix + torch.eye(step.shape[-1], device=step.device, dtype=step.dtype)
        if row_normalize:
            row_sums = matrix.sum(dim=-1, keepdim=True)
            # Without the identity, a query that attends to no key, such as padding, has a sum of 0.
            matrix = matrix / row_sums.masked_fill(row_sums == 0, 1.0)
        product = matrix if product is None else matrix @ product
        yield product


def take_last_product(products: Iterable[Tensor]) -> Tensor:
    """Return the last product of :func:`iter_rollout`; a list would keep those of all blocks in memory."""
    (last_product,) = collections.deque(products, maxlen=1)
    return last_product


def compute_rollout_row(
    steps: Sequence[Tensor],
    tape: Tape,
    *,
    row_normalize: bool,
    residual: bool = True,
    zero_readout: bool = True,
) -> Tensor:
    r"""Return the row of :math:`\hat A^L\cdots\hat A^1` that the head reads: ``batch key``.

    Equals :meth:`Tape.read_rows` of the last product of :func:`iter_rollout`, but multiplies a vector with
    each map, from the top down, instead of one map with another: n² operations per block, not n³.

    Args:
        steps: The maps M, bottom first, each ``batch query key``; read once each, from the top down.
        tape: The tape that says which token is read.
        row_normalize: Divide each row by its sum.
        residual: Add the identity.
        zero_readout: Set the read-out token's own cell to zero.
    """
    if tape.has_span_targets and zero_readout:
        # The cell [0, 0] becomes zero, and the row of another token is read: the whole product is needed.
        product = take_last_product(
            iter_rollout(steps, row_normalize=row_normalize, residual=residual)
        )
        return tape.read_rows(product)
    row: Tensor | None = None
    for block in reversed(range(len(steps))):
        step = steps[block]
        if row is None:
            row = tape.readout.to(step.dtype)
        if row_normalize:
            row_sums = step.sum(dim=-1) + residual
            # Without the identity, a query that attends to no key, such as padding, has a sum of 0.
            row = row / row_sums.masked_fill(row_sums == 0, 1.0)
        lower_row = torch.matmul(row[:, None, :], step)[:, 0]
        row = lower_row + row if residual else lower_row
    assert row is not None
    return tape.zero_readout_token(row) if zero_readout else row


def reduce_to_tokens(
    matrix: Tensor, tape: Tape, reduce: Reduce, *, zero_readout: bool = True
) -> Tensor:
    """Reduce ``batch query key`` to ``batch key``.

    Args:
        matrix: The map.
        tape: The tape that says which token is read.
        reduce: ``"cls_row"`` takes the row of the token that the head reads ([CLS], the last token, the
            start of an answer). ``"mean_query"`` takes the mean over real queries, as the Mask-LRP code
            does for question answering. ``"auto"`` is the row for classes and the mean for answer spans.
        zero_readout: Set the read-out token's own cell to zero first (:meth:`Tape.zero_readout_cell`).
    """
    if resolve_reduce(tape, reduce) == "cls_row":
        return tape.read_rows(matrix, zero_readout=zero_readout)
    if zero_readout:
        matrix = tape.zero_readout_cell(matrix)
    return tape.average_over_queries(matrix)


def resolve_reduce(tape: Tape, reduce: Reduce) -> Reduce:
    """Return ``reduce``, or what ``"auto"`` stands for."""
    if reduce == "auto":
        return "mean_query" if tape.has_span_targets else "cls_row"
    return reduce


def check_start_layer(start_layer: int, num_blocks: int) -> None:
    """Check that ``start_layer`` is one of the model's blocks.

    Raises:
        BadInput: It is not.
    """
    if not 0 <= start_layer < num_blocks:
        raise BadInput(
            f"start_layer={start_layer} leaves no block: this model has {num_blocks} "
            f"(0 to {num_blocks - 1}). Choose one of them.",
            code="bad-start-layer",
        )


class AttentionGradientMethod(Method):
    """A method that reads attention maps and their gradients, for each side of an answer separately."""

    needs = frozenset({Site.ATTENTION, Site.ATTENTION_GRADIENT, Site.READOUT})

    def __call__(self, tape: Tape) -> Tensor:
        return sum_over_sides(tape, self.score)

    @abc.abstractmethod
    def score(self, tape: Tape) -> Tensor:
        """Return the scores of a whole target, or of one side of an answer."""


def resolve_layers(tape: Tape, layer: Layer) -> list[int]:
    """Return the indices of the hidden states that an option names.

    Args:
        tape: The tape.
        layer: An index, where 0 is the embedding and negative numbers count from the top; ``"middle"``
            for half of the blocks up; or ``"all"``.

    Raises:
        BadInput: There is no such layer.
    """
    num_states = len(tape.recording.hidden_states)
    if layer == "all":
        return list(range(num_states))
    if layer == "middle":
        return [(num_states - 1) // 2]
    if not -num_states <= layer < num_states:
        raise BadInput(
            f"layer={layer} does not exist. Choose 0 (embedding) to {num_states - 1}.",
            code="layer-value",
        )
    return [layer % num_states]


def sum_over_sides(
    tape: Tape, score: Callable[[Tape], Tensor], *, is_side_independent: bool = False
) -> Tensor:
    """Return the scores of an answer's start plus those of its end; of other targets, the scores.

    The official codes add the two maps in the same way. What is not linear in the gradient must not be
    computed from the sum of both logits.

    Args:
        tape: The tape.
        score: Computes the scores of one side.
        is_side_independent: Whether both sides have the same scores, which are then computed once.
    """
    if not is_side_independent:
        return sum_weighted_scores(tape.side_tapes, score)
    scores = score(tape)
    if not tape.has_span_targets:
        return scores
    num_sides = [len(target.sides) for target in tape.targets]
    return to_device(num_sides, scores.device, scores.dtype)[:, None] * scores


def sum_weighted_scores(
    weighted_tapes: Sequence[tuple[Tensor, Tape]], score: Callable[[Tape], Tensor]
) -> Tensor:
    """Return Σ weight · score, ``batch token`` or ``batch layer token``; weights are ``batch``."""
    weighted_scores = []
    for weights, tape in weighted_tapes:
        scores = score(tape)
        num_other_dims = scores.ndim - 1
        weighted_scores.append(weights.reshape(-1, *[1] * num_other_dims) * scores)
    return torch.stack(weighted_scores).sum(dim=0)
