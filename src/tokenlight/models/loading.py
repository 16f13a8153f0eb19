"""Load a model and its tokenizer by name or folder: only safe files, and no weights made up."""

import inspect
import logging
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoProcessor, AutoTokenizer, PreTrainedModel

from tokenlight.data.image import import_pillow
from tokenlight.errors import (
    BadInput,
    DamagedFile,
    UnknownName,
    UnsupportedModel,
    find_close_matches,
    join_first,
)
from tokenlight.errors.arguments import refuse_unknown
from tokenlight.model.head_detection import SUPPORTED_SUFFIXES, describe_supported_models
from tokenlight.model.vision import find_image_token_id
from tokenlight.models.embedded import NAME_PREFIX, TASKS, quiet_transformers, resolve_path
from tokenlight.models.gguf_loading import find_gguf_file, load_gguf
from tokenlight.models.implementations import check_config
from tokenlight.models.safety import (
    FORBIDDEN_OPTIONS,
    HUB_OPTION_NAMES,
    NO_REMOTE_CODE,
    SAFE_WEIGHTS_OPTIONS,
    add_offline_option,
    check_model_files,
    get_first_message_line,
    model_file_errors_described,
    refuse_forbidden_options,
    select_hub_options,
)
from tokenlight.models.shapes import Shapes, check_num_labels, check_shapes, read_shapes
from tokenlight.models.tokenizer_rules import limit_rules, try_rules_under_limits

logger = logging.getLogger("tokenlight")
WEIGHT_FILES = "weights (model.safetensors)"
TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model", "merges.txt")
MODEL_SOURCE_HINT = (
    "Give a folder with config.json, tokenizer and model.safetensors, a GGUF file, a hub id that this "
    f"machine can reach, or one of {', '.join(NAME_PREFIX + task for task in TASKS)}."
)
# transformers patches its own functions for the whole process while it loads weights, so that of two models
# loaded at once one would miss its tied weights.
_LOADING_LOCK = threading.RLock()
# Options of from_pretrained() that are passed on to transformers, besides those that locate the files.
PASSED_ON = (
    "attn_implementation", "device_map", "experts_implementation", "force_download", "max_memory",
    "offload_folder", "proxies", "quantization_config", "tp_plan", "tp_size", "variant",
)  # fmt: skip
OPTIONS = ("dtype", "device", "quantize", *HUB_OPTION_NAMES, *PASSED_ON)
# Options that are handled here: transformers gets its own value of the first, and does not know the second.
HANDLED_OPTIONS = ("trust_remote_code", "quantize")


def check_hub_options(hub_options: Mapping[str, Any]) -> None:
    """Refuse unknown options of from_pretrained(); forbidden ones are refused by name later."""
    names = [name for name in hub_options if name not in FORBIDDEN_OPTIONS]
    refuse_unknown("from_pretrained", names, OPTIONS)


def load_model(
    name: str,
    *,
    dtype: torch.dtype | str | None,
    device: str | torch.device | None,
    **hub_options: Any,
) -> tuple[Any, Any]:
    """Load a model, in evaluation mode, and its tokenizer or processor.

    Args:
        name: An embedded model, a folder, a hub id, or a GGUF file.
        dtype: Dtype of the weights. By default float32, but for a model that generates text the dtype it
            was saved in; a GGUF file is dequantized to float32.
        device: The device; by default a GPU if there is one.
        hub_options: ``revision``, ``cache_dir``, ``device_map`` and similar options of transformers, and
            ``quantize``: ``"4bit"`` or ``"8bit"``, by bitsandbytes. ``trust_remote_code`` is refused.

    Returns:
        The model and its tokenizer.

    Raises:
        BadInput: There is no such model, or an option is not valid.
        DamagedFile: A file cannot be read, is unsafe, or lacks weights.
        UnsupportedModel: tokenlight does not explain models of this class.

    Example:
        >>> from tokenlight.models.loading import load_model
        >>> model, tokenizer = load_model("tokenlight/sentiment", dtype=None, device="cpu")
        >>> type(model).__name__
        'BertForSequenceClassification'
    """
    folder_or_id = resolve_path(name)
    # A GGUF file brings its own config and tokenizer, and is checked in its own way.
    gguf_file = find_gguf_file(folder_or_id)
    if gguf_file is not None:
        return _load_gguf_model(name, gguf_file, dtype, device, hub_options)
    is_local = Path(folder_or_id).is_dir()
    if not is_local:
        check_model_path(name)
        hub_options = add_offline_option(hub_options)
    # From here on nothing is opened that could run code: no pickle, no Python of the folder.
    check_model_files(name, folder_or_id, **hub_options)
    quantize = hub_options.get("quantize")
    transformers_options = {
        key: value for key, value in hub_options.items() if key not in HANDLED_OPTIONS
    }
    # Only the headers of the weights are read here. A config that asks for more than they hold is refused
    # before transformers allocates the model.
    weights = _read_weights(name, folder_or_id, transformers_options)
    config, model_class = _load_checked_config(name, folder_or_id, transformers_options)
    _check_has_weights(name, Path(folder_or_id, hub_options.get("subfolder") or ""))
    model_options = {**transformers_options, **_build_head_options(model_class)}
    if dtype is None:
        dtype = _choose_default_dtype(model_class, config)
    load_options = {"dtype": _resolve_dtype(dtype), **model_options}
    with (
        model_file_errors_described(name, f"The {WEIGHT_FILES}"),
        # A download deserves a progress bar.
        quiet_transformers() if is_local else nullcontext(),
        # Tensors created in inference mode could never have a gradient.
        torch.inference_mode(False),
        _LOADING_LOCK,
    ):
        if quantize is not None:
            # Quantized weights are loaded onto their device, and cannot be moved there later.
            load_options |= _build_quantization_options(quantize, device)
            device = None
        if weights is not None:
            check_shapes(f"config.json of {name}", model_class, config, *weights, model_options)
        model, loading_info = model_class.from_pretrained(
            folder_or_id, output_loading_info=True, **SAFE_WEIGHTS_OPTIONS, **load_options
        )
    # transformers fills missing weights with random numbers and only warns.
    _check_complete(name, model_class, loading_info)
    move_to_device(model, _choose_device(name, device, load_options))
    _check_quantized(name, model)
    return model.eval(), _load_reader(folder_or_id, name, model, model_options)


def _load_checked_config(name: str, folder_or_id: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return the config of a model and the class that loads it."""
    with model_file_errors_described(name, "config.json"):
        config = _load_config(name, folder_or_id, options)
        check_config(name, config)
        return config, _resolve_model_class(name, config)


def _choose_default_dtype(model_class: Any, config: Any) -> torch.dtype | str:
    """Return the dtype of the file for a model that generates text, else float32."""
    return "auto" if _generates_text(model_class, config) else torch.float32


def _load_gguf_model(
    name: str,
    path: Path,
    dtype: torch.dtype | str | None,
    device: str | torch.device | None,
    hub_options: dict[str, Any],
) -> tuple[Any, Any]:
    """Load a model from a GGUF file, as :func:`load_model` does from a folder."""
    refuse_forbidden_options(name, hub_options)
    resolved_dtype = _resolve_dtype(torch.float32 if dtype in (None, "auto") else dtype)
    options = {
        key: value
        for key, value in hub_options.items()
        if value is not None and key != "trust_remote_code"
    }
    model, tokenizer, loading_info = load_gguf(name, path, resolved_dtype, options)
    _check_complete(name, type(model), loading_info)
    move_to_device(model, _choose_device(name, device, options))
    return model.eval(), tokenizer


def _choose_device(
    name: str, device: str | torch.device | None, load_options: Mapping[str, Any]
) -> str | torch.device | None:
    """Return the given device; else a GPU if there is one, unless the weights are placed while loading."""
    if device is not None or "device_map" in load_options or not torch.cuda.is_available():
        return device
    logger.info("%s computes on %s", name, torch.cuda.get_device_name())
    return "cuda"


def _build_head_options(model_class: Any) -> dict[str, Any]:
    """Return the options that leave out a pooling layer that is never used.

    Sentence vectors are pooled from the tokens; the pooling layer of a model without a head is often
    untrained.
    """
    has_head = model_class.__name__.endswith(SUPPORTED_SUFFIXES)
    parameters = inspect.signature(model_class.__init__).parameters
    if has_head or "add_pooling_layer" not in parameters:
        return {}
    return {"add_pooling_layer": False}


def _generates_text(model_class: Any, config: Any) -> bool:
    """Return whether a model is a language model of the decoder-only kind."""
    name = model_class.__name__
    if name.endswith("ForConditionalGeneration"):
        return not config.is_encoder_decoder
    return bool(name.endswith(("ForCausalLM", "LMHeadModel")))


def _load_reader(folder_or_id: str, name: str, model: Any, hub_options: dict[str, Any]) -> Any:
    """Load the tokenizer of a model, or the processor of one that reads images."""
    reads_image_and_text = find_image_token_id(model) is not None
    if reads_image_and_text or model.main_input_name == "pixel_values":
        return _load_processor(folder_or_id, name, hub_options, reads_image_and_text)
    return load_tokenizer(folder_or_id, name, hub_options)


def _read_weights(
    name: str, folder_or_id: str, hub_options: dict[str, Any]
) -> tuple[Shapes, int] | None:
    """Return shapes and size of the weights; None for an embedded model, which has checksums."""
    if name.startswith(NAME_PREFIX):
        return None
    with model_file_errors_described(name, f"The {WEIGHT_FILES}"):
        weights = read_shapes(folder_or_id, hub_options)
    if weights is not None:
        check_num_labels(name, folder_or_id, weights[0], hub_options)
    return weights


def _check_has_weights(name: str, folder: Path) -> None:
    """Refuse a folder that lacks the file of weights, such as one that was copied in part."""
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        raise DamagedFile(
            f"The folder {name} has no weights, which would be in model.safetensors. Save the model again "
            "with model.save_pretrained(folder), or copy that file, too.",
            code="weights-file-missing",
        )


def _check_complete(name: str, model_class: Any, loading_info: dict[str, Any]) -> None:
    """Refuse a model if transformers had to initialize some of its weights at random."""
    if loading_info["missing_keys"]:
        missing = join_first(sorted(loading_info["missing_keys"]), 4)
        raise DamagedFile(
            f"{name} has no weights for {missing}, so they would be random. Give a model that was "
            f"fine-tuned as {model_class.__name__}.",
            code="weights-missing",
        )


def _check_quantized(name: str, model: Any) -> None:
    """Refuse 4-bit layers with weights that were never packed."""
    for layer in model.modules():
        is_4bit = type(layer).__name__ == "Linear4bit"
        if is_4bit and getattr(layer.weight, "quant_state", None) is None:
            raise DamagedFile(
                f"config.json of {name} says that its weights are quantized, but they are not. Remove its "
                "quantization_config.",
                code="weights-not-quantized",
            )


def _build_quantization_options(quantize: str, device: str | torch.device | None) -> dict[str, Any]:
    """Return the options of transformers for quantized weights."""
    if quantize not in ("4bit", "8bit"):
        raise BadInput(
            f"quantize={quantize!r} is not valid. Choose '4bit' or '8bit'.", code="quantize-choice"
        )
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    config = transformers.BitsAndBytesConfig(**{f"load_in_{quantize}": True})
    return {"quantization_config": config, "device_map": {"": str(device)}}


def move_to_device(model: Any, device: str | torch.device | None) -> None:
    """Move a model to a device; None leaves it where it is.

    Raises:
        BadInput: There is no such device, or it has no room.
    """
    if device is None:
        return
    try:
        if str(device).partition(":")[0] == "meta":
            raise TypeError("it holds shapes and no numbers")
        model.to(device)
    except (AssertionError, RuntimeError, TypeError) as error:
        raise BadInput(
            f"The model cannot be moved to device {str(device)!r}: {get_first_message_line(error)} Give cpu, "
            "or cuda on a machine where torch finds a GPU with room for it.",
            code="device-unusable",
        ) from error


def check_auto_class(name: str, auto_class: Any, hub_options: dict[str, Any]) -> None:
    """Check the config of ``name`` against its weights, for the class that ``auto_class`` would choose.

    Args:
        name: A folder or a hub id.
        auto_class: A class such as ``AutoModelForSequenceClassification``.
        hub_options: Options of ``from_pretrained`` that say where the files are.
    """
    weights = read_shapes(name, hub_options)
    if weights is None:
        return
    check_num_labels(name, name, weights[0], hub_options)
    config = _load_config(name, name, hub_options)
    check_config(name, config)
    if type(config) in auto_class._model_mapping:
        model_class = auto_class._model_mapping[type(config)]
        check_shapes(f"config.json of {name}", model_class, config, *weights, hub_options)


def load_tokenizer(folder_or_id: str, name: str, hub_options: dict[str, Any]) -> Any:
    """Load the tokenizer of a folder or hub id.

    Args:
        folder_or_id: Where the files are.
        name: The model, as the user named it.
        hub_options: Where the files of a hub id are.

    Raises:
        BadInput: There is no tokenizer.
        DamagedFile: Its files cannot be read.
    """
    folder = Path(folder_or_id, hub_options.get("subfolder") or "")
    # transformers makes up an empty vocabulary where a folder has none: every word would be unknown.
    has_tokenizer = any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES)
    if folder.is_dir() and not has_tokenizer:
        raise BadInput(
            f"{name} has no tokenizer. Save one there with tokenizer.save_pretrained(folder).",
            code="tokenizer-not-saved",
        )
    description = "The tokenizer (tokenizer.json, tokenizer_config.json …)"
    with model_file_errors_described(name, description):
        try:
            if not name.startswith(NAME_PREFIX):
                try_rules_under_limits(name, folder_or_id, hub_options)
            tokenizer = AutoTokenizer.from_pretrained(
                folder_or_id, **NO_REMOTE_CODE, **select_hub_options(hub_options)
            )
            return limit_rules(name, tokenizer)
        except OSError as error:
            if folder.is_dir():
                raise
            raise BadInput(
                f"No tokenizer found at {name!r}: {get_first_message_line(error)} {MODEL_SOURCE_HINT}",
                code="tokenizer-not-found",
            ) from error


def _load_processor(
    folder_or_id: str, name: str, hub_options: dict[str, Any], reads_text: bool
) -> Any:
    """Load the processor of a model that reads images, or images and text; it uses plain Pillow."""
    import_pillow(f"reading images for {name}")
    # From its own module: older releases hide it at the top level if torchvision is missing.
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    loader = AutoProcessor if reads_text else AutoImageProcessor
    description = "The processor (processor.save_pretrained(folder) writes it)"
    with model_file_errors_described(name, description):
        if reads_text:
            try_rules_under_limits(name, folder_or_id, hub_options)
        processor = loader.from_pretrained(
            folder_or_id, backend="pil", **NO_REMOTE_CODE, **select_hub_options(hub_options)
        )
        if reads_text:
            limit_rules(name, processor.tokenizer)
        return processor


def check_model_path(name: str) -> None:
    """Refuse a path that does not exist, before a hub is asked for it.

    The ids of a hub are NAME or OWNER/NAME. The bare name of an embedded model, such as ``sentiment``, is
    refused, too.

    Raises:
        BadInput: ``name`` is a file or a path that does not exist.
        UnknownName: An embedded model was meant.
    """
    path = Path(name)
    if path.is_dir():
        return
    # A file in the current folder may have the name of a hub id by chance, but hardly with an extension.
    if path.is_file() and path.suffix:
        raise BadInput(
            f"No model found at {name!r}: it is a file, not a folder. {MODEL_SOURCE_HINT}",
            code="model-is-a-file",
        )
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise BadInput(
            f"No model found at {name!r}: there is no such folder. {MODEL_SOURCE_HINT}",
            code="model-folder-missing",
        )
    similar_tasks = find_close_matches(name, TASKS, cutoff=0.8)
    if similar_tasks:
        raise UnknownName(
            f"Unknown model {name!r}. Did you mean '{NAME_PREFIX}{similar_tasks[0]}'?",
            code="model-unknown",
        )


def _resolve_dtype(dtype: torch.dtype | str) -> torch.dtype | str:
    """Return a dtype given by name, or ``"auto"``."""
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    resolved = getattr(torch, str(dtype), None)
    if not isinstance(resolved, torch.dtype):
        raise BadInput(
            f"dtype={dtype!r} is not valid. Choose float32, bfloat16, float16 or float64.",
            code="dtype-unknown",
        )
    return resolved


def _load_config(name: str, folder_or_id: str, hub_options: dict[str, Any]) -> Any:
    try:
        return AutoConfig.from_pretrained(
            folder_or_id, **NO_REMOTE_CODE, **select_hub_options(hub_options)
        )
    except (OSError, ValueError) as error:
        if not Path(folder_or_id, "config.json").is_file():
            raise BadInput(
                f"No model found at {name!r}: {get_first_message_line(error)} {MODEL_SOURCE_HINT}",
                code="model-not-found",
            ) from error
        raise UnsupportedModel(
            f"transformers {transformers.__version__} cannot read the config.json of {name!r}: "
            f"{get_first_message_line(error)} Update transformers, or load the model yourself.",
            code="config-unsupported",
        ) from error


def _resolve_model_class(name: str, config: Any) -> Any:
    """Return the class that the checkpoint was saved as; nothing is guessed."""
    if not hasattr(config.get_text_config(), "to_dict"):
        raise DamagedFile(
            f"config.json of {name} has a text_config, which no {config.model_type} model has. Remove it.",
            code="config-text-config",
        )
    for architecture in config.architectures or ():
        model_class = _find_model_class(architecture, config)
        if model_class is not None:
            return model_class
    raise UnsupportedModel(
        f"{name} was saved as {', '.join(config.architectures or ('nothing',))}, but tokenlight explains "
        f"{describe_supported_models()}. Give a model that was fine-tuned with such a head.",
        code="architecture-unsupported",
    )


def _find_model_class(architecture: str, config: Any) -> Any:
    """Return the class of transformers with this name if it is supported, else None."""
    is_without_head = architecture.endswith("Model") and not config.is_encoder_decoder
    if not architecture.endswith(SUPPORTED_SUFFIXES) and not is_without_head:
        return None
    model_class: Any = getattr(transformers, architecture, None)
    # If a library is missing, transformers has a placeholder for the class, which raises when it is used.
    if hasattr(model_class, "_backends"):
        return model_class
    is_model = isinstance(model_class, type) and issubclass(model_class, PreTrainedModel)
    if is_model and model_class.config_class is not None:
        return model_class
    return None
