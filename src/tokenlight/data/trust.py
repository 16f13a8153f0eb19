"""The result of the trust tests as data, and whether it still belongs to the scores next to it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution

DIGEST_BYTES = 12
# The grades are written to files; do not change them.
FAITHFUL = "faithful"
BETTER_THAN_CHANCE = "better than chance"
INCONCLUSIVE = "cannot tell"
NO_BETTER_THAN_CHANCE = "no better than chance"
WORSE_THAN_CHANCE = "worse than chance"
UNTESTED = "untested"
# From the best to the worst, as reports sort them.
GRADES = (
    FAITHFUL,
    BETTER_THAN_CHANCE,
    INCONCLUSIVE,
    NO_BETTER_THAN_CHANCE,
    WORSE_THAN_CHANCE,
    UNTESTED,
)
GOOD_GRADES = (FAITHFUL, BETTER_THAN_CHANCE)
UNDECIDED_GRADES = (INCONCLUSIVE, UNTESTED)
OUTDATED_VERDICT = (
    "not graded: the scores, the text or the target changed after the test; "
    "assess the explanation again"
)


@dataclass(frozen=True)
class Trust:
    """What the trust tests found about one explanation.

    Attributes:
        grade: ``faithful``, ``better than chance``, ``cannot tell``, ``no better than chance``,
            ``worse than chance`` or ``untested``.
        verdict: The reason for the grade, in a sentence.
        findings: The numbers behind it, one sentence per removal.
        health_line: The health checks in one line.
        top_words: The words with the highest scores.
        num_words: Number of words in the text; None without a test.
        num_orders: Number of random orders that were tried under each removal; None without a test.
        before: Probability of the target in the whole text; None without a test.
        after: Probability without the top words, when they are deleted; None without a test.
        joint_rank: Share of shuffled scores that predict the partial texts less well; None without a test.
        zero_shift: How far the zero of the scores is off, in standard deviations; None without signs.
        is_outdated: Whether the scores, the text or the target changed after the test. The grade is then
            ``untested``.

    Example:
        >>> from tokenlight import Explainer
        >>> from tokenlight.trust import assess_trust, read_trust
        >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
        >>> attribution = explainer.explain("I do not like this movie.")
        >>> read_trust(assess_trust(explainer, attribution)).top_words[0]
        'not'
    """

    grade: str
    verdict: str
    findings: tuple[str, ...] = ()
    health_line: str = ""
    top_words: tuple[str, ...] = ()
    num_words: int | None = None
    num_orders: int | None = None
    before: float | None = None
    after: float | None = None
    joint_rank: float | None = None
    zero_shift: float | None = None
    is_outdated: bool = False


def read_trust(attribution: Attribution) -> Trust | None:
    """Return the result of :func:`tokenlight.trust.assess_trust`, checked against the explanation.

    Args:
        attribution: An explanation, also one from a file.

    Returns:
        The result; None if the explanation was not tested.

    Example:
        >>> from tokenlight import Explainer
        >>> from tokenlight.trust import assess_trust, read_trust
        >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
        >>> attribution = explainer.explain("A warm and funny film, never dull.", "attcat")
        >>> read_trust(attribution) is None
        True
        >>> read_trust(assess_trust(explainer, attribution)).is_outdated
        False
    """
    values: Any = attribution.extras.get("trust")
    if not isinstance(values, Mapping):
        return None
    if is_outdated(attribution):
        return Trust(UNTESTED, OUTDATED_VERDICT, is_outdated=True)
    findings: Any = values.get("findings")
    top_words: Any = values.get("top_words")
    return Trust(
        grade=str(values.get("grade", UNTESTED)),
        verdict=str(values.get("verdict") or ""),
        findings=tuple(map(str, findings)) if isinstance(findings, list) else (),
        health_line=str(values.get("health_line") or ""),
        top_words=tuple(map(str, top_words)) if isinstance(top_words, list) else (),
        num_words=values.get("num_words"),
        num_orders=values.get("num_orders"),
        before=values.get("before"),
        after=values.get("after"),
        joint_rank=values.get("joint_rank"),
        zero_shift=values.get("zero_shift"),
    )


def is_outdated(attribution: Attribution) -> bool:
    """Return whether the explanation changed after its test; files of earlier versions cannot tell."""
    values: Any = attribution.extras.get("trust")
    digests = values.get("digests") if isinstance(values, Mapping) else None
    if not isinstance(digests, Mapping):
        return False
    # Merged words show the same explanation: their sums are what was tested.
    is_merged = any(step.startswith("merge_words") for step in attribution.steps)
    unit = "words" if is_merged else "tokens"
    return digests.get(unit) != compute_digests(attribution)[unit]


def compute_digests(attribution: Attribution) -> dict[str, str]:
    """Digest the text, the target and the scores: of tokens, and of words."""
    target = repr((attribution.target.name, attribution.target.terms))
    words = attribution.words()
    word_text = repr([word.strip() for word, _ in words])
    return {
        "tokens": _digest(attribution.row.fingerprint, target, attribution.scores),
        "words": _digest(word_text, target, np.array([score for _, score in words])),
    }


def _digest(text: str, target: str, scores: np.ndarray) -> str:
    digest = hashlib.blake2b(f"{text}\n{target}\n".encode(), digest_size=DIGEST_BYTES)
    # Some files keep single precision.
    digest.update(np.asarray(scores, dtype="<f4").tobytes())
    return digest.hexdigest()
