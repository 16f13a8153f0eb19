"""Chats: what a template lays out, message by message."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tokenlight as tl
from tests.helpers.causal_models import CHAT_TEMPLATE, build_causal_model
from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight.errors import BadInput, TextTooLong, UnsupportedModel

TOOLS = (
    "{% for m in messages %}[SEP] {{ m['role'] }} : {{ m['content'] | default('') | trim }} "
    '{% for c in m[\'tool_calls\'] or [] %}<tool> {"name": "{{ c[\'function\'].name }}", "arguments": '
    "{{ c['function'].arguments | tojson }}} </tool> {% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[SEP] it : {% endif %}"
)


@pytest.fixture(scope="module")
def language_model():
    return tl.Explainer(build_causal_model("gpt2"), tiny_tokenizer())


@pytest.fixture(scope="module")
def chat_explainer():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tl.Explainer(build_causal_model("llama"), tokenizer)


class TestChat:
    def test_messages_are_segments_and_the_template_belongs_to_none(self, chat_explainer):
        chat = tl.Chat(
            [{"role": "i", "content": "the film is slow"}, {"role": "we", "content": "a cat sat"}]
        )
        attribution = chat_explainer.explain(chat)
        row = attribution.row
        assert row.segment_names == ("i", "we")
        assert row.texts == ("the film is slow", "a cat sat")
        for part, words in enumerate((["the", "film", "is", "slow"], ["a", "cat", "sat"])):
            assert [
                t for t, s in zip(attribution.tokens, row.segments, strict=True) if s == part
            ] == words
        # Role names, colons and separators are the template's.
        assert sum(row.special_tokens_mask) == len(row) - 7
        assert sum(part.share for part in attribution.segment_shares()) == pytest.approx(1)

    def test_the_model_reads_what_the_template_lays_out(self, chat_explainer):
        chat = tl.Chat([{"role": "i", "content": "the film"}])
        text = chat_explainer.tokenizer.apply_chat_template(
            list(chat.messages), tokenize=False, add_generation_prompt=True
        )
        ids = chat_explainer.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert list(chat_explainer.explain(chat).row.ids) == ids

    def test_thinking_is_a_segment_with_a_separate_share(self, chat_explainer):
        first_message = {"role": "i", "content": "the film"}
        thought = {"role": "we", "content": "<think> a cat sat </think> good"}
        row = chat_explainer.explain(tl.Chat([first_message, thought])).row
        assert row.segment_names == ("i", "thinking", "we")
        assert row.texts == ("the film", "<think> a cat sat </think>", "good")
        answer = tl.Continuation("<think> a dog </think> very good", joint=True)
        (attribution,) = chat_explainer.explain(tl.Chat([first_message]), "grad_x_input", answer)
        assert attribution.target.name == "‘very good’"  # what was thought is what it came from
        assert len(attribution.row.continuation_ids) == 2
        shares = {part.name: part.share for part in attribution.segment_shares()}
        assert shares["thinking"] > 0

    def test_system_turns_tool_calls_and_their_answers_are_segments(self):
        model = build_causal_model("llama")
        model.config.max_position_embeddings = 256  # rotary: no table of positions ends
        chat_explainer = tl.Explainer(model, tiny_tokenizer(limit=256))
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
        answer = tl.Continuation("<think> a dog </think> very good", joint=True)
        (attribution,) = chat_explainer.explain(
            tl.Chat(chat, template=TOOLS), "grad_x_input", answer
        )
        row = attribution.row
        segment_names = ("system", "user", "tool call", "tool", "user", "thinking", "written")
        assert row.segment_names == segment_names
        called = row.texts[2]
        assert called.startswith('film", "arguments"')
        assert called.endswith('"mat')
        assert row.texts[3] == "the red film"
        roles = {message.name: message for message in attribution.group_by("role")}
        assert list(roles) == list(dict.fromkeys(segment_names))
        user = [message for message in attribution.group_by("document") if message.name == "user"]
        assert roles["user"].total == pytest.approx(sum(message.total for message in user))
        assert roles["user"].text == "what film is it … is it fun"
        assert 0 < roles["thinking"].share < 1
        by_json = [dict(message) for message in chat]
        as_text = {**call, "arguments": json.dumps(call["arguments"])}
        by_json[2] = {"role": "assistant", "tool_calls": [as_text]}
        template = TOOLS.replace("c['function']", "c").replace("| tojson", "")
        same_chat = chat_explainer.explain(
            tl.Chat(by_json, template=template), "grad_x_input", answer
        )[0]
        assert same_chat.row.segment_names == segment_names

    def test_a_tool_call_that_the_template_drops_or_cannot_be_parsed_is_refused(
        self, chat_explainer
    ):
        call = {"name": "film", "arguments": "{"}
        chat = [{"role": "assistant", "tool_calls": [call]}, {"role": "i", "content": "it"}]
        with pytest.raises(BadInput, match="cannot be read"):
            chat_explainer.explain(tl.Chat(chat, template=CHAT_TEMPLATE))
        chat[0] = {"role": "we", "content": "so", "tool_calls": [{"name": "film"}]}
        with pytest.raises(BadInput, match=r"drops 'film' \(tool call\)"):
            chat_explainer.explain(tl.Chat(chat, template=CHAT_TEMPLATE))
        with pytest.raises(BadInput, match="or 'tool_calls'"):
            tl.Chat([{"role": "we"}])

    def test_a_template_that_drops_thinking_drops_only_its_segment(self, chat_explainer):
        template = CHAT_TEMPLATE.replace("| trim", "| replace('<think> a cat </think>', '') | trim")
        messages = [{"role": "we", "content": "<think> a cat </think> good"}]
        row = chat_explainer.explain(tl.Chat(messages, template=template)).row
        assert (row.segment_names, row.texts) == (("we",), ("good",))

    def test_an_explicit_template_replaces_the_tokenizers(self, language_model):
        messages = [{"role": "i", "content": "the film"}]
        with pytest.raises(UnsupportedModel, match="no chat template"):
            language_model.explain(tl.Chat(messages))
        row = language_model.explain(tl.Chat(messages, template=CHAT_TEMPLATE)).row
        assert (row.segment_names, row.texts) == (("i",), ("the film",))

    def test_an_answer_is_explained_token_by_token(self, chat_explainer):
        chat = tl.Chat([{"role": "i", "content": "the film"}])
        attributions = chat_explainer.explain(chat, target=tl.Continuation(" good fun"))
        assert [attribution.target.name for attribution in attributions] == ["‘good’", "‘fun’"]
        assert attributions[1].row.segment_names == ("i", "written")

    def test_a_chat_is_never_split_into_windows(self, chat_explainer):
        chat = tl.Chat([{"role": "i", "content": "the film is slow"}])
        for prompt in (chat, "the film is slow"):
            attribution = chat_explainer.explain(prompt, long="stride")
            np.testing.assert_array_equal(attribution.scores, chat_explainer.explain(prompt).scores)
        for prompt in (tl.Chat([{"role": "i", "content": "the film " * 40}]), "the film " * 40):
            with pytest.raises(
                TextTooLong, match="long='truncate'.*keep the last 48.*do not share a next"
            ):
                chat_explainer.explain(prompt, long="stride")

    def test_a_classifier_refuses_a_chat_of_any_length(self):
        explainer = tl.Explainer(tiny_bert(), tiny_tokenizer())
        with expect_error(UnsupportedModel, "model-reads-no-chats"):
            explainer.explain(tl.Chat([{"role": "i", "content": "film"}]), long="stride")

    def test_a_model_without_a_chat_template_is_refused(self, language_model):
        with pytest.raises(UnsupportedModel, match="no chat template"):
            language_model.explain(tl.Chat([{"role": "user", "content": "film"}]))

    @pytest.mark.parametrize(
        "messages", [[], "hi", [{"role": "user"}], ["hi"], [{"role": "u", "content": " "}]]
    )
    def test_invalid_chats_are_refused(self, messages):
        with pytest.raises(BadInput):
            tl.Chat(messages)
