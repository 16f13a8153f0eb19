"""How a traced call is run: whether its gradient is rewritten, shared, or joined by a rule for relevance."""

from dataclasses import dataclass

from tokenlight.lrp.module_operations import ElementwiseRoot, ElementwiseRoots
from tokenlight.lrp.operations import OperationCall, is_activation
from tokenlight.lrp.rules import Operation

# Operations with a gradient of their own in place of the model's.
ALWAYS_REWRITTEN = frozenset({Operation.ACTIVATION, Operation.NORM})
# Operations with a gradient of their own besides the model's, which some rules leave as it is.
OPTIONALLY_REWRITTEN = frozenset({Operation.SOFTMAX})


@dataclass(frozen=True)
class BackwardRequirements:
    """The backward passes that one forward pass must allow.

    Without relevance the graph is the model's own but for the few operations with a rewritten gradient.

    Attributes:
        needs_relevance: Whether relevance will be propagated by rules.
        needs_rewritten_gradients: Whether rewritten gradients will be taken.
        needs_model_gradients: Whether the model's own gradients will be taken.
    """

    needs_relevance: bool = True
    needs_rewritten_gradients: bool = False
    needs_model_gradients: bool = True

    @property
    def keeps_original_graph(self) -> bool:
        """Whether the graph behind a nonlinear operation is needed although its gradient is rewritten."""
        return self.needs_model_gradients or self.needs_relevance


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How a parsed call is run.

    Attributes:
        call: The operation, its operands and its settings.
        root: What its value is an elementwise function of, if it is one.
        rewrites_gradient: Whether its gradient is not, or not always, the model's.
        shares_gradient: Whether several factors are activations, which share the gradient.
        keeps_graph: Whether the graph behind the model's own gradient is kept.
        attaches_rule: Whether its value gets a backward pass of its own.
    """

    call: OperationCall
    root: ElementwiseRoot | None
    rewrites_gradient: bool
    shares_gradient: bool
    keeps_graph: bool
    attaches_rule: bool


def plan_call(
    call: OperationCall, roots: ElementwiseRoots, requirements: BackwardRequirements
) -> CallPlan:
    """Decide how a call that was parsed is run.

    Args:
        call: The call as it was parsed.
        roots: What values of this pass are elementwise functions of.
        requirements: The backward passes that the pass must allow.
    """
    call, root = roots.resolve_call(call)
    rewrites_gradients = requirements.needs_rewritten_gradients
    is_nonlinear = call.operation in ALWAYS_REWRITTEN
    is_optional = rewrites_gradients and call.operation in OPTIONALLY_REWRITTEN
    shares_gradient = rewrites_gradients and has_several_activations(call)
    return CallPlan(
        call=call,
        root=root,
        rewrites_gradient=is_nonlinear or is_optional or shares_gradient,
        shares_gradient=shares_gradient,
        # The gradient that a rewritten one replaces is not needed, so its graph need not be kept.
        keeps_graph=requirements.keeps_original_graph or not is_nonlinear,
        attaches_rule=requirements.needs_relevance or is_nonlinear or is_optional,
    )


def has_several_activations(call: OperationCall) -> bool:
    """Return whether a call multiplies activations, which then share its gradient."""
    return sum(map(is_activation, call.factors)) > 1
