"""Public names of the trust tests: ``from tokenlight.trust import assess_trust``."""

from tokenlight.data.trust import Trust, read_trust
from tokenlight.evaluation.trust import assess_all, assess_trust

__all__ = ["Trust", "assess_all", "assess_trust", "read_trust"]
