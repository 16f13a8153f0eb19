"""Model folders that are damaged, contradictory or endless."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.fuzz.outcomes import mutate

TEXTS = {
    "nothing": "", "null": "null", "a list": "[]", "a number": "5", "a text": '"x"', "half": '{"a": ',
    "deep": "[" * 3000, "deep and closed": '{"a":' * 500 + "1" + "}" * 500,
    "digits": '{"a": ' + "9" * 5000 + "}", "binary": "\x00\x01\x02", "nan": '{"a": NaN}',
    "an empty table": "{}",
}  # fmt: skip
FILES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
    "special_tokens_map.json", "added_tokens.json", "model.safetensors.index.json",
)  # fmt: skip
CONFIG = {
    "num_hidden_layers": (10**9, -1, 0, "3", None, 2.5), "hidden_size": (0, -1, 31, 10**9, "32", None),
    "num_attention_heads": (0, -4, 5, 10**9, None), "vocab_size": (0, -1, 5, 10**12, None, "x"),
    "max_position_embeddings": (0, -1, 10**12, None), "intermediate_size": (0, -1, 10**12, None),
    "type_vocab_size": (0, -1, None), "pad_token_id": (-1, 10**9, "x", 2.5, 150, []),
    "id2label": (None, {}, [], "x", {"a": "b"}, {"0": None, "1": [], "2": 5}, {"0": "a", "2": "b"}),
    "label2id": (None, [], {"a": "b"}, {"a": 0, "b": 0}), "dtype": ("float33", 5, None, [], "float8_e4m3fn"),
    "hidden_act": ("banana", None, 5, {}), "architectures": (None, [], "x", [None], ["os.system"], [5], {}),
    "model_type": (None, "", "banana", 5, [], "llama", "t5", "vit"), "problem_type": ("banana", 5, []),
    "layer_norm_eps": ("x", None, -1, 0, 1e308), "hidden_dropout_prob": (5, -1, "x"),
    "num_labels": (0, -1, 10**9, "x"), "initializer_range": ("x", None, -1), "torch_dtype": ("x", []),
    "is_decoder": (True, "x", 5), "use_cache": ("x",),
    "quantization_config": ({}, [], "x", {"quant_method": "banana"}, {"load_in_4bit": True}),
    "attn_implementation": ("banana", 5, "flash_attention_2", "a/b"), "tie_word_embeddings": ("x", 5),
    "transformers_version": (None, 5, "x"), "tokenizer_class": ("banana", 5, None), "return_dict": (False,),
    "output_hidden_states": ("x", True), "output_attentions": (True,),
    "chunk_size_feed_forward": (-1, "x", 3, 10**9), "transformers_weights": (5, "x", [], "../a.safetensors"),
    "auto_map": ("x", 5, [], {"AutoConfig": 5}, {"AutoConfig": None}),
    "pruned_heads": ({"0": [0]}, [], "x"), "bos_token_id": ("x", -1), "text_config": (5, {}, "x"),
}  # fmt: skip


def make_bad_folders(bert_folder: Path) -> dict[str, dict[str, Any]]:
    """Return what to write over the files of a good folder, by the name of the case."""
    content = {
        name: json.loads((bert_folder / name).read_text())
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json")
    }
    inputs = {
        f"{file} is {mutation}": {file: text} for file in FILES for mutation, text in TEXTS.items()
    }
    for field, values in CONFIG.items():
        for value in values:
            config = json.dumps({**content["config.json"], field: value})
            inputs[f"config.{field}={str(value)[:30]}"] = {"config.json": config}
    for seed, (file, count) in enumerate((("tokenizer.json", 60), ("tokenizer_config.json", 60))):
        for mutation, value in mutate(content[file], count, seed).items():
            inputs[f"{file} {mutation}"] = {file: json.dumps(value)}
    return inputs | make_bad_weights(bert_folder)


def make_bad_weights(bert_folder: Path) -> dict[str, dict[str, Any]]:
    """Return truncated and garbled weight files, by the name of the case."""
    good = (bert_folder / "model.safetensors").read_bytes()
    chance = random.Random(3)
    inputs = {f"weights cut at {at}": good[:at] for at in (0, 1, 7, 8, 9, 100, 1000, len(good) - 1)}
    for index in range(20):
        position = chance.randrange(2000)
        garbled = bytearray(good)
        garbled[position : position + 3] = chance.randbytes(3)
        inputs[f"weights garbled {index}"] = bytes(garbled)
    inputs["weights of a huge head"] = b"\xff" * 8 + good[8:]
    return {name: {"model.safetensors": content} for name, content in inputs.items()}
