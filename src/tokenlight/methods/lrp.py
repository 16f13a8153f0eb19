"""LRP: relevance propagated from the target's logit to the input."""

from torch import Tensor

from tokenlight.methods._relevance import RuleBasedRelevance
from tokenlight.plugin import Site, Tape


class LayerwiseRelevance(RuleBasedRelevance):
    r"""Relevance that arrives at each token's embedding.

    .. math:: s_i = \sum_k R^0_{i,k}, \qquad s_r = 0

    :math:`R^0` is the relevance at h^0 (``batch token hidden``) for a relevance of 1 at the logit;
    :math:`r` is the read-out token, for answers the first token. Bach et al. 2015, with the rules of
    Chefer et al., CVPR 2021.
    Differs from the paper: sums run within each example; the relevance of an answer starts at its position
    alone.

    Args:
        zero_readout: Set :math:`s_r = 0`.
        rules: ``"chefer"`` conserves relevance; ``"chefer_orig"`` is the "original LRP" of Chefer et al.,
            whose sums double in every linear layer; ``"mask_lrp_gpt2"``, which ``preset="official"`` takes
            for models of Conv1D, is what the Mask-LRP code does for GPT-2.
        qa_relevance: ``"broadcast"`` starts the relevance of an answer at all tokens, as the official code
            does.
    """

    zero_readout: bool = True
    cites = "bach2015pixelwise"
    reads_maps = False
    needs = frozenset({Site.RELEVANCE, Site.READOUT})

    def score_logit(self, tape: Tape) -> Tensor:
        scores = self.propagate(tape).hidden_states[0].sum(dim=-1)
        if self.zero_readout:
            scores = tape.zero_readout_token(scores)
        return scores
