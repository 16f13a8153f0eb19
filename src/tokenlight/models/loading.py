"""From a name or folder to a model and tokenizer: safe files only, no weight made up."""

import inspect
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoProcessor, AutoTokenizer

from tokenlight.capture.head import TAKEN, taken_in_words
from tokenlight.capture.sight import image_token
from tokenlight.data.image import pillow
from tokenlight.errors import BadInput, DamagedFile, UnknownName, UnsupportedModel, few, near_names
from tokenlight.models.embedded import PREFIX, TASKS, quiet, resolve
from tokenlight.models.folder import SAFE, WEIGHTS, check, fetching, first_line, opening, reaching

log = logging.getLogger("tokenlight")
TOKENIZERS = ("tokenizer.json", "vocab.*", "*.model", "merges.txt")
GIVE = (
    "Give a folder with config.json, tokenizer and model.safetensors, a hub id that this machine can reach, "
    f"or one of {', '.join(PREFIX + task for task in TASKS)}."
)


def load(
    name: str, *, dtype: torch.dtype | str | None, device: str | torch.device | None, **hub: Any
) -> tuple[Any, Any]:
    """Model (evaluation mode) and tokenizer, on a GPU where there is one unless ``device`` says otherwise;
    where ``dtype`` says nothing, float32, or of a model that writes as its weights were saved.
    ``quantize``: ``"4bit"`` or ``"8bit"``, by bitsandbytes, onto the device. ``hub``: ``revision``,
    ``cache_dir``, ``device_map`` and the like, for transformers; ``trust_remote_code`` is not taken."""
    place = resolve(name)
    here = Path(place).is_dir()
    if not here:
        refuse_missing_folder(name)
        hub = reaching(hub)
    check(name, place, **hub)
    handled = ("trust_remote_code", "quantize")  # the first is False, since it was not refused
    quantize, hub = hub.get("quantize"), {k: v for k, v in hub.items() if k not in handled}
    with opening(name, "config.json"):
        config = _config(name, place, hub)
        cls = _class(name, config)
    # Sentence vectors are pooled from the tokens: a pooling layer, often untrained, is never read.
    bare = not cls.__name__.endswith(TAKEN)
    if bare and "add_pooling_layer" in inspect.signature(cls.__init__).parameters:
        hub = {**hub, "add_pooling_layer": False}
    writes = cls.__name__.endswith(("ForCausalLM", "LMHeadModel")) or (
        cls.__name__.endswith("ForConditionalGeneration") and not config.is_encoder_decoder
    )
    how = {"dtype": _dtype(dtype or ("auto" if writes else torch.float32)), **hub}
    bar = quiet() if here else nullcontext()  # a download deserves one
    # Tensors made in inference mode could have no gradient ever.
    with opening(name, "the weights (model.safetensors)"), bar, torch.inference_mode(False):
        if quantize is not None:
            how |= _quantised(quantize, device)
            device = None
        model, info = cls.from_pretrained(place, output_loading_info=True, **WEIGHTS, **how)
    if info["missing_keys"]:
        missing = few(sorted(info["missing_keys"]), 4)
        random = f"{name} has no weights for {missing}, but random ones"
        raise DamagedFile(f"{random}; give one fine-tuned as {cls.__name__}.")
    if device is None and "device_map" not in how and torch.cuda.is_available():
        device = "cuda"
        log.info("%s computes on %s", name, torch.cuda.get_device_name())
    put(model, device)
    layers = (one for one in model.modules() if type(one).__name__ == "Linear4bit")
    if any(getattr(layer.weight, "quant_state", None) is None for layer in layers):
        said = f"config.json of {name} says that its weights are quantised, and they are not"
        raise DamagedFile(f"{said}. Take its quantization_config out.")
    both = image_token(model) is not None
    if not both and cls.main_input_name != "pixel_values":
        return model.eval(), _tokenizer(place, name, hub)
    return model.eval(), _processor(place, name, hub, both)


def _quantised(quantize: str, device: str | torch.device | None) -> dict[str, Any]:
    """How transformers is asked for it."""
    if quantize not in ("4bit", "8bit"):
        raise BadInput(f"quantize={quantize!r} cannot be: give '4bit' or '8bit'.")
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    config = transformers.BitsAndBytesConfig(**{f"load_in_{quantize}": True})
    return {"quantization_config": config, "device_map": {"": str(device or usual)}}


def put(model: Any, device: str | torch.device | None) -> None:
    """Move a model to a device, and say in words why it cannot go there."""
    if device is None:
        return
    try:
        if str(device).partition(":")[0] == "meta":
            raise TypeError("it holds shapes and no numbers")
        model.to(device)
    except (AssertionError, RuntimeError, TypeError) as refused:
        said = f"the model cannot go to device {str(device)!r}: {first_line(refused)}"
        gpu = "cuda on a machine whose torch sees a GPU with room for it"
        raise BadInput(f"{said} Give cpu, or {gpu}.") from refused


def _tokenizer(place: str, name: str, hub: dict[str, Any]) -> Any:
    folder = Path(place, hub.get("subfolder") or "")
    # transformers makes up an empty vocabulary where a folder has none: every word would be unknown.
    if folder.is_dir() and not any(any(folder.glob(file)) for file in TOKENIZERS):
        raise BadInput(f"{name} has no tokenizer; tokenizer.save_pretrained(folder) saves one.")
    with opening(name, "the tokenizer (tokenizer.json, tokenizer_config.json …)"):
        try:
            return AutoTokenizer.from_pretrained(place, **SAFE, **fetching(hub))
        except OSError as missing:
            if folder.is_dir():
                raise
            raise _not_found("tokenizer", name, missing) from missing


def _processor(place: str, name: str, hub: dict[str, Any], both: bool) -> Any:
    """How the model wants its images, and beside a text (``both``) its text; by plain Pillow."""
    pillow(f"reading images for {name}")
    # From its own module: older releases hide it at the top where torchvision is missing.
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    reader = AutoProcessor if both else AutoImageProcessor
    with opening(name, "the processor (processor.save_pretrained(folder) writes it)"):
        return reader.from_pretrained(place, backend="pil", **SAFE, **fetching(hub))


def refuse_missing_folder(name: str) -> None:
    """A path that leads nowhere is asked of no hub, whose ids are NAME or OWNER/NAME; nor is
    ``sentiment``, where the embedded model was meant."""
    place = Path(name)
    if place.is_dir():
        return
    # A file beside us may have a hub id's name by chance, but hardly with an ending.
    is_file = place.is_file() and place.suffix
    if is_file or place.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        wrong = "it is a file, not a folder" if is_file else "there is no such folder"
        raise BadInput(f"no model found at {name!r}: {wrong}. {GIVE}")
    for near in near_names(name, TASKS, likeness=0.8):
        raise UnknownName(f"unknown model {name!r}. Did you mean '{PREFIX}{near}'?")


def _dtype(dtype: torch.dtype | str) -> torch.dtype | str:
    found = dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(dtype), None)
    if dtype != "auto" and not isinstance(found, torch.dtype):
        raise BadInput(f"dtype {dtype!r} is unknown; give float32, bfloat16, float16 or float64.")
    return found or "auto"


def _not_found(what: str, name: str, missing: Exception) -> BadInput:
    return BadInput(f"no {what} found at {name!r}: {first_line(missing)} {GIVE}")


def _config(name: str, place: str, hub: dict[str, Any]) -> Any:
    try:
        return AutoConfig.from_pretrained(place, **SAFE, **fetching(hub))
    except (OSError, ValueError) as missing:
        if not Path(place, "config.json").is_file():
            raise _not_found("model", name, missing) from missing
        raise UnsupportedModel(
            f"transformers {transformers.__version__} cannot take the config.json of {name!r}: "
            f"{first_line(missing)} A newer transformers may know it, or you load it yourself."
        ) from missing


def _class(name: str, config: Any) -> Any:
    """The class the checkpoint was saved as; nothing is guessed."""
    if not hasattr(config.get_text_config(), "to_dict"):
        said = f"config.json of {name} has a text_config, as no {config.model_type} has one"
        raise DamagedFile(f"{said}; take it out.")
    for architecture in config.architectures or ():
        without_head = architecture.endswith("Model") and not config.is_encoder_decoder
        if architecture.endswith(TAKEN) or without_head:
            cls = getattr(transformers, architecture, None)
            if cls is not None:
                return cls
    raise UnsupportedModel(
        f"{name} was saved as {', '.join(config.architectures or ('nothing',))}, but tokenlight "
        f"explains {taken_in_words()}; give one that was fine-tuned with such a head."
    )
