"""Public names of evaluation/trust.py: ``from tokenlight.trust import assess_trust``."""

from tokenlight.evaluation.trust import assess_all, assess_trust

__all__ = ["assess_all", "assess_trust"]
