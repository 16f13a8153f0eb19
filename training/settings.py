"""Every number of the recipe in one place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """Settings of one round of joint training.

    A round trains one member per learning rate, each with its own seed and all from the same weights. The
    next round starts from the best member, or from the mean of the members' weights, as held-out rows decide.

    Attributes:
        steps: Optimizer steps of each member.
        learning_rates: Peak learning rate of each member.
        batch_sizes: Rows per step, by task.
        loss_weights: Weight of the loss, by task.
        uses_reviews: Whether labeled reviews are added to the rows of the sentiment task.
    """

    steps: int
    learning_rates: tuple[float, ...]
    batch_sizes: dict[str, int]
    loss_weights: dict[str, float]
    uses_reviews: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the whole recipe.

    Attributes:
        seed: Seed of every random choice.
        max_rows: Largest number of rows, or of paragraphs, read from each file; None reads all.
        vocabulary_size: Number of word pieces kept.
        corpus_weights: Weight of each corpus when pieces are counted; the shares of a corpus sum to one.
        num_held_out: Rows kept out of training, by task: contexts for qa, blocks of text for masked_lm.
        max_tokens: Tokens of a labeled text; the rest is cut off.
        pretraining_steps: Optimizer steps of the masked-LM phase.
        pretraining_batch_size: Blocks per step of the masked-LM phase.
        pretraining_rate: Peak learning rate of the masked-LM phase.
        rounds: Settings of each round of joint training.
        max_round_seconds: Seconds after which the schedule of a round ends; 0 sets no limit.
        weight_decay: Weight decay of all weights but biases and norms.
        warm_up_share: Share of the steps in which the learning rate rises.
        max_gradient_norm: Norm to which gradients are clipped.
        averaging_decay: Decay of the moving average of the weights.
        masked_share: Share of the tokens that the masked LM predicts.
        block_length: Tokens of a block of running text.
        evaluation_interval: Steps between two evaluations on held-out rows.
        patience: Evaluations without a gain after which a phase stops.
    """

    seed: int = 20
    max_rows: int | None = None
    vocabulary_size: int = 11_200
    corpus_weights: dict[str, float] = field(
        default_factory=lambda: {"wiki_en": 0.2, "sst2": 0.35, "ag_news": 0.35, "squad_v1": 0.1}
    )
    num_held_out: dict[str, int] = field(
        default_factory=lambda: {"sentiment": 400, "topics": 1_000, "qa": 250, "masked_lm": 1_000}
    )
    max_tokens: int = 128

    # The masked-LM phase recovers from the pruned vocabulary. An earlier recipe with 4,500 steps at 5e-4
    # reached top-1 0.49 but missed the goals of both classifiers. It differed in much else too, so what
    # made the difference is not known.
    pretraining_steps: int = 1_000
    pretraining_batch_size: int = 256
    pretraining_rate: float = 2e-4

    # Later rounds add labeled reviews, and give the masked LM, which the first round leaves weak, a
    # larger weight.
    rounds: tuple[RoundSettings, ...] = (
        RoundSettings(
            steps=2_000,
            learning_rates=(1e-4, 1.5e-4, 1.5e-4, 2e-4),
            batch_sizes={"sentiment": 128, "topics": 64, "qa": 32, "masked_lm": 64},
            loss_weights={"sentiment": 1.0, "topics": 1.0, "qa": 1.0, "masked_lm": 0.2},
        ),
        RoundSettings(
            steps=1_100,
            learning_rates=(1e-4, 1.5e-4, 1.5e-4),
            batch_sizes={"sentiment": 128, "topics": 64, "qa": 32, "masked_lm": 96},
            loss_weights={"sentiment": 1.5, "topics": 1.0, "qa": 1.0, "masked_lm": 0.6},
            uses_reviews=True,
        ),
        RoundSettings(
            steps=1_200,
            learning_rates=(1.5e-4, 2e-4, 3e-4),
            batch_sizes={"sentiment": 128, "topics": 64, "qa": 32, "masked_lm": 256},
            loss_weights={"sentiment": 1.5, "topics": 1.5, "qa": 1.0, "masked_lm": 2.0},
            uses_reviews=True,
        ),
    )
    max_round_seconds: float = 0.0

    weight_decay: float = 0.01
    warm_up_share: float = 0.06
    max_gradient_norm: float = 1.0
    averaging_decay: float = 0.998
    masked_share: float = 0.15
    block_length: int = 128
    evaluation_interval: int = 400
    patience: int = 3


def shrink_settings(settings: Settings) -> Settings:
    """Reduce everything to a few rows and steps, which tests the pipeline and not the model."""
    batch_sizes = {"sentiment": 8, "topics": 4, "qa": 2, "masked_lm": 4}
    short_rounds = []
    for round_settings in settings.rounds:
        short_round = replace(
            round_settings,
            steps=2,
            learning_rates=round_settings.learning_rates[:2],
            batch_sizes=batch_sizes,
        )
        short_rounds.append(short_round)
    return replace(
        settings,
        max_rows=500,
        pretraining_steps=2,
        pretraining_batch_size=8,
        rounds=tuple(short_rounds),
        evaluation_interval=2,
        num_held_out=dict.fromkeys(settings.num_held_out, 4),
    )
