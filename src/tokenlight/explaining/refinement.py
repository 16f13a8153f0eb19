"""Explain one text quickly first, then again with more passes."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from tokenlight.data.attribution import Attribution
from tokenlight.data.target import TargetLike
from tokenlight.errors import BadInput
from tokenlight.errors.arguments import UNCHECKED, checked
from tokenlight.explaining.calls import check_options, explain_list
from tokenlight.explaining.default_method import AUTO_METHOD
from tokenlight.explaining.effort import (
    EFFORT_SAMPLES,
    Effort,
    check_effort,
    count_samples,
    list_sampling_specs,
)
from tokenlight.explaining.explain_options import as_list, normalize_inputs
from tokenlight.explaining.generation import GeneratingSession
from tokenlight.explaining.text_result import iter_attributions
from tokenlight.explaining.token_targets import ENTITIES


class RefiningSession(GeneratingSession):
    """A session that refines an explanation while it is looked at."""

    @checked
    def refine(
        self,
        inputs: Any,
        target: Any = "predicted",
        *,
        effort: Annotated[Effort | int, UNCHECKED] = "thorough",
        long: Literal["error", "truncate", "stride"] = "error",
        seed: int = 0,
    ) -> Iterator[Attribution]:
        """Explain one text quickly first, then again with more passes, up to ``effort``.

        Each explanation equals that of ``explain(inputs, effort=…)`` at its effort. An input for which no
        more passes are worth their price, such as a pair, is explained once.

        Args:
            inputs: One input, as for :meth:`explain`.
            target: One target.
            effort: The highest price to pay, as for :meth:`explain`.
            long: What to do with a text that is longer than the model reads.
            seed: The seed of the samples.

        Returns:
            An iterator over Attributions, the cheapest first. Nothing is computed before it is read.

        Raises:
            BadInput: There are several inputs or targets, or an option is not valid.

        Example:
            >>> from tokenlight import Explainer
            >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
            >>> for attribution in explainer.refine("Never dull.", effort="normal"):
            ...     print(attribution.method, attribution.standard_errors is not None)
            attnlrp False
            subset_relevance True
        """
        check_effort(effort, None, AUTO_METHOD)
        texts, is_single_text = as_list(normalize_inputs(inputs, None))
        if not is_single_text:
            raise BadInput(
                f"refine() explains one text, and {len(texts)} are given. Call it for each of them.",
                code="refine-needs-one-text",
            )
        if isinstance(target, list) or target in ("all", ENTITIES):
            raise BadInput(
                f"target={target!r} stands for several targets, and refine() explains one. Give a label.",
                code="refine-needs-one-target",
            )
        explain_at = partial(_explain_once, self, texts, target, long=long, seed=seed)
        return _refine(self, texts[0], effort, explain_at)


def _refine(
    session: Any, example: Any, effort: Effort | int, explain_at: Any
) -> Iterator[Attribution]:
    """Yield the explanation of each effort up to ``effort``, each more expensive than the one before."""
    yield explain_at(effort="instant")
    limit = count_samples(effort)
    if not limit or not list_sampling_specs(session, example):
        return
    for step, num_samples in EFFORT_SAMPLES.items():
        if 0 < num_samples < limit:
            yield explain_at(effort=step)
    yield explain_at(effort=effort)


def _explain_once(
    session: Any, texts: Sequence[Any], target: TargetLike, **options: Any
) -> Attribution:
    checked_options = check_options(session, **options)
    results = explain_list(session, texts, AUTO_METHOD, target, checked_options)
    return next(iter_attributions(results))
