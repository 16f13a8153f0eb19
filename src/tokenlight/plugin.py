"""Everything that authors of methods and metrics import; nothing else inside tokenlight is stable for them.

A file ``methods/NAME.py`` or ``metrics/NAME.py`` is the method or metric ``NAME``: its only class, or the
one it calls ``METHOD`` or ``METRIC``. Another package offers the same by an entry point::

    [project.entry-points."tokenlight.methods"]
    gradient_norm = "my_package.gradient_norm"

Example:
    A method declares what it reads of the model and returns one score per token:

    >>> from tokenlight import Explainer
    >>> from tokenlight.plugin import Method, Site, Tape
    >>> class EmbeddingNorm(Method):
    ...     cites = "none"
    ...     signed = False
    ...     power: float = 2.0
    ...     needs = frozenset({Site.EMBEDDINGS})
    ...
    ...     def __call__(self, tape: Tape):
    ...         return tape.embeddings.values.norm(p=self.power, dim=-1)
    >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
    >>> explainer.explain("Never dull.", EmbeddingNorm(power=1.0)).title
    'embedding_norm(power=1.0) → positive'
"""

from tokenlight.data.intervals import Interval
from tokenlight.data.ranks import rank_positions
from tokenlight.errors import BadInput, BadTarget, UnsupportedModel
from tokenlight.errors.arguments import Count, Range, Seed, Share
from tokenlight.methods.base import Method, PassCounts
from tokenlight.metrics.base import (
    Case,
    Measurement,
    Metric,
    MetricSummary,
    Search,
    VariantOutputs,
)
from tokenlight.perturb.variants import Perturber, Variant
from tokenlight.trace.sites import Site
from tokenlight.trace.tape import Tape

__all__ = [
    "BadInput",
    "BadTarget",
    "Case",
    "Count",
    "Interval",
    "Measurement",
    "Method",
    "Metric",
    "MetricSummary",
    "PassCounts",
    "Perturber",
    "Range",
    "Search",
    "Seed",
    "Share",
    "Site",
    "Tape",
    "UnsupportedModel",
    "Variant",
    "VariantOutputs",
    "rank_positions",
]
