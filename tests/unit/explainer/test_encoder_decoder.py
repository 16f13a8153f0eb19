"""Models that write after a source: encoder and decoder explained in one row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration

from tests.helpers.encoder_decoder_models import (
    CONTINUATION,
    PROMPT,
    SEQ2SEQ_FAMILIES,
    SOURCE,
    WORDS,
    make_seq2seq_model,
    make_seq2seq_tokenizer,
)
from tests.helpers.expect import expect_error
from tests.helpers.families import (
    CAUSAL_FAMILIES,
    NOT_CAUSAL_BY_DEFAULT,
    build_model,
    find_causal_class,
)
from tokenlight import Continuation, Explainer, NextToken, Tokens, save
from tokenlight.errors import BadInput, BadTarget, NotFinite, TextTooLong, UnsupportedModel
from tokenlight.trust import assess_trust

SUPPORTED = [
    name for name, (_, _, support_level) in SEQ2SEQ_FAMILIES.items() if support_level != "refused"
]
READ = [name for name in SUPPORTED if SEQ2SEQ_FAMILIES[name][2] != "embeddings"]
S = 8  # tokens of the source with </s>
T = 4  # tokens of the decoder before the last written one ends


@pytest.fixture(scope="module")
def bart() -> Explainer:
    return Explainer(make_seq2seq_model("bart"), make_seq2seq_tokenizer())


def estimate_rounding(name: str) -> float:
    """What of a score may be rounding: routers of experts compute in float32 whatever the model does."""
    eps = torch.finfo(
        torch.float32 if SEQ2SEQ_FAMILIES[name][2] == "float32 router" else torch.float64
    ).eps
    return 1e4 * eps  # sums over 16 entries in 5 blocks, each of them divided by a norm


def run_teacher_forced(model: Any, **flags: Any) -> tuple[Any, Tensor, Tensor]:
    """The model's own pass over the source and all that was written but the last."""
    source = torch.tensor([[WORDS.index(word) for word in SOURCE.split()] + [1]])
    start = model.config.decoder_start_token_id
    decoded = torch.tensor([[start] + [WORDS.index(word) for word in CONTINUATION.split()[:-1]]])
    outputs = model(input_ids=source, decoder_input_ids=decoded, use_cache=False, **flags)
    return outputs, source, decoded


@pytest.mark.parametrize("name", ["t5", "t5-gated"])
def test_loss_gradients_at_the_embeddings_cover_source_and_continuation(name: str) -> None:
    model = make_seq2seq_model(name)
    explainer = Explainer(model, make_seq2seq_tokenizer())
    (attribution, *_) = explainer.explain(
        SOURCE, ("simple", {"multiply": "none"}), Continuation(CONTINUATION)
    )
    source = torch.tensor([[WORDS.index(word) for word in SOURCE.split()] + [1]])
    start = torch.tensor([[model.config.decoder_start_token_id]])
    tables = [part.get_input_embeddings() for part in (model.get_encoder(), model.get_decoder())]
    embeddings: list[Tensor] = []

    def keep(_module: Any, _args: Any, output: Tensor) -> Tensor:
        embeddings.append(output.detach().requires_grad_())
        return embeddings[-1].clone()

    hooks = [table.register_forward_hook(keep) for table in dict.fromkeys(tables)]
    logits = model(input_ids=source, decoder_input_ids=start, use_cache=False).logits[0, -1]
    for hook in hooks:
        hook.remove()
    loss = -torch.log_softmax(logits, dim=-1)[WORDS.index(CONTINUATION.split()[0])]
    slopes = torch.cat(torch.autograd.grad(loss, embeddings), dim=1)[0].sum(dim=-1).abs()
    np.testing.assert_allclose(
        attribution.scores, (slopes / slopes.sum()).numpy(), rtol=estimate_rounding(name) * 100
    )


@pytest.mark.parametrize("name", SUPPORTED)
def test_every_family_is_explained_from_its_own_logits_in_any_padded_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_seq2seq_model(name)
    explainer = Explainer(model, make_seq2seq_tokenizer())
    attributions = explainer.explain(SOURCE, "grad_x_input", Continuation(CONTINUATION))
    logits = run_teacher_forced(model)[0].logits[0].detach().numpy()
    for position, attribution in enumerate(attributions):
        assert len(attribution) == S + 1 + position
        assert attribution.row.source_length == S
        expected = logits[position, WORDS.index(CONTINUATION.split()[position])]
        assert attribution.logits[attribution.target.index] == pytest.approx(
            expected, rel=estimate_rounding(name), abs=estimate_rounding(name)
        )
    monkeypatch.setattr(
        "tokenlight.explaining.strategies.can_share_forward", lambda *_: False
    )  # a row for each
    batch = explainer.explain(SOURCE, "grad_x_input", Continuation(CONTINUATION))  # padded
    alone = explainer.explain(SOURCE, "grad_x_input", Continuation(CONTINUATION), batch_tokens=1)
    attributions = [*attributions, *batch]
    alone = [*alone, *alone]
    for attribution, expected in zip(attributions, alone, strict=True):
        np.testing.assert_allclose(
            attribution.scores,
            expected.scores,
            rtol=0,
            atol=estimate_rounding(name) * np.abs(expected.scores).max(),
        )


@pytest.mark.parametrize("name", [name for name in SEQ2SEQ_FAMILIES if name not in SUPPORTED])
def test_an_unsupported_encoder_decoder_family_is_refused_by_name(name: str) -> None:
    with pytest.raises((UnsupportedModel, NotFinite), match=SEQ2SEQ_FAMILIES[name][0]):
        Explainer(make_seq2seq_model(name), make_seq2seq_tokenizer()).explain(
            SOURCE, "grad_x_input"
        )


@pytest.mark.parametrize("name", READ)
def test_class_activations_of_both_parts_equal_the_papers_formula(name: str) -> None:
    model = make_seq2seq_model(name)
    attribution = Explainer(model, make_seq2seq_tokenizer()).explain(
        SOURCE, "cat", Continuation(CONTINUATION, against=None)
    )[-1]
    for weight in model.parameters():
        weight.requires_grad_(True)
    outputs, source, decoded = run_teacher_forced(model, output_hidden_states=True)
    states = [*outputs.encoder_hidden_states, *outputs.decoder_hidden_states[:-1]]
    target = outputs.logits[0, -1, WORDS.index(CONTINUATION.split()[-1])]
    gradients = torch.autograd.grad(target, states)
    expected = torch.zeros(source.shape[1] + decoded.shape[1], dtype=torch.float64)
    for number, (state, gradient) in enumerate(zip(states, gradients, strict=True)):
        products = (state * gradient).sum(dim=-1)[0].detach()
        part = slice(S) if number < len(outputs.encoder_hidden_states) else slice(S, None)
        expected[part] += products
    scale = float(expected.abs().max())
    np.testing.assert_allclose(
        attribution.scores, expected.numpy(), rtol=0, atol=estimate_rounding(name) * scale
    )


def _list_maps(model: Any) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
    """Encoder, decoder and cross maps of one text, and the target, on one graph."""
    model.set_attn_implementation("eager")
    outputs, _, _ = run_teacher_forced(model, output_attentions=True)
    target = outputs.logits[0, -1, WORDS.index(CONTINUATION.split()[-1])]
    kinds = outputs.encoder_attentions, outputs.decoder_attentions, outputs.cross_attentions
    return (*map(list, kinds), target)  # type: ignore[return-value]


def test_attcat_weights_every_state_by_the_attention_it_receives_where_it_is_read(
    bart: Explainer,
) -> None:
    terms = bart.explain(SOURCE, "cat", Continuation(CONTINUATION, against=None))[-1].layers
    attribution = bart.explain(SOURCE, "attcat", Continuation(CONTINUATION, against=None))[-1]
    encoder, decoder, cross, _ = _list_maps(make_seq2seq_model("bart"))
    received = [maps[0].mean(dim=(0, 1)) for maps in encoder]
    received.append(torch.stack([maps[0].mean(dim=(0, 1)) for maps in cross]).mean(dim=0))
    received += [maps[0].mean(dim=(0, 1)) for maps in decoder]
    assert terms is not None
    assert attribution.layers is not None
    for terms_of_state, weighted, share in zip(terms, attribution.layers, received, strict=True):
        part = slice(S) if len(share) == S else slice(S, None)
        np.testing.assert_allclose(
            weighted[part], terms_of_state[part] * share.detach().numpy(), atol=1e-12
        )


def test_gae_follows_the_papers_rules_through_cross_attention(bart: Explainer) -> None:
    attribution = bart.explain(SOURCE, "gae", Continuation(CONTINUATION, against=None))[-1]
    encoder, decoder, cross, target = _list_maps(make_seq2seq_model("bart"))
    gradients = torch.autograd.grad(target, [*encoder, *decoder, *cross])
    steps = [
        (maps * gradient)[0].clamp(min=0).mean(dim=0).detach().numpy()
        for maps, gradient in zip([*encoder, *decoder, *cross], gradients, strict=True)
    ]
    encoder_steps = steps[: len(encoder)]
    decoder_steps = steps[len(encoder) :]
    selves = decoder_steps[: len(decoder)]
    crosses = decoder_steps[len(decoder) :]
    ss = np.eye(S)
    for step in encoder_steps:
        ss = ss + step @ ss
    tt = np.eye(T - 1)
    ts = np.zeros((T - 1, S))
    for self_attention, cross_attention in zip(selves, crosses, strict=True):
        tt = tt + self_attention @ tt
        ts = ts + self_attention @ ts
        ts = ts + _normalize(tt).T @ cross_attention @ _normalize(ss)
    expected = np.concatenate((ts[-1], tt[-1]))
    expected[-1] = 0.0
    np.testing.assert_allclose(attribution.scores, expected, rtol=0, atol=1e-12)


def _normalize(relevance: np.ndarray) -> np.ndarray:
    """Equations 8 and 9 of Chefer et al. 2021."""
    rest = relevance - np.eye(len(relevance))
    sums = rest.sum(axis=1, keepdims=True)
    shares: np.ndarray = np.divide(rest, sums, out=np.zeros_like(rest), where=sums != 0)
    return shares + np.eye(len(relevance))


def test_rollout_goes_through_both_attentions_of_a_decoder_block(bart: Explainer) -> None:
    attribution = bart.explain(SOURCE, "rollout", Continuation(CONTINUATION))[-1]
    encoder, decoder, cross, _ = _list_maps(make_seq2seq_model("bart"))
    means = [
        [m[0].mean(dim=0).detach().numpy() for m in kind] for kind in (encoder, decoder, cross)
    ]
    ss = np.eye(S)
    for step in means[0]:
        ss = (step + np.eye(S)) / 2 @ ss
    tt = np.eye(T - 1)
    ts = np.zeros((T - 1, S))
    for self_attention, cross_attention in zip(means[1], means[2], strict=True):
        mixed = (self_attention + np.eye(T - 1)) / 2
        tt = mixed @ tt
        ts = mixed @ ts
        tt = tt / 2
        ts = (ts + cross_attention @ ss) / 2
    assert ts[-1].sum() + tt[-1].sum() == pytest.approx(1)
    expected = np.concatenate((ts[-1], tt[-1]))
    expected[-1] = 0.0
    np.testing.assert_allclose(attribution.scores, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["t5", "t5-gated", "umt5"])
def test_relevance_is_conserved_through_cross_attention(name: str) -> None:
    """These have no biases, and cp_lrp takes attention as given: the scores share out the target. Their
    fifteen norms compute the variance in float32, whatever the model does."""
    rounding = 16 * torch.finfo(torch.float32).eps
    explainer = Explainer(make_seq2seq_model(name), make_seq2seq_tokenizer())
    for attribution in explainer.explain(SOURCE, "cp_lrp", Continuation(CONTINUATION)):
        value = attribution.target.compute_value(attribution.logits)
        assert attribution.scores.sum() == pytest.approx(
            value, abs=rounding * np.abs(attribution.scores).sum()
        )
        assert np.abs(attribution.scores[:S]).max() > 0


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_attnlrp_of_an_encoder_decoder_follows_the_maps_that_cp_lrp_holds_constant(
    name: str,
) -> None:
    explainer = Explainer(make_seq2seq_model(name), make_seq2seq_tokenizer())
    attribution = explainer.explain(SOURCE, "attnlrp", Continuation(CONTINUATION))[-1]
    constant = explainer.explain(SOURCE, "cp_lrp", Continuation(CONTINUATION))[-1]
    assert (
        np.abs(attribution.scores - constant.scores).max() > 1e-3 * np.abs(attribution.scores).max()
    )


def test_occlusion_replaces_tokens_of_source_and_continuation(bart: Explainer) -> None:
    attribution = bart.explain(
        SOURCE, ("occlusion", {"window": 1}), Continuation(CONTINUATION, against=None)
    )[-1]
    model = make_seq2seq_model("bart")
    outputs, source, decoded = run_teacher_forced(model)
    expected = WORDS.index(CONTINUATION.split()[-1])
    original_logit = outputs.logits[0, -1, expected]
    for position in (0, 3, S + 1, S + 2):
        changed = torch.cat((source, decoded), dim=1)
        changed[0, position] = 0
        model_inputs = {"input_ids": changed[:, :S], "decoder_input_ids": changed[:, S:]}
        fall = (original_logit - model(**model_inputs).logits[0, -1, expected]).detach()
        assert attribution.scores[position] == pytest.approx(float(fall), abs=1e-9)
    assert attribution.scores[S - 1] == attribution.scores[S] == 0  # </s> and the decoder's start


def test_deleting_the_whole_source_leaves_one_padding_token_and_the_continuation(
    bart: Explainer,
) -> None:
    from tokenlight.perturb.logits_stream import stream_logits
    from tokenlight.perturb.variants import Perturber, ReplacementIds

    row = bart.explain(SOURCE, "random", Continuation(CONTINUATION))[-1].row
    original = Perturber(row, ReplacementIds.from_model(bart.runner, bart.tokenizer))
    emptied = original.delete_tokens(range(S))
    assert (emptied.source_length, len(emptied)) == (1, 1 + len(row) - S)
    shorter = original.delete_tokens([1, S + 1])
    assert shorter.source_length == S - 1
    assert len(shorter) == len(row) - 2
    assert all(np.isfinite(v).all() for v in stream_logits(bart.runner, [emptied, shorter, row]))


def test_a_model_generates_by_its_generation_config_and_each_token_is_explained() -> None:
    model = make_seq2seq_model("t5", num_decoder_layers=2)
    model.generation_config.num_beams = 3
    explainer = Explainer(model, make_seq2seq_tokenizer())
    attributions = explainer.explain(SOURCE, "grad_x_input", Continuation(max_new_tokens=5))
    source = torch.tensor([[WORDS.index(word) for word in SOURCE.split()] + [1]])
    generated_ids = model.generate(input_ids=source, max_new_tokens=5)[0].tolist()
    expected_ids = [i for i in generated_ids[1:] if i > 1]
    assert [attribution.target.index for attribution in attributions] == expected_ids[
        : len(attributions)
    ]
    assert attributions
    assert attributions[-1].row.segment_names[-1] == "written"


def test_a_saved_continuation_is_one_page_with_a_row_for_each_generated_token(
    bart: Explainer, tmp_path: Path
) -> None:
    attribution = bart.explain(SOURCE, "grad_x_input", Continuation(CONTINUATION))
    save(attribution, tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert "Token by token" in page
    assert "The token that a row explains is underlined" in page


def test_without_a_continuation_the_first_generated_token_is_explained(bart: Explainer) -> None:
    attribution = bart.explain(SOURCE, "grad_x_input")
    assert len(attribution) == S + 1
    assert attribution.row.special_tokens_mask[-1]
    assert bart.explain(SOURCE, "grad_x_input", NextToken("cat")).target.index == WORDS.index("cat")


@pytest.mark.parametrize("together", [True, False])
def test_trust_checks_whether_another_text_in_the_batch_changes_the_scores(
    bart: Explainer, together: bool
) -> None:
    attribution = bart.explain(SOURCE, "attnlrp", Continuation(CONTINUATION, joint=together))[-1]
    checks = assess_trust(bart, attribution).extras["trust"]["health"]
    assert {check["check"]: check["state"] for check in checks}["batch"] == "good"


def test_a_method_without_an_encoder_decoder_form_is_refused_by_name(bart: Explainer) -> None:
    by_rules = ("attnlrp", {"propagation": "rules"})
    for method in ("transatt", "gradcam", "decoded_gradcam", "att_grads", "lrp", by_rules):
        name = method if isinstance(method, str) else method[0]
        with expect_error(UnsupportedModel, "method-without-encoder-decoder", mentions=str(name)):
            bart.explain(SOURCE, method, Continuation(CONTINUATION))


@pytest.mark.parametrize(
    "name", [name for name in CAUSAL_FAMILIES if name not in NOT_CAUSAL_BY_DEFAULT]
)
def test_every_causal_family_continues_from_its_own_logits_in_any_padded_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(name, find_causal_class(name)).double()
    explainer = Explainer(model, make_seq2seq_tokenizer(ends=False))
    attributions = explainer.explain(PROMPT, "grad_x_input", Continuation(f" {CONTINUATION}"))
    words = f"{PROMPT} {CONTINUATION}".split()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[WORDS.index(word) for word in words]])).logits[0]
    # MPT counts its bias from the end of the row and rounds the sum to float32.
    eps = torch.finfo(torch.float32 if name == "mpt" else torch.float64).eps
    for position, attribution in enumerate(attributions, len(PROMPT.split()) - 1):
        expected = float(logits[position, WORDS.index(words[position + 1])])
        assert attribution.logits[attribution.target.index] == pytest.approx(
            expected, rel=1e4 * eps, abs=1e4 * eps
        )
    monkeypatch.setattr(
        "tokenlight.explaining.strategies.can_share_forward", lambda *_: False
    )  # a row for each
    alone = explainer.explain(
        PROMPT, "grad_x_input", Continuation(f" {CONTINUATION}"), batch_tokens=1
    )
    for attribution, expected_attribution in zip(attributions, alone, strict=True):
        np.testing.assert_allclose(
            attribution.scores,
            expected_attribution.scores,
            rtol=0,
            atol=1e4 * eps * np.abs(expected_attribution.scores).max(),
        )


@pytest.mark.parametrize("name", sorted(NOT_CAUSAL_BY_DEFAULT & set(CAUSAL_FAMILIES)))
def test_an_encoder_with_a_causal_head_is_refused_by_name(name: str) -> None:
    explainer = Explainer(
        build_model(name, find_causal_class(name)), make_seq2seq_tokenizer(ends=False)
    )
    with expect_error(UnsupportedModel, "not-causal"):
        explainer.explain(PROMPT, "grad_x_input", Continuation(f" {CONTINUATION}"))


def test_the_documented_number_of_families_is_tested() -> None:
    assert len(SUPPORTED) >= 12
    assert len(set(CAUSAL_FAMILIES) - NOT_CAUSAL_BY_DEFAULT) >= 30


def test_invalid_sources_and_continuations_are_refused(bart: Explainer) -> None:
    with expect_error(BadInput, "ids-without-source"):
        bart.explain(Tokens.from_ids([[3, 4, 5]]), "grad_x_input")
    with pytest.raises(TextTooLong, match="The continuation has 60 tokens"):
        bart.explain(SOURCE, "grad_x_input", Continuation("cat " * 60))
    with expect_error(BadTarget, "continuation-of-no-tokens"):
        bart.explain(SOURCE, "grad_x_input", Continuation(max_new_tokens=0))
    with pytest.raises(BadInput, match="is empty"):
        bart.explain(SOURCE, "grad_x_input", Continuation(" "))


def test_speech_and_image_to_text_models_are_refused_by_name() -> None:
    whisper = WhisperConfig(
        vocab_size=24, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, pad_token_id=0,
        bos_token_id=1, eos_token_id=1, decoder_start_token_id=1,
    )  # fmt: skip
    with expect_error(
        UnsupportedModel, "unsupported-encoder-decoder", mentions="WhisperForConditionalGeneration"
    ):
        Explainer(WhisperForConditionalGeneration(whisper))
