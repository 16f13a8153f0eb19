"""AttnLRP: layer-wise relevance with rules made for attention."""

from tokenlight.lrp.rule_sets import ATTNLRP, ATTNLRP_RULES
from tokenlight.methods._relevance import InputRelevance


class AttentionAwareRelevance(InputRelevance):
    r"""How much each token's embedding contributed to the logit.

    .. math:: s_i = \sum_k R^0_{i,k}, \qquad R^0 = h^0\odot\tilde\nabla_{h^0}\,y

    :math:`R^0` (``batch token hidden``) is the relevance at h^0 of the logit's own value :math:`y`:
    h^0 times the gradient with a few gradients rewritten. A norm's deviation is a constant, the slope
    of an activation is output over input (0 where the input is below 1e-12), products of two
    activations leave half to each factor (attention: V 1/2, Q and K 1/4; a mixture of experts: half to
    an expert's output, half to its router's weight), the softmax is its own gradient; biases keep what
    they contributed. No n × n map is kept in memory. Achtibat et al., ICML 2024.
    Differs from the paper: relevance ends at h^0, after the embeddings' own sum and norm.

    Args:
        propagation: ``"rules"`` propagates relevance rule by rule, as the paper describes it, with the
            epsilon of its code (1e-6) in every denominator. It is slow, and equal in the limit of no
            epsilon.
    """

    cites = "achtibat2024attnlrp"
    gradient_rule_set = ATTNLRP
    explicit_rule_set = ATTNLRP_RULES
