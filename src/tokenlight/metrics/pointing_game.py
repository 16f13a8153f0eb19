"""Pointing game: does the highest score stand where the reason is?"""

from tokenlight.errors import BadInput
from tokenlight.metrics._marked import marked_tokens
from tokenlight.metrics._metric import Answers, Case, Measured, Metric
from tokenlight.metrics._ranking import ranked_among


class PointingGame(Metric):
    r"""1 where the token with the highest score lies in a marked span, else 0.

    .. math:: \bigl[\arg\max_i s_i \in \text{marked}\bigr]

    over tokens that are not special. For texts in which the right place is known: hybrid documents,
    glued of parts of several classes, point at the part of the class that is explained. ``chance``, a
    part, is what a random order reaches: the share of marked tokens. Higher is better. Poerner et
    al., ACL 2018.
    Differs from the paper: nothing.
    """

    cites = "poerner2018evaluating"
    marked = True
    asks = False

    def measure(self, case: Case, answers: Answers) -> Measured:  # noqa: ARG002 - asks nothing
        row, places = case.attribution.row, case.original.rankable
        gold = marked_tokens(row, case.spans or ())
        if not gold[places].any():
            raise BadInput("no token of this text is marked.")
        first = ranked_among(case.attribution.scores, places)[0]
        return Measured(float(gold[first]), parts={"chance": float(gold[places].mean())})
