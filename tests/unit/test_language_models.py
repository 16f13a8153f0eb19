"""Why this next token: prompts, continuations, contrasts and chats on causal language models."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlight as tl
from tests.families import DECODER, GPT
from tests.state import same, snapshot
from tests.tiny import WORDS, tiny_bert, tiny_tokenizer
from tests.tolerance import FLOAT32, EverythingInFloat64, close
from tokenlight.capture import seam
from tokenlight.errors import BadInput, BadTarget, TextTooLong, UnsupportedModel

FAMILIES = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT),
    "llama": ("LlamaConfig", "LlamaForCausalLM", DECODER),
    "mistral": ("MistralConfig", "MistralForCausalLM", DECODER),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", DECODER),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", DECODER),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", DECODER),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", DECODER),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {**DECODER, "ffn_dim": 48, "word_embed_proj_dim": 32},
    ),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", DECODER),
}
PROMPT = "the film was very"
TEMPLATE = (
    "{% for m in messages %}[SEP] {{ m['role'] }} : {{ m['content'] | trim }} {% endfor %}"
    "{% if add_generation_prompt %}[SEP] it : {% endif %}"
)
TOOLS = (
    "{% for m in messages %}[SEP] {{ m['role'] }} : {{ m['content'] | default('') | trim }} "
    '{% for c in m[\'tool_calls\'] or [] %}<tool> {"name": "{{ c[\'function\'].name }}", "arguments": '
    "{{ c['function'].arguments | tojson }}} </tool> {% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[SEP] it : {% endif %}"
)


def built(family, dtype=torch.float64):
    config, cls, arguments = FAMILIES[family]
    torch.manual_seed(0)
    sizes = {**arguments, "vocab_size": 150}
    model = getattr(transformers, cls)(getattr(transformers, config)(**sizes))
    with torch.no_grad():  # far enough from zero that tokens matter
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model.to(dtype).eval()


@pytest.fixture(scope="module")
def writer():
    return tl.Explainer(built("gpt2"), tiny_tokenizer())


@pytest.fixture(scope="module")
def talker():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tl.Explainer(built("llama"), tokenizer)


class TestEveryFamily:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_explained_logits_are_those_of_the_bare_model_at_the_last_token(self, family):
        model = built(family, torch.float32)
        ids = torch.tensor([[5, 7, 10, 12, 13]])
        with torch.no_grad():
            bare = model(ids).logits[0, -1].numpy()
        before = snapshot(model)
        explainer = tl.Explainer(model)
        for method in ("attcat", "gae", "grad_x_input", "rollout"):
            found = explainer.explain(tl.Tokens.from_ids(ids), method)
            close(found.logits, bare, FLOAT32)
            assert found.prediction.index == int(bare.argmax())
            assert np.isfinite(found.scores).all()
            assert np.abs(found.scores).max() > 0
        assert same(before, snapshot(model))

    @pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "gpt_neox"])
    @pytest.mark.parametrize("method", ["transatt", "attnlrp", "lrp"])
    def test_relevance_reaches_the_tokens(self, family, method):
        explainer = tl.Explainer(built(family, torch.float32))
        found = explainer.explain(tl.Tokens.from_ids([[5, 7, 10, 12, 13]]), method)
        assert np.abs(found.scores).max() > 0

    @pytest.mark.parametrize("family", FAMILIES)
    def test_padding_on_either_side_and_batch_mates_change_nothing(self, family):
        model = built(family)
        model.config.pad_token_id = 0
        explainer = tl.Explainer(model)
        text, other = [5, 7, 10, 12], [6, 8, 9, 11, 14, 13, 20]
        left, right = [0, 0, 0, *text], [*text, 0, 0, 0]
        with EverythingInFloat64():
            alone = explainer.explain(tl.Tokens.from_ids([text]), "attcat")
            for ids, mask in (
                ([left, other], [[0] * 3 + [1] * 4, [1] * 7]),
                ([right, other], [[1] * 4 + [0] * 3, [1] * 7]),
            ):
                found = explainer.explain(tl.Tokens.from_ids(ids, mask), "attcat")[0]
                close(found.scores, alone.scores)


class TestTargets:
    def test_the_predicted_token_is_the_likeliest(self, writer):
        found = writer.explain(PROMPT)
        assert found.target.index == found.prediction.index == int(np.argmax(found.logits))
        chances = found.prediction.probabilities
        assert list(chances) == sorted(chances, reverse=True)
        assert found.prediction.probability == chances[0]

    def test_a_token_by_text_by_number_and_as_plain_label_are_one(self, writer):
        number = WORDS.index("good")
        by = [
            writer.explain(PROMPT, target=target)
            for target in (tl.NextToken("good"), tl.NextToken(number), "good", number)
        ]
        for found in by:
            assert found.target.index == number
            np.testing.assert_array_equal(found.scores, by[0].scores)

    def test_a_contrast_is_the_difference_for_a_method_linear_in_the_target(self, writer):
        both = writer.explain(PROMPT, "grad_x_input", tl.Contrast("good", "bad"))
        good, bad = (writer.explain(PROMPT, "grad_x_input", name) for name in ("good", "bad"))
        np.testing.assert_allclose(both.scores, good.scores - bad.scores, atol=1e-12)

    def test_a_word_of_several_tokens_is_refused_with_its_pieces(self, writer):
        with pytest.raises(BadTarget, match=r"2 tokens of this model \(charm, ##ing\)"):
            writer.explain(PROMPT, target=tl.NextToken("charming"))

    def test_all_tokens_at_once_are_refused(self, writer):
        with pytest.raises(BadTarget, match="one a token of the vocabulary"):
            writer.explain(PROMPT, target="all")

    def test_what_stands_behind_the_last_token_was_not_there(self, writer):
        """Explaining a prefix is explaining the text that ends there."""
        longer = writer.explain(PROMPT + " good", target=tl.Continuation(" but"))[0]
        shorter = writer.explain(PROMPT + " good", target="but")
        np.testing.assert_array_equal(longer.scores, shorter.scores)


class TestContinuation:
    def test_each_token_is_explained_from_what_stands_before_it(self, writer):
        found = writer.explain(PROMPT, ["attcat", "gae"], tl.Continuation(" good and fun"))
        assert [a.method for a in found] == ["attcat"] * 3 + ["gae"] * 3
        assert [a.target.index for a in found[:3]] == [
            WORDS.index(w) for w in ("good", "and", "fun")
        ]
        assert [len(a) for a in found[:3]] == [len(found[0]), len(found[0]) + 1, len(found[0]) + 2]
        assert found[2].row.names == ("prompt", "written")
        assert found[2].row.segments[-2:] == (1, 1)
        assert found[2].tokens[-2:] == ("good", "and")
        for one, prompt in zip(
            found[:3], (PROMPT, PROMPT + " good", PROMPT + " good and"), strict=True
        ):
            alone = writer.explain(prompt, "attcat", target=one.target.index)
            np.testing.assert_allclose(one.scores, alone.scores, rtol=0, atol=1e-12)

    def test_the_model_writes_its_own_likeliest_tokens(self, writer):
        found = writer.explain(PROMPT, target=tl.Continuation(tokens=4))
        model, tokenizer = writer.model, writer.tokenizer
        ids = list(found[0].row.ids)
        for one in found:
            with torch.no_grad():
                best = int(model(torch.tensor([ids])).logits[0, -1].argmax())
            assert one.target.index == best
            ids.append(best)
        assert 1 <= len(found) <= 4
        assert "".join(found[-1].row.texts[1:]) in tokenizer.decode(ids)

    def test_one_token_is_still_a_list(self, writer):
        assert isinstance(writer.explain(PROMPT, target=tl.Continuation(" good")), list)

    @pytest.mark.parametrize(
        ("prompt", "target", "error", "says"),
        [
            (PROMPT, tl.Continuation(""), BadInput, "is empty"),
            ("the film was goo", tl.Continuation("d"), BadInput, "half of it prompt"),
            (PROMPT, tl.Continuation(tokens=0), BadTarget, "writes nothing"),
            (" ".join(["good"] * 80), "predicted", TextTooLong, "keep the last"),
            (PROMPT, tl.TokenTarget("film"), BadTarget, "it writes on"),
            (PROMPT, tl.SpanTarget(), BadTarget, "it writes on"),
            ((PROMPT, PROMPT), "predicted", UnsupportedModel, "not a pair"),
            (
                tl.Question("who", PROMPT),
                "predicted",
                UnsupportedModel,
                "does not answer questions",
            ),
        ],
    )
    def test_a_wrong_use_says_what_the_model_can_do(self, writer, prompt, target, error, says):
        with pytest.raises(error, match=says):
            writer.explain(prompt, target=target)

    def test_a_long_prompt_keeps_its_end(self, writer):
        found = writer.explain(" ".join(["bad"] * 80) + " good", long="truncate")
        assert len(found) == writer.max_tokens
        assert found.tokens[-1] == "good"
        assert any("cut off" in note for note in found.notes)


class TestChat:
    def test_messages_are_segments_and_the_template_belongs_to_none(self, talker):
        chat = tl.Chat(
            [{"role": "i", "content": "the film is slow"}, {"role": "we", "content": "a cat sat"}]
        )
        found = talker.explain(chat)
        row = found.row
        assert row.names == ("i", "we")
        assert row.texts == ("the film is slow", "a cat sat")
        for part, words in enumerate((["the", "film", "is", "slow"], ["a", "cat", "sat"])):
            assert [
                t for t, s in zip(found.tokens, row.segments, strict=True) if s == part
            ] == words
        # Role names, colons and separators are the template's.
        assert sum(row.special) == len(row) - 7
        assert sum(part.share for part in found.segment_shares()) == pytest.approx(1)

    def test_the_model_reads_what_the_template_lays_out(self, talker):
        chat = tl.Chat([{"role": "i", "content": "the film"}])
        text = talker.tokenizer.apply_chat_template(
            list(chat.messages), tokenize=False, add_generation_prompt=True
        )
        ids = talker.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert list(talker.explain(chat).row.ids) == ids

    def test_thinking_is_a_segment_with_a_share_of_its_own(self, talker):
        asked = {"role": "i", "content": "the film"}
        thought = {"role": "we", "content": "<think> a cat sat </think> good"}
        row = talker.explain(tl.Chat([asked, thought])).row
        assert row.names == ("i", "thinking", "we")
        assert row.texts == ("the film", "<think> a cat sat </think>", "good")
        answer = tl.Continuation("<think> a dog </think> very good", together=True)
        (found,) = talker.explain(tl.Chat([asked]), "grad_x_input", answer)
        assert found.target.name == "‘very good’"  # what was thought is what it came from
        assert len(found.row.answer) == 2
        shares = {part.name: part.share for part in found.segment_shares()}
        assert shares["thinking"] > 0

    def test_system_turns_tool_calls_and_their_answers_are_segments(self):
        model = built("llama")
        model.config.max_position_embeddings = 256  # rotary: no table of positions ends
        talker = tl.Explainer(model, tiny_tokenizer(limit=256))
        call = {"name": "film", "arguments": {"plot": "red cat", "two": 2, "dog": ["a", "mat"]}}
        chat = [
            {"role": "system", "content": "be good"},
            {"role": "user", "content": "what film is it"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": call}],
            },
            {"role": "tool", "content": "the red film"},
            {"role": "user", "content": "is it fun"},
        ]
        answer = tl.Continuation("<think> a dog </think> very good", together=True)
        (found,) = talker.explain(tl.Chat(chat, template=TOOLS), "grad_x_input", answer)
        row = found.row
        named = ("system", "user", "tool call", "tool", "user", "thinking", "written")
        assert row.names == named
        called = row.texts[2]
        assert called.startswith('film", "arguments"')
        assert called.endswith('"mat')
        assert row.texts[3] == "the red film"
        roles = {one.name: one for one in found.by("role")}
        assert list(roles) == list(dict.fromkeys(named))
        user = [one for one in found.by("document") if one.name == "user"]
        assert roles["user"].total == pytest.approx(sum(one.total for one in user))
        assert roles["user"].text == "what film is it … is it fun"
        assert 0 < roles["thinking"].share < 1
        by_json = [dict(one) for one in chat]
        as_text = {**call, "arguments": json.dumps(call["arguments"])}
        by_json[2] = {"role": "assistant", "tool_calls": [as_text]}
        template = TOOLS.replace("c['function']", "c").replace("| tojson", "")
        again = talker.explain(tl.Chat(by_json, template=template), "grad_x_input", answer)[0]
        assert again.row.names == named

    def test_a_call_that_a_template_drops_or_nobody_can_read_is_refused(self, talker):
        call = {"name": "film", "arguments": "{"}
        chat = [{"role": "assistant", "tool_calls": [call]}, {"role": "i", "content": "it"}]
        with pytest.raises(BadInput, match="cannot be read"):
            talker.explain(tl.Chat(chat, template=TEMPLATE))
        chat[0] = {"role": "we", "content": "so", "tool_calls": [{"name": "film"}]}
        with pytest.raises(BadInput, match=r"drops 'film' \(tool call\)"):
            talker.explain(tl.Chat(chat, template=TEMPLATE))
        with pytest.raises(BadInput, match="or 'tool_calls'"):
            tl.Chat([{"role": "we"}])

    def test_a_template_that_drops_what_was_thought_drops_its_segment_alone(self, talker):
        template = TEMPLATE.replace("| trim", "| replace('<think> a cat </think>', '') | trim")
        said = [{"role": "we", "content": "<think> a cat </think> good"}]
        row = talker.explain(tl.Chat(said, template=template)).row
        assert (row.names, row.texts) == (("we",), ("good",))

    def test_a_template_given_stands_in_the_place_of_the_tokenizers(self, writer):
        said = [{"role": "i", "content": "the film"}]
        with pytest.raises(UnsupportedModel, match="no chat template"):
            writer.explain(tl.Chat(said))
        row = writer.explain(tl.Chat(said, template=TEMPLATE)).row
        assert (row.names, row.texts) == (("i",), ("the film",))

    def test_an_answer_is_explained_token_by_token(self, talker):
        chat = tl.Chat([{"role": "i", "content": "the film"}])
        found = talker.explain(chat, target=tl.Continuation(" good fun"))
        assert [a.target.name for a in found] == ["‘good’", "‘fun’"]
        assert found[1].row.names == ("i", "written")

    def test_one_that_fits_needs_no_windows_and_one_that_does_not_has_none(self, talker):
        chat = tl.Chat([{"role": "i", "content": "the film is slow"}])
        for prompt in (chat, "the film is slow"):
            found = talker.explain(prompt, long="stride")
            np.testing.assert_array_equal(found.scores, talker.explain(prompt).scores)
        for prompt in (tl.Chat([{"role": "i", "content": "the film " * 40}]), "the film " * 40):
            with pytest.raises(
                TextTooLong, match="long='truncate'.*keep the last 48.*have no next"
            ):
                talker.explain(prompt, long="stride")

    def test_a_classifier_holds_none_whatever_its_length(self):
        explainer = tl.Explainer(tiny_bert(), tiny_tokenizer())
        with pytest.raises(UnsupportedModel, match="does not take chats"):
            explainer.explain(tl.Chat([{"role": "i", "content": "film"}]), long="stride")

    def test_a_model_without_a_template_says_so(self, writer):
        with pytest.raises(UnsupportedModel, match="no chat template"):
            writer.explain(tl.Chat([{"role": "user", "content": "film"}]))

    @pytest.mark.parametrize(
        "messages", [[], "hi", [{"role": "user"}], ["hi"], [{"role": "u", "content": " "}]]
    )
    def test_what_is_no_chat_is_refused(self, messages):
        with pytest.raises(BadInput):
            tl.Chat(messages)


class TestMeasured:
    def test_removing_tokens_is_measured_and_trusted(self, writer):
        from tokenlight.evaluation.trust import trusted

        found = writer.explain(
            [PROMPT + " good but slow", "a dog sat on the"], ["occlusion", "random"]
        )
        measured = writer.evaluate(found, ["aopc", "lodds", "comprehensiveness"])
        assert np.isfinite(measured.by_method["occlusion"].summary["aopc"]["mean"])
        assert trusted(writer, found[0]).extras["trust"]["grade"] != "untested"

    def test_metrics_of_classes_are_refused(self, writer):
        found = writer.explain(PROMPT)
        with pytest.raises(
            BadTarget, match="compares classes, and this model has none: it writes on"
        ):
            writer.evaluate([found], ["kendall"])

    def test_the_engine_reads_the_last_token_of_what_is_left(self, writer):
        """Deleting a token is reading the text without it, whatever its length."""
        from tokenlight.capture.perturbation import Original, StandIns, stream_logits

        row = writer.explain(PROMPT).row
        original = Original(row, StandIns.of(writer.live, writer.tokenizer))
        variants = [original.without([i]) for i in original.rankable]
        for variant, logits in zip(variants, stream_logits(writer.live, variants), strict=True):
            with torch.no_grad():
                bare = writer.model(torch.tensor(variant.ids[None].astype(np.int64))).logits[0, -1]
            np.testing.assert_allclose(logits, bare.numpy(), atol=1e-9)


def test_a_model_whose_tokens_see_those_behind_them_writes_nothing():
    config = transformers.BertConfig(
        vocab_size=120, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertLMHeadModel(config).eval()
    with pytest.raises(UnsupportedModel, match="see those behind them"):
        tl.Explainer(model).explain(tl.Tokens.from_ids([[5, 7, 10, 12]]))


def test_a_saved_explanation_of_a_next_token_comes_back(writer, tmp_path):
    found = writer.explain(PROMPT)
    back = tl.Attribution.load(found.save(tmp_path / "next.json"))
    np.testing.assert_array_equal(back.scores, found.scores)
    assert back.prediction == found.prediction
    assert back.row == found.row
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
        assert vocabulary.id_of(vocabulary[number]) == number

    def test_without_a_tokenizer_numbers_name_the_tokens(self):
        from tokenlight.data.tokenizer import Vocabulary

        assert Vocabulary(None, 5)[3] == "#3"
        with pytest.raises(BadTarget, match="give a word that its tokenizer knows"):
            Vocabulary(None, 5).id_of("good")


def test_a_softcap_is_dropped_where_the_model_s_own_kernel_drops_it():
    torch.manual_seed(0)
    module = torch.nn.Linear(1, 1)
    given = [torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3)]
    how = {"scaling": 1.0, "is_causal": False}
    plain, _ = seam.attend(module, *given, **how)
    capped, _ = seam.attend(module, *given, softcap=0.5, **how)
    with seam.standing_in_for("sdpa"):
        dropped, _ = seam.attend(module, *given, softcap=0.5, **how)
    assert (plain - capped).abs().max() > 1e-2
    assert torch.equal(dropped, plain)
