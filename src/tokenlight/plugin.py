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

from tokenlight.data.ranks import rank_positions
from tokenlight.errors import BadInput
from tokenlight.errors.arguments import Count
from tokenlight.methods.base import Method
from tokenlight.metrics.base import Case, Measurement, Metric, VariantOutputs
from tokenlight.perturb.variants import Perturber, Variant
from tokenlight.trace.sites import Site
from tokenlight.trace.tape import Tape

__all__ = [
    "BadInput",
    "Case",
    "Count",
    "Measurement",
    "Method",
    "Metric",
    "Perturber",
    "Site",
    "Tape",
    "Variant",
    "VariantOutputs",
    "rank_positions",
]
