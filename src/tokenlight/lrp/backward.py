"""One forward pass, several backward passes: the model's gradient, relevance by rules, rewritten gradients.

Traced operations go through :class:`RuleFunction` or :class:`GradientShare`. In a backward pass these ask the
:class:`BackwardMode` of the forward pass which rules are current, see :func:`backward_by_rules`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokenlight.accel.tensors import dequantize
from tokenlight.lrp.attnlrp import compute_gradient_constants
from tokenlight.lrp.rules import (
    MIXED_DTYPE_RULES,
    UNCHANGING_RULES,
    OperandRelevances,
    Operation,
    RuleContext,
    RuleSet,
    stabilize_relevance,
)

# From a temperature, queries, keys and values to the output of attention.
TemperedAttend = Callable[..., Tensor]
# Arguments of RuleFunction before its operands: mode, operation, settings, value.
NUM_LEADING_ARGUMENTS = 4


class BackwardMode:
    """Decides what a backward pass over a recorded forward pass carries: gradients, or relevance by rules.

    It is an object and not a thread-local, because autograd runs the backward pass of a GPU in a thread of
    its own.

    Args:
        batch_size: The number of examples.
        supports_rules: Whether relevance can be carried; otherwise only gradients are rewritten.
        keeps_model_gradients: Whether the model's own gradients will be needed.

    Attributes:
        current_rules: The rules of the running backward pass; None for the model's own gradient.
    """

    def __init__(
        self, batch_size: int, *, supports_rules: bool = True, keeps_model_gradients: bool = True
    ) -> None:
        self.batch_size = batch_size
        self.supports_rules = supports_rules
        self.keeps_model_gradients = keeps_model_gradients
        self.current_rules: RuleSet | None = None

    def attach_rule(
        self, operation: Operation, value: Tensor, operands: OperandRelevances, settings: Any
    ) -> Tensor:
        """Return ``value``, which the model computed from ``operands``, with a backward by rules as well.

        Args:
            operation: The operation, which names its rule in a rule set.
            value: What the model computed; it stays as it is.
            operands: The operands that relevance is passed on to.
            settings: What the rule must know besides tensors, such as summed axes.
        """
        if self.supports_rules:
            for operand in operands:
                # The node of a value is the ``ctx`` of the RuleFunction that returned it.
                node: Any = getattr(operand, "grad_fn", None)
                if is_function_node(node):
                    node.num_consumers += 1
        ruled_value: Tensor = RuleFunction.apply(self, operation, settings, value, *operands)  # type: ignore[no-untyped-call]
        return ruled_value

    def share_gradient(
        self, operation: Operation, operands: Sequence[Any], num_factors: int = 0
    ) -> list[Any]:
        """Return the operands of a product, each with its share of the gradient where that is rewritten.

        Args:
            operation: The product.
            operands: Its factors; those that are no activations are returned as they are.
            num_factors: If positive, each operand gets the share of one of this many active factors.
        """
        activation_mask = []
        for operand in operands:
            activation_mask.append(isinstance(operand, Tensor) and operand.requires_grad)
        activations = []
        for operand, is_active in zip(operands, activation_mask, strict=True):
            if is_active:
                activations.append(operand)
        shared_mask = (True,) * num_factors or tuple(activation_mask)
        sharing = _Sharing(self, operation, shared_mask)
        shared_activations = iter(GradientShare.apply(sharing, *activations))  # type: ignore[no-untyped-call]
        shared = []
        for operand, is_active in zip(operands, activation_mask, strict=True):
            shared.append(next(shared_activations) if is_active else operand)
        return shared

    def temper_attention(
        self, attend_tempered: TemperedAttend, output: Tensor, factors: Sequence[Tensor]
    ) -> Tensor:
        """Return the output of fused attention, which rules can then take at another temperature.

        Args:
            attend_tempered: Computes attention from a temperature and ``factors``.
            output: The output of attention.
            factors: Queries, keys and values, as they were before :meth:`share_gradient`.
        """
        tempered: Tensor = TemperedAttention.apply(self, attend_tempered, output, *factors)  # type: ignore[no-untyped-call]
        return tempered


@contextmanager
def backward_by_rules(backward_mode: BackwardMode | None, rules: RuleSet | None) -> Iterator[None]:
    """Let backward passes carry relevance or rewritten gradients by ``rules`` inside the block.

    Without rules nothing changes.

    Example:
        >>> import torch
        >>> from tokenlight.lrp.backward import backward_by_rules
        >>> from tokenlight.lrp.rule_sets import CHEFER
        >>> from tokenlight.lrp.tracing import trace_operations
        >>> layer = torch.nn.Linear(4, 2, bias=False).requires_grad_(False)
        >>> features = torch.ones(1, 4, requires_grad=True)
        >>> with trace_operations(layer, batch_size=1) as (mode, _):
        ...     output = layer(features)
        >>> with backward_by_rules(mode, CHEFER):
        ...     (relevance,) = torch.autograd.grad(output.sum(), features)
        >>> relevance.shape
        torch.Size([1, 4])
    """
    if rules is None:
        yield
        return
    assert backward_mode is not None, "The pass was recorded without a site of relevance."
    previous_rules = backward_mode.current_rules
    backward_mode.current_rules = rules
    try:
        yield
    finally:
        backward_mode.current_rules = previous_rules


class RuleFunction(torch.autograd.Function):
    """The identity on ``value``, with two backward passes.

    The gradient goes back into the graph in which the model computed ``value``. What a rule returns skips
    that graph and goes to the operands.
    """

    @staticmethod
    def forward(
        ctx: Any,
        backward_mode: BackwardMode,
        operation: Operation,
        settings: Any,
        value: Tensor,
        *operands: Any,
    ) -> Tensor:
        """Save what the rules will read."""
        ctx.backward_mode = backward_mode
        ctx.operation = operation
        ctx.settings = settings
        ctx.num_consumers = 0  # operations that read the value
        # The graph of an activation's own gradient holds its input in any case.
        is_saved_anyway = backward_mode.keeps_model_gradients and operation is Operation.ACTIVATION
        if backward_mode.supports_rules or is_saved_anyway:
            ctx.save_for_backward(value, *operands)
        elif operation is Operation.SOFTMAX:
            ctx.save_for_backward(value)  # its own gradient keeps it, too
        else:
            constants = compute_gradient_constants(operation, value, operands, settings)
            ctx.save_for_backward(None, *constants)
        # The backward that is not taken stays None and costs nothing.
        ctx.set_materialize_grads(False)
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Pass the gradient to ``value``, or what the current rules return to the operands."""
        (gradient,) = grad_outputs
        num_operands = len(ctx.needs_input_grad) - NUM_LEADING_ARGUMENTS
        rules: RuleSet | None = ctx.backward_mode.current_rules
        if gradient is None or rules is None or ctx.operation not in rules.rules:
            return None, None, None, gradient, *[None] * num_operands
        if rules.rewrites_gradients:
            results = _rewrite_gradient(ctx, rules, gradient)
        else:
            results = _propagate_relevance(ctx, rules, gradient)
        # A rule may leave out operands at the end that take no part.
        missing = [None] * (num_operands - len(results))
        return None, None, None, None, *results, *missing


def _rewrite_gradient(ctx: Any, rules: RuleSet, gradient: Tensor) -> Sequence[Tensor | None]:
    """Return the rewritten gradients of the operands of a RuleFunction."""
    value, *operands = ctx.saved_tensors
    needs_constants = ctx.operation is not Operation.SOFTMAX
    if value is not None and needs_constants:  # the operands were saved, not what the rule needs
        operands = [*compute_gradient_constants(ctx.operation, value, operands, ctx.settings)]
    rule_context = _make_rule_context(ctx, value, operands)
    return rules.rules[ctx.operation](gradient, rule_context)


def _propagate_relevance(ctx: Any, rules: RuleSet, relevance: Tensor) -> Sequence[Tensor | None]:
    """Return the relevance of the operands of a RuleFunction.

    Rules compute in float32 at least: half precision cannot hold their stabilizers, and a forward pass
    under autocast leaves operands of several dtypes.
    """
    rule = rules.rules[ctx.operation]
    with torch.autocast(relevance.device.type, enabled=False):
        value, *operands = _load_operands(ctx)
        dtype = torch.float32
        for tensor in (relevance, value, *operands):
            if tensor is not None:
                dtype = torch.promote_types(dtype, tensor.dtype)
        if rules.divides_clones and ctx.num_consumers > 1:
            relevance = stabilize_relevance(relevance, value, dtype)
        elif rule not in UNCHANGING_RULES:
            relevance = relevance.to(dtype)
        if rule in MIXED_DTYPE_RULES:
            return rule(relevance, _make_rule_context(ctx, value, operands))
        # A pass without rules saves no value for activations and norms.
        if value is not None:
            value = value.to(dtype)
        wide_operands = []
        for operand in operands:
            wide_operands.append(None if operand is None else operand.to(dtype))
        return rule(relevance, _make_rule_context(ctx, value, wide_operands))


def _load_operands(ctx: Any) -> list[Any]:
    """Return the saved output of an operation and its operands, weights as plain numbers."""
    return [None if saved is None else dequantize(saved) for saved in ctx.saved_tensors]


def _make_rule_context(ctx: Any, value: Any, operands: Sequence[Any]) -> RuleContext:
    return RuleContext(
        output=value,
        operands=tuple(operands),
        batch_size=ctx.backward_mode.batch_size,
        settings=ctx.settings,
        activation_mask=ctx.needs_input_grad[NUM_LEADING_ARGUMENTS:],
    )


class _Sharing(NamedTuple):
    """A product, and which of its factors are activations."""

    backward_mode: BackwardMode
    operation: Operation
    activation_mask: tuple[bool, ...]


class GradientShare(torch.autograd.Function):
    """The identity on the active factors of a product; each keeps a share of its gradient by the rules."""

    @staticmethod
    def forward(ctx: Any, sharing: _Sharing, *operands: Tensor) -> tuple[Tensor, ...]:
        """Return the operands."""
        ctx.sharing = sharing
        ctx.set_materialize_grads(False)
        return tuple(operand.detach() for operand in operands)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Scale the gradient of each operand."""
        shares = GradientShare.resolve_shares(ctx, ctx.sharing.backward_mode.current_rules)
        gradients: list[Tensor | None] = []
        # There are more shares than gradients if ``num_factors`` of share_gradient was given.
        for gradient, share in zip(grad_outputs, shares, strict=False):
            if gradient is None or share == 0:
                gradients.append(None)
            elif share == 1:
                gradients.append(gradient)
            else:
                gradients.append(gradient * share)
        return None, *gradients

    @staticmethod
    def resolve_shares(ctx: Any, rules: RuleSet | None) -> list[float]:
        """Return the share of its gradient that each active factor keeps under ``rules``."""
        _, operation, activation_mask = ctx.sharing
        if rules is None or operation not in rules.gradient_shares:
            return [1.0] * sum(activation_mask)
        shares = rules.gradient_shares[operation](activation_mask)
        if operation is Operation.ATTENTION and rules.softmax_temperature is not None:
            # Queries and keys get their gradient at the other temperature from TemperedAttention.
            *_, value_share = shares
            shares = (0.0, 0.0, value_share)
        return [share for share, active in zip(shares, activation_mask, strict=True) if active]


class TemperedAttention(torch.autograd.Function):
    r"""The identity on the output of fused attention, which can take its softmax at another temperature.

    Where the current rules name a temperature T, queries and keys get their gradient from

    .. math:: O^T = \operatorname{softmax}(S/T)\,V

    which is computed fused in the backward pass, so that no map is kept. Its derivative has a factor 1/T that
    :func:`~tokenlight.lrp.attnlrp.softmax_gradient` leaves out, so it is multiplied by T. Values get their
    gradient from the attention of the model.
    """

    @staticmethod
    def forward(
        ctx: Any,
        backward_mode: BackwardMode,
        attend_tempered: TemperedAttend,
        output: Tensor,
        *factors: Tensor,
    ) -> Tensor:
        """Return ``output``; save the queries, keys and values that fused attention saves as well."""
        ctx.backward_mode = backward_mode
        ctx.attend_tempered = attend_tempered
        ctx.save_for_backward(*factors)
        ctx.set_materialize_grads(False)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Pass the gradient to ``output`` and, at another temperature, to queries and keys."""
        (gradient,) = grad_outputs
        rules: RuleSet | None = ctx.backward_mode.current_rules
        temperature = None if rules is None else rules.softmax_temperature
        activation_mask = tuple(ctx.needs_input_grad[3:])
        has_active_scores = any(activation_mask[:2])
        if gradient is None or rules is None or temperature is None or not has_active_scores:
            return None, None, gradient, None, None, None
        shares = rules.gradient_shares[Operation.ATTENTION](activation_mask)
        query, key, value = (factor.detach() for factor in ctx.saved_tensors)
        with torch.enable_grad():
            query.requires_grad_()
            key.requires_grad_()
            tempered_output = ctx.attend_tempered(temperature, query, key, value)
            gradients = torch.autograd.grad(tempered_output, (query, key), gradient)
        score_gradients: list[Tensor | None] = []
        for factor_gradient, share, is_active in zip(
            gradients, shares, activation_mask, strict=False
        ):
            scaled = factor_gradient.mul_(temperature * share) if is_active else None
            score_gradients.append(scaled)
        return None, None, gradient, *score_gradients, None


def is_function_node(node: Any, function: type = RuleFunction) -> bool:
    """Return whether a node of the graph belongs to ``function``, a class of this module."""
    return getattr(node, "_forward_cls", None) is function
