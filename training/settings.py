"""Every number of the recipe in one place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Round:
    """One run per rate, each with its own seed, all from the same start; the best goes on.

    The mean of the members' weights takes part in the choice, which held-out rows decide.
    """

    steps: int
    rates: tuple[float, ...]
    batch: dict[str, int]
    loss_weight: dict[str, float]
    reviews: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What the recipe does; ``quick`` shrinks it to a test of the plumbing."""

    seed: int = 20
    #: Rows (paragraphs of running text) read of each file; None reads all.
    most_rows: int | None = None
    vocabulary_size: int = 11_200
    #: Weight of each corpus when pieces are counted; within a corpus shares sum to one.
    corpus_weights: dict[str, float] = field(
        default_factory=lambda: {"wiki_en": 0.2, "sst2": 0.35, "ag_news": 0.35, "squad_v1": 0.1}
    )
    #: Rows (contexts for qa, 128-token blocks for masked_lm) kept out of training to watch it.
    held_out: dict[str, int] = field(
        default_factory=lambda: {"sentiment": 400, "topics": 1_000, "qa": 250, "masked_lm": 1_000}
    )
    longest_text: int = 128

    #: First phase: masked-language modelling alone, to recover from the pruned vocabulary. An earlier
    #: recipe with 4,500 steps at 5e-4 reached top-1 0.49 but missed the bars of both classifiers. It
    #: differed in much else too, so what made the difference is not known.
    pretrain_steps: int = 1_000
    pretrain_blocks: int = 256
    pretrain_rate: float = 2e-4

    #: Second phase: every step takes one batch of each task. Later rounds add labeled reviews to the
    #: sentiment rows and weigh the masked LM more, which the first round leaves weak.
    rounds: tuple[Round, ...] = (
        Round(
            steps=2_000,
            rates=(1e-4, 1.5e-4, 1.5e-4, 2e-4),
            batch={"sentiment": 128, "topics": 64, "qa": 32, "masked_lm": 64},
            loss_weight={"sentiment": 1.0, "topics": 1.0, "qa": 1.0, "masked_lm": 0.2},
        ),
        Round(
            steps=1_100,
            rates=(1e-4, 1.5e-4, 1.5e-4),
            batch={"sentiment": 128, "topics": 64, "qa": 32, "masked_lm": 96},
            loss_weight={"sentiment": 1.5, "topics": 1.0, "qa": 1.0, "masked_lm": 0.6},
            reviews=True,
        ),
        Round(
            steps=1_200,
            rates=(1.5e-4, 2e-4, 3e-4),
            batch={"sentiment": 128, "topics": 64, "qa": 32, "masked_lm": 256},
            loss_weight={"sentiment": 1.5, "topics": 1.5, "qa": 1.0, "masked_lm": 2.0},
            reviews=True,
        ),
    )
    #: A round that would take longer has its schedule shortened to end in time (0: no limit).
    round_seconds: float = 0.0

    weight_decay: float = 0.01
    warm_up: float = 0.06
    largest_gradient: float = 1.0
    averaging: float = 0.998
    masked_share: float = 0.15
    block: int = 128
    look_every: int = 400
    patience: int = 3


def quick(settings: Settings) -> Settings:
    """A few rows and steps of everything: tests the plumbing, not the model."""
    few = {"sentiment": 8, "topics": 4, "qa": 2, "masked_lm": 4}
    return replace(
        settings,
        most_rows=500,
        pretrain_steps=2,
        pretrain_blocks=8,
        rounds=tuple(
            replace(one, steps=2, rates=one.rates[:2], batch=few) for one in settings.rounds
        ),
        look_every=2,
        held_out=dict.fromkeys(settings.held_out, 4),
    )
