"""Subset relevance: a one-pass read-out averaged over the text and random parts of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from torch import Tensor

from tokenlight.accel.transfer import AsyncTensor
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import Unit
from tokenlight.lrp.backward import backward_by_rules
from tokenlight.lrp.rules import Operation
from tokenlight.methods._perturbation import Baseline, pad_scores
from tokenlight.methods._sampling import ScoreSamples
from tokenlight.methods.attcat import AttentiveClassActivationTokens
from tokenlight.methods.base import (
    GRADIENT_RULE_SETS,
    Extras,
    Gradient,
    MultiPassMethod,
    check_activations,
)
from tokenlight.methods.cat import ClassActivationTokens
from tokenlight.methods.grad_x_input import GradientTimesInput
from tokenlight.perturb.partial_texts import (
    PartialText,
    RemovalMode,
    draw_kept_units,
    find_kept_tokens,
    group_removable_units,
    make_partial_text,
)
from tokenlight.plugin import BadInput, Count, Method, PassCounts, Range, Seed, Site, Tape
from tokenlight.progress import nested_progress
from tokenlight.trace.recording import Recording
from tokenlight.trace.row_batches import RowBatches, read_target_values

Readout = Literal["cat", "attcat", "embeddings"]
GRADIENTS_AT_STATES = frozenset({Site.HIDDEN_GRADIENT, Site.EMBEDDING_GRADIENT})


class SubsetRelevance(MultiPassMethod):
    r"""Mean relevance of each token over the text and random partial texts that hold the token.

    .. math:: s_i = \frac{1}{1 + |\{m : i \in S_m\}|} \Bigl( r_i(x) + \sum_{m:\, i \in S_m}
        r_i(x_{S_m}) \Bigr), \qquad m = 1 \dots M

    :math:`S_m` keeps each unit with probability p; :math:`x_S`, ``token``, is the text without the other
    units; :math:`r_i(x_S)` is the share of token i in the target by one forward and one rewritten backward
    pass over :math:`x_S`, such as that of cat. All partial texts are read for the target of the whole text.
    Special tokens, templates, the question about a context, an answer span and written text are in every
    partial text. Draws are balanced: each unit is in :math:`pM` of the M partial texts, rounded at random.

    What it estimates: let :math:`f(p)` be the expected target where each unit stays with probability p. Its
    derivative in the presence of unit i, the mean of :math:`y(x_{S\cup i}) - y(x_{S\setminus i})`, is the
    Banzhaf value for p = ½, and its integral over p from 0 to 1 the Shapley value (Owen 1972). Both need two
    passes per token and set; :math:`r_i` stands for that difference to first order, for all tokens in one
    backward pass. So the score lies between a gradient, which knows the whole text alone, and a Shapley
    value, which knows all parts of it. It equals cat, attcat or grad_x_input with the same ``gradient`` for
    ``num_samples=0`` or ``keep_probability=1``; with ``readout="embeddings"`` these are cp_lrp
    (``gradient="cp"``) and attnlrp (``gradient="attnlrp"``). It equals the Shapley value, the Banzhaf value
    and occlusion of single tokens where the target is a sum of one term per token and the read-out returns
    the terms.

    Uncertainty: ``standard_errors`` has a standard error for every score, from the spread over partial texts.
    ``extras["sampling"]`` has the number of partial texts; ``stability``, the share of the top ``top_k``
    tokens that would be expected again with other draws; and ``self_test``, which costs no pass: the
    correlation between the target of partial texts and the sum of their tokens' scores, where the scores
    come from the other half of the partial texts.

    Differs from the paper: the paper is about exact marginal contributions; rewritten gradients in
    their place, the whole text among the samples, and the balanced draws are our own.

    Args:
        num_samples: The number of partial texts M; 0 reads the whole text alone. With ``stable``, of each
            round.
        keep_probability: The probability p that a unit stays.
        gradient: Which gradient is read: as in cat. ``"cp"`` treats attention maps and the norms'
            deviations as constants, and the slope of an activation is output over input.
        readout: ``"cat"`` sums gradient × hidden state over layers, ``"attcat"`` weights each layer by the
            attention that a token receives, ``"embeddings"`` reads h^0 alone.
        units: What is kept or removed as a whole: tokens, words, sentences, documents or roles. Scores are
            still those of tokens.
        removal: How units go: ``"delete"`` closes the gap, which is fastest; ``"hide"`` puts [MASK] there
            and sets its attention mask to 0; ``"replace"`` puts ``baseline`` there. Patches of an image are
            occluded.
        baseline: The token for ``removal="replace"``.
        stable: Go on in rounds until ``stability`` reaches this share, or ``max_samples``; each text
            takes as many rounds as it needs.
        top_k: The number of tokens whose ``stability`` is measured.
        max_samples: The most partial texts of a text with ``stable``.
        seed: Seed of the partial texts.
    """

    num_samples: Annotated[int, Range(0, 1 << 20)] = 8
    keep_probability: Annotated[float, Range(0.01, 1)] = 0.5
    gradient: Gradient = "cp"
    readout: Readout = "cat"
    units: Unit = "token"
    removal: RemovalMode = "delete"
    baseline: Baseline = "pad"
    stable: Annotated[float, Range(0, 1)] | None = None
    top_k: Count = 5
    max_samples: Count = 128
    seed: Seed = 0
    cites = "owen1972multilinear"
    stochastic = True
    supports_encoder_decoder = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if "baseline" in self.options and self.removal != "replace":
            raise BadInput(
                f"baseline={self.baseline!r} is the token that removal='replace' puts in place of others, "
                f"but removal={self.removal!r}. Leave out the baseline, or set removal='replace'.",
                code="baseline-without-replace",
            )
        if self.stable is not None and self.num_samples == 0:
            raise BadInput(
                "stable needs partial texts to compare, but num_samples=0 draws none. Give at least 1 sample "
                "per round.",
                code="stable-without-samples",
            )

    @cached_property
    def _readout_method(self) -> Method:
        """The method that scores one pass."""
        if self.readout == "cat":
            return ClassActivationTokens(gradient=self.gradient)
        if self.readout == "attcat":
            return AttentiveClassActivationTokens(gradient=self.gradient)
        return GradientTimesInput(gradient=self.gradient)

    @property
    def needs(self) -> frozenset[Site]:
        sites = self._readout_method.needs
        rules = GRADIENT_RULE_SETS.get(self.gradient)
        if rules is None:
            return sites
        if Operation.ACTIVATION not in rules.rules:
            # Activations keep their own slope, which is recorded only for gradients at hidden states.
            return sites | {Site.RELEVANCE_GRADIENT}
        # The rewritten gradient is taken here, once; the model's own is not computed.
        return (sites - GRADIENTS_AT_STATES) | {Site.RELEVANCE_GRADIENT}

    @property
    def family(self) -> str:
        return "many passes"

    def count_passes(self, num_tokens: int) -> PassCounts:  # noqa: ARG002 - passes do not depend on the length
        num_passes = 1 + self._max_samples
        return PassCounts(num_passes, num_passes)

    @property
    def first_pass(self) -> Method | None:
        if self.num_samples == 0:
            return None
        return SubsetRelevance(num_samples=0, gradient=self.gradient, readout=self.readout)

    def __call__(self, tape: Tape) -> Tensor:
        if self.num_samples == 0:
            return self._score_whole_texts(tape)
        return pad_scores(tape, [samples.mean for samples in self._collect_samples(tape)])

    def score_after_first_pass(self, tape: Tape, fetch_scores: Callable[[], np.ndarray]) -> Tensor:
        samples_by_text = tape.extra_passes.compute_once(
            self, lambda: self._draw_samples(tape, fetch_scores)
        )
        return pad_scores(tape, [samples.mean for samples in samples_by_text])

    def measure_extras(self, tape: Tape) -> Extras:
        if self.num_samples == 0:
            return None
        return [samples.to_extras(self.top_k) for samples in self._collect_samples(tape)]

    def _collect_samples(self, tape: Tape) -> list[ScoreSamples]:
        """Return the samples of each example, drawn once per tape."""

        def draw() -> list[ScoreSamples]:
            # On their way from the device while the partial texts are drawn.
            whole_scores = AsyncTensor(self._score_whole_texts(tape))
            return self._draw_samples(tape, whole_scores.numpy)

        return tape.extra_passes.compute_once(self, draw)

    def _score_whole_texts(self, tape: Tape) -> Tensor:
        """Return the read-out of the pass that the tape is of, ``batch token``."""
        if self.gradient == "model":  # whose gradient the tape has already
            return _sum_layers(self._readout_method(tape))
        check_activations(tape.recording.runner.model, self.name)
        return self._score_pass(tape.recording, tape.targets)

    def _score_pass(self, recording: Recording, targets: Sequence[ResolvedTarget]) -> Tensor:
        """Return the read-out of a recorded pass, ``batch token``, by one backward pass."""
        rules = GRADIENT_RULE_SETS.get(self.gradient)
        # Of this read-out alone: constant attention maps have no gradient that others could read.
        sites = self._readout_method.needs
        with backward_by_rules(recording.backward_mode, rules):
            tape = replace(recording, sites=sites).make_tape(targets, release_graph=True)
        return _sum_layers(self._readout_method(replace(tape, gradient_rules=rules)))

    def _read_partial_texts(
        self, recording: Recording, targets: Sequence[ResolvedTarget]
    ) -> tuple[Tensor, Tensor]:
        """Return the read-out of each partial text, ``batch token``, and its target's value, ``batch``."""
        # The value first: the backward pass releases the graph.
        values = read_target_values(recording, targets)
        return self._score_pass(recording, targets), values

    def _draw_samples(
        self, tape: Tape, fetch_whole_scores: Callable[[], np.ndarray]
    ) -> list[ScoreSamples]:
        replacement_id = self._choose_replacement_id(tape)
        texts = []
        for index, (row, target) in enumerate(zip(tape.rows, tape.targets, strict=True)):
            samples = ScoreSamples(row, self.seed)
            texts.append(
                _SampledText(
                    method=self,
                    row=row,
                    target=target,
                    samples=samples,
                    units=self._find_units(tape, index),
                )
            )
        with nested_progress(self._describe_work(), len(texts) * self._max_samples) as advance:
            self._run_round(tape, texts, replacement_id, advance)
            for text, scores in zip(texts, fetch_whole_scores(), strict=True):
                text.samples.set_whole_scores(scores[: len(text.row)])
            unstable = [text for text in texts if self._needs_more(text)]
            while unstable:
                self._run_round(tape, unstable, replacement_id, advance)
                unstable = [text for text in unstable if self._needs_more(text)]
        return [text.samples for text in texts]

    @property
    def _max_samples(self) -> int:
        """The most partial texts of a text."""
        return self.num_samples if self.stable is None else max(self.num_samples, self.max_samples)

    def _describe_work(self) -> str:
        if self.stable is None:
            return "partial texts"
        return f"partial texts, until the top {self.top_k} are stable"

    def _needs_more(self, text: "_SampledText") -> bool:
        if self.stable is None or not len(text.units):
            return False
        num_drawn = text.num_rounds * self.num_samples
        if num_drawn + self.num_samples > self.max_samples:
            return False
        return text.samples.compute_stability(self.top_k) < self.stable

    def _run_round(
        self,
        tape: Tape,
        texts: "Sequence[_SampledText]",
        replacement_id: int,
        advance: Callable[[float], None],
    ) -> None:
        """Draw ``num_samples`` further partial texts of each text and add their scores."""
        # Partial texts of all texts are sorted into common batches, so that short ones of a long text share a
        # pass with those of short texts. ``owners`` finds the way back.
        owners: list[_SampledText] = []
        partial_texts: list[PartialText] = []
        for text in texts:
            for partial_text in text.draw_partial_texts(replacement_id):
                owners.append(text)
                partial_texts.append(partial_text)
        if not partial_texts:
            return
        targets = []
        for text, partial_text in zip(owners, partial_texts, strict=True):
            targets.append(partial_text.move_target(text.target))

        batches = RowBatches(
            runner=tape.recording.runner,
            rows=[partial_text.row for partial_text in partial_texts],
            targets=targets,
            sites=self.recorded_sites,
            read=self._read_partial_texts,
            read_key=(self.name, self.gradient, self.readout),
            batch_tokens=tape.recording.batch_tokens,
        )
        # The samples of a text are kept in the order in which they were drawn, whatever the batches.
        results: dict[int, tuple[np.ndarray, float]] = {}
        for indices, batch_results in batches.run(advance):
            scores, values = batch_results.fetch_arrays()
            for line, index in enumerate(indices):
                results[index] = scores[line], float(values[line])
        for index, (text, partial_text) in enumerate(zip(owners, partial_texts, strict=True)):
            scores_of_row, value = results[index]
            # Deleted tokens shift those behind them: scores are put back where the tokens stand in the text.
            text.samples.add(
                partial_text.original_positions, scores_of_row[partial_text.positions], value
            )

    def _find_units(self, tape: Tape, index: int) -> np.ndarray:
        """Return ``unit token``: the units of one example that a partial text may lack."""
        row = tape.rows[index]
        is_kept = find_kept_tokens(
            row,
            tape.targets[index],
            reads_last_token=tape.recording.runner.head.task == "text-generation",
        )
        return group_removable_units(row, self.units, is_kept)

    def _choose_replacement_id(self, tape: Tape) -> int:
        if self.removal == "replace":
            return tape.extra_passes.find_baseline_id(self.baseline)
        if self.removal == "hide" and tape.recording.runner.patch_inputs is None:
            return tape.extra_passes.find_baseline_id("mask")
        return 0  # nothing is replaced


def _sum_layers(scores: Tensor) -> Tensor:
    """Return scores as ``batch token``, whether or not they have a layer axis."""
    return scores.sum(dim=1) if scores.ndim == 3 else scores


@dataclass(eq=False)
class _SampledText:
    """One example, its units, and the samples drawn so far."""

    method: SubsetRelevance
    row: TokenRow
    target: ResolvedTarget
    samples: ScoreSamples
    units: np.ndarray
    num_rounds: int = 0

    def draw_partial_texts(self, replacement_id: int) -> list[PartialText]:
        """Draw the partial texts of the next round; one that keeps no unit is left out."""
        method = self.method
        generator = self.row.make_generator(method.seed, self.num_rounds)
        self.num_rounds += 1
        num_units = len(self.units)
        is_kept = draw_kept_units(generator, num_units, method.num_samples, method.keep_probability)
        partial_texts = []
        for kept_units in is_kept:
            if kept_units.any():
                is_removed = self.units[~kept_units].any(axis=0)
                partial_texts.append(
                    make_partial_text(self.row, is_removed, method.removal, replacement_id)
                )
        return partial_texts
