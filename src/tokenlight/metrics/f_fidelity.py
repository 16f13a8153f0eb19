"""F-Fidelity: what random parts of an explanation, or of the rest, are worth to a model that knows gaps."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from tokenlight.errors import BadInput
from tokenlight.metrics._erasing import ErasingMetric, Perturb
from tokenlight.metrics._metric import Better, Case, Count

STREAM = 4  # of a text's draws
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)


class FineTunedFidelity(ErasingMetric):
    r"""Mean fall of the probability as random tokens of the explanation, or of the rest, are masked.

    .. math:: \frac1{|B|\,n}\sum_{b\in B}\sum_{j=1}^n p(c\mid x) - p(c\mid x\setminus z_{b,j}), \quad
        P(t\in z_{b,j}) = \min(\alpha,\,\beta\,m/k)

    A token t of the k that may go is masked with this probability, in n = ``samples`` draws that are the
    same for every method. With ``side="plus"`` (FFid+) those are the highest-ranked b·m of the m tokens
    that are not special, and higher is better; with ``"minus"`` (FFid−) all others, and lower is better.
    The model must have been fine-tuned with as much of its texts masked at random (``python -m
    training.finetune --only masked_sst2``); the metric cannot see whether it was. Zheng et al., ICLR 2025.
    Differs from the paper: α, β and explanations of the fine-tuned model itself are the official code's;
    that counts right predictions at twenty shares, these are probabilities of the explained class at five.
    """

    side: Literal["plus", "minus"] = "plus"
    perturb: Perturb = "mask"
    shares: tuple[float, ...] = SHARES
    alpha: float = 0.5
    beta: float = 0.1
    samples: Count = 10
    seed: int = 0
    protect_special: bool = True
    cites = "zheng2025ffidelity"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.alpha <= 1 and 0 < self.beta <= 1):
            given = f"alpha={self.alpha} and beta={self.beta} must be above 0 and at most 1"
            raise BadInput(f"{given}: they are a probability and a share of the text.")

    @property
    def direction(self) -> Better:
        return "higher" if self.side == "plus" else "lower"

    @property
    def points(self) -> tuple[float, ...]:
        return self.shares

    def removed(self, case: Case) -> Iterator[np.ndarray]:
        order = self.ranked(case)
        drawn = case.attribution.row.generator(self.seed, STREAM)
        numbers = drawn.random((self.samples, len(case.original)))
        for share in self.shares:
            count = max(1, round(share * len(order)))
            pool = order[:count] if self.side == "plus" else order[count:]
            limit = min(self.alpha, self.beta * len(order) / max(1, len(pool)))
            for one in numbers:
                yield np.sort(pool[one[pool] < limit])

    def curve(self, whole: float, changed: np.ndarray) -> np.ndarray:
        falls = whole - changed.reshape(len(self.shares), self.samples)
        return np.asarray(falls.mean(axis=1))
