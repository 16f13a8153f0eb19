"""Pointing game: is the highest score where the reason is?"""

import numpy as np

from tokenlight.data.annotations import find_annotated_tokens
from tokenlight.data.ranks import rank_subset
from tokenlight.plugin import BadInput, Case, Measurement, Metric, VariantOutputs


class PointingGame(Metric):
    r"""1 if the token with the highest score is inside a marked span, else 0.

    .. math:: \bigl[\arg\max_i s_i \in \text{marked}\bigr]

    over tokens that are not special; in a pair or a question, over those of the part with marks. It is for
    texts with a known reason: hybrid documents, joined from parts of several classes, point at the part of
    the explained class; several passages, at the one with the answer. The part ``chance`` is what a random
    order reaches: the share of marked tokens. Higher is better. Poerner et al., ACL 2018.
    Differs from the paper: it has no questions.
    """

    cites = "poerner2018evaluating"
    informational = ("chance",)
    needs_spans = True
    needs_model = False

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:  # noqa: ARG002 - runs no model
        row = case.attribution.row
        spans = case.spans or ()
        marked_segments = {segment for segment, _, _ in spans}
        is_marked = find_annotated_tokens(row, spans)
        # Only the part of a pair with marks is searched.
        candidates = []
        for position in case.perturber.rankable_positions:
            if row.segments[position] in marked_segments:
                candidates.append(position)
        positions = np.array(candidates, dtype=int)
        if not is_marked[positions].any():
            raise BadInput(
                "The text has no marked token to point at. Give spans for it, or leave it out.",
                code="no-token-to-point-at",
            )
        top_position = rank_subset(case.attribution.scores, positions)[0]
        chance = float(is_marked[positions].mean())
        return Measurement(float(is_marked[top_position]), parts={"chance": chance})
