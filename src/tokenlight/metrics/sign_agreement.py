"""Sign agreement: do words in favor of the class have positive scores, and others negative ones?"""

import numpy as np

from tokenlight.data.annotations import find_annotated_tokens
from tokenlight.plugin import BadInput, Case, Measurement, Metric, VariantOutputs


class SignAgreement(Metric):
    r"""Share of the marked words with a score of the sign that their polarity requires.

    .. math:: \frac1{|M|}\sum_{w\in M} \bigl[\pi \sum_{i\in w} s_i > 0\bigr]

    M are the marked spans of a text, each a word. :math:`\pi` is 1 if the label of the text is the explained
    class, and −1 if it is another: a text is given twice, with its positive words and the label positive,
    and with its negative words. A score of zero is wrong. The part ``chance`` is what the same signs would
    reach at random positions: the share of tokens that are not special with a score of that sign. Higher is
    better. Polarities are those of the leaves of the Stanford Sentiment Treebank, Socher et al. 2013.
    Differs from the paper: it has the polarities, not this measure, which is our own.
    """

    cites = "socher2013recursive"
    informational = ("chance",)
    needs_spans = True
    needs_labels = True
    needs_model = False

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:  # noqa: ARG002 - runs no model
        polarity = self._get_polarity(case)
        scores = case.attribution.scores
        word_scores = []
        for span in case.spans or ():
            # A word may have several tokens; their sum counts.
            is_in_word = find_annotated_tokens(case.attribution.row, (span,))
            if is_in_word.any():
                word_scores.append(float(scores[is_in_word].sum()))
        if not word_scores:
            raise BadInput(
                "The text has no marked word. Give spans for it, or leave it out.",
                code="no-marked-word",
            )
        has_right_sign = [polarity * score > 0 for score in word_scores]
        chance = float(np.mean(polarity * scores[case.perturber.rankable_positions] > 0))
        return Measurement(float(np.mean(has_right_sign)), parts={"chance": chance})

    def _get_polarity(self, case: Case) -> float:
        """Return 1 if the marked words speak for the explained class, else −1."""
        if case.label is None:
            raise BadInput(
                "The text has no label, which gives the polarity of its marked words. Give one.",
                code="no-polarity",
            )
        explained_class = case.attribution.target.index
        if explained_class is None:
            raise BadInput(
                "Signs belong to one class, but a contrast or span was explained. Explain a class.",
                code="signs-without-class",
            )
        return 1.0 if case.label == explained_class else -1.0
