"""A resolved target: which weighted sum of one example's logits is explained."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from tokenlight.data.alternatives import describe_alternatives


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """A target of one example: ``value = Σ weight · logits[coordinate]``.

    Args:
        kind: What the coordinates are. A ``token`` is contrasted with its likely alternatives: its own
            term comes first, with weight 1. Those of a ``continuation`` are (token, 0), its logit, and
            (token, 1), ln Σ exp of the logits of all other tokens.
        name: The target as shown to users.
        terms: Pairs of a coordinate in the logits and its weight.
        alternatives: What a token is contrasted with, likeliest first; of a whole vocabulary the likeliest.
    """

    kind: Literal["class", "contrast", "span", "continuation", "token"]
    name: str
    terms: tuple[tuple[tuple[int, ...], float], ...]
    alternatives: tuple[str, ...] = ()

    def compute_value(self, logits: Any) -> Any:
        """Return the number that is explained, from this example's logits (array or tensor)."""
        return sum(weight * logits[coordinate] for coordinate, weight in self.terms)

    @property
    def index(self) -> int | None:
        """The index of the class, or the id of the token, that is explained; None for other targets."""
        return self.terms[0][0][0] if self.kind in ("class", "token") else None

    @property
    def title(self) -> str:
        """The name, and what a token is contrasted with: the question that the scores answer."""
        if self.is_log_odds:
            return f"{self.name} rather than anything else"
        if not self.alternatives:
            return self.name
        is_complete = len(self.alternatives) == len(self.terms) - 1
        others = describe_alternatives(self.alternatives, is_complete=is_complete)
        return f"{self.name} rather than {others}"

    @property
    def is_log_odds(self) -> bool:
        """Whether each token of a continuation is contrasted with all other tokens."""
        return self.kind == "continuation" and any(weight < 0 for _, weight in self.terms)

    @property
    def continuation_positions(self) -> list[int]:
        """Where the tokens of a continuation stand among its logits, each once."""
        return [coordinate[0] for coordinate, weight in self.terms if weight > 0]

    @property
    def logit_parts(self) -> list[tuple[float, Self]]:
        """The logits of this target as targets of their own, each with its weight.

        The alternatives of a token are one part, the mean of their logits, and not twenty.
        """
        if self.kind != "token":
            return [(weight, replace(self, terms=((i, 1.0),))) for i, weight in self.terms]
        token_term, *other_terms = self.terms
        if all(weight > 0 for _, weight in other_terms):
            return [(1.0, self)]  # one of the parts
        mean_terms = tuple((coordinate, -weight) for coordinate, weight in other_terms)
        return [(1.0, replace(self, terms=(token_term,))), (-1.0, replace(self, terms=mean_terms))]

    @property
    def sides(self) -> list[Self]:
        """The start and the end part of a span target; any other target unchanged."""
        if self.kind != "span":
            return [self]
        parts = []
        for side in (0, 1):
            # The coordinate of a span's logit is (token, side).
            terms = tuple(term for term in self.terms if term[0][1] == side)
            if terms:
                parts.append(replace(self, terms=terms))
        return parts
