"""Why this next token: prompts, continuations, contrasts and chats on causal language models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlight as tl
from tests.helpers.causal_models import CAUSAL_MODELS, CHAT_TEMPLATE, build_causal_model
from tests.helpers.expect import expect_error
from tests.helpers.model_state import assert_unchanged, take_snapshot
from tests.helpers.tiny import WORDS, tiny_tokenizer
from tests.helpers.tolerance import FLOAT32, EverythingInFloat64, assert_close
from tokenlight.errors import BadInput, BadTarget, TextTooLong, UnsupportedModel
from tokenlight.hooks import attention_hook

PROMPT = "the film was very"


@pytest.fixture(scope="module")
def language_model():
    return tl.Explainer(build_causal_model("gpt2"), tiny_tokenizer())


@pytest.fixture(scope="module")
def chat_explainer():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tl.Explainer(build_causal_model("llama"), tokenizer)


class TestEveryFamily:
    @pytest.mark.parametrize("family", CAUSAL_MODELS)
    def test_the_explained_logits_equal_the_bare_models_at_the_last_token(self, family):
        model = build_causal_model(family, torch.float32)
        ids = torch.tensor([[5, 7, 10, 12, 13]])
        with torch.no_grad():
            bare = model(ids).logits[0, -1].numpy()
        before = take_snapshot(model)
        explainer = tl.Explainer(model)
        for method in ("attcat", "gae", "grad_x_input", "rollout"):
            attribution = explainer.explain(tl.Tokens.from_ids(ids), method)
            assert_close(attribution.logits, bare, FLOAT32)
            assert attribution.prediction.index == int(bare.argmax())
            assert np.isfinite(attribution.scores).all()
            assert np.abs(attribution.scores).max() > 0
        assert_unchanged(before, take_snapshot(model))

    @pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "gpt_neox"])
    @pytest.mark.parametrize("method", ["transatt", "attnlrp", "lrp"])
    def test_relevance_reaches_the_tokens(self, family, method):
        explainer = tl.Explainer(build_causal_model(family, torch.float32))
        attribution = explainer.explain(tl.Tokens.from_ids([[5, 7, 10, 12, 13]]), method)
        assert np.abs(attribution.scores).max() > 0

    @pytest.mark.parametrize("family", CAUSAL_MODELS)
    def test_padding_side_and_batch_do_not_change_scores(self, family):
        model = build_causal_model(family)
        model.config.pad_token_id = 0
        explainer = tl.Explainer(model)
        text = [5, 7, 10, 12]
        other = [6, 8, 9, 11, 14, 13, 20]
        padded_left = [0, 0, 0, *text]
        padded_right = [*text, 0, 0, 0]
        with EverythingInFloat64():
            alone = explainer.explain(tl.Tokens.from_ids([text]), "attcat")
            for ids, mask in (
                ([padded_left, other], [[0] * 3 + [1] * 4, [1] * 7]),
                ([padded_right, other], [[1] * 4 + [0] * 3, [1] * 7]),
            ):
                attribution = explainer.explain(tl.Tokens.from_ids(ids, mask), "attcat")[0]
                assert_close(attribution.scores, alone.scores)


class TestTargets:
    def test_the_predicted_token_is_the_likeliest(self, language_model):
        attribution = language_model.explain(PROMPT)
        assert (
            attribution.target.index
            == attribution.prediction.index
            == int(np.argmax(attribution.logits))
        )
        chances = attribution.prediction.probabilities
        assert list(chances) == sorted(chances, reverse=True)
        assert attribution.prediction.probability == chances[0]

    def test_a_token_given_by_text_id_or_label_is_the_same_target(self, language_model):
        number = WORDS.index("good")
        by = [
            language_model.explain(PROMPT, target=target)
            for target in (tl.NextToken("good"), tl.NextToken(number), "good", number)
        ]
        for attribution in by:
            assert attribution.target.index == number
            np.testing.assert_array_equal(attribution.scores, by[0].scores)

    def test_a_contrast_is_the_difference_for_a_method_linear_in_the_target(self, language_model):
        contrast = language_model.explain(PROMPT, "grad_x_input", tl.Contrast("good", "bad"))
        good, bad = (
            language_model.explain(PROMPT, "grad_x_input", tl.NextToken(name, against=None))
            for name in ("good", "bad")
        )
        np.testing.assert_allclose(contrast.scores, good.scores - bad.scores, atol=1e-12)

    @pytest.mark.parametrize(
        "method", ["grad_x_input", "attnlrp", "cp_lrp", "integrated_gradients"]
    )
    def test_the_default_is_the_token_minus_its_alternatives(self, language_model, method):
        """Exactly, for methods that are linear in the target: one backward pass gives what 21 would."""
        default = language_model.explain(PROMPT, method)
        expected = np.zeros(len(default))
        for (index,), weight in default.target.terms:
            term = language_model.explain(PROMPT, method, tl.NextToken(index, against=None))
            expected += weight * term.scores
        assert len(default.target.terms) == 21
        assert default.target.kind == "token"
        assert_close(default.scores, expected, FLOAT32)

    @pytest.mark.parametrize("method", ["lrp", "transatt", "attnlrp:propagation=rules"])
    def test_rules_are_followed_once_for_the_token_and_once_for_the_others(
        self, language_model, method
    ):
        default = language_model.explain(PROMPT, method)
        (_, token), (_, others) = default.target.logit_parts
        token_scores = language_model.explain(PROMPT, method, token).scores
        other_scores = language_model.explain(PROMPT, method, others).scores
        assert_close(default.scores, token_scores - other_scores, FLOAT32)

    @pytest.mark.parametrize("method", ["attcat", "lrp", "attnlrp", "occlusion"])
    def test_the_device_chooses_the_alternatives_that_the_host_names(self, language_model, method):
        chosen_on_device = language_model.explain(PROMPT, method)
        token = tl.NextToken(chosen_on_device.target.index)
        resolved_on_host = language_model.explain(PROMPT, method, token)
        assert chosen_on_device.target == resolved_on_host.target
        assert_close(chosen_on_device.scores, resolved_on_host.scores, FLOAT32)

    def test_the_plain_logit_can_be_explained(self, language_model):
        plain = language_model.explain(PROMPT, "attnlrp", "logit")
        index = plain.prediction.index
        explicit_attribution = language_model.explain(
            PROMPT, "attnlrp", tl.NextToken(index, against=None)
        )
        assert plain.target == explicit_attribution.target
        assert plain.target.terms == (((index,), 1.0),)
        assert_close(plain.scores, explicit_attribution.scores, FLOAT32)
        assert plain.title == f"attnlrp → {plain.target.name}, its logit alone"

    def test_the_title_states_token_and_alternatives(self, language_model):
        attribution = language_model.explain(PROMPT, "attnlrp")
        first, second, third, *_ = attribution.target.alternatives
        question = f"{attribution.target.name} rather than ‘{first}’, ‘{second}’, ‘{third}’ …"
        assert attribution.title == f"attnlrp → {question}"
        # The alternatives are the tokens that the prediction lists after the first one.
        assert attribution.target.alternatives[:9] == tuple(
            label.strip() for label in attribution.prediction.labels[1:]
        )

    def test_a_word_of_several_tokens_is_refused_with_its_pieces(self, language_model):
        with pytest.raises(BadTarget, match=r"2 tokens of this model \(charm, ##ing\)"):
            language_model.explain(PROMPT, target=tl.NextToken("charming"))

    def test_all_tokens_at_once_are_refused(self, language_model):
        with pytest.raises(BadTarget, match="one per token of the vocabulary"):
            language_model.explain(PROMPT, target="all")

    def test_tokens_after_the_explained_one_were_not_read(self, language_model):
        """Explaining a prefix is explaining the text that ends there."""
        longer = language_model.explain(PROMPT + " good", target=tl.Continuation(" but"))[0]
        shorter = language_model.explain(PROMPT + " good", target="but")
        np.testing.assert_array_equal(longer.scores, shorter.scores)


class TestContinuation:
    def test_each_token_is_explained_from_its_prefix(self, language_model):
        attributions = language_model.explain(
            PROMPT, ["attcat", "gae"], tl.Continuation(" good and fun")
        )
        assert [attribution.method for attribution in attributions] == ["attcat"] * 3 + ["gae"] * 3
        assert [attribution.target.index for attribution in attributions[:3]] == [
            WORDS.index(w) for w in ("good", "and", "fun")
        ]
        assert [len(attribution) for attribution in attributions[:3]] == [
            len(attributions[0]),
            len(attributions[0]) + 1,
            len(attributions[0]) + 2,
        ]
        assert attributions[2].row.segment_names == ("prompt", "written")
        assert attributions[2].row.segments[-2:] == (1, 1)
        assert attributions[2].tokens[-2:] == ("good", "and")
        for attribution, prompt in zip(
            attributions[:3], (PROMPT, PROMPT + " good", PROMPT + " good and"), strict=True
        ):
            alone = language_model.explain(prompt, "attcat", target=attribution.target.index)
            assert attribution.target.title == alone.target.title
            np.testing.assert_allclose(attribution.scores, alone.scores, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("against", [3, "all", None])
    @pytest.mark.parametrize("method", ["attnlrp", "attcat"])
    def test_each_token_is_contrasted_as_the_continuation_specifies(
        self, language_model, method, against
    ):
        continuation = tl.Continuation(" good and", against=against)
        _, second = language_model.explain(PROMPT, method, continuation)
        token = tl.NextToken("and", against=against)
        alone = language_model.explain(PROMPT + " good", method, token)
        assert second.target.kind == alone.target.kind
        assert len(second.target.terms) == len(alone.target.terms)
        np.testing.assert_allclose(second.scores, alone.scores, rtol=0, atol=1e-9)

    def test_without_a_text_the_likeliest_tokens_are_generated(self, language_model):
        attributions = language_model.explain(PROMPT, target=tl.Continuation(max_new_tokens=4))
        model = language_model.model
        tokenizer = language_model.tokenizer
        ids = list(attributions[0].row.ids)
        for attribution in attributions:
            with torch.no_grad():
                best = int(model(torch.tensor([ids])).logits[0, -1].argmax())
            assert attribution.target.index == best
            ids.append(best)
        assert 1 <= len(attributions) <= 4
        assert "".join(attributions[-1].row.texts[1:]) in tokenizer.decode(ids)

    def test_a_continuation_of_one_token_gives_a_list(self, language_model):
        assert isinstance(language_model.explain(PROMPT, target=tl.Continuation(" good")), list)

    @pytest.mark.parametrize(
        ("prompt", "target", "error", "message"),
        [
            (PROMPT, tl.Continuation(""), BadInput, "is empty"),
            (
                "the film was goo",
                tl.Continuation("d"),
                BadInput,
                "part prompt and part continuation",
            ),
            (PROMPT, tl.Continuation(max_new_tokens=0), BadTarget, "generates nothing"),
            (" ".join(["good"] * 80), "predicted", TextTooLong, "keep the last"),
            (PROMPT, tl.TokenTarget("film"), BadTarget, "it generates text"),
            (PROMPT, tl.SpanTarget(), BadTarget, "it generates text"),
            ((PROMPT, PROMPT), "predicted", UnsupportedModel, "not a pair"),
            (
                tl.Question("who", PROMPT),
                "predicted",
                UnsupportedModel,
                "does not answer questions",
            ),
        ],
    )
    def test_an_invalid_target_is_refused_with_what_the_model_does(
        self, language_model, prompt, target, error, message
    ):
        with pytest.raises(error, match=message):
            language_model.explain(prompt, target=target)

    def test_a_long_prompt_keeps_its_end(self, language_model):
        attribution = language_model.explain(" ".join(["bad"] * 80) + " good", long="truncate")
        assert len(attribution) == language_model.max_tokens
        assert attribution.tokens[-1] == "good"
        assert any("were truncated" in note for note in attribution.notes)


class TestMeasured:
    def test_removing_tokens_is_measured_and_trusted(self, language_model):
        from tokenlight.evaluation.trust import assess_trust

        attributions = language_model.explain(
            [PROMPT + " good but slow", "a dog sat on the"], ["occlusion", "random"]
        )
        measured = language_model.evaluate(attributions, ["aopc", "lodds", "comprehensiveness"])
        assert np.isfinite(measured.by_method["occlusion"].summary["aopc"]["mean"])
        assert assess_trust(language_model, attributions[0]).extras["trust"]["grade"] != "untested"

    def test_metrics_of_classes_are_refused(self, language_model):
        attribution = language_model.explain(PROMPT)
        with pytest.raises(
            BadTarget, match="compares classes, but this model has none: it generates text"
        ):
            language_model.evaluate([attribution], ["kendall"])

    def test_the_engine_reads_the_last_token_of_what_is_left(self, language_model):
        """Deleting a token is reading the text without it, whatever its length."""
        from tokenlight.perturb.logits_stream import stream_logits
        from tokenlight.perturb.variants import Perturber, ReplacementIds

        row = language_model.explain(PROMPT).row
        original = Perturber(
            row, ReplacementIds.from_model(language_model.runner, language_model.tokenizer)
        )
        variants = [original.delete_tokens([i]) for i in original.rankable_positions]
        for variant, logits in zip(
            variants, stream_logits(language_model.runner, variants), strict=True
        ):
            with torch.no_grad():
                bare = language_model.model(
                    torch.tensor(variant.ids[None].astype(np.int64))
                ).logits[0, -1]
            np.testing.assert_allclose(logits, bare.numpy(), atol=1e-9)


def test_a_bidirectional_model_is_refused_as_language_model():
    config = transformers.BertConfig(
        vocab_size=120, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertLMHeadModel(config).eval()
    with expect_error(UnsupportedModel, "not-causal"):
        tl.Explainer(model).explain(tl.Tokens.from_ids([[5, 7, 10, 12]]))


def test_a_saved_explanation_of_a_next_token_loads_unchanged(language_model, tmp_path):
    attribution = language_model.explain(PROMPT)
    back = tl.Attribution.load(attribution.save(tmp_path / "next.json"))
    np.testing.assert_array_equal(back.scores, attribution.scores)
    assert back.prediction == attribution.prediction
    assert back.row == attribution.row
    assert back.target == attribution.target
    assert back.title == attribution.title
    assert (tmp_path / "next.json").stat().st_size < 20_000  # no vocabulary in it


class TestVocabulary:
    @given(st.integers(0, len(WORDS) - 1))
    @settings(max_examples=60, deadline=None)
    def test_a_whole_word_is_found_by_its_own_text(self, number):
        from tokenlight.data.tokenizer import Vocabulary

        vocabulary = Vocabulary(tiny_tokenizer(), len(WORDS))
        word = WORDS[number]
        if word.startswith(("[", "##")):
            return
        assert vocabulary.token_id(vocabulary[number]) == number

    def test_without_a_tokenizer_numbers_name_the_tokens(self):
        from tokenlight.data.tokenizer import Vocabulary

        assert Vocabulary(None, 5)[3] == "#3"
        with pytest.raises(BadTarget, match="Give a word that its tokenizer knows"):
            Vocabulary(None, 5).token_id("good")


def test_a_softcap_is_dropped_where_the_models_own_kernel_drops_it():
    torch.manual_seed(0)
    module = torch.nn.Linear(1, 1)
    tensors = [torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3)]
    options = {"scaling": 1.0, "is_causal": False}
    plain, _ = attention_hook.attend(module, *tensors, **options)
    capped, _ = attention_hook.attend(module, *tensors, softcap=0.5, **options)
    with attention_hook.emulated_attention("sdpa"):
        dropped, _ = attention_hook.attend(module, *tensors, softcap=0.5, **options)
    assert (plain - capped).abs().max() > 1e-2
    assert torch.equal(dropped, plain)
