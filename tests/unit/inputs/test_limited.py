"""Tokenizer rules and chat templates of folders run under limits of time and memory, and fail in words."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil

import pytest
import torch
from tokenizers import Regex, normalizers, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel

from tests.helpers.deadlines import DEADLINE_SECONDS
from tests.helpers.expect import expect_error
from tests.helpers.garbage import collect_garbage
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tests.helpers.tiny_byte_tokenizers import tiny_byte_tokenizer
from tokenlight import Chat, Explainer
from tokenlight.errors import BadInput, DamagedFile, TokenlightError, UnsupportedTokenizer
from tokenlight.inputs import limited
from tokenlight.inputs.limited import LimitedRunner, find_limited_runner
from tokenlight.models.tokenizer_rules import find_untrusted_rules

COVERED_MODULES = ("inputs/limited_process",)
DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
CATASTROPHIC = {
    "type": "Split",
    "pattern": {"Regex": "(a|a)*$"},
    "behavior": "Isolated",
    "invert": False,
}
LATER = {
    "type": "Split",
    "pattern": {"Regex": "q(x+x+)+y"},
    "behavior": "Isolated",
    "invert": False,
}
RULES = {"normalizer": None, "pre_tokenizer": {"type": "Whitespace"}}
HELLO = [{"role": "user", "content": "hello there"}]
PLAIN = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
BOMBS = {
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a product": "{{ 'a' * 10**10 }}",
    "doubling": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "a format": "{{ '%20000000000d' % 1 }}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "a long text": "{{ 'a' * (2 ** 27) }}",
}


@pytest.fixture(autouse=True)
def short_limits(monkeypatch):
    """What ends at all ends in milliseconds here; what does not, need not be watched for long."""
    monkeypatch.setattr(limited, "BASE_CPU_SECONDS", 1)
    # On a busy machine a second of CPU time may take a minute; nothing here waits without computing.
    monkeypatch.setattr(limited, "WALL_SECONDS_PER_CPU_SECOND", DEADLINE_SECONDS)


def write_folder(tmp_path, bert_folder, **parts):
    folder = tmp_path / "model"
    shutil.copytree(bert_folder, folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**content, **parts}))
    return folder


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Sequence", "normalizers": [DOUBLING] * 40}},
        {"pre_tokenizer": CATASTROPHIC},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 40}},
        {"decoder": {"type": "Sequence", "decoders": [DOUBLING] * 40}},
    ],
    ids=["doubling", "regex", "bytes of bytes", "decoder"],
)
def test_hostile_rules_are_refused_when_a_folder_is_loaded(tmp_path, bert_folder, parts):
    folder = write_folder(tmp_path, bert_folder, **parts)
    with pytest.raises(DamagedFile, match=r"tokenizer(\.json)? of .*model"):
        Explainer.from_pretrained(folder)


def test_rules_that_are_slow_on_one_text_are_stopped_at_that_text(tmp_path, bert_folder):
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [LATER, {"type": "BertPreTokenizer"}]}
    explainer = Explainer.from_pretrained(
        write_folder(tmp_path, bert_folder, pre_tokenizer=pre_tokenizer)
    )
    assert explainer.explain("good film").scores.any()
    with pytest.raises(
        DamagedFile, match="The tokenizer of .* (did not finish|fails for this text)"
    ):
        explainer.explain("good q" + "x" * 4000)
    assert explainer.explain("good film").scores.any()


def test_a_panic_of_the_tokenizers_library_is_a_clear_error():
    tokenizer = tiny_tokenizer()
    tokenizer._tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a|a)*$"), "isolated")
    with expect_error(UnsupportedTokenizer, "tokenizer-panic"):
        Explainer(tiny_bert(), tokenizer).explain("a" * 60 + "!")


def test_known_rules_are_not_tested_in_advance(bert_folder):
    harmless = [
        {"normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"}},
        {"pre_tokenizer": {"type": "ByteLevel"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}},
        {"normalizer": None, "pre_tokenizer": None},
    ]
    assert [find_untrusted_rules(rules) for rules in harmless] == [None] * 5
    runner = find_limited_runner(Explainer.from_pretrained(bert_folder).tokenizer)
    assert runner is not None
    assert runner.rules is None
    assert runner._process is None


def test_a_table_of_characters_is_known_by_its_longest_replacement():
    def make_table(replacement: bytes) -> str:
        import base64

        index = bytes(8)
        return base64.b64encode(len(index).to_bytes(4, "little") + index + replacement).decode()

    def make_rules(text: str):
        return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": text}}

    assert find_untrusted_rules(make_rules(make_table(b"a\x00" + b"b" * 33))) is None
    assert find_untrusted_rules(make_rules(make_table(b"a\x00" + b"b" * 3300))) is not None
    assert find_untrusted_rules(make_rules("not base64")) is not None


def test_a_tokenizer_that_the_caller_passes_has_no_limits():
    tokenizer = tiny_tokenizer()
    tokenizer._tokenizer.normalizer = normalizers.Replace(Regex("g+"), "g")
    explainer = Explainer(tiny_bert(), tokenizer)
    assert find_limited_runner(explainer.tokenizer) is None
    assert explainer.explain("good film").scores.any()


def test_an_embedded_model_has_no_limits():
    assert find_limited_runner(Explainer.from_pretrained("tokenlight/sentiment").tokenizer) is None


class TestTemplates:
    @pytest.fixture
    def language_model(self, tmp_path):
        """A language model from a folder whose tokenizer has the template given."""

        def load(template):
            tokenizer = tiny_byte_tokenizer("gpt2")
            tokenizer.chat_template = template
            config = GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=64)
            config.pad_token_id = None
            torch.manual_seed(0)
            GPT2LMHeadModel(config).save_pretrained(tmp_path)
            tokenizer.save_pretrained(tmp_path)
            return Explainer.from_pretrained(tmp_path)

        return load

    def test_a_chat_is_laid_out_as_transformers_does(self, language_model):
        template = (
            PLAIN + "{{ messages|tojson }}{% if add_generation_prompt %}<bot>{% endif %}"
            "{{ strftime_now('%Y') }}{{ eos_token }}"
        )
        explainer = language_model(template)
        tokenizer = explainer.tokenizer
        runner = find_limited_runner(tokenizer)
        for messages in (HELLO, [{"role": "user", "content": "é 漢\n🙂"}, *HELLO]):
            for answers in (True, False):
                options = {"add_generation_prompt": answers}
                expected = tokenizer.apply_chat_template(messages, tokenize=False, **options)
                variables = {**tokenizer.special_tokens_map, **options}
                assert runner.render(template, messages, variables) == expected

    def test_a_chat_is_explained(self, language_model):
        explained = language_model(PLAIN).explain(Chat(HELLO), "grad_x_input")
        assert explained.row.segment_names == ("user",)
        assert explained.row.texts == ("hello there",)

    @pytest.mark.parametrize("template", BOMBS.values(), ids=BOMBS)
    def test_a_hostile_template_is_stopped(self, language_model, template):
        explainer = language_model(PLAIN + template)
        with pytest.raises(TokenlightError, match="chat template") as refusal:
            explainer.explain(Chat(HELLO), "grad_x_input")
        assert isinstance(refusal.value, DamagedFile | BadInput)

    @pytest.mark.parametrize(
        ("bomb", "code"), [("nested ranges", "limited-time"), ("a product", "limited-memory")]
    )
    def test_time_and_memory_of_a_template_are_limited(self, language_model, bomb, code):
        explainer = language_model(BOMBS[bomb])
        with expect_error(DamagedFile, code):
            explainer.explain(Chat(HELLO), "grad_x_input")

    def test_the_error_of_a_template_is_reported(self, language_model):
        explainer = language_model("{{ raise_exception('no user may speak') }}")
        for _ in range(2):
            with expect_error(BadInput, "chat-template-refused", mentions="no user may speak"):
                explainer.explain(Chat(HELLO), "grad_x_input")

    def test_no_code_is_reached_from_a_template(self, language_model):
        explainer = language_model("{{ messages.__class__.__mro__[1].__subclasses__() }}")
        with expect_error(BadInput, "chat-template-refused"):
            explainer.explain(Chat(HELLO), "grad_x_input")


class TestProcess:
    def test_the_process_ends_with_its_owner(self):
        runner = LimitedRunner("it", RULES)
        runner.try_under_limits(["good film"])
        process = runner._process
        assert process.poll() is None
        del runner
        collect_garbage()
        assert process.returncode is not None
        assert process.stdin.closed
        assert process.stdout.closed

    def test_a_process_that_was_ended_is_started_again(self):
        runner = LimitedRunner("it", RULES)
        runner.try_under_limits(["good film"])
        first = runner._process
        first.kill()
        first.wait()
        runner.try_under_limits(["good film"])
        assert runner._process is not first
        assert first.stdout.closed

    def test_a_copied_tokenizer_has_a_separate_process(self):
        runner = LimitedRunner("it", RULES)
        runner.try_under_limits(["good film"])
        for other in (copy.deepcopy(runner), pickle.loads(pickle.dumps(runner))):
            assert (other.name, other.rules) == (runner.name, runner.rules)
            assert other._process is None

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
    def test_a_fork_leaves_the_process_to_its_owner(self):
        runner = LimitedRunner("it", RULES)
        runner.try_under_limits(["good film"])
        child = os.fork()
        if not child:
            limited._stop(runner._process, runner._owner)
            os._exit(0)
        os.waitpid(child, 0)
        assert runner._process.poll() is None
        runner.try_under_limits(["good film"])
