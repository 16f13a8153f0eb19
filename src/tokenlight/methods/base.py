"""The base classes of all methods: frozen options, the sites a method needs, a tape in and scores out."""

import abc
import dataclasses
import hashlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from tokenlight import registry
from tokenlight.accel.transfer import Deferred
from tokenlight.errors import BadInput, UnsupportedModel, short_repr
from tokenlight.lrp.call_plans import ALWAYS_REWRITTEN
from tokenlight.lrp.rule_sets import ATTENTION_CONSTANT, ATTNLRP, CP_LRP, GIM
from tokenlight.lrp.rules import Operation, RuleSet
from tokenlight.model.embedding_hooks import CapturedEmbeddings, EmbeddingSite
from tokenlight.trace.sites import GRADIENT_SITES, RELEVANCE_SITES, Site
from tokenlight.trace.tape import Tape

FAMILIES = ("relevance", "gradients", "attention", "many passes", "decoded", "control")
Gradient = Literal["model", "attention_constant", "attnlrp", "cp", "libra", "gim"]
GRADIENT_RULE_SETS: dict[Gradient, RuleSet] = {
    "attention_constant": ATTENTION_CONSTANT,
    "attnlrp": ATTNLRP,
    "cp": CP_LRP,
    "libra": CP_LRP,  # LibraGrad prunes and scales the same paths
    "gim": GIM,
}
Presets = Mapping[str, Mapping[str, Any]]  # name of a preset → its options
Extras = Sequence[dict[str, Any]] | Deferred | None  # one dict per example, now or once it is ready


@dataclasses.dataclass(frozen=True, slots=True)
class PassCounts:
    """How often a text passes forward and backward through the model.

    Attributes:
        forwards: Number of forward passes.
        backwards: Number of backward passes.

    Example:
        >>> from tokenlight.plugin import PassCounts
        >>> PassCounts(forwards=8, backwards=0)
        PassCounts(forwards=8, backwards=0)
    """

    forwards: int
    backwards: int


def describe_cost(method: "Method") -> str:
    """Return the cost as a line in the number n of tokens, such as ``1F + 1B`` or ``(n − 1)F``."""
    short = method.count_passes(100)
    long = method.count_passes(200)
    forwards = _describe_line(short.forwards, long.forwards)
    backwards = _describe_line(short.backwards, long.backwards)
    terms = []
    if forwards:
        terms.append(f"{forwards}F")
    if backwards:
        terms.append(f"{backwards}B")
    return " + ".join(terms)


def _describe_line(value_at_100: int, value_at_200: int) -> str:
    """Return a line through two points as text in n, such as ``2n`` or ``(n + 2)``; empty for 0."""
    slope = (value_at_200 - value_at_100) // 100
    offset = value_at_100 - 100 * slope
    if slope == 0:
        return str(offset) if offset else ""
    term = f"{slope}n" if slope > 1 else "n"
    if offset == 0:
        return term
    sign = "+" if offset > 0 else "−"
    return f"({term} {sign} {abs(offset)})"


class Method(registry.Component, abc.ABC):
    """A method that scores tokens. Subclasses become frozen dataclasses whose fields are the options.

    Attributes:
        cites: Key of the paper in the bibliography.
        signed: Whether negative scores speak against the target.
        per_layer: Whether the result is ``batch layer token``, whose sum over layers is the score.
        class_agnostic: Whether the scores are the same for every class.
        slow: Whether a text takes seconds.
        stochastic: Whether it samples; its option ``seed`` is then that of ``explain`` unless it is set.
        needs_precision: Whether half precision gives other numbers, because of divisions by sums that
            are nearly zero.
        supports_encoder_decoder: Whether it reads layers and has a form for encoder-decoder models that
            generate text.
        presets: Named option sets that reproduce an official code or the text of a paper. The presets
            ``official`` and ``paper`` are the defaults unless they are named here.

    Example:
        >>> from tokenlight.plugin import Method, Site
        >>> class GradientNorm(Method):
        ...     '''Length of the gradient at each hidden state, summed over layers.'''
        ...
        ...     cites = "simonyan2014deep"
        ...     needs = frozenset({Site.HIDDEN_STATES, Site.HIDDEN_GRADIENT})
        ...
        ...     def __call__(self, tape):
        ...         return sum(gradient.norm(dim=-1) for gradient in tape.hidden_gradients)
        >>> GradientNorm().count_passes(num_tokens=10)
        PassCounts(forwards=1, backwards=1)
    """

    cites: ClassVar[str]
    signed: ClassVar[bool] = True
    per_layer: ClassVar[bool] = False
    class_agnostic: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    stochastic: ClassVar[bool] = False
    needs_precision: ClassVar[bool] = False
    supports_encoder_decoder: ClassVar[bool] = False
    presets: ClassVar[Presets] = {}

    @classmethod
    def adapt_options(cls, options: Mapping[str, Any], model: nn.Module) -> Mapping[str, Any]:  # noqa: ARG003
        """Adapt the options of a call to the explained model: a preset may depend on it.

        Most methods leave this as it is.

        Args:
            options: The options as they were given, with the name of a preset under ``preset``.
            model: The explained model.

        Returns:
            The options to build the method with.

        Example:
            >>> from tokenlight.plugin import Method
            >>> class Smoothed(Method, abstract=True):
            ...     '''Read one layer fewer of a shallow model.'''
            ...
            ...     @classmethod
            ...     def adapt_options(cls, options, model):
            ...         is_shallow = model.config.num_hidden_layers < 4
            ...         return {"num_layers": 1, **options} if is_shallow else options
        """
        return options

    @classmethod
    def build_for_model(
        cls, name: str, options: Mapping[str, Any], *, seed: int, model: Any
    ) -> "Method":
        """Build the method ``name`` for a model.

        Args:
            name: The registered name.
            options: Its options.
            seed: The seed of a stochastic method, unless its options have one.
            model: The explained model.

        Returns:
            The method, with its options checked.

        Example:
            >>> from tokenlight import Explainer
            >>> from tokenlight.plugin import Method
            >>> model = Explainer.from_pretrained("tokenlight/sentiment").runner.model
            >>> Method.build_for_model("smooth", {"num_samples": 4}, seed=7, model=model).seed
            7
        """
        method_class: type[Method] = registry.load_class("methods", name)
        if method_class.stochastic:
            options = {"seed": seed, **options}
        adapted = method_class.adapt_options(options, model)
        # The class is known: unlike ``build``, this checks no argument but the options.
        method: Method = registry.build_class("methods", name, method_class, adapted)
        return method

    @property
    def needs(self) -> frozenset[Site]:
        """The sites that this method reads with its present options; every method declares them.

        Raises:
            BadInput: The class does not declare them.
        """
        raise BadInput(
            f"{type(self).__name__} does not declare what it reads of the model. Declare it in the class, "
            "for example needs = frozenset({Site.HIDDEN_STATES, Site.HIDDEN_GRADIENT}), or "
            "needs = frozenset() if it reads nothing.",
            code="needs-missing",
        )

    @property
    def recorded_sites(self) -> frozenset[Site]:
        """All sites to record: those that it needs, and those that they depend on."""
        return self.needs

    def compute_scores(self, tape: Tape) -> Tensor:
        """Score one batch: call the method, perhaps with another tape (rewritten gradients).

        Args:
            tape: The recorded pass.

        Returns:
            ``batch token`` or ``batch layer token``.

        Example:
            >>> from tokenlight.plugin import Method, Tape
            >>> def score(method: Method, tape: Tape):
            ...     return method.compute_scores(tape).sum(dim=-1)
        """
        return self(tape)

    @abc.abstractmethod
    def __call__(self, tape: Tape) -> Tensor:
        """Return scores, ``batch token`` or ``batch layer token``; those at padding are ignored."""

    def write_note(self, tape: Tape) -> str | None:  # noqa: ARG002 - a hook that most methods leave alone
        """Write a note for the Attribution if its reader must know how the scores were computed.

        Args:
            tape: The pass that was scored.

        Returns:
            A phrase for ``attribution.notes``; None if there is nothing to say.

        Example:
            >>> from tokenlight.plugin import Method
            >>> class EncoderOnly(Method, abstract=True):
            ...     '''Scores of the encoder.'''
            ...
            ...     def write_note(self, tape):
            ...         has_decoder = tape.recording.encoder_decoder is not None
            ...         return "the decoder is left out" if has_decoder else None
        """
        return None

    def measure_extras(self, tape: Tape) -> Extras:  # noqa: ARG002 - a hook that most methods leave alone
        """Measure what belongs into the Attribution besides the scores.

        Args:
            tape: The pass that was scored.

        Returns:
            For each example JSON values by name; None if there is nothing. ``standard_errors``, one number
            per token, becomes the field of that name of the Attribution; all others become its ``extras``.

        Example:
            >>> from tokenlight.plugin import Method
            >>> class WithLengths(Method, abstract=True):
            ...     '''Scores, and the length of each text.'''
            ...
            ...     def measure_extras(self, tape):
            ...         return [{"length": length} for length in tape.lengths.tolist()]
        """
        return None

    @property
    def family(self) -> str:
        """The entry of ``FAMILIES`` that it belongs to, by what it needs."""
        if self.needs & RELEVANCE_SITES:
            return "relevance"
        if self.count_passes(100).forwards > 1:
            return "many passes"
        reads_gradients = bool(self.needs & (GRADIENT_SITES - {Site.READOUT}))
        if Site.READOUT in self.needs and not reads_gradients:
            return "attention"
        return "gradients" if self.needs else "control"

    def count_passes(self, num_tokens: int) -> PassCounts:  # noqa: ARG002 - the cost of one pass has no length
        """Count the passes through the model that one text takes at most, for a target of one logit.

        Override this in a method that runs the model itself (``tape.extra_passes``).

        Args:
            num_tokens: The length of the text.

        Returns:
            The forward and backward passes, the recorded pass included.

        Example:
            >>> from tokenlight import registry
            >>> registry.build("methods", "occlusion").count_passes(num_tokens=10)
            PassCounts(forwards=9, backwards=0)
        """
        has_gradient_pass = bool(self.needs & (GRADIENT_SITES - RELEVANCE_SITES))
        has_relevance_pass = bool(self.recorded_sites & RELEVANCE_SITES)
        return PassCounts(1, has_gradient_pass + has_relevance_pass)

    def count_further_tokens(self, num_tokens: int) -> int:  # noqa: ARG002 - most methods only run the model
        """Count what a method computes beside its passes, as tokens that a pass reads in the same time.

        Override this in a method that computes for long after its passes, so that a server can refuse it.

        Args:
            num_tokens: The length of the text.

        Returns:
            The number of tokens; 0 for most methods.

        Example:
            >>> from tokenlight import registry
            >>> registry.build("methods", "attention_flow").count_further_tokens(num_tokens=128)
            32768
        """
        return 0


def check_declarations(methods: Sequence[Method]) -> None:
    """Check that the names of methods are unique and that each declares its sites.

    Raises:
        BadInput: Two classes have the same name; a class that is not registered has the name of one that
            is, an alias of it or another spelling; or ``needs`` is not a frozenset of sites.
    """
    classes: dict[str, type[Method]] = {}
    for method in methods:
        name = method.name
        cls = type(method)
        other = classes.setdefault(name, cls)
        if registry.is_available("methods", name):
            other = registry.load_class("methods", name)
        if other is not cls:
            raise BadInput(
                f"{get_class_path(cls)} and {get_class_path(other)} are two methods with one name, {name!r}, "
                "so their results could not be told apart. Rename one of the classes.",
                code="duplicate-method-name",
            )
        if registry.find_registered_name(cls) is None:
            known_name = registry.find_respelled_method(name)
            if known_name is not None:
                raise BadInput(
                    f"{get_class_path(cls)} would be named {name!r}, which a reader takes for the method "
                    f"{known_name!r}. Rename the class.",
                    code="method-name-like-another",
                )
        sites = method.needs
        if not isinstance(sites, frozenset) or not all(isinstance(site, Site) for site in sites):
            raise BadInput(
                f"{get_class_path(cls)} has needs = {short_repr(sites)}, which is not a frozenset of sites. "
                "Declare what it reads, for example needs = frozenset({Site.HIDDEN_STATES}).",
                code="needs-not-sites",
            )


def get_class_path(cls: type) -> str:
    """Return the module and name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def compute_code_digest(cls: type) -> str:
    """Return a digest of the code of a class, so that two versions of one class can be told apart.

    A cell of a notebook that is edited and run again defines another class with the same name.
    """
    digest = hashlib.sha256()
    for base in cls.__mro__:
        if base.__module__.startswith("tokenlight.") or base is object:
            continue
        for name, value in sorted(vars(base).items()):
            function = value.fget if isinstance(value, property) else value
            code = getattr(function, "__code__", None)
            is_generated = name in ("__init__", "__repr__", "__eq__", "__hash__")
            if code is not None and not is_generated:
                digest.update(name.encode())
                _digest_code(code, digest)
    return digest.hexdigest()[:16]


def _digest_code(code: types.CodeType, digest: Any) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _digest_code(constant, digest)
        elif not isinstance(constant, frozenset):  # whose order changes from process to process
            digest.update(repr(constant).encode())


def check_activations(model: nn.Module, method: str) -> None:
    """Check that every activation of a model is recognized as one, so that its slope can be rewritten.

    Args:
        model: The model.
        method: What is being computed, for the message.

    Raises:
        UnsupportedModel: An activation is written out where it is not recognized.
    """
    model_type = getattr(model.config, "model_type", None)
    if model_type == "gpt_oss":
        raise UnsupportedModel(
            f"{type(model).__name__} spells out its gate, x · σ(αx), within its experts, where it is not "
            f"recognized as one activation, so the scores of {method} would be wrong. Use "
            "integrated_gradients.",
            code="gate-not-recognized",
        )


class MultiPassMethod(Method, abstract=True):
    """A method that scores the whole text in one pass, and goes on from there with passes of its own.

    The first pass can then be replayed as a CUDA graph, which could not hold the others.
    """

    @property
    def first_pass(self) -> Method | None:
        """The method of that one pass; None if this method needs no further ones."""
        return None

    @abc.abstractmethod
    def score_after_first_pass(self, tape: Tape, fetch_scores: Callable[[], np.ndarray]) -> Tensor:
        """Return the scores of this method from those of its first pass.

        Args:
            tape: The rows and targets; nothing was recorded of a pass that was replayed.
            fetch_scores: Waits for the scores of the first pass, ``batch token``, and returns them.
        """


class GradientMethod(Method):
    """A method that reads gradients from the tape.

    Args:
        gradient: ``"model"`` is the gradient of the model. The others rewrite a few gradients of the
            backward pass. ``"attention_constant"`` treats attention maps as constants, so that queries and
            keys have no gradient. ``"attnlrp"`` is the gradient of the method attnlrp, whose relevance is
            value × this gradient. ``"cp"`` is that of cp_lrp: attention maps and the norms' deviations are
            constants, the slope of an activation is output over input, and a gate leaves half to each
            factor. ``"libra"`` (LibraGrad, Mehri et al., CVPR 2025) prunes and scales the same paths, and is
            the same gradient. ``"gim"`` is that of the method gim.
    """

    gradient: Gradient = "model"

    @property
    def recorded_sites(self) -> frozenset[Site]:
        """The sites it needs and, for a rewritten gradient, the backward pass that computes it."""
        if self.gradient == "model":
            return self.needs
        sites = self.needs | {Site.RELEVANCE_GRADIENT}
        if GRADIENT_RULE_SETS[self.gradient].rules.keys() >= ALWAYS_REWRITTEN:
            sites |= {Site.NO_MODEL_GRADIENT}
        return sites

    def count_passes(self, num_tokens: int) -> PassCounts:
        """Return the passes: a rewritten gradient takes the place of the model's own."""
        cost = super().count_passes(num_tokens)
        if self.gradient == "model":
            return cost
        return dataclasses.replace(cost, backwards=cost.backwards - 1)

    def compute_scores(self, tape: Tape) -> Tensor:
        """Score one batch with the gradient that the option names.

        Raises:
            UnsupportedModel: The rules would rewrite the wrong gradients of this model.
        """
        rule_set = GRADIENT_RULE_SETS.get(self.gradient)
        if rule_set is not None and Operation.ACTIVATION in rule_set.rules:
            check_activations(
                tape.recording.runner.model, f"{self.name} with gradient={self.gradient!r}"
            )
        return self(tape.with_gradient_rules(rule_set))


class EmbeddingGradientMethod(GradientMethod):
    """A method that reads the gradient at the embeddings.

    Args:
        site: ``"embeddings"`` is h^0, the input of the first block; ``"token_embeddings"`` the output of the
            token embedding tables, before positions and norm.
    """

    site: EmbeddingSite = "embeddings"

    @property
    def needs(self) -> frozenset[Site]:
        if self.site == "token_embeddings":
            return frozenset({Site.TOKEN_EMBEDDINGS, Site.GRAPH})
        return frozenset({Site.EMBEDDINGS, Site.EMBEDDING_GRADIENT})

    def read_embedding_gradients(self, tape: Tape) -> tuple[CapturedEmbeddings, Tensor]:
        """Return the embeddings and the gradient of the target at them, ``batch position hidden``."""
        if self.site == "embeddings":
            return tape.embeddings, tape.embedding_gradient
        embeddings = tape.token_embeddings
        gradients = tape.extra_passes.take_recorded_gradients(embeddings.tensors)
        return embeddings, embeddings.concatenate(gradients)
