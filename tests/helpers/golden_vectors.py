"""The models, inputs and numbers in ``tests/golden/vectors``, computed by the official codes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForQuestionAnswering,
    PretrainedConfig,
)

from tokenlight import Explainer, SpanTarget, Tokens

VECTORS = Path(__file__).parents[1] / "golden" / "vectors"
INPUTS = [f"in{i}" for i in range(6)]
CASES = [(name, variant) for name in INPUTS for variant in ("ones", "nospecial", "nosep", "pad4")]
SIDES = {"start": SpanTarget(start="argmax", end=None), "end": SpanTarget(start=None, end="argmax")}


def read_config(stem: str) -> dict[str, Any]:
    """Return the stored configuration of a model, such as ``bert_cls``."""
    return json.loads((VECTORS / f"{stem}_config.json").read_text())


def load_explainer(model_class: Any, config: PretrainedConfig, stem: str) -> Explainer:
    """Return an explainer of a model with the stored weights, in float64."""
    model = model_class(config).double()
    weights = load_file(VECTORS / f"{stem}.safetensors")
    model.load_state_dict({name: weight.double() for name, weight in weights.items()})
    return Explainer(model.eval())


@cache
def load_classifier() -> Explainer:
    """Return the explainer of the stored BERT classifier."""
    config = BertConfig(**read_config("bert_cls"))
    return load_explainer(BertForSequenceClassification, config, "bert_cls")


@cache
def load_question_answerer() -> Explainer:
    """Return the explainer of the stored BERT model for question answering."""
    config = BertConfig(**read_config("bert_qa"))
    return load_explainer(BertForQuestionAnswering, config, "bert_qa")


@cache
def load_gpt2_question_answerer() -> Explainer:
    """Return the explainer of the stored GPT-2 model for question answering."""
    # The official file computes erf-GELU where the checkpoint says gelu_new.
    config = GPT2Config(**(read_config("gpt2_qa") | {"activation_function": "gelu"}))
    return load_explainer(GPT2ForQuestionAnswering, config, "gpt2_qa")


@cache
def load_vectors(name: str) -> Any:
    """Return the arrays of ``tests/golden/vectors/<name>.npz`` by their names."""
    return np.load(VECTORS / f"{name}.npz")


def load_tokens(case: str, variant: str) -> Tokens:
    """Return the stored input of a case; a variant is one of its attention masks."""
    arrays = load_vectors("bert_cls_f64")
    prefix = f"{case}/{variant}"
    return Tokens.from_ids(
        arrays[f"{prefix}/input_ids"].reshape(1, -1),
        arrays[f"{prefix}/attention_mask"].reshape(1, -1),
    )
