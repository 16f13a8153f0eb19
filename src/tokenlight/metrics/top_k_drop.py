"""Top-k drop: what an answer loses when the sources with the highest scores are removed."""

import numpy as np

from tokenlight.data.odds import compute_target_log_probability
from tokenlight.data.units import Unit
from tokenlight.metrics._perturbation import find_scored_units, remove_units
from tokenlight.plugin import Case, Count, Measurement, Metric, Variant, VariantOutputs


class TopKDrop(Metric):
    r"""Fall of the log-probability of the answer without its ``k`` highest-scored sources.

    .. math:: \ln p(R\mid C) - \ln p(R\mid C\setminus\{u_1,\dots,u_k\})

    :math:`R` is the explained answer, token or class; :math:`u_1, u_2, \dots` are the units of the text
    by falling sum of scores, all of them if there are fewer than k. Higher is better. Cohen-Wang et al.
    2024, section 4.
    Differs from the paper: nothing. As in ``context_cite``, question, chat template and answer always stay.

    Args:
        k: How many units are removed.
        units: What is removed as a whole: tokens, words, sentences, documents or roles.
    """

    k: Count = 1
    units: Unit = "sentence"
    cites = "cohenwang2024contextcite"
    needs_probability = True

    def build_variants(self, case: Case) -> list[Variant]:
        units, unit_scores = find_scored_units(case, self.units)
        # Stable: of units with equal scores, the first of the text is removed.
        top_units = np.argsort(-unit_scores, kind="stable")[: self.k]
        is_removed = np.isin(np.arange(len(units)), top_units)
        return [case.perturber.make_unperturbed(), *remove_units(case, units, is_removed[None])]

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:
        target = case.attribution.target
        (_, original_logits), (_, reduced_logits) = outputs
        original = compute_target_log_probability(case.head, target, original_logits)
        reduced = compute_target_log_probability(case.head, target, reduced_logits)
        return Measurement(original - reduced)
