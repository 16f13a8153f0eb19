"""Pointing game: does the highest score stand where the reason is?"""

import numpy as np

from tokenlight.errors import BadInput
from tokenlight.metrics._metric import Answers, Case, Measured, Metric
from tokenlight.metrics._ranking import marked_tokens, ranked_among


class PointingGame(Metric):
    r"""1 where the token with the highest score lies in a marked span, else 0.

    .. math:: \bigl[\arg\max_i s_i \in \text{marked}\bigr]

    over tokens that are not special, of a pair or a question those of the part that has marks. For
    texts in which the right place is known: hybrid documents, glued of parts of several classes, point
    at the part of the explained class; of several passages, at the one that holds the answer.
    ``chance``, a part, is what a random order reaches: the share of marked tokens. Poerner et al., ACL
    2018. Differs from the paper: it has no questions.
    """

    cites = "poerner2018evaluating"
    asides = ("chance",)
    marked = True
    asks = False

    def measure(self, case: Case, answers: Answers) -> Measured:  # noqa: ARG002 - asks nothing
        row, spans = case.attribution.row, case.spans or ()
        parts = {part for part, _, _ in spans}
        own = [i for i in case.original.rankable if row.segments[i] in parts]
        places = np.array(own, dtype=int)
        gold = marked_tokens(row, spans)
        if not gold[places].any():
            raise BadInput("no token of this text is marked.")
        first = ranked_among(case.attribution.scores, places)[0]
        return Measured(float(gold[first]), parts={"chance": float(gold[places].mean())})
