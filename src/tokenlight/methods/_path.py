"""Gradients averaged over many points between a baseline and the text, in h^0."""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.entrance import At, Entered
from tokenlight.capture.objective import Of
from tokenlight.capture.rerun import StandIn
from tokenlight.methods._method import Method, Site, Tape
from tokenlight.methods._presence import laid_out


@dataclass(frozen=True, eq=False)
class Ends:
    """Both ends of a path: ``text`` and ``baseline``, ``batch place hidden``; ``rise``: ``batch``,
    how much the target grows from the baseline to the text."""

    text: Tensor
    baseline: Tensor
    rise: Tensor
    at: At = "hidden"

    @property
    def difference(self) -> Tensor:
        """``batch place hidden``."""
        return self.text - self.baseline


def entered(tape: Tape, at: At) -> Entered:
    """What came in with the text: h^0, or the token tables' output."""
    return tape.words if at == "words" else tape.embedded


def ends(tape: Tape, baseline: StandIn | int, *, special: bool = False, at: At = "hidden") -> Ends:
    """From ``baseline`` in the place of every token (special ones only with ``special``) to the text.

    ``zero`` is the zero vector; any other baseline is a token, in its place with its segment.
    """
    rerun, text = tape.rerun, entered(tape, at).values
    # The tokens a model puts before a picture's patches are no input: nothing can stand for them.
    gone = [
        np.array([(special and row.image is None) or not own for own in row.special])
        for row in tape.rows
    ]
    if baseline == "zero":
        hidden = entered(tape, at).spread(laid_out(tape, gone).bool().to(text.device))
        vectors = text.masked_fill(hidden[..., None], 0.0)
    else:
        by = rerun.stand_in(baseline)
        rows = [rerun.replaced(row, own, by) for row, own in zip(tape.rows, gone, strict=True)]
        vectors = rerun.embedded(rows, at)
    # With the text's own ids beside the baseline's embeddings, as all along the path: by its ids a
    # model may find the token it reads.
    return Ends(text, vectors, rerun.value - rerun.value_at(vectors, at=at), at)


def mean_gradient(
    tape: Tape,
    examples: Tensor,
    weights: Tensor,
    point: Callable[[Tensor, Tensor], Tensor],
    *,
    at: At = "hidden",
    of: Of = "target",
) -> Tensor:
    """Σ_s weight_s · gradient at ``point(examples, s)``, all passes packed together.

    ``examples``: which of the tape's, each once; ``weights``: ``example step``. ``point`` takes
    positions in ``examples`` and step numbers, ``pass``, and gives ``pass place hidden``. The sum is
    ``example place hidden``.
    """
    count, steps = weights.shape
    which = torch.arange(count, device=weights.device).repeat_interleave(steps)
    step = torch.arange(steps, device=weights.device).repeat(count)
    total: Tensor | None = None
    for numbers, _, gradient in tape.rerun.gradients(
        examples[which], lambda passes: point(which[passes], step[passes]), at=at, of=of
    ):
        if total is None:
            total = gradient.new_zeros(count, *gradient.shape[1:])
        share = weights[which[numbers], step[numbers]].to(gradient)
        total.index_add_(0, which[numbers], share[:, None, None] * gradient)
    assert total is not None
    return total


def along(
    tape: Tape, path: Ends, examples: Tensor, shares: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Scores of ``examples`` from points on the straight path, and their sum's ``gap`` to the rise.

    .. math:: s_i = \\sum_k (h_{i,k} - h'_{i,k}) \\sum_s w_s\\, \\partial y/\\partial h_{i,k}
        \\big|_{h' + \\alpha_s (h - h')}

    ``shares`` are the α, ``weights`` the w, each ``example step``.
    """
    difference = path.difference[examples]

    def point(which: Tensor, step: Tensor) -> Tensor:
        share = shares[which, step].to(difference)[:, None, None]
        return path.baseline[examples[which]] + share * difference[which]

    gradient = mean_gradient(tape, examples, weights, point, at=path.at)
    entrance, real = entered(tape, path.at).entrance, tape.real[examples]
    scores = entrance.folded((gradient * difference).sum(dim=-1), real).masked_fill(~real, 0.0)
    return scores, gap_percent(scores, path.rise[examples])


def gap_percent(scores: Tensor, rise: Tensor) -> Tensor:
    """How far the scores' sum is from the rise they should share out, in percent of it."""
    missed = (scores.sum(dim=-1) - rise).abs()
    # A text as strong as its baseline has nothing to share out: the gap is then one of the scores.
    whole = torch.where(rise == 0, scores.abs().sum(dim=-1), rise.abs())
    return 100 * missed / whole.clamp(min=torch.finfo(whole.dtype).tiny)


# Scores, ``batch token``, and of each example how far their sum is from the target's rise, in percent,
# that rise, and the number of passes, each ``batch``.
PathScores = tuple[Tensor, Tensor, Tensor, Tensor]


class PathMethod(Method):
    """Shares out what the target gains between a baseline and the text."""

    @property
    def needs(self) -> frozenset[Site]:
        return frozenset({Site.EMBEDDED})

    def __call__(self, tape: Tape) -> Tensor:
        return self._found(tape)[0]

    def extras(self, tape: Tape) -> Sequence[dict[str, Any]]:
        """``gap_percent`` between the sum of the scores and ``rise``, after ``steps`` passes."""
        return [
            {"convergence": {"gap_percent": float(gap), "rise": float(rise), "steps": int(steps)}}
            for gap, rise, steps in zip(*self._found(tape)[1:], strict=True)
        ]

    def _found(self, tape: Tape) -> PathScores:
        return tape.rerun.once(self, lambda: self.scored(tape))

    @abc.abstractmethod
    def scored(self, tape: Tape) -> PathScores:
        """The scores of all examples."""
