"""Sites: what a method may read of a pass. What no method needs is not computed."""

import enum


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
SITES_WITHOUT_ATTENTION: Sites = EMBEDDING_SITES | HIDDEN_STATE_SITES
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
