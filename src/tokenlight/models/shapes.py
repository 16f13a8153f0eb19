"""Compare the shapes that a config asks for with those of the weights, before any memory is allocated.

A config of a few lines can ask for a model of any size: transformers would fill missing weights with random
numbers, and only then report them. Here the model is first built without memory (on torch's meta device),
and is never allowed to grow beyond what the headers of its safetensors files list.
"""

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers import initialization

from tokenlight.errors import DamagedFile
from tokenlight.models.embedded import MODELS_FOLDER, quiet_transformers
from tokenlight.models.safety import INDEX_FILE, fetch_file, read_model_json

Shapes = Mapping[str, tuple[int, ...]]
# Parameters of a head that may be missing in the files; it is reported as missing later.
MAX_MISSING_HEAD_PARAMETERS = 1 << 24
# Tied tensors are built separately and then joined; T5 has its embeddings four times.
MAX_TIED_COPIES = 8
# Modules and parameters per tensor of the files: dropouts, activations, experts stored as one tensor.
PARTS_PER_TENSOR = 100
FEWEST_PARTS = 10_000
MAX_VALUES_PER_BYTE = 16  # most numbers in a byte of quantized weights: half a bit each
MAX_BUFFER_VALUES = 1 << 28  # numbers that a model computes for itself, such as positions and masks
# So few labels cost nothing, although a config makes two tables of them.
MIN_REFUSED_LABELS = 1 << 14


def read_shapes(folder_or_id: str, hub_options: dict[str, Any]) -> tuple[Shapes, int] | None:
    """Read the shapes of all tensors in a model's safetensors files.

    Args:
        folder_or_id: A folder or a hub id.
        hub_options: Where the files of a hub id are; ``variant`` chooses among them.

    Returns:
        The shapes by name, and the size of the files in bytes. None if there is no such file, which is
        reported when the weights are loaded.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    num_bytes = 0
    files = _list_weight_files(folder_or_id, hub_options)
    for file in files:
        num_bytes += file.stat().st_size
        with safe_open(str(file), "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no dict
                shapes[name] = tuple(tensors.get_slice(name).get_shape())
    return (shapes, num_bytes) if files else None


def check_num_labels(
    name: str, folder_or_id: str, shapes: Shapes, hub_options: dict[str, Any]
) -> None:
    """Refuse more labels than any tensor has rows: just reading the config would make a table of them.

    Args:
        name: The model, as the user named it.
        folder_or_id: Where its config is.
        shapes: The shapes of its tensors.
        hub_options: Options that say where the files of a hub id are.
    """
    file = fetch_file(folder_or_id, "config.json", hub_options)
    if file is None:
        return
    longest = max((max(shape, default=0) for shape in shapes.values()), default=0)
    for config in _iter_tables(read_model_json(file)):
        num_labels = config.get("num_labels")
        if isinstance(num_labels, int) and num_labels > max(longest, MIN_REFUSED_LABELS):
            raise DamagedFile(
                f"config.json of {name} says num_labels = {num_labels:,}, but no tensor of its weights has "
                f"more than {longest:,} rows. Correct that field.",
                code="num-labels-of-config",
            )


def check_shapes(
    config_name: str,
    model_class: Any,
    config: Any,
    shapes: Shapes,
    num_bytes: int,
    hub_options: dict[str, Any],
) -> Shapes:
    """Refuse a config that asks for another model than the weights hold.

    Args:
        config_name: Where the config comes from, as the beginning of a message.
        model_class: The class of the model.
        config: Its config; options that name fields of it take precedence.
        shapes: The shapes of its tensors, as :func:`read_shapes` returns them.
        num_bytes: The size of its files.
        hub_options: The options that it is loaded with.

    Returns:
        The shapes of the parameters that the config asks for.

    Raises:
        DamagedFile: The model would be larger than its weights, or a tensor has another size.
    """
    config = _apply_overrides(config, hub_options)
    is_quantized = getattr(config, "quantization_config", None) is not None
    num_stored = sum(map(prod, shapes.values()))
    max_parameters = 2 * num_stored + MAX_MISSING_HEAD_PARAMETERS
    if is_quantized:
        max_parameters = MAX_VALUES_PER_BYTE * num_bytes + MAX_MISSING_HEAD_PARAMETERS
    options = {}
    if hub_options.get("add_pooling_layer") is False:
        options["add_pooling_layer"] = False
    with (
        quiet_transformers(hide_warnings=True),
        _bounded_construction(config_name, len(shapes), MAX_TIED_COPIES * max_parameters),
    ):
        model = model_class(config, **options)
    _check_size(config_name, model, num_stored, max_parameters)
    if not is_quantized:
        _check_each_shape(config_name, model, shapes)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _apply_overrides(config: Any, hub_options: dict[str, Any]) -> Any:
    """Return a copy of a config with the fields that options of the same name replace."""
    config = copy.deepcopy(config)
    for field, value in hub_options.items():
        if hasattr(config, field):
            setattr(config, field, value)
    return config


def _check_size(config_name: str, model: nn.Module, num_stored: int, max_parameters: int) -> None:
    """Refuse a model with many more parameters, or many more other numbers, than its weights hold."""
    # Tied parameters are counted once.
    parameters = {id(parameter): parameter for parameter in model.parameters()}
    num_built = sum(parameter.numel() for parameter in parameters.values())
    if num_built > max_parameters:
        raise DamagedFile(
            f"{config_name} asks for a model of {num_built:,} parameters, but its weights hold "
            f"{num_stored:,}. Give the config that was saved with these weights.",
            code="config-parameters",
        )
    num_computed = sum(buffer.numel() for buffer in model.buffers())
    max_computed = max_parameters + MAX_BUFFER_VALUES
    if num_computed > max_computed:
        raise DamagedFile(
            f"{config_name} asks for {num_computed:,} numbers besides the parameters, such as "
            f"positions and masks, but at most {max_computed:,} are computed. Correct its lengths.",
            code="config-buffers",
        )


def _check_each_shape(config_name: str, model: nn.Module, shapes: Shapes) -> None:
    """Refuse a parameter that has another number of values in the weights."""
    for parameter_name, parameter in model.named_parameters():
        stored = shapes.get(parameter_name)
        if stored is not None and prod(stored) != parameter.numel():
            raise DamagedFile(
                f"{config_name} does not fit its weights: {parameter_name} has the shape "
                f"{list(stored)} in the file, but the config asks for {list(parameter.shape)}. Give the "
                "config that was saved with these weights.",
                code="config-shape",
            )


@contextmanager
def _bounded_construction(
    config_name: str, num_tensors: int, max_parameters: int
) -> Iterator[None]:
    """Create modules on the meta device inside the block, and stop if they outgrow the weights."""
    most_parts = PARTS_PER_TENSOR * num_tensors + FEWEST_PARTS
    builder = threading.get_ident()
    num_parts = 0
    num_values = 0

    def count(_module: nn.Module, _name: str, part: Any) -> None:
        nonlocal num_parts, num_values
        if threading.get_ident() != builder:
            return  # the hooks are global, and other threads may build models, too
        num_parts += 1
        if isinstance(part, torch.Tensor):
            num_values += part.numel()
        if num_parts > most_parts or num_values > max_parameters:
            raise DamagedFile(
                f"{config_name} asks for a model of more than {num_values:,} parameters in "
                f"{num_parts:,} parts, but its weights are {num_tensors:,} tensors. Give the config that "
                "was saved with these weights.",
                code="config-parts",
            )

    with ExitStack() as stack:
        stack.enter_context(initialization.no_init_weights())
        # As in from_pretrained of transformers, so that every model that can be loaded can be built here.
        stack.enter_context(torch.device("meta"))
        safe_creation = getattr(initialization, "meta_device_safe_creation_ops", nullcontext)
        stack.enter_context(safe_creation())
        for hook in (
            register_module_parameter_registration_hook(count),
            register_module_module_registration_hook(count),
        ):
            stack.callback(hook.remove)
        yield


def _list_weight_files(folder_or_id: str, hub_options: dict[str, Any]) -> list[Path]:
    """Return the safetensors files of a folder; for a hub id, download those that transformers would open."""
    folder = Path(folder_or_id, hub_options.get("subfolder") or "")
    if folder.resolve().parent == MODELS_FOLDER.resolve():
        return []  # an embedded model given by its path: its encoder is outside of its folder
    if folder.is_dir():
        return sorted(folder.glob("*.safetensors"))
    variant = hub_options.get("variant")
    suffix = f".{variant}" if variant else ""
    single = fetch_file(folder_or_id, f"model{suffix}.safetensors", hub_options)
    if single is not None:
        return [single]
    index_file = INDEX_FILE.replace(".index", f".index{suffix}")
    index = fetch_file(folder_or_id, index_file, hub_options)
    if index is None:
        return []
    shards = sorted({*read_model_json(index)["weight_map"].values()})
    files = (fetch_file(folder_or_id, shard, hub_options) for shard in shards)
    return [file for file in files if file is not None]


def _iter_tables(content: Any) -> Iterator[dict[str, Any]]:
    """Yield a JSON object and every object inside it."""
    if isinstance(content, dict):
        yield content
        for value in content.values():
            yield from _iter_tables(value)
