"""Public names of the trust tests: ``from tokenlight.trust import assess_trust``."""

from tokenlight.data.trust import Trust, read_trust
from tokenlight.evaluation.trust import assess_trust, assess_trust_of_all

__all__ = ["Trust", "assess_trust", "assess_trust_of_all", "read_trust"]
