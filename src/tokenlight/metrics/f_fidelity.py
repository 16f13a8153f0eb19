"""F-Fidelity: the effect of masking random parts of an explanation, for a model trained with masked texts."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from tokenlight.metrics._perturbation import Perturb, PerturbationMetric
from tokenlight.metrics.base import Direction
from tokenlight.plugin import BadInput, Case, Count, Seed

RANDOM_STREAM = 4  # number of this metric's random stream of a text
DEFAULT_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)


class FineTunedFidelity(PerturbationMetric):
    r"""Mean fall of the probability as random tokens of the explanation, or of the rest, are masked.

    .. math:: \frac1{|B|\,n}\sum_{b\in B}\sum_{j=1}^n p(c\mid x) - p(c\mid x\setminus z_{b,j}), \quad
        P(t\in z_{b,j}) = \min(\alpha,\,\beta\,m/k)

    Each token t of a pool of k tokens is masked with this probability, in n draws that are the same for every
    method. With ``side="plus"`` (FFid+) the pool is the b·m highest-ranked of the m tokens that are not
    special, and higher is better. With ``side="minus"`` (FFid−) it is all others, and lower is better. The
    model must have been fine-tuned on texts with as many tokens masked at random (``python -m
    training.finetune --only masked_sst2``); the metric cannot check this. Zheng et al., ICLR 2025.
    Differs from the paper: α, β and explaining the fine-tuned model itself follow the official code. That
    code counts correct predictions at twenty shares; here it is the probability of the explained class at
    five.

    Args:
        side: Whether tokens of the explanation (``"plus"``) or of the rest (``"minus"``) are masked.
        perturb: What happens to a removed token, as in aopc.
        shares: The shares B of the text that count as the explanation.
        alpha: The largest probability α that a token of the pool is masked.
        beta: The share β of the text that is masked on average, where α allows it.
        num_samples: The number n of draws for each share.
        seed: Seed of the draws.
        protect_special: Keep special tokens in the text.
    """

    side: Literal["plus", "minus"] = "plus"
    perturb: Perturb = "mask"
    shares: tuple[float, ...] = DEFAULT_SHARES
    alpha: float = 0.5
    beta: float = 0.1
    num_samples: Count = 10
    seed: Seed = 0
    protect_special: bool = True
    cites = "zheng2025ffidelity"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha <= 1 or not 0 < self.beta <= 1:
            raise BadInput(
                f"alpha={self.alpha} and beta={self.beta} are not valid: they are a probability and a share "
                "of the text. Give numbers above 0 and at most 1.",
                code="alpha-beta-range",
            )

    @property
    def direction(self) -> Direction:
        return "higher" if self.side == "plus" else "lower"

    @property
    def curve_points(self) -> tuple[float, ...]:
        return self.shares

    def select_removed_positions(self, case: Case) -> Iterator[np.ndarray]:
        order = self.rank_removable(case)
        generator = case.attribution.row.make_generator(self.seed, RANDOM_STREAM)
        # One draw per token, shared by all shares, so that methods differ only in their pools.
        draws = generator.random((self.num_samples, len(case.perturber)))  # sample token
        for share in self.shares:
            num_top = max(1, round(share * len(order)))
            pool = order[:num_top] if self.side == "plus" else order[num_top:]
            probability = min(self.alpha, self.beta * len(order) / max(1, len(pool)))
            for sample in draws:
                yield np.sort(pool[sample[pool] < probability])

    def compute_curve(self, original: float, perturbed: np.ndarray) -> np.ndarray:
        falls = original - perturbed.reshape(len(self.shares), self.num_samples)
        return np.asarray(falls.mean(axis=1))
