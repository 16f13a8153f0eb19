"""Run compiled and packed modules by the Python code of their class for a while.

Hooks, traced operations and relevance rules see only what Python runs. A compiled part of a model hides its
operations and compiles again for every hook, and 4-bit layers of bitsandbytes repack their weights for
processors with AVX512-BF16 in the first pass without gradients, after which no gradient passes through them.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from tokenlight.hooks.patching import patched_attributes

# torch 2.13: what is left on a module by module.compile(), torch.compile(module), and
# module.forward = torch.compile(module.forward).
COMPILED_CALL = "_compiled_call_impl"
COMPILED_MODULE = "_orig_mod"
UNCOMPILED_FUNCTION = "_torchdynamo_orig_callable"
# bitsandbytes 0.50 (nn/modules.py): whether a layer repacks its weights.
PACKING_SWITCH = "support_avx512bf16_for_cpu"
PACKED_MARK = "packing_format_for_cpu"
# Only modules with one of these attributes of their own are looked at more closely.
SUSPECT_ATTRIBUTES = frozenset({"forward", COMPILED_CALL, PACKING_SWITCH})


@contextmanager
def uncompiled_modules(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Run the Python code of each module's class inside the block, even where ``torch.compile`` replaced it.

    Weights that bitsandbytes has packed are unpacked, and are packed again by the next pass outside.

    Args:
        modules: All modules of a model.
    """
    with ExitStack() as cleanup:
        for module in modules:
            if not SUSPECT_ATTRIBUTES.isdisjoint(vars(module)):
                cleanup.enter_context(patched_attributes([module], **_find_replacements(module)))
        yield


def runs_code_of_class(module: nn.Module) -> bool:
    """Return whether a module runs the ``forward`` of its class, compiled or not, and none of the caller."""
    attributes = vars(module)
    if "forward" not in attributes or module._modules.get(COMPILED_MODULE) is not None:
        return True
    function = getattr(attributes["forward"], UNCOMPILED_FUNCTION, None)
    return getattr(function, "__func__", None) is type(module).forward


def _find_replacements(module: nn.Module) -> dict[str, Any]:
    """Return the attributes with which a module runs the code of its class."""
    attributes = vars(module)
    replacements: dict[str, Any] = {}
    if attributes.get(COMPILED_CALL) is not None:
        replacements[COMPILED_CALL] = None
    original = module._modules.get(COMPILED_MODULE)
    function = getattr(attributes.get("forward"), UNCOMPILED_FUNCTION, None)
    if original is not None and "forward" in attributes:
        replacements["forward"] = original.__call__
    elif function is not None:
        replacements["forward"] = function
    if attributes.get(PACKING_SWITCH):
        _unpack_weight(module)
        replacements[PACKING_SWITCH] = False
    return replacements


def _unpack_weight(module: Any) -> None:
    """Undo the packing of a 4-bit layer, as bitsandbytes does where it saves one."""
    quant_state: Any = getattr(module.weight, "quant_state", None)
    if getattr(quant_state, PACKED_MARK, False):
        from bitsandbytes import functional

        unpacked, state = functional._convert_weight_packed_for_cpu_inverse(
            module.weight.data, quant_state
        )
        module.weight.data = unpacked
        module.weight.quant_state = state
