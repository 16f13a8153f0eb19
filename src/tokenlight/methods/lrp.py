"""LRP: relevance sent from the target's logit down to the input."""

from torch import Tensor

from tokenlight.methods._relevance import RuledRelevance, Site, Tape


class LayerwiseRelevance(RuledRelevance):
    r"""Relevance that arrives at each token's embedding.

    .. math:: s_i = \sum_k R^0_{i,k}, \qquad s_r = 0

    :math:`R^0` is the relevance at h^0 (``batch token hidden``) of 1 put in at the logit; :math:`r`
    the read-out token, for answers the first token (``zero_readout=False`` keeps it). Bach et al.
    2015, with the rules of Chefer et al., CVPR 2021: ``"ours"`` conserves; ``"orig"`` is their "original
    LRP", whose sums double in every linear layer; ``"gpt2_official"``, which ``preset="official"`` takes
    for models of Conv1D, is what the Mask-LRP code does to GPT-2.
    Differs from the paper: sums within each example; relevance of an answer position starts there alone
    (``qa_relevance="broadcast"``: laid over all tokens, as the official code does).
    """

    zero_readout: bool = True
    cites = "bach2015pixelwise"
    needs = frozenset({Site.RELEVANCE, Site.READOUT})

    def of_logit(self, tape: Tape) -> Tensor:
        scores = self.flow(tape).hidden[0].sum(dim=-1)
        return tape.without_readout(scores) if self.zero_readout else scores
