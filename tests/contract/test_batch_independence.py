"""Every family gives a text the same scores by itself, in any batch, and after long and short texts; the
model is the same afterwards: its modules' attributes, buffers and config."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers import image_models, image_text_models
from tests.helpers.causal_only_families import CAUSAL_ONLY_FAMILIES, build_causal_only_model
from tests.helpers.encoder_decoder_models import (
    CONTINUATION,
    SEQ2SEQ_FAMILIES,
    SOURCE,
    make_seq2seq_model,
    make_seq2seq_tokenizer,
)
from tests.helpers.families import (
    DECODER,
    FAMILIES,
    PARTLY_SUPPORTED_FAMILIES,
    SEQ2SEQ,
    SMALL,
    SUPPORTED_FAMILIES,
    build_model,
    build_model_from_config,
    class_has_growing_rope,
    has_growing_rope,
)
from tests.helpers.model_state import find_changes, state_tree
from tests.helpers.tolerance import EverythingInFloat64, assert_close
from tokenlight import Continuation, Explainer, Tokens
from tokenlight.model.regimes import BatchRules
from tokenlight.model.runner import ModelRunner

# Lengths in tokens.
SHORT = 7
MIDDLE = 19
LONG = 45
THRESHOLD = 16  # of the variants below: SHORT is shorter, MIDDLE and LONG are longer
WITHOUT_GRADIENT = [
    name
    for name, (_, _, support_level) in PARTLY_SUPPORTED_FAMILIES.items()
    if support_level == "tokens"
]
OCCLUSION = ("occlusion", {"window": 1, "baseline": 7})
BLOCKS = {
    "attention_type": "block_sparse",
    "block_size": 2,
    "num_random_blocks": 1,
}  # threshold: 14
SPARSE = {"BigBird": {**SMALL, **BLOCKS}, "BigBirdPegasus": {**SEQ2SEQ, **BLOCKS}}
ROPES = ("longrope", "dynamic")
WORKING_SEQ2SEQ = [
    name for name, (_, _, support_level) in SEQ2SEQ_FAMILIES.items() if support_level != "refused"
]
ALL_FAMILIES = FAMILIES | PARTLY_SUPPORTED_FAMILIES
# Every family whose rotary factors may follow the longest text, by how its modeling code is written. ESM and
# Zamba 2 have none by default.
ROTARY_FAMILIES = [
    name for name in SUPPORTED_FAMILIES if has_growing_rope(name) and name not in ("esm", "zamba2")
]
# Phi-3's config allows longrope alone.
ROTARY_CASES = [
    (name, rope)
    for name in ROTARY_FAMILIES
    for rope in ROPES
    if (name, rope) != ("phi3", "dynamic")
]

WITHOUT_EMBEDDING_GRADIENT = ("Gemma4", "Inkling")
# Without rotary embeddings in the config that is tested, or with others for each layer, which the settings
# of this module do not describe.
OTHER_ROTARY_SETTINGS = [
    *itertools.product(("GraniteMoeHybrid", "RecurrentGemma", "Beam"), ROPES),
    ("DeepseekV4", "longrope"),
    ("Gemma4", "longrope"),
    ("Gemma4Unified", "longrope"),
    ("MiMoV2Flash", "longrope"),
]
ROTARY_CAUSAL_CASES = [
    (prefix, rope)
    for prefix in CAUSAL_ONLY_FAMILIES
    for rope in ROPES
    if class_has_growing_rope(f"{prefix}ForCausalLM")
    and (prefix, rope) not in OTHER_ROTARY_SETTINGS
]


def draw_text(length: int) -> Tensor:
    """Draw ids that end in the end-of-text token."""
    ids = torch.randint(5, 120, (length,), generator=torch.Generator().manual_seed(length))
    ids[-1] = 2
    return ids


TEXTS = {length: draw_text(length) for length in (SHORT, MIDDLE, LONG)}


def make_rope_parameters(rope: str, old: dict[str, Any], num_frequencies: int) -> dict[str, Any]:
    """Return parameters of rotary embeddings that change at THRESHOLD tokens, in place of ``old`` ones."""
    kept = {name: old[name] for name in ("rope_theta", "llama_4_scaling_beta") if name in old}
    parameters = {
        "rope_type": rope,
        "factor": 4.0,
        "original_max_position_embeddings": THRESHOLD,
        **kept,
    }
    if "partial_rotary_factor" in old:
        # One frequency would be too few for dynamic factors, so all of a head is rotated.
        num_frequencies = round(num_frequencies / old["partial_rotary_factor"])
        parameters["partial_rotary_factor"] = 1.0
    if rope == "longrope":
        parameters["short_factor"] = [1.0] * num_frequencies
        parameters["long_factor"] = [4.0] * num_frequencies
    return parameters


def make_rotary_settings(plain: Any, rope: str) -> dict[str, Any]:
    """Return settings with which the rotary factors of the model ``plain`` change at THRESHOLD tokens."""
    rotary = next(module for module in plain.modules() if hasattr(module, "original_max_seq_len"))
    old_parameters = plain.config.rope_parameters
    rope_parameters: dict[str, Any]
    if isinstance(rotary.rope_type, dict):  # other factors for each type of layer
        rope_parameters = {
            layer_type: make_rope_parameters(
                rope, old_parameters[layer_type], len(getattr(rotary, f"{layer_type}_inv_freq"))
            )
            for layer_type in rotary.rope_type
        }
    else:
        rope_parameters = make_rope_parameters(rope, old_parameters, len(rotary.inv_freq))
    return {
        "max_position_embeddings": THRESHOLD if rope == "dynamic" else 64,
        "rope_parameters": rope_parameters,
    }


def build_rotary_model(family: str, rope: str) -> Any:
    """Return a model of the family whose rotary factors change at THRESHOLD tokens."""
    prefix, arguments, _ = ALL_FAMILIES[family]
    settings = make_rotary_settings(build_model(family), rope)
    if family == "phimoe":  # its config asks for these whatever the type
        settings["rope_parameters"] |= {"short_mscale": 1.0, "long_mscale": 1.5}
    if family == "phi3":
        settings["original_max_position_embeddings"] = THRESHOLD
    return build_model_from_config(prefix, {**arguments, **settings})


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    """Make float64 the default dtype, for tensors whose dtype a model does not name (Funnel's positions)."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def compute_bare_logits(model: Any, ids: Tensor) -> np.ndarray:
    """Return the unmodified model's logits for one text; those of its next token for a language model."""
    with torch.no_grad():
        logits = model(ids[None]).logits[0]
    return (logits if logits.dim() == 1 else logits[-1]).numpy()


def explain_lengths(explainer: Explainer, lengths: Sequence[int], method: Any) -> dict[int, Any]:
    """Return the attribution of the text of each length, explained in one call."""
    rows = [row for length in lengths for row in Tokens.from_ids(TEXTS[length][None])]
    return dict(zip(lengths, explainer.explain(rows, method, target=1), strict=True))


def assert_batch_invariant(model: Any, method: Any) -> None:
    """Assert that texts have the same logits and scores in any batch and order, by an unchanged model."""
    model = model.double().requires_grad_(False)
    fresh = {length: copy.deepcopy(model) for length in TEXTS}  # none has read another text
    with EverythingInFloat64():
        expected = {
            length: compute_bare_logits(fresh[length], ids) for length, ids in TEXTS.items()
        }
        before = state_tree(model)
        explainer = Explainer(model)
        # A long text after a short one, one of middling length after a long one, and all at once.
        alone = {}
        for length in (SHORT, LONG, MIDDLE):
            alone |= explain_lengths(explainer, [length], method)
        together = explain_lengths(explainer, [SHORT, LONG, MIDDLE], method)
        assert find_changes(before, state_tree(model)) == []
    for attributions in (alone, together):
        for length, attribution in attributions.items():
            assert_close(attribution.logits, expected[length])
            assert_close(attribution.scores, alone[length].scores)


@pytest.mark.parametrize("family", SUPPORTED_FAMILIES)
def test_a_text_has_one_answer_in_any_batch_and_order(family, float64_by_default):  # noqa: ARG001
    method = OCCLUSION if family in WITHOUT_GRADIENT else "grad_x_input"
    assert_batch_invariant(build_model(family), method)


@pytest.mark.parametrize(("family", "rope"), ROTARY_CASES)
def test_rotary_factors_do_not_depend_on_other_rows(family, rope, monkeypatch):
    if rope == "dynamic":  # longer than its config allows, which is refused otherwise
        monkeypatch.setattr(ModelRunner, "max_tokens", None)
    model = build_rotary_model(family, rope)
    rules = BatchRules(model)
    assert rules.find_regime_of_length(SHORT) != rules.find_regime_of_length(LONG)
    assert_batch_invariant(model, "grad_x_input")


def choose_method(prefix: str) -> Any:
    """Return a method that the language models of a family support."""
    return OCCLUSION if prefix in WITHOUT_EMBEDDING_GRADIENT else "grad_x_input"


@pytest.mark.parametrize("prefix", CAUSAL_ONLY_FAMILIES)
def test_a_next_token_has_one_answer_in_any_batch_and_order(prefix):
    assert_batch_invariant(build_causal_only_model(prefix), choose_method(prefix))


@pytest.mark.parametrize(("prefix", "rope"), ROTARY_CAUSAL_CASES)
def test_rotary_factors_of_a_language_model_do_not_depend_on_other_rows(prefix, rope, monkeypatch):
    if rope == "dynamic":  # longer than its config allows, which is refused otherwise
        monkeypatch.setattr(ModelRunner, "max_tokens", None)
    settings = make_rotary_settings(build_causal_only_model(prefix), rope)
    model = build_causal_only_model(prefix, **settings)
    rules = BatchRules(model)
    assert rules.find_regime_of_length(SHORT) != rules.find_regime_of_length(LONG)
    assert_batch_invariant(model, choose_method(prefix))


@pytest.mark.parametrize("prefix", SPARSE)
@pytest.mark.parametrize("method", ["grad_x_input", OCCLUSION])
def test_block_sparse_attention_stays_enabled_after_a_short_text(prefix, method):
    model = build_model_from_config(prefix, SPARSE[prefix])
    assert_batch_invariant(model, method)
    assert {m.attention_type for m in model.modules() if hasattr(m, "attention_type")} == {
        "block_sparse"
    }


def test_sparse_attention_selects_the_same_tokens_in_any_batch():
    """All of Doge's scores are equal here, and which of them are selected depends on the length."""
    model = build_model_from_config("Doge", {**DECODER, "keep_window_size": THRESHOLD})
    rules = BatchRules(model)
    assert [rules.find_regime_of_length(n) for n in (THRESHOLD, THRESHOLD + 1)] == [
        (0,),
        (THRESHOLD + 1,),
    ]
    assert_batch_invariant(model, "grad_x_input")


def assert_one_answer_in_any_order(explainer: Explainer, inputs: list[Any], target: Any) -> None:
    """Assert that each input has the same scores by itself, after each of the others and together with them.

    Args:
        explainer: The Explainer of a float64 model.
        inputs: A short, a long and a middling input.
        target: The target that is explained.
    """

    def explain_batch(batch: list[Any]) -> list[Any]:
        """Return the attributions of each input of a batch."""
        results = explainer.explain_texts(batch, "grad_x_input", target)
        return [result.attributions for result in results]

    with EverythingInFloat64():
        before = state_tree(explainer.model)
        alone = [explain_batch([single])[0] for single in inputs]
        reversed_order = [explain_batch([single])[0] for single in reversed(inputs)]
        together = explain_batch(inputs)
        assert find_changes(before, state_tree(explainer.model)) == []
    for attributions in (list(reversed(reversed_order)), together):
        for actual, expected in zip(attributions, alone, strict=True):
            assert len(actual) == len(expected) > 0
            for attribution, expected_attribution in zip(actual, expected, strict=True):
                assert_close(attribution.logits, expected_attribution.logits)
                assert_close(attribution.scores, expected_attribution.scores)


@pytest.mark.parametrize("family", WORKING_SEQ2SEQ)
def test_a_source_has_one_answer_in_any_batch_and_order(family):
    sources = ["the cat", " ".join([SOURCE] * 5), SOURCE]
    explainer = Explainer(make_seq2seq_model(family), make_seq2seq_tokenizer())
    assert_one_answer_in_any_order(explainer, sources, Continuation(CONTINUATION))


@pytest.mark.parametrize("family", image_models.FAMILIES)
def test_a_picture_has_one_answer_in_any_batch_and_order(family):
    explainer = Explainer(image_models.build_model(family))
    assert_one_answer_in_any_order(explainer, image_models.make_pictures(3), 1)


@pytest.mark.parametrize("family", image_text_models.SUPPORTED)
def test_a_picture_with_a_text_has_one_answer_in_any_batch_and_order(family):
    texts = ["what ?", "what is this red cat on the mat ? " * 3, image_text_models.QUESTION]
    inputs = [image_text_models.make_picture(seed, text.strip()) for seed, text in enumerate(texts)]
    explainer = Explainer(
        image_text_models.build_model(family), image_text_models.make_image_tokenizer()
    )
    assert_one_answer_in_any_order(explainer, inputs, "predicted")
