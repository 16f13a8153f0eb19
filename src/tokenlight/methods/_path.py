"""Gradients averaged over many points: between a baseline and the text, or around its embeddings."""

import abc
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.entrance import At, Entered
from tokenlight.capture.objective import Of
from tokenlight.capture.rerun import StandIn
from tokenlight.errors import BadInput
from tokenlight.methods._method import Cost, Count, Extras, Method, Site, Tape
from tokenlight.methods._presence import laid_out

__all__ = ["Cost", "Count", "Site", "StandIn", "Tape"]  # beside what is written here
Multiply = Literal["own", "first", "none"]
Point = Callable[[Tensor, Tensor], Tensor]
# Scores, ``batch token``, and of each example how far their sum is from the target's rise, in percent,
# that rise, and the number of passes, each ``batch``.
PathScores = tuple[Tensor, Tensor, Tensor, Tensor]


class Ends(NamedTuple):
    """Both ends of a path: ``text`` and ``baseline``, ``batch place hidden``; ``rise``: ``batch``,
    how much the target grows from the baseline to the text."""

    text: Tensor
    baseline: Tensor
    rise: Tensor
    at: At


def entered(tape: Tape, at: At) -> Entered:
    """What came in with the text: h^0, or the token tables' output."""
    return tape.words if at == "words" else tape.embedded


def ends(tape: Tape, baseline: StandIn | int, *, special: bool = False, at: At = "hidden") -> Ends:
    """From ``baseline`` in the place of every token (special ones only with ``special``) to the text:
    the zero vector, or a token in its place with its segment."""
    rerun, text = tape.rerun, entered(tape, at).values
    # The tokens a model puts before a picture's patches are no input: nothing can stand for them.
    gone = [~np.array(row.special) | (special and row.image is None) for row in tape.rows]
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


def everyone(tape: Tape) -> Tensor:
    """The numbers of the tape's examples."""
    return torch.arange(len(tape.rows), device=tape.real.device)


def mean_gradient(
    tape: Tape, examples: Tensor, weights: Tensor, point: Point, *, at: At, of: Of = "target"
) -> Tensor:
    """Σ_s weight_s · gradient at ``point(examples, s)``, ``example place hidden``, all passes packed
    together. ``examples``: which of the tape's, each once; ``weights``: ``example step``. ``point`` takes
    positions in ``examples`` and step numbers, ``pass``, and gives ``pass place hidden``."""
    count, steps = weights.shape
    which = torch.arange(count, device=weights.device).repeat_interleave(steps)
    step = torch.arange(steps, device=weights.device).repeat(count)
    total: Tensor | None = None
    passes = tape.rerun.gradients(examples[which], lambda i: point(which[i], step[i]), at=at, of=of)
    for numbers, _, gradient in passes:
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
    difference = (path.text - path.baseline)[examples]

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


class PathMethod(Method):
    """Shares out what the target gains between a baseline and the text."""

    @property
    def needs(self) -> frozenset[Site]:
        return frozenset({Site.EMBEDDED})

    def __call__(self, tape: Tape) -> Tensor:
        return self._found(tape)[0]

    def extras(self, tape: Tape) -> Extras:
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


class WordGradientMethod(Method):
    r"""From the loss's gradient at the token embeddings to one share a token, as AllenNLP does it:
    magnitudes that sum to one, :math:`|\sum_k G_{i,k} m_k| / \sum_j |\sum_k G_{j,k} m_k|`.

    ``multiply``: m is the token's own embedding, that of the first token, or one.
    """

    multiply: Multiply = "own"
    signed = False
    needs = frozenset({Site.WORDS})

    def __call__(self, tape: Tape) -> Tensor:
        words = word_embeddings(tape)
        factors = {"own": words, "first": words[:, :1], "none": torch.ones_like(words[:, :1])}
        terms = self.gradient(tape).masked_fill(~_inside(tape), 0.0) * factors[self.multiply]
        values = terms.sum(dim=-1)
        self._refuse_rounding_noise(values, terms, tape.recording.logits.dtype)
        return l1_shares(tape.words.folded(values).masked_fill(~tape.real, 0.0))

    @abc.abstractmethod
    def gradient(self, tape: Tape) -> Tensor:
        """G, the loss's gradient at the token tables' output, ``batch place hidden``."""

    @staticmethod
    def averaged(tape: Tape, count: int, point: Point) -> Tensor:
        """The mean of G over ``count`` points (see :func:`mean_gradient`)."""
        texts = everyone(tape)
        weights = torch.full((len(texts), count), 1 / count, device=texts.device)
        return mean_gradient(tape, texts, weights, point, at="words", of="loss")

    def _refuse_rounding_noise(self, values: Tensor, terms: Tensor, dtype: torch.dtype) -> None:
        """A norm right behind the token table does not see a token's length, nor its mean: the gradient
        stands at right angles to the embedding, and to ones. What is left is rounding and the norm's
        stabiliser."""
        whole = terms.abs().sum(dim=-1).amax(dim=-1)
        noise = values.abs().amax(dim=-1) <= max(1e-3, torch.finfo(dtype).eps) * whole
        if bool((noise & (whole > 0)).any()):
            raise BadInput(
                f"{self.name} (multiply={self.multiply!r}) adds up products of gradient and embedding "
                "that cancel: this model norms its token embeddings before anything else reads them, so "
                "what is left is rounding noise. Use grad_x_input, which reads the embeddings behind "
                "that norm, or another multiply."
            )


def word_embeddings(tape: Tape) -> Tensor:
    """``batch place hidden``: the token tables' vectors, zero at padding."""
    return tape.words.values.masked_fill(~_inside(tape), 0.0)


def _inside(tape: Tape) -> Tensor:
    """``batch place 1``: true where a table looks up no padding."""
    return tape.real.repeat(1, 1 + tape.words.entrance.twice)[..., None]


def l1_shares(values: Tensor) -> Tensor:
    """|v| over its sum, each row by itself; a row of zeros stays one."""
    magnitude = values.abs()
    total = magnitude.sum(dim=-1, keepdim=True)
    return magnitude / torch.where(total > 0, total, torch.ones_like(total))
