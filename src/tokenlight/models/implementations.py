"""Check which implementations of attention, experts or quantization a model folder asks for.

transformers may take the name of an implementation for code to download from a hub and run: ``owner/name``
itself, and ``flash_attention_2`` if its library is missing and the package ``kernels`` is installed. Only
names of code that is part of torch and transformers are allowed, wherever in a config they stand.
"""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from transformers import PreTrainedConfig

from tokenlight.errors import UnsupportedModel, short_repr

ATTENTION = ("eager", "sdpa", "flex_attention")
EXPERTS = ("eager", "batched_mm", "grouped_mm")
# Quantization methods with an installed library; for others, transformers downloads kernels.
QUANTIZERS = (
    "aqlm", "auto-round", "awq", "bitnet", "bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit",
    "compressed-tensors", "gptq", "higgs", "hqq", "quanto", "quark", "sinq", "spqr", "torchao", "vptq",
)  # fmt: skip
# Fields by which a config renames its other fields, or patches classes of transformers.
PATCHES = ("attribute_map", "fusion_config", "kernel_config", "use_kernels", "allow_all_kernels")


def check_implementations(name: str, file: str, content: Mapping[str, Any]) -> None:
    """Refuse a config that asks for code besides torch and transformers.

    Args:
        name: The model, as the user named it.
        file: Where the config comes from, for the message.
        content: The config, or keywords of ``from_pretrained``.

    Raises:
        UnsupportedModel: A field, at any depth, names an implementation that is not on the list.
    """
    for field, value in _iter_fields(content):
        if field in PATCHES and value:
            raise UnsupportedModel(
                f"{name} changes which code runs ({file}: {field} is {short_repr(value)}), but tokenlight "
                "runs only the code of transformers. Remove that line.",
                code="config-patches-code",
            )
        _check_names(name, file, field, value)
        if field == "quant_method" and value not in QUANTIZERS and find_spec("kernels") is not None:
            raise UnsupportedModel(
                f"{name} is quantized by {short_repr(value)} ({file}), for which transformers would download "
                "code through the package kernels. Uninstall kernels, or use one of "
                f"{', '.join(QUANTIZERS)}.",
                code="quantization-downloads-code",
            )


def _check_names(name: str, file: str, field: str, value: Any) -> None:
    """Refuse implementations in ``value`` that are not on the list of ``field``, if it has one."""
    allowed = _list_allowed_names(field)
    if not allowed:
        return
    for implementation in _iter_leaves(value):
        # An array has no truth value to compare with, so only strings are looked up.
        is_allowed = isinstance(implementation, str) and implementation in allowed
        if implementation is not None and not is_allowed:
            raise UnsupportedModel(
                f"{name} names code to download and run ({file}: {field} is {short_repr(implementation)}). "
                f"Remove that line, or choose one of {', '.join(allowed)}.",
                code="config-downloads-code",
            )


def check_config(name: str, config: PreTrainedConfig) -> None:
    """Apply the same lists to a config that transformers has read, and to all configs inside it."""
    for part in _iter_configs(config):
        for field in ("_attn_implementation", "_experts_implementation"):
            check_implementations(name, "config.json", {field: getattr(part, field, None)})


def _list_allowed_names(field: str) -> tuple[str, ...]:
    """Return the implementations that ``field`` may name; empty if it names no implementation."""
    field = field.removesuffix("_internal")
    if not field.endswith("_implementation"):
        return ()
    return EXPERTS if "experts" in field else ATTENTION


def _iter_fields(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield every field with its value, at any depth of mappings and lists."""
    if isinstance(content, Mapping):
        for field, value in content.items():
            yield str(field), value
            yield from _iter_fields(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _iter_fields(value)


def _iter_leaves(value: Any) -> Iterator[Any]:
    """Yield the values inside nested mappings and lists: one implementation per part of a model."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _iter_leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _iter_leaves(inner)
    else:
        yield value


def _iter_configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """Yield a config and all configs inside it."""
    yield config
    for value in vars(config).values():
        if isinstance(value, PreTrainedConfig):
            yield from _iter_configs(value)
