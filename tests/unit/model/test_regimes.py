"""Rows share a batch only where the model computes each of them as it does alone."""

import copy

import numpy as np
import pytest
import torch

from tests.helpers.encoder_decoder_models import (
    CONTINUATION,
    SOURCE,
    make_seq2seq_model,
    make_seq2seq_tokenizer,
)
from tests.helpers.families import (
    DECODER,
    PARTLY_SUPPORTED_FAMILIES,
    SMALL,
    build_model_from_config,
)
from tests.helpers.tolerance import FLOAT32, assert_close
from tokenlight import Continuation, Explainer, Tokens
from tokenlight.errors import UnsupportedModel
from tokenlight.model.regimes import BatchRules, shares_capacity
from tokenlight.perturb.logits_stream import stream_logits
from tokenlight.perturb.variants import Perturber, ReplacementIds

THRESHOLD = 72  # beyond what a probe of 32 tokens and 20 of padding sees
POSITIONS = 128
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": THRESHOLD,
    "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 4.0,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
BLOCKS = {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1}
SPARSE_BORDER = 14


def build_phi3(head="ForSequenceClassification"):
    settings = {
        "rope_parameters": dict(LONGROPE),
        "original_max_position_embeddings": THRESHOLD,
        "max_position_embeddings": POSITIONS,
    }
    return build_model_from_config("Phi3", {**DECODER, **settings}, head)


def build_phimoe():
    """A PhiMoE: its rotary factors are scaled by the longest row, whatever their type."""
    rope = {
        "rope_type": "linear",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": THRESHOLD,
        "short_mscale": 1.0,
        "long_mscale": 1.5,
    }
    settings = {"rope_parameters": rope, "max_position_embeddings": POSITIONS}
    return build_model_from_config("Phimoe", {**DECODER, **settings, "num_local_experts": 2})


def build_experts(fraction):
    settings = {"moe_eval_capacity_token_fraction": fraction, "expert_capacity": 2}
    return make_seq2seq_model("nllb-moe", torch.float32, **settings)


def make_row(length, seed=0):
    ids = torch.randint(5, 120, (1, length), generator=torch.Generator().manual_seed(seed))
    ids[0, -1] = 2
    (row,) = Tokens.from_ids(ids)
    return row


def compute_bare_logits(model, ids):
    with torch.no_grad():
        return copy.deepcopy(model)(torch.tensor([list(map(int, ids))])).logits[0].numpy()


def test_longrope_has_a_threshold():
    rules = BatchRules(build_phi3())
    assert [rules.find_regime_of_length(n) for n in (1, THRESHOLD, THRESHOLD + 1, 99)] == [
        (0,),
        (0,),
        (1,),
        (1,),
    ]
    assert rules.find_shortest_length_on_sides_of(99) == THRESHOLD + 1
    assert rules.find_longest_length_on_short_sides(99) == THRESHOLD


def test_dynamic_factors_have_a_regime_for_each_length_beyond_the_threshold():
    arguments = {**DECODER, "max_position_embeddings": THRESHOLD, "rope_parameters": dict(DYNAMIC)}
    model = build_model_from_config("Llama", arguments)
    rules = BatchRules(model)
    assert [rules.find_regime_of_length(n) for n in (1, THRESHOLD, 73, 74)] == [
        (0,),
        (0,),
        (73,),
        (74,),
    ]
    with torch.no_grad():
        model(torch.arange(5, 82)[None])  # a user's own pass, which the model remembers
    assert [rules.find_regime_of_length(n) for n in (71, 72, 77, 78)] == [(0,), (1,), (1,), (78,)]


def test_factors_for_each_type_of_layer_are_found():
    ropes = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": dict(LONGROPE),
    }
    settings = {"layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8}
    model = build_model_from_config("Gemma3Text", {**DECODER, **settings, "rope_parameters": ropes})
    assert BatchRules(model).find_regime_of_length(THRESHOLD + 1) == (1,)


def test_unknown_rotary_code_has_one_regime_per_length():
    model = build_model_from_config(
        "GPT2", {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 120}
    )
    model.config.rope_parameters = {"type": "su"}
    assert BatchRules(model).find_regime_of_length(7) == (7,)


def test_block_sparse_attention_has_a_threshold_as_long_as_it_is_block_sparse():
    model = build_model_from_config("BigBird", {**SMALL, **BLOCKS})
    rules = BatchRules(model)
    assert [rules.find_regime_of_length(n) for n in (SPARSE_BORDER, SPARSE_BORDER + 1)] == [
        (0,),
        (1,),
    ]
    model.base_model.set_attention_type("original_full")
    assert rules.find_regime_of_length(60) == (0,)


def test_buckets_set_by_the_length_have_one_regime_per_length():
    prefix, arguments, _ = PARTLY_SUPPORTED_FAMILIES["reformer"]
    assert BatchRules(build_model_from_config(prefix, arguments)).find_regime_of_length(7) == (0,)
    assert BatchRules(
        build_model_from_config(prefix, {**arguments, "num_buckets": None})
    ).find_regime_of_length(7) == (7,)


def test_a_sparse_index_has_one_regime_per_length():
    prefix, arguments, _ = PARTLY_SUPPORTED_FAMILIES["axk2"]
    rules = BatchRules(build_model_from_config(prefix, arguments))
    assert [rules.find_regime_of_length(n) for n in (16, 17, 18)] == [(0,), (17,), (18,)]


def build_grown_llama():
    arguments = {**DECODER, "max_position_embeddings": THRESHOLD, "rope_parameters": dict(DYNAMIC)}
    model = build_model_from_config("Llama", arguments)
    with torch.no_grad():
        model(torch.arange(5, 82)[None])
    return model


@pytest.mark.parametrize(
    "build",
    [
        build_phi3,
        build_grown_llama,
        lambda: build_model_from_config("BigBird", {**SMALL, **BLOCKS}),
        lambda: build_model_from_config(*PARTLY_SUPPORTED_FAMILIES["axk2"][:2]),
    ],
    ids=["phi3", "grown llama", "bigbird", "axk2"],
)
def test_every_rule_has_one_threshold_so_that_halving_finds_it(build):
    rules = BatchRules(build())
    sides = [tuple(choice > 0 for choice in rules.find_regime_of_length(n)) for n in range(1, 100)]
    for index, lengths_beyond in enumerate(np.array(sides).T):
        assert not lengths_beyond[0], index
        assert (np.diff(lengths_beyond.astype(int)) >= 0).all(), index
    for length in range(1, 100):
        shortest = 1 + sides.index(sides[length - 1])
        assert rules.find_shortest_length_on_sides_of(length) == shortest


def test_a_model_without_thresholds_has_one_regime():
    rules = BatchRules(build_model_from_config("Bert", SMALL))
    assert rules.find_regime_of_length(1) == rules.find_regime_of_length(60) == ()
    assert not rules.has_thresholds
    assert rules.is_batch_invariant


@pytest.mark.parametrize("build", [build_phi3, build_phimoe])
def test_perturbed_texts_on_both_sides_of_a_threshold_have_the_logits_of_single_passes(build):
    model = build()
    explainer = Explainer(model)
    row = make_row(THRESHOLD + 4)
    original = Perturber(row, ReplacementIds.from_model(explainer.runner))
    variants = [original.delete_tokens(range(count)) for count in range(9)]
    all_logits = list(stream_logits(explainer.runner, variants))
    for variant, logits in zip(variants, all_logits, strict=True):
        assert_close(logits, compute_bare_logits(model, variant.ids), FLOAT32)


def test_aopc_of_a_long_text_equals_the_value_of_single_passes():
    model = build_phi3()
    explainer = Explainer(model)
    attribution = explainer.explain(make_row(THRESHOLD + 4), "grad_x_input", target=1)
    together = explainer.evaluate([attribution], ["aopc"], progress=False)
    explainer.runner.batch_size = 1
    alone = explainer.evaluate([attribution], ["aopc"], progress=False)
    assert_close([together.rows[0]["aopc"]], [alone.rows[0]["aopc"]], FLOAT32)


@pytest.mark.parametrize("words", [THRESHOLD - 3, THRESHOLD + 3])
def test_each_token_of_a_continuation_is_predicted_from_its_own_prefix(words):
    model = build_phi3("ForCausalLM")
    tokenizer = make_seq2seq_tokenizer(ends=False)
    tokenizer.model_max_length = POSITIONS
    prompt = " ".join(["the red cat sat on a mat"] * 11).split()[:words]
    continuation = "die katze sass auf a mat"
    explainer = Explainer(model, tokenizer)
    attributions = explainer.explain(
        " ".join(prompt), "grad_x_input", Continuation(f" {continuation}")
    )
    assert len(attributions) == len(continuation.split())
    ids = tokenizer(" ".join(prompt) + " " + continuation)["input_ids"]
    for number, attribution in enumerate(attributions):
        beginning = ids[: words + number]
        assert_close(attribution.logits, compute_bare_logits(model, beginning)[-1], FLOAT32)


def test_routers_with_a_capacity_for_all_tokens_do_not_share_it():
    assert not shares_capacity(build_experts(1.0))
    assert shares_capacity(build_experts(0.5))
    assert shares_capacity(build_experts(-1.0))


def test_perturbed_texts_do_not_compete_for_experts():
    model = build_experts(-1.0)
    explainer = Explainer(model, make_seq2seq_tokenizer())
    attributions = explainer.explain(
        SOURCE, ("occlusion", {"window": 1}), Continuation(CONTINUATION)
    )
    row = attributions[-1].row
    original = Perturber(row, ReplacementIds.from_model(explainer.runner))
    variants = [original.replace_tokens([i]) for i in range(row.source_length)]
    for variant, logits in zip(variants, stream_logits(explainer.runner, variants), strict=True):
        source, decoded = np.split(variant.ids[None].astype(np.int64), [row.source_length], axis=1)
        fresh = copy.deepcopy(model)
        with torch.no_grad():
            bare = fresh(torch.tensor(source), decoder_input_ids=torch.tensor(decoded)).logits[
                0, -1
            ]
        assert_close(logits, bare.numpy(), FLOAT32)


def test_steps_of_a_path_do_not_compete_for_experts():
    path = ("integrated_gradients", {"num_steps": 4})
    together = Explainer(build_experts(-1.0), make_seq2seq_tokenizer()).explain(
        SOURCE, path, Continuation(CONTINUATION)
    )
    alone = Explainer(build_experts(-1.0), make_seq2seq_tokenizer()).explain(
        SOURCE, path, Continuation(CONTINUATION), batch_tokens=1, batch_size=1
    )
    for actual, expected in zip(together, alone, strict=True):
        assert_close(actual.scores, expected.scores, FLOAT32)


def test_a_text_and_its_baseline_do_not_compete_for_experts():
    explainer = Explainer(build_experts(-1.0), make_seq2seq_tokenizer())
    with pytest.raises(UnsupportedModel, match="other rows of its batch.*integrated_gradients"):
        explainer.explain(SOURCE, "deeplift_shap", Continuation(CONTINUATION))


class BatchMixing(torch.nn.Module):
    """A layer that adds the mean over the batch: no row is computed by itself."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, vectors):
        output = self.layer(vectors)
        return output + output.mean(dim=0, keepdim=True)


def test_a_layer_that_mixes_the_rows_of_a_batch_is_found_by_the_probe():
    model = build_model_from_config("Bert", SMALL)
    model.classifier = BatchMixing(model.classifier)
    rows = [make_row(9, seed) for seed in range(4)]
    attributions = Explainer(model).explain(rows, "grad_x_input", target=1)
    for row, attribution in zip(rows, attributions, strict=True):
        assert_close(attribution.logits, compute_bare_logits(model, row.ids), FLOAT32)
