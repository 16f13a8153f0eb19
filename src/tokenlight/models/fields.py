"""Fields of a model's JSON files: of the kind and size they can be, before a model is built by them.

transformers builds what a config says, a thousand million layers or none, and fails somewhere
inside; here the file and the field are named.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenlight.errors import DamagedFile, shown

LAYERS = (
    "num_hidden_layers", "num_layers", "n_layers", "n_layer", "encoder_layers", "decoder_layers",
)  # fmt: skip
HEADS = ("num_attention_heads", "n_heads", "n_head", "num_key_value_heads")
WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "intermediate_size", "vocab_size")
# The least and the most: beyond it, building the model takes hours or cannot end.
RANGES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(LAYERS, (1, 1000)),
    **dict.fromkeys(HEADS, (1, 1 << 16)),
    **dict.fromkeys(WIDTHS, (1, 1 << 24)),
    "num_labels": (1, 1 << 20),
    "chunk_size_feed_forward": (0, 1),  # more cuts the tokens into parts that must come out even
}
KINDS: dict[str, tuple[type, ...]] = {
    "architectures": (list,),
    "model_type": (str,),
    "auto_map": (dict, list),
    "id2label": (dict,),
    "label2id": (dict,),
    "text_config": (dict,),
    "quantization_config": (dict,),
    "attn_implementation": (str,),
    "tokenizer_class": (str,),
    "model_max_length": (int, float),
    "model_input_names": (list,),
    "added_tokens_decoder": (dict,),
    "chat_template": (str, list, dict),
}
NAMES = {dict: "a table", list: "a list", str: "a text", int: "a number", float: "a number"}


def refuse_odd(file: Path, content: Mapping[str, Any]) -> None:
    """Refuse fields that no model can be built by, each by its name."""
    for field, value in content.items():
        if value is None:
            continue
        if field.endswith("_token") and not isinstance(value, str | dict | bool):
            raise _odd(file, field, value, "a text")
        kinds = KINDS.get(field)
        if kinds and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise _odd(file, field, value, " or ".join(dict.fromkeys(NAMES[k] for k in kinds)))
        if field in RANGES and isinstance(value, int | str):  # a list has one for each stage
            least, most = RANGES[field]
            if isinstance(value, bool | str) or not least <= value <= most:
                raise _odd(file, field, value, f"a number from {least} to {most:,}")
    if not all(isinstance(one, str) for one in content.get("architectures") or ()):
        raise _odd(file, "architectures", content["architectures"], "a list of class names")
    if not all(isinstance(one, str) for one in content.get("model_input_names") or ()):
        raise _odd(file, "model_input_names", content["model_input_names"], "a list of names")
    _labels(file, content)
    _padding(file, content)


def _labels(file: Path, content: Mapping[str, Any]) -> None:
    """Every class from 0 on has one name."""
    labels = content.get("id2label")
    if labels is None:
        return
    numbers = {str(number) for number in range(len(labels))}
    if not labels or set(labels) != numbers or not all(isinstance(x, str) for x in labels.values()):
        shape = 'a table of every class from 0 on with its name, such as {"0": "no", "1": "yes"}'
        raise _odd(file, "id2label", labels, shape)


def _padding(file: Path, content: Mapping[str, Any]) -> None:
    pad, size = content.get("pad_token_id"), content.get("vocab_size")
    if isinstance(pad, int) and (pad < 0 or (isinstance(size, int) and pad >= size)):
        most = f" to {size - 1:,}" if isinstance(size, int) else " on"
        raise _odd(file, "pad_token_id", pad, f"a token id from 0{most}, or null")


def _odd(file: Path, field: str, value: Any, wanted: str) -> DamagedFile:
    said = f"{file} says {field} = {shown(value)}"
    return DamagedFile(f"{said}, where {wanted} belongs. Mend that field.")
