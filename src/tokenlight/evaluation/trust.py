"""Trust: can one explanation be believed? Its removal test against chance, and its health."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tokenlight import registry
from tokenlight.data.attribution import Attribution
from tokenlight.data.image import HIDDEN
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import TokenlightError
from tokenlight.evaluation.grade import UNTESTED
from tokenlight.evaluation.measure import PASSES, refuse_other_model
from tokenlight.evaluation.removal import CHOICES, ORDERS, TOP, RemovalTest
from tokenlight.explainer import Explainer

Check = tuple[str, str]  # good, doubtful or bad; in words
LEAK = 1e-3  # of the relevance may be lost or made before it is said


def trusted(  # noqa: PLR0913 - the keywords users set, each by name
    explainer: Explainer,
    attribution: Attribution,
    *,
    orders: int = ORDERS,
    choices: int = CHOICES,
    top: int = TOP,
    seed: int = 0,
    repeat: bool = True,
) -> Attribution:
    """The same explanation with ``extras["trust"]``: verdict, grade, percentile and health.

    ``orders``: random orders its AOPC is compared with; ``choices``: random choices of ``top`` words
    the verdict compares with; ``repeat``: explain once more in a batch, to see that neighbours do
    not change it. If the model gives no probability, the verdict says so.
    """
    return _trusted(RemovalTest(explainer, seed, (orders, choices, top)), attribution, repeat)


def all_trusted(
    explainer: Explainer,
    attributions: Sequence[Attribution],
    *,
    seed: int = 0,
    advance: Callable[[int], None] | None = None,
) -> list[Attribution]:
    """:func:`trusted` for each. Explanations of one text are compared with the same random orders and
    choices, about which the model is asked once."""
    test, found = RemovalTest(explainer, seed), list[Attribution]()
    for attribution in attributions:
        found.append(_trusted(test, attribution, True))
        if advance is not None:
            advance(1)
    return found


def _trusted(test: RemovalTest, attribution: Attribution, repeat: bool) -> Attribution:
    refuse_other_model(test.explainer, attribution)
    checks = health(test.explainer, attribution, repeat=repeat)
    try:
        found = test(attribution)
    except TokenlightError as refused:
        found = {"verdict": f"not tested: {refused}", "grade": UNTESTED}
    trust = {**found, "health": checks, "health_line": " · ".join(c["says"] for c in checks)}
    return replace(attribution, extras={**attribution.extras, "trust": trust})


def health(explainer: Explainer, attribution: Attribution, *, repeat: bool) -> list[dict[str, str]]:
    """Checks as {check, state, says}: conservation (where the method claims it), batch invariance
    (``repeat``: explained once more beside a longer text), truncation, ties."""
    found: dict[str, Check | None] = {}
    kept: Any = attribution.extras.get("conservation")
    if isinstance(kept, list) and kept:
        worst = max(kept, key=lambda share: abs(share - 1))
        lost = f"relevance kept to {worst:.3f}, biases and the softmax take or add the rest"
        good = abs(worst - 1) <= LEAK
        found["conservation"] = ("good", "relevance conserved") if good else ("doubtful", lost)
    if repeat:
        found["batch"] = _batch(explainer, attribution)
    cut, whole = attribution.row.cut, attribution.row.cut + len(attribution)
    lost = f"{cut} of {whole} tokens cut off"
    found["truncation"] = ("doubtful", lost) if cut else ("good", "nothing cut off")
    # Tokens that share their score with another: their order among themselves is arbitrary.
    scores = attribution.scores[~np.array(attribution.row.special, dtype=bool)]
    _, sizes = np.unique(scores, return_counts=True)
    tied = int(sizes[sizes > 1].sum())
    said = f"{tied} of {len(scores)} tokens tie with another"
    found["ties"] = ("doubtful", said) if tied else ("good", "no ties")
    if tied and len(sizes) == 1:
        found["ties"] = ("bad", "all scores are equal")
    made = ((check, *one) for check, one in found.items() if one is not None)
    return [{"check": check, "state": state, "says": says} for check, state, says in made]


def _batch(explainer: Explainer, attribution: Attribution) -> Check | None:
    """Explain the text beside a longer one: padding and neighbours must not move its scores. None where
    it cannot be asked again, or only at length."""
    known = registry.has("methods", attribution.method)
    apart = {"windows", *PASSES} & {*attribution.extras}  # of rows that no one pass reads
    if not known or attribution.steps or apart or registry.find("methods", attribution.method).slow:
        return None
    row, asked = attribution.row, attribution.target
    try:
        again, _ = explainer.explain(
            [row, _neighbour(explainer, row)],
            method=[(attribution.method, dict(attribution.options))],
            target=[asked, asked if row.answer else explainer.live.head.usual],
            seed=attribution.seed,
            progress=False,
        )
    except TokenlightError as refused:
        return "doubtful", f"could not be repeated ({refused})"
    largest = float(np.abs(attribution.scores).max()) or 1.0
    gap = float(np.abs(again.scores - attribution.scores).max()) / largest
    half = explainer.live.dtype in (torch.float16, torch.bfloat16)
    if gap <= (5e-2 if half else 1e-4):
        return "good", "same alone and in a batch"
    return "bad", f"changes by {100 * gap:.2g} % beside another text"


def _neighbour(explainer: Explainer, row: TokenRow) -> TokenRow:
    """A longer text asked about at the same token, so that the text itself is padded; a picture with
    every other patch hidden."""
    if row.image is not None:
        every_other = {*row.image.positions(len(row))[::2]}
        ids = (HIDDEN if i in every_other else own for i, own in enumerate(row.ids))
        return replace(row, ids=tuple(ids))
    shared = row.source or 0  # the same source, and more written after it
    places = [*range(len(row)), *range(shared, len(row))]
    return row.take(places[: max(len(row), shared + (explainer.max_tokens or 2 * len(row)))])
