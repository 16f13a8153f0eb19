"""Load a model from a GGUF file, the format of llama.cpp, through the reader of transformers.

The weights are dequantized: gradients need numbers, not blocks of a few bits. Only the file itself is read,
with the tokenizer in it; files next to it may belong to another model.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig, PreTrainedTokenizerFast, modeling_gguf_pytorch_utils
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from tokenlight.data.notes import UNREAD_TENSORS_NOTE, WEIGHTS_NOTE
from tokenlight.errors import BadInput, DamagedFile, MissingExtra, UnsupportedModel, join_first
from tokenlight.hooks.patching import patched_attributes
from tokenlight.models.embedded import quiet_transformers
from tokenlight.models.gguf_header import SUFFIX, GGUFHeader, read_header
from tokenlight.models.implementations import check_config
from tokenlight.models.safety import (
    NO_REMOTE_CODE,
    SAFE_WEIGHTS_OPTIONS,
    check_config_values,
    get_first_message_line,
    model_file_errors_described,
)
from tokenlight.models.shapes import Shapes, check_shapes
from tokenlight.models.tokenizer_rules import limit_rules

EXTRA = "gguf"
# Options of from_pretrained() that choose among other files, or say how other weights are stored.
OPTIONS_OF_FOLDERS = (
    "quantize", "quantization_config", "revision", "subfolder", "variant", "tp_plan", "tp_size",
)  # fmt: skip


def find_gguf_file(name: str) -> Path | None:
    """Return the GGUF file that a name means, or None.

    Args:
        name: A file that ends in ``.gguf``, or a folder with one such file and no safetensors.

    Raises:
        BadInput: There is no such file, or the folder holds several.
    """
    path = Path(name)
    if path.suffix.lower() == SUFFIX and not path.is_dir():
        if not path.is_file():
            raise BadInput(
                f"No model found at {name!r}: there is no such file. Give the path of a GGUF file, or a "
                "folder that holds one.",
                code="gguf-not-found",
            )
        return path
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    files = sorted(path.glob(f"*{SUFFIX}"))
    if len(files) > 1:
        raise BadInput(
            f"{name} holds several GGUF files: {join_first([file.name for file in files], 4)}. Give the path "
            "of one of them. Parts of one model must be merged first: llama-gguf-split --merge",
            code="gguf-several",
        )
    return files[0] if files else None


class LoadedGguf(NamedTuple):
    """A model of a GGUF file, its tokenizer, and what transformers says about missing weights."""

    model: Any
    tokenizer: Any
    loading_info: dict[str, Any]


def load_gguf(
    name: str, path: Path, dtype: torch.dtype | str, options: Mapping[str, Any]
) -> LoadedGguf:
    """Load a model and its tokenizer from a GGUF file.

    Args:
        name: The model, as the user named it.
        path: The file.
        dtype: The dtype to dequantize to.
        options: Options of transformers, such as ``attn_implementation``.

    Raises:
        BadInput: An option does not apply to GGUF files.
        DamagedFile: The file is damaged, or its weights do not fit its metadata.
        MissingExtra: A package that reads GGUF files is not installed.
        UnsupportedModel: transformers does not read this architecture from GGUF files.
    """
    _check_options(name, options)
    header = read_header(path)
    with _isolated_file(path) as location:
        config = _load_config(name, header, location)
        model_class = _find_class(name, config)
        description = f"The file {path.name}"
        with (
            model_file_errors_described(name, description),
            quiet_transformers(),
            _hidden_progress_bar(),
            # Tensors created in inference mode could never have a gradient.
            torch.inference_mode(False),
        ):
            config_name = f"The metadata of {name}"
            shapes = header.shapes
            expected_shapes = check_shapes(
                config_name, model_class, config, shapes, header.num_bytes, {}
            )
            model, loading_info = model_class.from_pretrained(
                **location,
                config=config,
                dtype=dtype,
                output_loading_info=True,
                **_build_dequantize_option(),
                **SAFE_WEIGHTS_OPTIONS,
                **options,
            )
        _check_loaded_shapes(config_name, model, expected_shapes)
        _forget_quantization(model, str(path))
        tokenizer = _load_tokenizer(name, location, str(path))
    _check_vocabulary(name, model, header)
    return LoadedGguf(model, tokenizer, loading_info)


def load_gguf_tokenizer(name: str, path: Path) -> Any:
    """Load the tokenizer of a GGUF file without its weights.

    Args:
        name: The model, as the user named it.
        path: The file.

    Raises:
        DamagedFile: The file is damaged, or holds no tokenizer.
    """
    header = read_header(path)
    with _isolated_file(path) as location:
        check_config(name, _load_config(name, header, location))
        return _load_tokenizer(name, location, str(path))


def describe_gguf(path: Path, model: Any) -> tuple[str, ...]:
    """Return notes on a model that was read from a GGUF file, for its explanations.

    Args:
        path: The file.
        model: The loaded model.

    Returns:
        What its weights became and the memory that they take, and which tensors transformers left out.
    """
    header = read_header(path)
    parameters = {id(parameter): parameter for parameter in model.parameters()}.values()
    num_bytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    dtype = str(next(iter(parameters)).dtype).removeprefix("torch.")
    verb = "dequantized" if header.is_quantized else "converted"
    notes = [
        f"{WEIGHTS_NOTE}{path.name} ({', '.join(header.tensor_types)}) were {verb} to {dtype}: "
        f"{_format_megabytes(header.num_bytes)} in the file, {_format_megabytes(num_bytes)} in memory"
    ]
    ignored = [tensor for tensor in header.shapes if tensor.startswith("rope_freqs.")]
    if ignored:
        notes.append(
            f"{UNREAD_TENSORS_NOTE}{', '.join(ignored)} from GGUF files, so long texts may get other "
            "probabilities than in llama.cpp"
        )
    return tuple(notes)


def _format_megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e6:.1f} MB"


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    for option in OPTIONS_OF_FOLDERS:
        if options.get(option) is not None:
            raise BadInput(
                f"{option} does not apply to {name}: a GGUF file is read whole and dequantized. Leave it "
                "out, and choose the size in memory by dtype.",
                code="gguf-option",
            )
    MissingExtra.check_installed(["gguf", "accelerate"], EXTRA, f"Loading {name}")
    if find_spec("kernels") is not None:
        # With it, transformers downloads compiled code for GGUF weights, and runs it.
        raise UnsupportedModel(
            f"{name} is a GGUF file, for which transformers would download code through the package kernels. "
            "Uninstall kernels.",
            code="gguf-downloads-code",
        )


@contextmanager
def _hidden_progress_bar() -> Iterator[None]:
    """Hide the bar that transformers draws while it dequantizes, which none of its settings turns off."""
    # transformers 5.22: the reader calls tqdm by this name. A release without it draws its bar.
    with patched_attributes([modeling_gguf_pytorch_utils], tqdm=_iter_silently):
        yield


def _iter_silently(iterable: Iterable[Any], **_: Any) -> Iterable[Any]:
    return iterable


@contextmanager
def _isolated_file(path: Path) -> Iterator[dict[str, str]]:
    """Yield the arguments that make transformers read only this file."""
    with TemporaryDirectory(prefix="tokenlight-gguf-") as empty_folder:
        yield {"pretrained_model_name_or_path": empty_folder, "gguf_file": str(path.resolve())}


def _load_config(name: str, header: GGUFHeader, location: dict[str, str]) -> Any:
    """Return the config that transformers makes of the metadata, once its sizes are checked."""
    with model_file_errors_described(name, f"The metadata of {header.path.name}"):
        try:
            with quiet_transformers(hide_warnings=True):
                config = AutoConfig.from_pretrained(**location, **NO_REMOTE_CODE)
        except (NotImplementedError, ValueError) as error:
            raise UnsupportedModel(
                f"transformers {transformers.__version__} cannot read {name} (architecture "
                f"{header.architecture}) from a GGUF file: {get_first_message_line(error)} Give the model's "
                "safetensors folder instead.",
                code="gguf-architecture-unsupported",
            ) from error
        check_config_values(header.path, config.to_diff_dict())
        check_config(name, config)
    return config


def _find_class(name: str, config: Any) -> Any:
    """Return the class of a language model with this config; GGUF files hold no other kind of model."""
    for architecture in config.architectures or ():
        model_class = getattr(transformers, architecture, None)
        if model_class is not None and architecture.endswith("ForCausalLM"):
            return model_class
    if config.architectures or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        kind = join_first(config.architectures or [config.model_type], 2)
        raise UnsupportedModel(
            f"{name} holds a model of the kind {kind}, but only causal language models are read from GGUF "
            "files. Give the model's safetensors folder instead.",
            code="gguf-kind-unsupported",
        )
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def _build_dequantize_option() -> dict[str, Any]:
    """Return the option by which newer releases of transformers unpack all weights while loading."""
    gguf_config = getattr(transformers.utils.quantization_config, "GgufConfig", None)
    return {} if gguf_config is None else {"quantization_config": gguf_config(dequantize=True)}


def _check_loaded_shapes(config_name: str, model: Any, expected_shapes: Shapes) -> None:
    """Refuse weights of other sizes than the metadata says, which transformers would load."""
    for parameter_name, parameter in model.named_parameters():
        expected = expected_shapes.get(parameter_name)
        if expected != tuple(parameter.shape):
            raise DamagedFile(
                f"{config_name} does not fit its weights: {parameter_name} has the shape "
                f"{list(parameter.shape)} in the file, but the metadata asks for {list(expected or ())}. "
                "Convert or download the model again.",
                code="gguf-shape",
            )


def _forget_quantization(model: Any, name: str) -> None:
    """Make the model an ordinary one: its weights are plain tensors now, and may be saved or moved."""
    for attribute in ("hf_quantizer", "quantization_method", "is_quantized"):
        if attribute in vars(model):
            delattr(model, attribute)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config._name_or_path = name
    model.name_or_path = name


def _load_tokenizer(name: str, location: dict[str, str], path: str) -> Any:
    with (
        model_file_errors_described(name, "The tokenizer in the file"),
        quiet_transformers(hide_warnings=True),
    ):
        # AutoTokenizer would read the whole file once more, only to name the class after the family.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(**location, **NO_REMOTE_CODE)
        tokenizer.name_or_path = path
        return limit_rules(name, tokenizer)


def _check_vocabulary(name: str, model: Any, header: GGUFHeader) -> None:
    """Refuse a vocabulary with tokens that the model has no embedding for."""
    num_embeddings = model.get_input_embeddings().weight.shape[0]
    num_tokens = header.metadata.get("tokenizer.ggml.tokens", 0)
    if num_tokens > num_embeddings:
        raise DamagedFile(
            f"The tokenizer of {name} has {num_tokens:,} tokens, but the model has embeddings for "
            f"{num_embeddings:,}. Convert or download the model again.",
            code="gguf-vocabulary",
        )
