"""Soft sufficiency: how much remains as embeddings are dropped, least where scores are highest?"""

from tokenlight.metrics.soft_comprehensiveness import SoftComprehensiveness


class SoftSufficiency(SoftComprehensiveness):
    r"""Share of the tokens' contribution that remains as each embedding is kept by its score (Soft-NS).

    .. math:: \frac{S(x')-S(x^0)}{1-S(x^0)}, \quad S(z)=1-\max(0,\,p(c\mid x)-p(c\mid z)), \quad
        e_{td}\sim\mathrm{Bernoulli}(a_t)

    Symbols, options and the part ``mean_keep_probability`` are those of soft comprehensiveness, but an
    element is kept with probability :math:`a_t`. Higher is better, unlike for hard sufficiency. Zhao and
    Aletras, ACL 2023.
    Differs from the paper: as soft comprehensiveness does.
    """

    keeps_top = True
