"""Sites: what a method may read of a pass. What no method needs is not computed."""

import enum
from collections.abc import Iterable


class Site(enum.Enum):
    """Something that a pass can record for a method, named in the method's ``needs``.

    Attributes:
        ATTENTION: The attention maps A^l, each ``batch head query key``.
        ATTENTION_GRADIENT: Their gradients ∂y/∂A^l.
        ATTENTION_RECEIVED: The mean attention that each token receives, ``batch token``, without the
            n × n maps.
        HIDDEN_STATES: The hidden states h^0 … h^L, each ``batch token hidden``.
        HIDDEN_GRADIENT: Their gradients ∂y/∂h^l.
        BIAS_GRADIENT: Gradients at the outputs of modules that add a bias inside the blocks.
        READOUT: Which tokens the head reads.
        RELEVANCE: Relevance at h^l and A^l by any rule set.
        RELEVANCE_GRADIENT: Relevance at h^l by rewritten gradients, without the n × n maps.
        NO_MODEL_GRADIENT: All gradients are taken by rules that rewrite every activation and norm, so that
            what only the model's own gradient needs is not kept. See :func:`join_sites`.
        ATTENTION_VALUES: Values, and their products with the attention maps (contexts).
        MIXING: How each block adds attention to its input.
        EMBEDDINGS: h^0 at every point where the text enters the model, its decoder included.
        EMBEDDING_GRADIENT: Its gradient ∂y/∂h^0.
        TOKEN_EMBEDDINGS: Token embeddings before positions and norm.
        GRAPH: The graph, kept for ``Tape.extra_passes``.

    Example:
        >>> from tokenlight.plugin import Site
        >>> needs = frozenset({Site.HIDDEN_STATES, Site.HIDDEN_GRADIENT})
    """

    ATTENTION = "attention"
    ATTENTION_GRADIENT = "attention gradient"
    ATTENTION_RECEIVED = "attention received"
    HIDDEN_STATES = "hidden states"
    HIDDEN_GRADIENT = "hidden gradient"
    BIAS_GRADIENT = "bias gradient"
    READOUT = "read-out"
    RELEVANCE = "relevance"
    RELEVANCE_GRADIENT = "relevance by gradients"
    NO_MODEL_GRADIENT = "no model gradient"
    ATTENTION_VALUES = "attention values"
    MIXING = "mixing"
    EMBEDDINGS = "embeddings"
    EMBEDDING_GRADIENT = "embedding gradient"
    TOKEN_EMBEDDINGS = "token embeddings"
    GRAPH = "graph"


Sites = frozenset[Site]
EMBEDDING_SITES: Sites = frozenset(
    {Site.EMBEDDINGS, Site.EMBEDDING_GRADIENT, Site.TOKEN_EMBEDDINGS, Site.GRAPH}
)
HIDDEN_STATE_SITES: Sites = frozenset(
    {
        Site.HIDDEN_STATES,
        Site.HIDDEN_GRADIENT,
        Site.BIAS_GRADIENT,
        Site.READOUT,
        Site.RELEVANCE_GRADIENT,
    }
)
SITES_WITHOUT_ATTENTION: Sites = EMBEDDING_SITES | HIDDEN_STATE_SITES | {Site.NO_MODEL_GRADIENT}
GRADIENT_SITES: Sites = frozenset(
    {
        Site.ATTENTION_GRADIENT,
        Site.EMBEDDING_GRADIENT,
        Site.TOKEN_EMBEDDINGS,
        Site.GRAPH,
        Site.HIDDEN_GRADIENT,
        Site.BIAS_GRADIENT,
        Site.READOUT,
        Site.RELEVANCE,
        Site.RELEVANCE_GRADIENT,
    }
)
ATTENTION_MAP_SITES: Sites = frozenset(
    {Site.ATTENTION, Site.ATTENTION_GRADIENT, Site.RELEVANCE, Site.ATTENTION_VALUES, Site.MIXING}
)
RELEVANCE_SITES: Sites = frozenset({Site.RELEVANCE, Site.RELEVANCE_GRADIENT})


def join_sites(sites_by_method: Iterable[Sites]) -> Sites:
    """Return what one pass records for several methods.

    The model's own gradient is left out only if every method that reads gradients does without it.

    Args:
        sites_by_method: The sites that each method records.

    Example:
        >>> from tokenlight.trace.sites import Site, join_sites
        >>> rewritten = frozenset({Site.HIDDEN_GRADIENT, Site.NO_MODEL_GRADIENT})
        >>> join_sites([rewritten, frozenset({Site.HIDDEN_GRADIENT})]) == {Site.HIDDEN_GRADIENT}
        True
    """
    joined: set[Site] = set()
    needs_model_gradient = False
    for sites in sites_by_method:
        joined |= sites
        if Site.NO_MODEL_GRADIENT not in sites and (sites & GRADIENT_SITES) - RELEVANCE_SITES:
            needs_model_gradient = True
    if needs_model_gradient:
        joined.discard(Site.NO_MODEL_GRADIENT)
    return frozenset(joined)
