"""Soft sufficiency: how much is left as embeddings fade, least where scores are highest?"""

from tokenlight.metrics.soft_comprehensiveness import SoftComprehensiveness


class SoftSufficiency(SoftComprehensiveness):
    r"""Share of what the tokens give the class that stays as each is kept by its score (Soft-NS).

    .. math:: \frac{S(x')-S(x^0)}{1-S(x^0)}, \quad S(z)=1-\max(0,\,p(c\mid x)-p(c\mid z)), \quad
        e_{td}\sim\mathrm{Bernoulli}(a_t)

    The letters, the options and the part ``kept`` are those of soft comprehensiveness; here an element
    is kept with probability :math:`a_t`. Higher is better, other than with hard sufficiency. Zhao and
    Aletras, ACL 2023. Differs from the paper: as soft comprehensiveness does.
    """

    shows = True
