"""Sign agreement: do words that speak for the class have positive scores, and others negative ones?"""

import numpy as np

from tokenlight.errors import BadInput
from tokenlight.metrics._metric import Answers, Case, Measured, Metric
from tokenlight.metrics._ranking import marked_tokens


class SignAgreement(Metric):
    r"""Share of the marked words whose score has the sign that their polarity demands.

    .. math:: \frac1{|M|}\sum_{w\in M} \bigl[\pi \sum_{i\in w} s_i > 0\bigr]

    M: the marked spans of a text, each a word; :math:`\pi` is 1 where the text's label is the explained
    class, −1 where it is another: a text comes twice, with its positive words and the label positive, and
    with its negative words. A score of zero is wrong. ``chance``, a part, is what the same signs would
    reach in random places: the share of the tokens that are not special whose score has the sign.
    Polarities are those of the leaves of the Stanford Sentiment Treebank, Socher et al. 2013.
    Differs from the paper: it has the polarities, not this measure, which is our own.
    """

    cites = "socher2013recursive"
    asides = ("chance",)
    marked = True
    labelled = True
    asks = False

    def measure(self, case: Case, answers: Answers) -> Measured:  # noqa: ARG002 - asks nothing
        if case.label is None:
            raise BadInput("the text has no label, which says the polarity of its marked words.")
        explained = case.attribution.target.index
        if explained is None:
            raise BadInput("signs are of one class; explain a class, not a contrast or span.")
        pi = 1.0 if case.label == explained else -1.0
        scores, row = case.attribution.scores, case.attribution.row
        words = [marked_tokens(row, (span,)) for span in case.spans or ()]
        sums = [float(scores[word].sum()) for word in words if word.any()]
        if not sums:
            raise BadInput("no token of this text is marked.")
        own = scores[case.original.rankable]
        chance = float(np.mean(pi * own > 0))
        return Measured(float(np.mean([pi * one > 0 for one in sums])), parts={"chance": chance})
