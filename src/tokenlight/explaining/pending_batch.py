"""A batch that the device is computing, and the Attributions it becomes."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import Tensor

from tokenlight.accel.transfer import AsyncTensor, Deferred
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import NotFinite
from tokenlight.explaining.attribution_fields import AttributionFields, build_shared_fields
from tokenlight.explaining.explain_options import ExplainOptions
from tokenlight.explaining.gc_pause import collect_young_generation
from tokenlight.explaining.pending_scores import PendingScores
from tokenlight.explaining.replay_batches import get_replayed_method
from tokenlight.explaining.session import Session
from tokenlight.explaining.text_result import AttributionsByMethod
from tokenlight.methods.base import MultiPassMethod
from tokenlight.model.objective import ArgmaxTargets, trim_logits
from tokenlight.model.runner import ModelRunner
from tokenlight.trace.record import record
from tokenlight.trace.recording import Recording
from tokenlight.trace.sites import Sites
from tokenlight.trace.tape import Tape


@dataclass(frozen=True, slots=True)
class PassLogits:
    """The logits of one forward pass on their way from the device; they hold no autograd graph."""

    rows: Sequence[TokenRow]
    logits: AsyncTensor
    has_attention_sink: bool = False

    def fetch_logits(self, runner: ModelRunner, sites: Sites) -> list[np.ndarray]:
        """Wait for the device and return the logits of each row."""
        values = self.logits.numpy()
        if not np.isfinite(values).all():
            # A recording of the same rows says which layer the first NaN comes from.
            record(runner, self.rows, sites).check_finite()
            raise NotFinite(
                "The model returns NaN or infinity for a text of the batch. Load it in a wider dtype "
                "(float32, float64).",
                code="batch-logits-not-finite",
            )
        return trim_logits(runner.head, values, self.rows)


@dataclass(frozen=True, slots=True)
class TargetRound:
    """The scores of a batch for one target per row.

    Attributes:
        targets: One target per row.
        scores: One entry per method.
        checks: Checks of values on the device; :meth:`run_deferred_checks` runs them once these arrive.
    """

    targets: Sequence[ResolvedTarget]
    scores: list[PendingScores]
    checks: list[Deferred]

    def run_deferred_checks(self) -> None:
        """Run the checks that had to wait for the device, such as that a read-out was found."""
        for check in self.checks:
            check(self.targets)

    def refresh(self, logits: AsyncTensor) -> "TargetRound":
        """Return the same round with the values of a replay."""
        targets = self.targets
        if isinstance(targets, ArgmaxTargets):
            targets = targets.refresh(logits)
        scores = [pending.refresh() for pending in self.scores]
        checks = [check.refresh() for check in self.checks]
        return TargetRound(targets, scores, checks)


@dataclass(frozen=True, slots=True)
class PendingResults:
    """What the device is computing for a batch: logits, and scores for each target.

    They do not refer to the session: it owns the captured graphs, which keep their results, and a
    reference back would keep all of them alive.

    Attributes:
        explained_pass: The forward pass that is explained.
        predicting_pass: The pass over the rows without an explain mask, which gives the predictions.
        targets_per_row: The number of targets of each row.
        rounds: One entry per target; rows with fewer targets than others repeat their last one.
    """

    explained_pass: PassLogits
    predicting_pass: PassLogits
    targets_per_row: list[int]
    rounds: list[TargetRound]

    def fetch_arrays(self) -> list[np.ndarray]:
        """Wait for the device and return all it computed: logits, then scores."""
        # In an order that a replay of the same shape repeats.
        arrays = [self.explained_pass.logits.numpy()]
        for target_round in self.rounds:
            arrays += [pending.values.numpy() for pending in target_round.scores]
        return arrays

    def refresh(self) -> "PendingResults":
        """Return the same results with the values of a replay."""
        logits = self.explained_pass.logits.refresh()
        return replace(
            self,
            explained_pass=replace(self.explained_pass, logits=logits),
            predicting_pass=replace(self.predicting_pass, logits=logits),
            rounds=[target_round.refresh(logits) for target_round in self.rounds],
        )


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """A batch that the device is computing, and the call that it belongs to.

    Attributes:
        session: The model, its tokenizer and its limits.
        options: Resolved keyword arguments of ``explain()``, with the methods.
        results: What the device is computing.
        notes: Notes for every Attribution of the batch.
    """

    session: Session
    options: ExplainOptions
    results: PendingResults
    notes: Sequence[str] = ()

    @classmethod
    def from_replay(
        cls,
        session: Session,
        options: ExplainOptions,
        results: PendingResults,
        rows: Sequence[TokenRow],
        fixed_targets: Sequence[ResolvedTarget] | None,
        token_mask: Tensor,
    ) -> "PendingBatch":
        """Return the batch of ``rows`` that a replay, or its eager pass, computed.

        Args:
            session: The model, its tokenizer and its limits.
            options: Resolved keyword arguments of ``explain()``, including methods that do not run the model.
            results: The results of the pass.
            rows: The rows that went through the model.
            fixed_targets: Their targets; None if the device picked the predicted classes.
            token_mask: ``batch token``, false at padding.
        """
        (target_round,) = results.rounds
        targets = target_round.targets if fixed_targets is None else fixed_targets
        explained_pass = replace(results.explained_pass, rows=rows)
        scores = _complete_scores(
            session.runner, explained_pass, targets, options, token_mask, target_round.scores
        )
        replayed_results = replace(
            results,
            explained_pass=explained_pass,
            predicting_pass=replace(results.predicting_pass, rows=rows),
            rounds=[TargetRound(targets, scores, target_round.checks)],
        )
        return cls(session, options, replayed_results)

    def fetch_attributions(self) -> list[AttributionsByMethod]:
        """Return the Attributions of each row.

        The objects are created while the device is still computing; only then is it waited for.
        """
        # Results and attributions are created empty and filled when the values arrive.
        results_by_method = self._prepare_results()
        attributions_by_row = self._build_lazy_attributions(results_by_method)
        # The launch left cycles behind; collect them while the device still computes.
        collect_young_generation()
        self._fill_results(results_by_method)
        return attributions_by_row

    def _prepare_results(self) -> list[list[AttributionFields]]:
        """Return, for each method, the results of each round, still without values."""
        results_by_method = []
        for method_index in range(len(self.options.methods)):
            method_results = []
            for target_round in self.results.rounds:
                note = target_round.scores[method_index].note
                method_results.append(
                    AttributionFields(
                        self.session,
                        self.results.explained_pass.rows,
                        self.results.explained_pass.has_attention_sink,
                        target_round.targets,
                        build_shared_fields(
                            self.session, self.options, method_index, [note, *self.notes]
                        ),
                    )
                )
            results_by_method.append(method_results)
        return results_by_method

    def _build_lazy_attributions(
        self, results_by_method: list[list[AttributionFields]]
    ) -> list[AttributionsByMethod]:
        attributions_by_row = []
        for row_index, num_targets in enumerate(self.results.targets_per_row):
            attributions_by_method: AttributionsByMethod = []
            for method_results in results_by_method:
                attributions = []
                for attribution_fields in method_results[:num_targets]:
                    build_fields = partial(attribution_fields.build_fields, row_index)
                    attributions.append(Attribution.lazy(build_fields))
                attributions_by_method.append(attributions)
            attributions_by_row.append(attributions_by_method)
        return attributions_by_row

    def _fill_results(self, results_by_method: list[list[AttributionFields]]) -> None:
        """Wait for the device, check its values and hand them to the results."""
        runner = self.session.runner
        rows = self.results.explained_pass.rows
        logits = self.results.explained_pass.fetch_logits(runner, self.options.recorded_sites)
        # Without an explain mask both passes are one.
        predicting_logits = logits
        if self.results.predicting_pass.logits is not self.results.explained_pass.logits:
            predicting_logits = self.results.predicting_pass.fetch_logits(runner, frozenset())
        for round_index, target_round in enumerate(self.results.rounds):
            target_round.run_deferred_checks()
            for method_index, pending in enumerate(target_round.scores):
                extras = pending.extras
                if isinstance(extras, Deferred):
                    extras = extras()
                scores, layer_scores = pending.fetch(rows)
                results_by_method[method_index][round_index].fill(
                    logits=logits,
                    predicting_logits=predicting_logits,
                    scores=scores,
                    layer_scores=layer_scores,
                    extras=extras,
                )


def _complete_scores(
    runner: ModelRunner,
    explained_pass: PassLogits,
    targets: Sequence[ResolvedTarget],
    options: ExplainOptions,
    token_mask: Tensor,
    scores: list[PendingScores],
) -> list[PendingScores]:
    """Add what no replay computes: methods that need nothing of the model, and further passes."""
    replayed_methods = list(map(get_replayed_method, options.methods))
    is_complete = len(scores) == len(options.methods)
    if is_complete and all(map(operator.is_, replayed_methods, options.methods)):
        return scores
    # An empty recording: these methods read only the rows, their lengths and their targets.
    recording = Recording(
        rows=tuple(explained_pass.rows),
        token_mask=token_mask,
        logits=token_mask.new_empty(0, dtype=runner.dtype),
        fetched_logits=explained_pass.logits,
        hidden_states=(),
        attention_maps=(),
        received_attention=(),
        sites=frozenset(),
        runner=runner,
        batch_tokens=options.batch_tokens,
    )
    tape = Tape(recording, targets)
    remaining_scores = iter(scores)
    all_scores = []
    for method, replayed_method in zip(options.methods, replayed_methods, strict=True):
        if not method.recorded_sites:
            all_scores.append(PendingScores(method, method.compute_scores(tape), tape))
            continue
        pending = next(remaining_scores)
        if isinstance(method, MultiPassMethod) and replayed_method is not method:
            first_pass = partial(_fetch_scores, pending, explained_pass.rows)
            pending = PendingScores(method, method.score_after_first_pass(tape, first_pass), tape)
        all_scores.append(pending)
    return all_scores


def _fetch_scores(pending: PendingScores, rows: Sequence[TokenRow]) -> np.ndarray:
    """Wait for the scores of a pass, ``batch token``."""
    scores, _ = pending.fetch(rows)
    return scores
