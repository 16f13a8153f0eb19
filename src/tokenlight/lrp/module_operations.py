"""Detect modules that are one operation each, by what they compute and not by what they are called.

A module that writes a norm or an activation out in elementary operations is treated as one operation, since
its parts have no rule of their own (NewGELU written out loses a thousandth of the relevance). It is called
with a few rows of values: if y_i depends only on x_i, and not linearly, it is an activation; if it answers
as a norm would, it is that norm; if it is affine, a map. Other modules are traced operation by operation.

An activation may also be written out in the code of a larger module: ESM's GELU is not a product of the two
activations ``x * 0.5`` and ``1 + erf(x / √2)``, but one activation of its root x (:class:`ElementwiseRoots`).
"""

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from tokenlight.accel.precision import compute_rounding_eps
from tokenlight.lrp.operations import OperationCall
from tokenlight.lrp.rules import Operation

LARGE_SCALE = 2.0**13  # scale of inputs at which the stabilizer of a norm has no effect
SMALL_SCALE = 2.0**-10  # scale of inputs at which it has one
MAX_STABILIZER = 1e-2
# Norms sum thousands of numbers in float32, whatever the dtype of the model.
MIN_TOLERANCE = 160 * torch.finfo(torch.float32).eps
MIN_WIDTH = 4  # of a row; fewer values cannot tell a norm from an activation


class MeasuredNorm(NamedTuple):
    """A norm over the last axis, as it is at present."""

    weight: Tensor | None
    bias: Tensor | None
    is_centered: bool
    stabilizer: Tensor | float

    def __call__(self, rows: Tensor) -> Tensor:
        """Compute the norm of ``rows``, written out."""
        if self.is_centered:
            rows = rows - rows.mean(dim=-1, keepdim=True)
        mean_square = rows.square().mean(dim=-1, keepdim=True)
        normed = rows * torch.rsqrt(mean_square + self.stabilizer)
        if self.weight is not None:
            normed = normed * self.weight
        if self.bias is not None:
            normed = normed + self.bias
        return normed


class NormParameters(NamedTuple):
    """Which attributes of a module hold the numbers of its norm; None if it has no such number."""

    weight_name: str | None
    weight_offset: float  # what is added to the weight, 1 in Gemma
    bias_name: str | None
    stabilizer: float


class ModuleOperation(NamedTuple):
    """The operation that a module is.

    Attributes:
        operation: The operation.
        is_centered: Of a norm, whether it subtracts the mean.
        weight_shape: Of a norm, the shape of its weight.
        parameters: Of a norm, where its numbers are; None if that could not be found out.
    """

    operation: Operation
    is_centered: bool = False
    weight_shape: tuple[int, ...] = ()
    parameters: NormParameters | None = None


# Kept by module and not by model, since models may share modules; modules are held weakly. By the eps of the
# arithmetic, too: what looks linear in bfloat16 may not be.
_operation_cache: WeakKeyDictionary[nn.Module, dict[float, ModuleOperation | None]] = (
    WeakKeyDictionary()
)


def may_be_one_operation(module: nn.Module) -> bool:
    """Return whether a module has no parts and is not torch's own; torch's call one function each."""
    is_torch_module = type(module).__module__.startswith("torch.nn.modules")
    has_parts = next(iter(module._modules.values()), None) is not None
    return not is_torch_module and not has_parts


def detect_operation(module: nn.Module, features: Tensor) -> ModuleOperation | None:
    """Return the operation that ``module`` is; None if it is not one operation.

    Each module is probed once in each arithmetic.

    Args:
        module: The module.
        features: Its input, for shape, dtype and device.
    """
    if not features.is_floating_point() or not may_be_one_operation(module):
        return None
    operations = _operation_cache.setdefault(module, {})
    eps = compute_rounding_eps(features.device, features.dtype)
    if eps not in operations:
        operations[eps] = _probe_module(module, features)
    return operations[eps]


def read_norm(module: nn.Module, operation: ModuleOperation, features: Tensor) -> MeasuredNorm:
    """Return the norm that ``module`` is now; its weights may have changed since it was probed.

    Args:
        module: A normalization layer.
        operation: What a probe found out about its class: names of weight and bias, whether it subtracts
            the mean.
        features: The input of this call, in whose dtype the norm is measured if its parameters are not
            known.
    """
    parameters = operation.parameters
    if parameters is None:
        return _measure_norm(module, operation, features)
    weight: Any = None
    if parameters.weight_name is not None:
        weight = getattr(module, parameters.weight_name)
    bias: Any = None
    if parameters.bias_name is not None:
        bias = getattr(module, parameters.bias_name)
    if parameters.weight_offset:
        # In float32, as models do: half precision would round the sum.
        wide_dtype = torch.promote_types(weight.dtype, torch.float32)
        weight = weight.to(wide_dtype) + parameters.weight_offset
    return MeasuredNorm(weight, bias, operation.is_centered, parameters.stabilizer)


@torch.no_grad()
def _measure_norm(module: nn.Module, operation: ModuleOperation, features: Tensor) -> MeasuredNorm:
    """Measure a norm by its outputs, whatever its parameters are called."""
    wide_dtype = torch.promote_types(features.dtype, torch.float32)
    # +1 and −1 in turn: mean 0 and deviation 1 if the width is even.
    signs = torch.ones(operation.weight_shape, dtype=wide_dtype, device=features.device)
    signs[..., 1::2] = -1.0
    rows = torch.stack([LARGE_SCALE * signs, -LARGE_SCALE * signs, SMALL_SCALE * signs])
    positive, negative, small = module.forward(rows.to(features.dtype)).to(wide_dtype)
    bias = (positive + negative) / 2
    scaled_signs = (positive - negative) / 2
    centered_signs = signs
    if operation.is_centered:
        centered_signs = signs - signs.mean(dim=-1, keepdim=True)
    mean_square = centered_signs.square().mean(dim=-1, keepdim=True)
    weight = scaled_signs * torch.sqrt(mean_square) / centered_signs
    # At the small scale c the output is smaller by √(c²σ² / (c²σ² + ε)), which gives ε.
    projection = (scaled_signs * (small - bias)).sum(dim=-1, keepdim=True)
    ratio = projection / scaled_signs.square().sum(-1, keepdim=True)
    stabilizer = SMALL_SCALE**2 * mean_square * (ratio**-2 - 1)
    stabilizer = stabilizer.clamp(min=0.0).nan_to_num(0.0)
    return MeasuredNorm(weight, bias, operation.is_centered, stabilizer)


@torch.no_grad()
def _probe_module(module: nn.Module, features: Tensor) -> ModuleOperation | None:
    if isinstance(module, nn.Linear):  # a quantized one, for example: affine but for its rounding
        return ModuleOperation(Operation.LINEAR_MAP)
    width = features.shape[-1]
    if features.dim() < 2 or width < MIN_WIDTH or not features.is_floating_point():
        return None
    # One weight for all heads, or one for each: some norms of queries have a weight per head.
    leading_ones = (1,) * (features.dim() - 2)
    shared_shape = (*leading_ones, width)
    per_head_shape = (*leading_ones[1:], *features.shape[-2:])
    for weight_shape in dict.fromkeys([shared_shape, per_head_shape]):
        try:
            operation = _classify_module(module, features, weight_shape)
        except (RuntimeError, ValueError, TypeError, IndexError):
            continue  # the module does not take inputs of this shape
        if operation is not None:
            return operation
    return None


def _compute_rounding_tolerance(features: Tensor) -> float:
    """Return by how much rounding may move an output of size 1; some modules compute in float32."""
    return max(8 * compute_rounding_eps(features.device, features.dtype), MIN_TOLERANCE)


class _Probe:
    """The outputs of a module for random rows that tell a map, an activation and a norm apart.

    Args:
        module: The module.
        features: The input of the module, for dtype and device.
        weight_shape: The shape of a row; axes of size 1 are repeated.

    Attributes:
        inputs: The rows by name, in the dtype of ``features``.
        outputs: The outputs by name, in float32 at least; empty if the module does not map rows to rows.
    """

    def __init__(self, module: nn.Module, features: Tensor, weight_shape: tuple[int, ...]) -> None:
        generator = torch.Generator().manual_seed(0)
        wide_dtype = torch.promote_types(features.dtype, torch.float32)
        # At least 3 along each axis, so that mixing along none of them goes unseen.
        row_shape = tuple(3 if size == 1 else size for size in weight_shape)
        random_rows = torch.randn(3, *row_shape, generator=generator, dtype=wide_dtype)
        first, second, selector = random_rows.to(features.device) * 2
        self._is_first = selector > 0
        rows = {
            "first": first,
            "second": second,
            "mixed": torch.where(self._is_first, first, second),
            # Rows of thousands of values have nearly the same deviation, and a norm of them differs from
            # an activation by less than half precision rounds, unless some values are far larger.
            "spread": torch.where(self._is_first, first, 16 * second),
            "sum": first + second,
            "zeros": torch.zeros_like(first),
            "shifted": first + 1,
        }
        self.inputs = torch.stack(list(rows.values())).to(features.dtype)
        outputs: Any = module.forward(self.inputs)
        self.outputs: dict[str, Tensor] = {}
        self.keeps_shape = False
        if isinstance(outputs, Tensor) and outputs.shape[:-1] == self.inputs.shape[:-1]:
            self.outputs = dict(zip(rows, outputs.to(wide_dtype), strict=True))
            self.keeps_shape = outputs.shape == self.inputs.shape
            scale = float(self.outputs["first"].abs().max())
            self._tolerance = _compute_rounding_tolerance(features) * scale

    def is_close(self, tensor: Tensor, expected: Tensor) -> bool:
        return bool((tensor - expected).abs().max() <= self._tolerance)

    def is_affine(self) -> bool:
        """Return whether f(a + b) + f(0) = f(a) + f(b)."""
        outputs = self.outputs
        return self.is_close(
            outputs["sum"] + outputs["zeros"], outputs["first"] + outputs["second"]
        )

    def is_elementwise(self) -> bool:
        """Return whether each output depends only on the input at its own position."""
        outputs = self.outputs
        mixed = torch.where(self._is_first, outputs["first"], outputs["second"])
        unspread = torch.where(self._is_first, outputs["spread"], outputs["first"])
        return self.is_close(outputs["mixed"], mixed) and self.is_close(unspread, outputs["first"])

    def is_norm(self, norm: MeasuredNorm) -> bool:
        """Return whether ``norm`` gives the same outputs."""
        first, second = norm(self.inputs[:2].to(self.outputs["first"].dtype))
        is_first_close = self.is_close(first, self.outputs["first"])
        return is_first_close and self.is_close(second, self.outputs["second"])


def _classify_module(
    module: nn.Module, features: Tensor, weight_shape: tuple[int, ...]
) -> ModuleOperation | None:
    """Tell a map, an activation and a norm apart; None if the module is none of them."""
    probe = _Probe(module, features, weight_shape)
    if not probe.outputs:
        return None
    if probe.is_affine():
        return ModuleOperation(Operation.LINEAR_MAP)
    if not probe.keeps_shape:
        return None
    if probe.is_elementwise():
        return ModuleOperation(Operation.ACTIVATION)
    is_centered = probe.is_close(probe.outputs["shifted"], probe.outputs["first"])
    operation = ModuleOperation(Operation.NORM, is_centered, weight_shape)
    if not probe.is_norm(read_norm(module, operation, features)):
        return None
    return operation._replace(parameters=_find_norm_parameters(module, operation, features))


def _find_norm_parameters(
    module: nn.Module, operation: ModuleOperation, features: Tensor
) -> NormParameters | None:
    """Find which parameters of a module are its weight and bias, and which of its numbers the stabilizer.

    The norm is measured with random parameters in place of the module's own; then each is compared with
    the measured weight and bias.

    Returns:
        None if any of this is not unambiguous.
    """
    parameters = {name: p for name, p in module._parameters.items() if p is not None}
    stabilizers = _list_stabilizers(module)
    has_meta = any(parameter.is_meta for parameter in parameters.values())
    if has_meta or len(stabilizers) != 1:
        return None
    (stabilizer,) = stabilizers
    generator = torch.Generator().manual_seed(1)
    random_parameters: dict[str, nn.Parameter] = {}
    for name, parameter in parameters.items():
        values = torch.randn(parameter.shape, generator=generator).to(parameter)
        random_parameters[name] = nn.Parameter(values, requires_grad=False)
    try:
        module._parameters.update(random_parameters)
        norm: Any = _measure_norm(module, operation, features)
    finally:
        module._parameters.update(parameters)
    tolerance = 4 * _compute_rounding_tolerance(features)
    weight = _match_weight(norm, random_parameters, tolerance)
    bias = _match_bias(norm, random_parameters, tolerance)
    gap = float((norm.stabilizer - stabilizer).abs().max())
    is_stabilizer = gap <= 0.1 * stabilizer + tolerance * SMALL_SCALE**2
    if weight is None or bias is None or not is_stabilizer:
        return None
    weight_name, weight_offset = weight
    (bias_name,) = bias
    return NormParameters(weight_name, weight_offset, bias_name, stabilizer)


def _list_stabilizers(module: nn.Module) -> set[float]:
    """Return the attributes of a module that may be the stabilizer of a norm."""
    stabilizers = set()
    for value in vars(module).values():
        if isinstance(value, float) and 0 <= value < MAX_STABILIZER:
            stabilizers.add(value)
    return stabilizers


def _match_weight(
    norm: MeasuredNorm, parameters: dict[str, nn.Parameter], tolerance: float
) -> tuple[str | None, float] | None:
    """Return the name of the weight and its offset; (None, 0) if the weight is 1, None if none matches."""
    for name, parameter in parameters.items():
        for offset in (0.0, 1.0):
            if _is_same_parameter(norm.weight, parameter + offset, tolerance):
                return name, offset
    if _is_same_parameter(norm.weight, torch.ones(()), tolerance):
        return None, 0.0
    return None


def _match_bias(
    norm: MeasuredNorm, parameters: dict[str, nn.Parameter], tolerance: float
) -> tuple[str | None] | None:
    """Return the name of the bias in a tuple; (None,) if the bias is 0, None if none matches."""
    for name, parameter in parameters.items():
        if _is_same_parameter(norm.bias, parameter, tolerance):
            return (name,)
    if _is_same_parameter(norm.bias, torch.zeros(()), tolerance):
        return (None,)
    return None


def _is_same_parameter(measured: Any, parameter: Tensor, tolerance: float) -> bool:
    if parameter.dim() and parameter.numel() != measured.numel():
        return False
    gap = measured.flatten() - parameter.to(measured).flatten()
    return bool(gap.abs().max() <= tolerance)


class ElementwiseRoot(NamedTuple):
    """The tensor that a value was computed from element by element.

    Attributes:
        tensor: The root.
        is_nonlinear: Whether it was not only scaled and shifted.
    """

    tensor: Tensor
    is_nonlinear: bool = False


class ElementwiseRoots(WeakIdKeyDictionary):
    """The elementwise roots of the values of one forward pass."""

    def resolve_call(self, call: OperationCall) -> tuple[OperationCall, ElementwiseRoot | None]:
        """Return the call, as an activation of its root if it is one, and that root."""
        root = self._find_root(call)
        if root is not None and root.is_nonlinear:
            call = OperationCall(Operation.ACTIVATION, (root.tensor,))
        return call, root

    def remember(self, value: Any, root: ElementwiseRoot | None) -> None:
        """Remember that ``value`` was computed from ``root``."""
        if root is not None and value.shape == root.tensor.shape:
            self[value] = root

    def _find_root(self, call: OperationCall) -> ElementwiseRoot | None:
        if not call.operands or call.operands[0] is None:
            return None
        operation = call.operation
        root = self._find_root_of(call.operands[0])
        if operation is Operation.ACTIVATION:
            return ElementwiseRoot(root.tensor, is_nonlinear=True)
        if operation in (Operation.SCALE, Operation.ADD_CONSTANT):
            is_by_number = call.operands[1] is None
            if is_by_number:
                return root
        if operation in (Operation.ADD, Operation.GATE):
            other = self._find_root_of(call.operands[1])
            if other.tensor is root.tensor:
                is_product = operation is Operation.GATE
                is_nonlinear = root.is_nonlinear or other.is_nonlinear or is_product
                return ElementwiseRoot(root.tensor, is_nonlinear)
        return None

    def _find_root_of(self, tensor: Any) -> ElementwiseRoot:
        """Return the root of a tensor: itself, if it was not computed element by element."""
        root: ElementwiseRoot = self.get(tensor, ElementwiseRoot(tensor))  # type: ignore[no-untyped-call]
        return root
