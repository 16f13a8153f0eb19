"""CP-LRP: relevance with attention maps and deviations held constant."""

from tokenlight.lrp.rule_sets import CP_LRP, CP_LRP_RULES
from tokenlight.methods._relevance import InputRelevance


class ConservativeRelevance(InputRelevance):
    r"""How much each token contributed to the logit through the values alone.

    .. math:: s_i = \sum_k R^0_{i,k}, \qquad R^0 = h^0\odot\tilde\nabla_{h^0}\,y

    :math:`R^0` (``batch token hidden``) is h^0 times the gradient of the logit's own value :math:`y`
    with attention maps and the norms' deviations as constants, so that queries and keys get no relevance.
    Ali et al., ICML 2022.
    Differs from the paper: activations pass relevance unchanged (slope: output over input, 0 where
    the input is below 1e-12), as in the comparison of Achtibat et al. 2024, where the paper takes
    gradient × input; gates, which it does not treat, halve it, a router's weights of experts among
    them; relevance ends at h^0. DecompX (Modarressi et al. 2023) without biases has the same scores.

    Args:
        propagation: As in attnlrp.
    """

    cites = "ali2022xai"
    gradient_rule_set = CP_LRP
    explicit_rule_set = CP_LRP_RULES
