"""Trust: can one explanation be believed? Its removal test against chance, and its health."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from tokenlight import registry
from tokenlight.data.attribution import Attribution
from tokenlight.data.image import HIDDEN
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow, Tokens
from tokenlight.errors import BadInput, TokenlightError
from tokenlight.evaluation.extra_explanations import target_again
from tokenlight.evaluation.grade import UNTESTED, Evidence, graded
from tokenlight.evaluation.measure import PASSES, needs_one_piece, refuse_other_model
from tokenlight.evaluation.removal import CHOICES, ORDERS, TOP, Asked, Chance, Sizes, Watched
from tokenlight.explainer import Explainer
from tokenlight.metrics._chance import needs_probabilities

Check = tuple[str, Literal["good", "doubtful", "bad"], str]
LEAK = 1e-3  # of the relevance may be lost or made before it is said
UNMOVED = 0.01  # a probability that no removal moves this far has nothing to say of an order


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
    chances = Chances(explainer, Sizes(orders, choices, top), seed)
    return _trusted(explainer, attribution, chances, repeat)


def all_trusted(
    explainer: Explainer,
    attributions: Sequence[Attribution],
    *,
    seed: int = 0,
    advance: Callable[[int], None] | None = None,
) -> list[Attribution]:
    """:func:`trusted` for each. Explanations of one text are compared with the same random orders and
    choices, about which the model is asked once."""
    found: list[Attribution] = []
    chances = Chances(explainer, Sizes(), seed)
    for attribution in attributions:
        found.append(_trusted(explainer, attribution, chances, True))
        if advance is not None:
            advance(1)
    return found


class Chances:
    """What chance does to the text at hand, for each target of it."""

    def __init__(self, explainer: Explainer, sizes: Sizes, seed: int) -> None:
        self.explainer, self.sizes, self.seed = explainer, sizes, seed
        self.text, self.asked = "", Asked(explainer.live)
        self.known: dict[ResolvedTarget, Chance] = {}

    def of(self, attribution: Attribution) -> Chance:
        """For this text and target; the text before is forgotten."""
        row = attribution.row
        if row.fingerprint != self.text:
            self.text, self.asked, self.known = row.fingerprint, Asked(self.explainer.live), {}
        if attribution.target not in self.known:
            watched = Watched(self.explainer, attribution, self.asked)
            generator = np.random.default_rng([self.seed, len(row), *row.ids])
            self.known[attribution.target] = Chance(watched, self.sizes, generator)
        return self.known[attribution.target]


def _trusted(
    explainer: Explainer, attribution: Attribution, chances: Chances, repeat: bool
) -> Attribution:
    refuse_other_model(explainer, attribution)
    checks = health(explainer, attribution, repeat=repeat)
    try:
        found = removal_test(explainer, attribution, chances)
    except TokenlightError as refused:
        found = {"verdict": f"not tested: {refused}", "grade": UNTESTED}
    trust = {**found, "health": checks, "health_line": " · ".join(c["says"] for c in checks)}
    return replace(attribution, extras={**attribution.extras, "trust": trust})


def removal_test(
    explainer: Explainer, attribution: Attribution, chances: Chances
) -> dict[str, Any]:
    """The removal test in numbers and words, and its grade."""
    needs_probabilities(explainer.live.head, "the removal test")
    if any(step.startswith("merge_words") for step in attribution.steps):
        raise BadInput("these are scores of words; test the token scores, before merge_words.")
    if "windows" not in attribution.extras:
        needs_one_piece(explainer, attribution, "the removal test")
    chance = chances.of(attribution)
    if len(chance.words) < 2:
        verdict = "the text has one word, so there is nothing to rank"
        return {"verdict": verdict, "grade": UNTESTED}
    found = chance.of_order(attribution.scores) | chance.of_words_taken(attribution.scores)
    after = found["before"] - found["after"]
    found["moved"] = max(chance.moved, abs(after), abs(found["aopc"]))
    _, things = _things(attribution)
    if found["moved"] < UNMOVED:
        what = watched_name(attribution.target)
        verdict = f"no choice of {things} moves {what} by {UNMOVED}, so there is nothing to test"
        return found | {"verdict": verdict, "grade": UNTESTED}
    if found["ties"]:
        verdict = f"all {things} have the same score, so the explanation ranks nothing"
        return found | {"verdict": verdict, "grade": UNTESTED}
    special = sum(one.share for one in attribution.segment_shares() if one.segment is None)
    seen = Evidence(
        found["percentile"] / 100, found["choices_percentile"] / 100, special, len(chance.words)
    )
    grade, weak = graded(seen)
    # The share that is graded: of a sample, what it beat and half of itself, among one more.
    share = int(found["beaten"] if found["beaten"] == 100 else found["percentile"])
    beaten = _beaten(share, found["orders"], chance.every_order)
    said = [weak, f"its order beats {beaten}", _in_words(attribution, found, chance)]
    return found | {
        "grade": grade,
        "weak": weak,
        "special": special,
        "verdict": "; ".join(filter(None, said)),
    }


def _beaten(share: int, tried: int, all_of_them: bool) -> str:
    """Never a certainty that a sample does not give."""
    if all_of_them and tried == 1:
        return "the only other one" if share == 100 else "no other"
    if all_of_them:
        return f"all {tried} others" if share == 100 else f"{share} % of the {tried} others"
    return f"all {tried} random orders tried" if share == 100 else f"{share} % of random orders"


def _in_words(attribution: Attribution, found: dict[str, Any], chance: Chance) -> str:
    """What removing the top words does."""
    named, before, after = found["top_words"], found["before"], found["after"]
    what = watched_name(attribution.target)
    picture = attribution.row.image is not None
    thing, several = _things(attribution)
    count = f"the {len(named)} top {several}" if len(named) > 1 else f"the top {thing}"
    words = f"{count} ({('; ' if picture else ', ').join(named)})"
    if abs(before - after) < 0.005:
        change = f"leaves {what} at {after:.2f}, so they alone do not decide"
    else:
        verb = "drops" if after < before else "raises"
        others = _share(found["choices_less"], chance.every_choice)
        change = f"{verb} {what} from {before:.2f} to {after:.2f}; {others} do less"
    return f"{'hiding' if picture else 'removing'} {words} {change}"


def _things(attribution: Attribution) -> tuple[str, str]:
    """What an explanation ranks: one, and several."""
    image = attribution.row.image
    if image is None:
        return "word", "words"
    return ("patch or word", "patches and words") if image.places else ("patch", "patches")


def watched_name(target: ResolvedTarget) -> str:
    """The probability that the test watches, in words."""
    return "P(answer)" if target.kind == "span" else f"P({target.name})"


def _share(less: float, all_of_them: bool) -> str:
    """Never a certainty that a sample does not give."""
    if all_of_them:
        return "all other choices" if less == 1 else f"{int(100 * less)} % of other choices"
    return ">99 % of random choices" if less == 1 else f"{int(100 * less)} % of random choices"


def health(explainer: Explainer, attribution: Attribution, *, repeat: bool) -> list[dict[str, str]]:
    """Checks as {check, state, says}: conservation (where the method claims it), batch invariance
    (``repeat``: explained once more beside a longer text), truncation, ties."""
    found: list[Check] = []
    kept: Any = attribution.extras.get("conservation")
    if isinstance(kept, list) and kept:
        worst = max(kept, key=lambda share: abs(share - 1))
        lost = f"relevance kept to {worst:.3f}, biases and the softmax take or add the rest"
        good = abs(worst - 1) <= LEAK
        found.append(
            ("conservation", "good", "relevance conserved")
            if good
            else ("conservation", "doubtful", lost)
        )
    if repeat:
        found += _batch(explainer, attribution)
    cut, whole = attribution.row.cut, attribution.row.cut + len(attribution)
    found.append(
        ("truncation", "doubtful", f"{cut} of {whole} tokens cut off")
        if cut
        else ("truncation", "good", "nothing cut off")
    )
    # Tokens that share their score with another: their order among themselves is arbitrary.
    scores = attribution.scores[~np.array(attribution.row.special, dtype=bool)]
    _, sizes = np.unique(scores, return_counts=True)
    tied = int(sizes[sizes > 1].sum())
    if not tied:
        found.append(("ties", "good", "no ties"))
    elif len(sizes) == 1:
        found.append(("ties", "bad", "all scores are equal"))
    else:
        found.append(("ties", "doubtful", f"{tied} of {len(scores)} tokens tie with another"))
    return [dict(zip(("check", "state", "says"), one, strict=True)) for one in found]


def _batch(explainer: Explainer, attribution: Attribution) -> Iterator[Check]:
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
        yield "batch", "doubtful", f"could not be repeated ({refused})"
        return
    largest = float(np.abs(attribution.scores).max()) or 1.0
    gap = float(np.abs(again.scores - attribution.scores).max()) / largest
    half = explainer.live.dtype in (torch.float16, torch.bfloat16)
    if gap <= (5e-2 if half else 1e-4):
        yield "batch", "good", "same alone and in a batch"
    else:
        yield "batch", "bad", f"changes by {100 * gap:.2g} % beside another text"


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
