"""Trust, for users: ``from tokenlight.trust import trusted``. It lives in evaluation/trust.py."""

from tokenlight.evaluation.trust import all_trusted, trusted

__all__ = ["all_trusted", "trusted"]
