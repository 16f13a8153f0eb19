"""Gradients averaged over many points: between a baseline and the text, or around its embeddings.

Positions of embeddings are written ``position``: a model that looks up a text twice has two per token.
"""

import abc
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tokenlight.accel.precision import compute_rounding_eps
from tokenlight.errors import BadInput
from tokenlight.methods._perturbation import pad_scores
from tokenlight.methods.base import Extras, Method
from tokenlight.model.embedding_hooks import CapturedEmbeddings, EmbeddingSite
from tokenlight.model.objective import Quantity
from tokenlight.trace.extra_passes import BaselineToken
from tokenlight.trace.sites import Site
from tokenlight.trace.tape import Tape

Multiply = Literal["own", "first", "none"]
# Computes the embeddings at points of the paths, ``pass position hidden``: for each pass, the index of its
# example among those that are scored, and the number of its step.
ComputePoint = Callable[[Tensor, Tensor], Tensor]
# What the epsilon of a norm leaves of terms that cancel, as a share of them.
MAX_CANCELLED_SHARE = 1e-3


class PathScores(NamedTuple):
    """The result of a path method for a batch.

    Args:
        scores: Scores, ``batch token``.
        gap_percent: How far their sum is from ``target_gain``, in percent of it, ``batch``.
        target_gain: How much the target grows from the baseline to the text, ``batch``.
        num_passes: Number of points on each path, ``batch``.
    """

    scores: Tensor
    gap_percent: Tensor
    target_gain: Tensor
    num_passes: Tensor


class PathEndpoints(NamedTuple):
    """Both ends of a path.

    Args:
        text: Embeddings of the text, ``batch position hidden``.
        baseline: Embeddings of the baseline, ``batch position hidden``.
        target_gain: How much the target grows from the baseline to the text, ``batch``.
        site: Where the embeddings were captured.
    """

    text: Tensor
    baseline: Tensor
    target_gain: Tensor
    site: EmbeddingSite


def get_embeddings(tape: Tape, site: EmbeddingSite) -> CapturedEmbeddings:
    """Return h^0, or the output of the token embedding tables (``site="token_embeddings"``)."""
    return tape.token_embeddings if site == "token_embeddings" else tape.embeddings


def compute_endpoints(
    tape: Tape,
    baseline: BaselineToken | int,
    *,
    special: bool = False,
    site: EmbeddingSite = "embeddings",
) -> PathEndpoints:
    """Compute both ends of the path from a baseline to the text.

    Args:
        tape: The tape.
        baseline: What replaces every token: ``"zero"`` for the zero vector, or a token, which keeps the
            position and segment of the token it replaces.
        special: Whether it replaces special tokens, too.
        site: Where the path runs.
    """
    extra_passes = tape.extra_passes
    embeddings = get_embeddings(tape, site)
    text_vectors = embeddings.values  # computed each time it is read
    removed = []
    for row in tape.rows:
        # The special tokens before a picture's patches are no input: nothing can replace them.
        removes_special = special and row.image is None
        removed.append(~np.array(row.special_tokens_mask) | removes_special)
    if baseline == "zero":
        removed_tokens = pad_scores(tape, removed).bool().to(text_vectors.device)
        removed_positions = embeddings.spread_to_positions(removed_tokens)
        vectors = text_vectors.masked_fill(removed_positions[..., None], 0.0)
    else:
        baseline_id = extra_passes.find_baseline_id(baseline)
        rows = []
        for row, removed_in_row in zip(tape.rows, removed, strict=True):
            rows.append(extra_passes.replace_ids(row, removed_in_row, baseline_id))
        vectors = extra_passes.compute_embeddings(rows, site)
    # The text's ids accompany the baseline's embeddings, as they do along the whole path: a model may
    # use the ids to find the token that it reads.
    target_gain = extra_passes.target_value - extra_passes.compute_value_at(vectors, site=site)
    return PathEndpoints(text_vectors, vectors, target_gain, site)


def make_example_indices(tape: Tape) -> Tensor:
    """Return the indices of the tape's examples."""
    return torch.arange(len(tape.rows), device=tape.token_mask.device)


def average_gradient(
    tape: Tape,
    examples: Tensor,
    weights: Tensor,
    point: ComputePoint,
    *,
    site: EmbeddingSite,
    gradient_of: Quantity = "target",
) -> Tensor:
    """Return Σ_s weight_s · gradient at ``point(examples, s)``; all passes are packed into batches.

    Args:
        tape: The tape.
        examples: Indices of the tape's examples, each once.
        weights: ``example step``.
        point: Takes positions in ``examples`` and step numbers, each ``pass``, and returns embeddings,
            ``pass position hidden``.
        site: Where the embeddings are put in.
        gradient_of: The target, or its loss.

    Returns:
        ``example position hidden``.
    """
    num_examples, num_steps = weights.shape
    example_of_pass = torch.arange(num_examples, device=weights.device).repeat_interleave(num_steps)
    step_of_pass = torch.arange(num_steps, device=weights.device).repeat(num_examples)
    total: Tensor | None = None
    batches = tape.extra_passes.compute_gradients_at_points(
        examples[example_of_pass],
        lambda passes: point(example_of_pass[passes], step_of_pass[passes]),
        site=site,
        quantity=gradient_of,
    )
    for passes, _, gradient in batches:
        if total is None:
            total = gradient.new_zeros(num_examples, *gradient.shape[1:])
        pass_weights = weights[example_of_pass[passes], step_of_pass[passes]].to(gradient)
        total.index_add_(0, example_of_pass[passes], pass_weights[:, None, None] * gradient)
    assert total is not None
    return total


def integrate_path(
    tape: Tape, path: PathEndpoints, examples: Tensor, shares: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Integrate the gradient along the straight path.

    .. math:: s_i = \\sum_k (h_{i,k} - h'_{i,k}) \\sum_s w_s\\, \\partial y/\\partial h_{i,k}
        \\big|_{h' + \\alpha_s (h - h')}

    Args:
        tape: The tape.
        path: The ends of the path.
        examples: Indices of the examples to score.
        shares: The α, ``example step``.
        weights: The w, ``example step``.

    Returns:
        Scores, ``example token``, and how far their sum is from the target's gain, in percent.
    """
    difference = (path.text - path.baseline)[examples]

    def point(indices: Tensor, steps: Tensor) -> Tensor:
        share = shares[indices, steps].to(difference)[:, None, None]
        return path.baseline[examples[indices]] + share * difference[indices]

    gradient = average_gradient(tape, examples, weights, point, site=path.site)
    hooks = get_embeddings(tape, path.site).hooks
    token_mask = tape.token_mask[examples]
    scores = hooks.fold_to_tokens((gradient * difference).sum(dim=-1), token_mask)
    scores = scores.masked_fill(~token_mask, 0.0)
    return scores, compute_gap_percent(scores, path.target_gain[examples])


def compute_gap_percent(scores: Tensor, target_gain: Tensor) -> Tensor:
    """Return how far the sum of the scores is from the target's gain, in percent of it."""
    gap = (scores.sum(dim=-1) - target_gain).abs()
    # Without any gain, the gap is given in percent of the scores.
    reference = torch.where(target_gain == 0, scores.abs().sum(dim=-1), target_gain.abs())
    return 100 * gap / reference.clamp(min=torch.finfo(reference.dtype).tiny)


class PathMethod(Method):
    """A method that distributes the target's gain between a baseline and the text over the tokens."""

    @property
    def needs(self) -> frozenset[Site]:
        return frozenset({Site.EMBEDDINGS})

    def __call__(self, tape: Tape) -> Tensor:
        return self._get_scores(tape).scores

    def measure_extras(self, tape: Tape) -> Extras:
        """Return ``gap_percent`` between the sum of the scores and ``rise``, after ``steps`` passes."""
        _, gaps, gains, num_passes = self._get_scores(tape)
        extras = []
        for gap, gain, steps in zip(gaps, gains, num_passes, strict=True):
            convergence = {"gap_percent": float(gap), "rise": float(gain), "steps": int(steps)}
            extras.append({"convergence": convergence})
        return extras

    def _get_scores(self, tape: Tape) -> PathScores:
        return tape.extra_passes.compute_once(self, lambda: self.compute_path_scores(tape))

    @abc.abstractmethod
    def compute_path_scores(self, tape: Tape) -> PathScores:
        """Compute the scores of all examples."""


class WordGradientMethod(Method):
    r"""A method that turns the loss's gradient at the token embeddings into shares, as AllenNLP does.

    The scores are magnitudes that sum to one:
    :math:`|\sum_k G_{i,k} m_k| / \sum_j |\sum_k G_{j,k} m_k|`.

    Args:
        multiply: The factor m: the token's own embedding (``"own"``), that of the first token
            (``"first"``), or one (``"none"``).
    """

    multiply: Multiply = "own"
    signed = False
    needs = frozenset({Site.TOKEN_EMBEDDINGS})

    def __call__(self, tape: Tape) -> Tensor:
        gradient = self.compute_loss_gradient(tape).masked_fill(~_lookup_mask(tape), 0.0)
        terms = gradient * self._select_factors(tape)
        values = terms.sum(dim=-1)
        runner = tape.recording.runner
        self._check_rounding_noise(values, terms, compute_rounding_eps(runner.device, runner.dtype))
        scores = tape.token_embeddings.fold_to_tokens(values)
        return normalize_l1(scores.masked_fill(~tape.token_mask, 0.0))

    def _select_factors(self, tape: Tape) -> Tensor:
        """Return m, ``batch position hidden`` or ``batch 1 hidden``."""
        embeddings = get_word_embeddings(tape)
        if self.multiply == "own":
            return embeddings
        if self.multiply == "first":
            return embeddings[:, :1]
        return torch.ones_like(embeddings[:, :1])

    @abc.abstractmethod
    def compute_loss_gradient(self, tape: Tape) -> Tensor:
        """Return G, the loss's gradient at the token embeddings, ``batch position hidden``."""

    @staticmethod
    def average_loss_gradient(tape: Tape, num_points: int, point: ComputePoint) -> Tensor:
        """Return the mean of G over ``num_points`` points (see :func:`average_gradient`).

        Args:
            tape: The recorded pass.
            num_points: How many points between baseline and text.
            point: Returns the embeddings at a point of the path.
        """
        examples = make_example_indices(tape)
        weights = torch.full((len(examples), num_points), 1 / num_points, device=examples.device)
        return average_gradient(
            tape, examples, weights, point, site="token_embeddings", gradient_of="loss"
        )

    def _check_rounding_noise(self, values: Tensor, terms: Tensor, eps: float) -> None:
        """Raise if the terms cancel up to rounding errors.

        A norm directly after the embedding table ignores the length and the mean of a token's embedding, so
        that the gradient is orthogonal to the embedding and to ones. What is left comes from rounding and
        from the epsilon of the norm.
        """
        magnitude = terms.abs().sum(dim=-1).amax(dim=-1)
        tolerance = max(MAX_CANCELLED_SHARE, eps)
        is_noise = values.abs().amax(dim=-1) <= tolerance * magnitude
        if bool((is_noise & (magnitude > 0)).any()):
            raise BadInput(
                f"{self.name} with multiply={self.multiply!r} sums products of gradient and embedding that "
                "cancel: this model normalizes its token embeddings before anything else reads them, so "
                "only rounding noise is left. Use grad_x_input, which reads the embeddings after that "
                "norm, or another multiply.",
                code="rounding-noise",
            )


def get_word_embeddings(tape: Tape) -> Tensor:
    """Return the output of the token embedding tables, ``batch position hidden``, zero at padding."""
    return tape.token_embeddings.values.masked_fill(~_lookup_mask(tape), 0.0)


def _lookup_mask(tape: Tape) -> Tensor:
    """Return ``batch position 1``: false where a table looks up padding."""
    num_lookups = 1 + tape.token_embeddings.hooks.is_read_twice
    return tape.token_mask.repeat(1, num_lookups)[..., None]


def normalize_l1(values: Tensor) -> Tensor:
    """Return |v| divided by its sum, row by row; a row of zeros stays zero."""
    magnitude = values.abs()
    total = magnitude.sum(dim=-1, keepdim=True)
    return magnitude / torch.where(total > 0, total, torch.ones_like(total))
