"""Health of one explanation: what could make its numbers wrong, checked one by one."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from tokenlight import registry
from tokenlight.data.attribution import Attribution
from tokenlight.data.image import HIDDEN
from tokenlight.data.tokens import TokenRow, Tokens
from tokenlight.errors import TokenlightError
from tokenlight.evaluation.extra_explanations import target_again
from tokenlight.evaluation.measure import PASSES
from tokenlight.explainer import Explainer

State = Literal["good", "doubtful", "bad"]
LEAK = 1e-3  # of the relevance may be lost or made before it is said


def health(explainer: Explainer, attribution: Attribution, *, repeat: bool) -> list[dict[str, str]]:
    """Checks as {check, state, says}: conservation (where the method claims it), batch invariance
    (``repeat``: explained once more beside a longer text), truncation, ties."""
    found = [*_conservation(attribution)]
    if repeat:
        found += _batch(explainer, attribution)
    return [*found, *_truncation(attribution), *_ties(attribution)]


def _check(check: str, state: State, says: str) -> dict[str, str]:
    return {"check": check, "state": state, "says": says}


def _conservation(attribution: Attribution) -> Iterator[dict[str, str]]:
    kept: Any = attribution.extras.get("conservation")
    if isinstance(kept, list) and kept:
        worst = max(kept, key=lambda share: abs(share - 1))
        good = abs(worst - 1) <= LEAK
        yield _check(
            "conservation",
            "good" if good else "doubtful",
            "relevance conserved"
            if good
            else f"relevance kept to {worst:.3f}, biases and the softmax take or add the rest",
        )


def _batch(explainer: Explainer, attribution: Attribution) -> Iterator[dict[str, str]]:
    """Explain the text beside a longer one: padding and neighbours must not move its scores."""
    known = registry.has("methods", attribution.method)
    apart = {"windows", *PASSES} & {*attribution.extras}  # of rows that no one pass reads
    if not known or attribution.steps or apart:
        return
    if registry.find("methods", attribution.method).slow:
        return
    row, asked = attribution.row, target_again(attribution)
    try:
        again, _ = explainer.explain(
            [row, _neighbour(explainer, row)],
            method=[(attribution.method, dict(attribution.options))],
            target=[asked, asked if row.answer else explainer.live.head.usual],
            seed=attribution.seed,
            progress=False,
        )
    except TokenlightError as refused:
        yield _check("batch", "doubtful", f"could not be repeated ({refused})")
        return
    largest = float(np.abs(attribution.scores).max()) or 1.0
    gap = float(np.abs(again.scores - attribution.scores).max()) / largest
    half = explainer.live.dtype in (torch.float16, torch.bfloat16)
    if gap <= (5e-2 if half else 1e-4):
        yield _check("batch", "good", "same alone and in a batch")
    else:
        yield _check("batch", "bad", f"changes by {100 * gap:.2g} % beside another text")


def _neighbour(explainer: Explainer, row: TokenRow) -> TokenRow:
    """A longer text asked about at the same token, so that the text itself is padded; a picture with
    every other patch hidden."""
    if row.image is not None:
        every_other = {*row.image.positions(len(row))[::2]}
        ids = (HIDDEN if i in every_other else own for i, own in enumerate(row.ids))
        return replace(row, ids=tuple(ids))
    limit = explainer.max_tokens or 2 * len(row)
    if row.source is not None:  # the same source, and more written after it
        places = [*range(len(row)), *range(row.source, len(row))]
        return row.take(places[: max(len(row), row.source + limit)])
    twice = slice(0, max(limit, len(row)))
    types = None if row.token_types is None else [(row.token_types * 2)[twice]]
    longer = Tokens.from_ids([(row.ids * 2)[twice]], None, types).rows[0]
    return replace(longer, at=row.at, asked=row.asked, answer=row.answer)


def _truncation(attribution: Attribution) -> Iterator[dict[str, str]]:
    cut, whole = attribution.row.cut, attribution.row.cut + len(attribution)
    if cut:
        yield _check("truncation", "doubtful", f"{cut} of {whole} tokens cut off")
    else:
        yield _check("truncation", "good", "nothing cut off")


def _ties(attribution: Attribution) -> Iterator[dict[str, str]]:
    """Tokens that share their score with another: their order among themselves is arbitrary."""
    scores = attribution.scores[~np.array(attribution.row.special, dtype=bool)]
    _, sizes = np.unique(scores, return_counts=True)
    tied = int(sizes[sizes > 1].sum())
    if not tied:
        yield _check("ties", "good", "no ties")
    elif len(sizes) == 1:
        yield _check("ties", "bad", "all scores are equal")
    else:
        yield _check("ties", "doubtful", f"{tied} of {len(scores)} tokens tie with another")
