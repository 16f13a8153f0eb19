"""Run an unmodified model so that one forward pass serves its gradient, relevance and rewritten gradients.

While :func:`trace_operations` holds, the ``forward`` of the model's modules is wrapped, and a torch function
mode sees every call of a torch function. Each call that ``operations.py`` can parse keeps its value and gets
a second backward (``backward.py``). Other calls are collected, to be refused if relevance would have to pass
them (``unsupported.py``).
"""

import dis
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from enum import IntEnum
from functools import partial
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tokenlight.accel.modules import list_modules
from tokenlight.lrp.backward import (
    BackwardMode,
    GradientShare,
    is_function_node,
)
from tokenlight.lrp.call_plans import (
    ALWAYS_REWRITTEN,
    BackwardRequirements,
    CallPlan,
    has_several_activations,
    plan_call,
)
from tokenlight.lrp.fused_attention import attend_at_temperature
from tokenlight.lrp.module_operations import (
    ElementwiseRoots,
    ModuleOperation,
    detect_operation,
    may_be_one_operation,
    read_norm,
)
from tokenlight.lrp.operations import (
    CALL_PARSERS,
    DECOMPOSITIONS,
    OUT_OF_PLACE,
    OperationCall,
    is_activation,
)
from tokenlight.lrp.rules import OPERATIONS_WITHOUT_RULE, Operation
from tokenlight.lrp.unsupported import (
    UnsupportedOps,
    find_unshifted,
    is_structural,
    iter_new_nodes,
    list_graph_tensors,
    list_input_nodes,
)

Function = Callable[..., Any]
_PARSED_NAMES = CALL_PARSERS.keys() | DECOMPOSITIONS.keys() | OUT_OF_PLACE.keys()
# Functions that neither rewrite a gradient nor are part of an operation that does.
_UNREWRITTEN_NAMES = frozenset({"linear", "addmm", "sum", "mean"})


class _GradientEffect(IntEnum):
    """Effect of a module class on rewritten gradients, in increasing order."""

    # It rewrites none.
    HARMLESS = 0
    # Its output is one product (LlamaMLP), so halving the gradient of the output is enough.
    HALVED = 1
    # Its calls must be traced one by one.
    REWRITING = 2


GradientEffects = dict[type | None, _GradientEffect]  # None stands for code outside any module
# By model. lrp/ is below hooks/ and model/ in the import order and cannot use what they remember.
_gradient_effects: WeakKeyDictionary[nn.Module, GradientEffects] = WeakKeyDictionary()


@contextmanager
def trace_operations(
    model: nn.Module,
    *,
    batch_size: int,
    collect_unsupported: bool = True,
    requirements: BackwardRequirements | None = None,
    backward_mode: BackwardMode | None = None,
) -> Iterator[tuple[BackwardMode, UnsupportedOps]]:
    """Give every operation inside the block further backward passes; values and gradients stay.

    Args:
        model: The model.
        batch_size: The number of examples.
        collect_unsupported: Whether to collect operations without a rule. A pass like one that was
            checked before need not; if only gradients are rewritten, modules that rewrite none are then
            left alone.
        requirements: The backward passes to allow; by default relevance and the model's gradient.
        backward_mode: The mode of an earlier pass that is computed again; by default a new one.

    Yields:
        The mode that chooses between the backward passes, and the operations without a rule.
    """
    requirements = requirements or BackwardRequirements()
    gradient_effects = _gradient_effects.setdefault(model, {})
    backward_mode = backward_mode or BackwardMode(
        batch_size,
        supports_rules=requirements.needs_relevance,
        keeps_model_gradients=requirements.needs_model_gradients,
    )
    unsupported_ops = UnsupportedOps(model, is_collecting=collect_unsupported)
    mode = _TracingMode(backward_mode, unsupported_ops, requirements, gradient_effects)
    modules = _list_traced_modules(model, mode)
    original_forwards = [module.__dict__.get("forward") for module in modules]
    try:
        for module in modules:
            module.__dict__["forward"] = partial(mode.call_module, module, module.forward)
        with mode if mode.is_global else nullcontext():
            yield backward_mode, unsupported_ops
    finally:
        mode.roots.clear()
        for module, original_forward in zip(modules, original_forwards, strict=True):
            module.__dict__.pop("forward", None)
            if original_forward is not None:
                module.__dict__["forward"] = original_forward


def _list_traced_modules(model: nn.Module, mode: "_TracingMode") -> list[nn.Module]:
    """Return the modules with a ``forward`` that must be wrapped."""
    modules = list_modules(model)
    if mode.collects_unsupported:
        return modules
    traced_modules = []
    for module in modules:
        # A global mode sees the calls inside of all modules without a wrapper.
        is_harmless = mode.gradient_effects.get(type(module)) == _GradientEffect.HARMLESS
        needs_tracing = not mode.is_global and not is_harmless
        if needs_tracing or may_be_one_operation(module):
            traced_modules.append(module)
    return traced_modules


class _TracingMode(TorchFunctionMode):
    """Gives each call of a torch function its further backward passes.

    Inside a module that is one operation by itself, calls are left alone.

    Attributes:
        collects_unsupported: Whether operations without a rule are collected; others are rewritten either
            way.
        is_global: Whether the mode is active in the whole pass, or only inside modules that need it.
        roots: For each value, the tensor that it was computed from elementwise.
        module_stack: The modules that are being traced, each with the operations in its own code that
            rewrite a gradient (None for a nonlinear one). The first entry is code outside any module.
    """

    def __init__(
        self,
        backward_mode: BackwardMode,
        unsupported_ops: UnsupportedOps,
        requirements: BackwardRequirements,
        gradient_effects: GradientEffects,
    ) -> None:
        super().__init__()
        self.backward_mode = backward_mode
        self.unsupported_ops = unsupported_ops
        self.requirements = requirements
        self.gradient_effects = gradient_effects
        self.collects_unsupported = unsupported_ops.is_collecting
        self.roots = ElementwiseRoots()
        self.parsed_names = _PARSED_NAMES
        if not requirements.needs_relevance:
            self.parsed_names = _PARSED_NAMES - _UNREWRITTEN_NAMES
        # Activations to which a constant was added, by the node of the sum, until a softmax reads it.
        self.unshifted_by_node: dict[Any, Tensor] = {}
        has_outside_effects = None in gradient_effects
        self.is_global = (
            self.collects_unsupported or requirements.needs_relevance or has_outside_effects
        )
        self.module_operation_depth = 0  # of calls inside modules that are one operation each
        self.module_stack: list[tuple[nn.Module | None, list[Operation | None]]] = [(None, [])]

    # --- calls of torch functions ------------------------------------------------------------------

    def __torch_function__(
        self, func: Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "")
        # Most calls only move values, and a model makes hundreds, so the cheap tests come first.
        if (
            self.module_operation_depth
            or not (self.collects_unsupported or name in self.parsed_names)
            or not torch.is_grad_enabled()
        ):
            return func(*args, **keywords)
        if not any(map(_has_activation, (*args, *keywords.values()))):
            return func(*args, **keywords)
        if name in OUT_OF_PLACE and _is_augmented_assignment(sys._getframe(1)):
            func = OUT_OF_PLACE[name]
            name = func.__name__
        return self._run_call(func, name, args, keywords)

    def _run_call(self, func: Function, name: str, args: Any, keywords: Any) -> Any:
        """Run a call with an activation among its arguments."""
        if name in DECOMPOSITIONS:
            decomposed, min_activations = DECOMPOSITIONS[name]
            if sum(map(is_activation, (*args, *keywords.values()))) >= min_activations:
                with self:
                    return decomposed(*args, **keywords)
        call = self._parse_call(name, args, keywords)
        if call is not None and not self._has_no_rule(call):
            plan = plan_call(call, self.roots, self.requirements)
            return self._run_planned(func, plan, args, keywords)
        if self.collects_unsupported:
            return self._run_unsupported(func, args, keywords)
        return func(*args, **keywords)

    def _parse_call(self, name: str, args: Any, keywords: Any) -> OperationCall | None:
        """Return the operation that a call is; None if it is none, or overwrites what a rule must read."""
        parse = CALL_PARSERS.get(name)
        is_in_place = parse is None and _is_in_place_name(name)
        if is_in_place and self._may_overwrite_first(args):
            parse = CALL_PARSERS.get(name[:-1])
        if parse is None:
            return None
        call = parse(*args, **keywords)
        if call is None or not is_in_place:
            return call
        if call.operation in ALWAYS_REWRITTEN or has_several_activations(call):
            return None  # to rewrite the gradient, the overwritten value would have to be kept
        return call

    def _has_no_rule(self, call: OperationCall) -> bool:
        """Return whether relevance is needed and no rule carries it through the operation."""
        return self.requirements.needs_relevance and call.operation in OPERATIONS_WITHOUT_RULE

    def _may_overwrite_first(self, args: Any) -> bool:
        """Return whether no rule will read the first argument, so that an operation may overwrite it."""
        return not self.requirements.needs_relevance and not is_function_node(args[0].grad_fn)

    def _run_planned(self, func: Function, plan: CallPlan, args: Any, keywords: Any) -> Any:
        """Run a call by its plan, and attach its rule."""
        call = plan.call
        if self.collects_unsupported and plan.rewrites_gradient:
            self._remember_rewritten(call.operation if plan.shares_gradient else None)
        # A product passes each factor a share of its gradient: the factors are wrapped before it is computed.
        original_arguments = (args, keywords)
        if plan.shares_gradient:
            shared_factors = self.backward_mode.share_gradient(call.operation, call.factors)
            args, keywords = _replace_arguments(args, keywords, call.factors, shared_factors)
        with torch.set_grad_enabled(plan.keeps_graph):
            value = self._compute_value(func, args, keywords)
        if plan.shares_gradient and call.operation is Operation.ATTENTION:
            value = self._temper_attention(func, original_arguments, call.factors, value)
        if plan.attaches_rule:
            value = self._attach_rule(call, value)
        # Later calls find out by its root that the value is only an elementwise function of another tensor.
        self.roots.remember(value, plan.root)
        return value

    def _compute_value(self, func: Function, args: Any, keywords: Any) -> Any:
        """Run a call that was parsed; mark its nodes if they may be on the path of a gradient."""
        if not self.collects_unsupported or not self.requirements.needs_rewritten_gradients:
            return func(*args, **keywords)
        input_nodes = list_input_nodes((*args, *keywords.values()))
        value = func(*args, **keywords)
        # ``x[i] = y`` returns None and changes its first argument.
        output = args[0] if value is None else value
        self.unsupported_ops.mark_supported(output, input_nodes)
        return value

    def _temper_attention(
        self, func: Function, arguments: tuple[Any, Any], factors: Sequence[Any], output: Tensor
    ) -> Tensor:
        """Let rules take attention that the model calls by itself at another temperature."""
        attend_tempered = partial(attend_at_temperature, func, *arguments)
        tempered = self.backward_mode.temper_attention(attend_tempered, output, factors)
        if self.collects_unsupported:
            input_nodes = list_input_nodes((output, *factors))
            self.unsupported_ops.mark_supported(tempered, input_nodes)
        return tempered

    def _remember_rewritten(self, operation: Operation | None) -> None:
        """Remember that the code of the current module rewrites a gradient."""
        module, rewritten_operations = self.module_stack[-1]
        rewritten_operations.append(operation)
        if module is None:
            self.gradient_effects[None] = _GradientEffect.REWRITING

    def _attach_rule(self, call: OperationCall, value: Tensor) -> Tensor:
        operands = call.operands
        if call.operation is Operation.SOFTMAX and self.requirements.needs_relevance:
            unshifted = find_unshifted(operands[0], self.unshifted_by_node)
            operands = (*operands, unshifted)
            self.unshifted_by_node.clear()
        value = self.backward_mode.attach_rule(call.operation, value, operands, call.settings)
        if call.operation is Operation.ADD_CONSTANT and operands[0] is not None:
            self.unshifted_by_node[value.grad_fn] = operands[0].detach()
        return value

    def _run_unsupported(self, func: Function, args: Any, keywords: Any) -> Any:
        """Run a call without a rule, and collect the nodes that relevance could not pass.

        These are nodes that do more than move values, and those that overwrite what a rule will read.
        """
        name = getattr(func, "__name__", "")
        input_nodes = list_input_nodes((*args, *keywords.values()))
        overwrites_operand = _is_in_place_name(name) and is_function_node(args[0].grad_fn)
        output = func(*args, **keywords)
        module, _ = self.module_stack[-1]
        for tensor in list_graph_tensors(output):
            for node in iter_new_nodes(tensor, input_nodes):
                is_overwriting = overwrites_operand and node is tensor.grad_fn
                if is_overwriting or not is_structural(node):
                    self.unsupported_ops.add(node, name, module)
        return output

    # --- calls of modules --------------------------------------------------------------------------

    def call_module(self, module: nn.Module, forward: Function, *args: Any, **kwargs: Any) -> Any:
        """Call a module: as one operation if it is one, else with its own calls traced."""
        if self.collects_unsupported:
            self.gradient_effects.setdefault(type(module), _GradientEffect.HARMLESS)
        module_operation = self._detect_operation(module, args, kwargs)
        if module_operation is None:
            return self._trace_module(module, forward, *args, **kwargs)
        (features,) = args
        if module_operation.operation is Operation.LINEAR_MAP:
            output = forward(features)
            if self.collects_unsupported and self.requirements.needs_rewritten_gradients:
                self.unsupported_ops.mark_supported(output, {features.grad_fn})
            return output
        return self._run_module_operation(module, module_operation, forward, features)

    def _detect_operation(
        self, module: nn.Module, args: Any, kwargs: Any
    ) -> ModuleOperation | None:
        """Return the operation that a module is; None if its calls must be traced one by one."""
        has_one_argument = len(args) == 1 and not kwargs
        if self.module_operation_depth or not has_one_argument or not is_activation(args[0]):
            return None
        if not torch.is_grad_enabled():
            return None
        return detect_operation(module, args[0])

    def _run_module_operation(
        self,
        module: nn.Module,
        module_operation: ModuleOperation,
        forward: Function,
        features: Tensor,
    ) -> Tensor:
        """Run a module that is one nonlinear operation, and attach its rule."""
        self.module_operation_depth += 1
        try:
            with torch.set_grad_enabled(self.requirements.keeps_original_graph):
                value = forward(features)
        finally:
            self.module_operation_depth -= 1
        operands: tuple[Tensor | None, ...] = (features,)
        settings: Any = None
        if module_operation.operation is Operation.NORM:
            norm = read_norm(module, module_operation, features)
            operands = (features, norm.weight, norm.bias)
            settings = (norm.is_centered, norm.stabilizer)
        return self.backward_mode.attach_rule(module_operation.operation, value, operands, settings)

    def _trace_module(self, module: nn.Module, forward: Function, *args: Any, **kwargs: Any) -> Any:
        """Call a module that is several operations, or none."""
        effect = self.gradient_effects.get(type(module))
        if not self.collects_unsupported:
            is_traced_already = self.is_global or len(self.module_stack) > 1
            if is_traced_already or effect == _GradientEffect.HARMLESS:
                return forward(*args, **kwargs)
            if effect == _GradientEffect.HALVED:
                return self._halve_gradient(forward(*args, **kwargs))
        rewritten_operations: list[Operation | None] = []
        self.module_stack.append((module, rewritten_operations))
        try:
            with nullcontext() if self.is_global else self:
                output = forward(*args, **kwargs)
        finally:
            self.module_stack.pop()
        if rewritten_operations:
            arguments = (*args, *kwargs.values())
            self._remember_effect(module, rewritten_operations, output, arguments)
        return output

    def _remember_effect(
        self,
        module: nn.Module,
        rewritten_operations: Sequence[Operation | None],
        output: Any,
        arguments: Sequence[Any],
    ) -> None:
        """Note for the class of a module what its calls do to gradients, so that later calls are faster."""
        effect = _GradientEffect.REWRITING
        if rewritten_operations == [Operation.GATE] and _is_one_product(output, arguments):
            effect = _GradientEffect.HALVED
        previous_effect = self.gradient_effects[type(module)]
        self.gradient_effects[type(module)] = max(previous_effect, effect)

    def _halve_gradient(self, output: Any) -> Any:
        """Give the output of a product of two activations the share of one of them."""
        if not is_activation(output):
            return output
        return self.backward_mode.share_gradient(Operation.GATE, (output,), num_factors=2)[0]


def _is_augmented_assignment(frame: FrameType) -> bool:
    """Return whether the code of ``frame`` is executing ``x += y`` and not ``x.add_(y)``.

    Both reach a function mode as ``add_`` with the same arguments, but only the first binds ``x`` to
    what comes back. It may therefore be computed out of place, so that a rule can still read the old
    value (T5 adds its position bias in this way); after ``x.add_(y)`` other names may refer to ``x``, which
    must change. The instruction that is being executed is the only thing that tells the two apart.
    """
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return instruction == "BINARY_OP"


def _is_in_place_name(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _has_activation(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(is_activation, value))
    return is_activation(value)


def _is_one_product(output: Any, arguments: Sequence[Any]) -> bool:
    """Return whether no gradient reaches ``arguments`` but through the factors of the product."""
    if not is_activation(output):
        return False
    nodes_above_factors = iter_new_nodes(output, set(), GradientShare)
    return list_input_nodes(arguments).isdisjoint(nodes_above_factors)


def _replace_arguments(
    args: Any, keywords: Any, old: Sequence[Any], new: Sequence[Any]
) -> tuple[Any, dict[str, Any]]:
    """Replace each of ``old`` among the arguments of a call, one occurrence each, by its ``new`` value."""
    pending = list(zip(old, new, strict=True))

    def exchange(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(exchange, value))
        for index, (old_value, new_value) in enumerate(pending):
            if value is old_value:
                del pending[index]
                return new_value
        return value

    new_args = tuple(map(exchange, args))
    new_keywords = {name: exchange(value) for name, value in keywords.items()}
    return new_args, new_keywords
