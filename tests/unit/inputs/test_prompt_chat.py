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
def writer():
    return tl.Explainer(build_causal_model("gpt2"), tiny_tokenizer())


@pytest.fixture(scope="module")
def talker():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tl.Explainer(build_causal_model("llama"), tokenizer)


class TestChat:
    def test_messages_are_segments_and_the_template_belongs_to_none(self, talker):
        chat = tl.Chat(
            [{"role": "i", "content": "the film is slow"}, {"role": "we", "content": "a cat sat"}]
        )
        attribution = talker.explain(chat)
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

    def test_the_model_reads_what_the_template_lays_out(self, talker):
        chat = tl.Chat([{"role": "i", "content": "the film"}])
        text = talker.tokenizer.apply_chat_template(
            list(chat.messages), tokenize=False, add_generation_prompt=True
        )
        ids = talker.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert list(talker.explain(chat).row.ids) == ids

    def test_thinking_is_a_segment_with_a_share_of_its_own(self, talker):
        first_message = {"role": "i", "content": "the film"}
        thought = {"role": "we", "content": "<think> a cat sat </think> good"}
        row = talker.explain(tl.Chat([first_message, thought])).row
        assert row.segment_names == ("i", "thinking", "we")
        assert row.texts == ("the film", "<think> a cat sat </think>", "good")
        answer = tl.Continuation("<think> a dog </think> very good", joint=True)
        (attribution,) = talker.explain(tl.Chat([first_message]), "grad_x_input", answer)
        assert attribution.target.name == "‘very good’"  # what was thought is what it came from
        assert len(attribution.row.continuation_ids) == 2
        shares = {part.name: part.share for part in attribution.segment_shares()}
        assert shares["thinking"] > 0

    def test_system_turns_tool_calls_and_their_answers_are_segments(self):
        model = build_causal_model("llama")
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
        answer = tl.Continuation("<think> a dog </think> very good", joint=True)
        (attribution,) = talker.explain(tl.Chat(chat, template=TOOLS), "grad_x_input", answer)
        row = attribution.row
        named = ("system", "user", "tool call", "tool", "user", "thinking", "written")
        assert row.segment_names == named
        called = row.texts[2]
        assert called.startswith('film", "arguments"')
        assert called.endswith('"mat')
        assert row.texts[3] == "the red film"
        roles = {message.name: message for message in attribution.group_by("role")}
        assert list(roles) == list(dict.fromkeys(named))
        user = [message for message in attribution.group_by("document") if message.name == "user"]
        assert roles["user"].total == pytest.approx(sum(message.total for message in user))
        assert roles["user"].text == "what film is it … is it fun"
        assert 0 < roles["thinking"].share < 1
        by_json = [dict(message) for message in chat]
        as_text = {**call, "arguments": json.dumps(call["arguments"])}
        by_json[2] = {"role": "assistant", "tool_calls": [as_text]}
        template = TOOLS.replace("c['function']", "c").replace("| tojson", "")
        same_chat = talker.explain(tl.Chat(by_json, template=template), "grad_x_input", answer)[0]
        assert same_chat.row.segment_names == named

    def test_a_tool_call_that_the_template_drops_or_cannot_be_parsed_is_refused(self, talker):
        call = {"name": "film", "arguments": "{"}
        chat = [{"role": "assistant", "tool_calls": [call]}, {"role": "i", "content": "it"}]
        with pytest.raises(BadInput, match="cannot be read"):
            talker.explain(tl.Chat(chat, template=CHAT_TEMPLATE))
        chat[0] = {"role": "we", "content": "so", "tool_calls": [{"name": "film"}]}
        with pytest.raises(BadInput, match=r"drops 'film' \(tool call\)"):
            talker.explain(tl.Chat(chat, template=CHAT_TEMPLATE))
        with pytest.raises(BadInput, match="or 'tool_calls'"):
            tl.Chat([{"role": "we"}])

    def test_a_template_that_drops_thinking_drops_only_its_segment(self, talker):
        template = CHAT_TEMPLATE.replace("| trim", "| replace('<think> a cat </think>', '') | trim")
        messages = [{"role": "we", "content": "<think> a cat </think> good"}]
        row = talker.explain(tl.Chat(messages, template=template)).row
        assert (row.segment_names, row.texts) == (("we",), ("good",))

    def test_an_explicit_template_replaces_the_tokenizers(self, writer):
        messages = [{"role": "i", "content": "the film"}]
        with pytest.raises(UnsupportedModel, match="no chat template"):
            writer.explain(tl.Chat(messages))
        row = writer.explain(tl.Chat(messages, template=CHAT_TEMPLATE)).row
        assert (row.segment_names, row.texts) == (("i",), ("the film",))

    def test_an_answer_is_explained_token_by_token(self, talker):
        chat = tl.Chat([{"role": "i", "content": "the film"}])
        attributions = talker.explain(chat, target=tl.Continuation(" good fun"))
        assert [attribution.target.name for attribution in attributions] == ["‘good’", "‘fun’"]
        assert attributions[1].row.segment_names == ("i", "written")

    def test_a_chat_is_never_split_into_windows(self, talker):
        chat = tl.Chat([{"role": "i", "content": "the film is slow"}])
        for prompt in (chat, "the film is slow"):
            attribution = talker.explain(prompt, long="stride")
            np.testing.assert_array_equal(attribution.scores, talker.explain(prompt).scores)
        for prompt in (tl.Chat([{"role": "i", "content": "the film " * 40}]), "the film " * 40):
            with pytest.raises(
                TextTooLong, match="long='truncate'.*keep the last 48.*do not share a next"
            ):
                talker.explain(prompt, long="stride")

    def test_a_classifier_refuses_a_chat_of_any_length(self):
        explainer = tl.Explainer(tiny_bert(), tiny_tokenizer())
        with expect_error(UnsupportedModel, "model-reads-no-chats"):
            explainer.explain(tl.Chat([{"role": "i", "content": "film"}]), long="stride")

    def test_a_model_without_a_chat_template_is_refused(self, writer):
        with pytest.raises(UnsupportedModel, match="no chat template"):
            writer.explain(tl.Chat([{"role": "user", "content": "film"}]))

    @pytest.mark.parametrize(
        "messages", [[], "hi", [{"role": "user"}], ["hi"], [{"role": "u", "content": " "}]]
    )
    def test_invalid_chats_are_refused(self, messages):
        with pytest.raises(BadInput):
            tl.Chat(messages)
