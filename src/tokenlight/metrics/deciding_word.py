"""Deciding word: is the word that is known to decide the one with the highest score?"""

import numpy as np

from tokenlight.data.annotations import find_annotated_tokens
from tokenlight.data.ranks import compute_midranks
from tokenlight.data.units import group_by_unit
from tokenlight.plugin import BadInput, Case, Measurement, Metric, VariantOutputs


class DecidingWord(Metric):
    r"""1 if the marked word has the highest score of all words, else 0.

    .. math:: \bigl[\arg\max_w s_w \in \text{marked}\bigr], \qquad s_w = \sum_{i\in w} s_i

    over the words of the text, without special tokens; k words that share the highest score count as 1/k
    each. Of two prompts that differ in one word and that a language model answers differently, that word
    decided. The parts: ``rank`` of the best marked word (equal scores share their mean rank) and
    ``reciprocal_rank``; its ``share`` of :math:`\sum_w |s_w|`; ``chance``, the share of marked words,
    which a random order reaches. Higher is better. Yin and Neubig, EMNLP 2022.
    Differs from the paper: what is known to decide is the word in which two prompts differ, not a word
    that a linguistic rule finds; scores are summed by word.
    """

    cites = "yin2022interpreting"
    informational = ("rank", "chance")
    needs_spans = True
    needs_model = False

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:  # noqa: ARG002 - runs no model
        row = case.attribution.row
        is_marked_token = find_annotated_tokens(row, case.spans or ())
        words = group_by_unit(row, "word")
        scores = np.array([case.attribution.scores[word].sum() for word in words])
        is_marked = np.array([is_marked_token[word].any() for word in words], dtype=bool)
        if not is_marked.any():
            raise BadInput(
                "The text has no marked word. Give the span of the word that decides, or leave the text out.",
                code="no-deciding-word",
            )
        is_top = scores == scores.max()
        # compute_midranks counts from the lowest score; here rank 1 is the highest.
        ranks = compute_midranks(-scores)
        rank = float(ranks[is_marked].min())
        total = float(np.abs(scores).sum())
        share = float(np.abs(scores[is_marked]).sum()) / total if total else 0.0
        parts = {
            "rank": rank,
            "reciprocal_rank": 1 / rank,
            "share": share,
            "chance": float(is_marked.mean()),
        }
        return Measurement(float(is_marked[is_top].mean()), parts=parts)
