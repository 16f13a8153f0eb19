"""Can a model do a method? It is tried on a short text, and what goes wrong is told in words."""

import time
from typing import Any

from tokenlight.errors import in_words
from tokenlight.explainer import Explainer, MethodLike
from tokenlight.explaining.sample import sample


def attempt(explainer: Explainer, method: MethodLike, **how: Any) -> tuple[str | None, float]:
    """What goes wrong when ``method`` (a name, or name and options) explains a short text (None:
    nothing), and its seconds. ``how``: further keywords of explain()."""
    text, target = sample(explainer)
    given = {"long": "truncate", "progress": False, "target": target, **how}
    start = time.perf_counter()
    try:
        explainer.explain(text, method=method, **given)
    except Exception as refused:  # noqa: BLE001 - a doctor names every illness, known or not
        return in_words(refused), time.perf_counter() - start
    return None, time.perf_counter() - start
