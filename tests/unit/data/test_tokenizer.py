"""A tokenizer that others hold, too: nobody's switches reach our texts, nor ours theirs."""

from __future__ import annotations

import weakref

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from transformers import PreTrainedTokenizerFast

from tests.helpers.garbage import collect_garbage
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tests.helpers.tiny_byte_tokenizers import tiny_byte_tokenizer
from tokenlight import Explainer
from tokenlight.data import tokenizer as tokenizing
from tokenlight.data.tokenizer import Vocabulary, isolate_tokenizer
from tokenlight.inputs.encode import encode_batch, encode_text
from tokenlight.inputs.prompt import encode_prompt

TEXT = "the cat sat on the mat in town"


class Disturbed(PreTrainedTokenizerFast):
    """As if another thread asked for cut and padded texts just before each of our readings."""

    shared = None

    def set_truncation_and_padding(self, *inputs, **named):
        super().set_truncation_and_padding(*inputs, **named)
        if Disturbed.shared is not None:
            Disturbed.shared.enable_truncation(4)
            Disturbed.shared.enable_padding(length=20)


@pytest.fixture
def disturbed(monkeypatch):
    plain = tiny_tokenizer()
    created = Disturbed(
        tokenizer_object=plain._tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", model_max_length=48,
    )  # fmt: skip
    monkeypatch.setattr(Disturbed, "shared", created._tokenizer)
    return created


def test_settings_of_another_thread_truncate_and_pad_no_text(disturbed):
    full = encode_text(TEXT, tiny_tokenizer(), max_tokens=None)
    assert encode_text(TEXT, disturbed, max_tokens=None).ids == full.ids
    for encoding in encode_batch([TEXT, TEXT + " and"], disturbed):
        assert len(encoding) >= len(full)
        assert 0 not in encoding.attention_mask
    attribution = Explainer(tiny_bert(), disturbed).explain(TEXT, "random")
    assert attribution.row.ids == full.ids


def test_settings_of_another_thread_change_no_prompt_or_label(monkeypatch):
    plain = tiny_byte_tokenizer("gpt2")
    created = Disturbed(tokenizer_object=plain._tokenizer, pad_token="<pad>", unk_token="<unk>")
    monkeypatch.setattr(Disturbed, "shared", created._tokenizer)
    assert (
        encode_prompt(TEXT, created, max_tokens=None).ids
        == encode_prompt(TEXT, plain, max_tokens=None).ids
    )
    long = "a longer label"
    assert Vocabulary(created, 300)._encode(long) == Vocabulary(plain, 300)._encode(long)


def test_encoding_does_not_change_the_users_tokenizer_settings():
    tokenizer = tiny_tokenizer()
    tokenizer("the cat", truncation=True, max_length=3, padding="max_length")
    before = tokenizer._tokenizer.truncation, tokenizer._tokenizer.padding
    assert None not in before
    encode_text(TEXT, tokenizer, max_tokens=None)
    assert (tokenizer._tokenizer.truncation, tokenizer._tokenizer.padding) == before


def lower(tokenizer):
    tokenizer.backend_tokenizer.normalizer = BertNormalizer(lowercase=False)


CHANGES = {
    "added tokens": lambda tokenizer: tokenizer.add_tokens(
        ["tahc", AddedToken("ohc", single_word=True)]
    ),
    "special tokens": lambda tokenizer: tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<x>"]}
    ),
    "a word made special": lambda tokenizer: tokenizer.add_special_tokens({"eos_token": "cat"}),
    "another rule": lower,
    "a rule changed in place": lambda tokenizer: setattr(
        tokenizer._tokenizer.normalizer, "lowercase", False
    ),
    "no segment ids": lambda tokenizer: setattr(tokenizer, "model_input_names", ["input_ids"]),
    "special tokens read as text": lambda tokenizer: setattr(
        tokenizer, "split_special_tokens", True
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_later_changes_of_the_tokenizer_apply_from_the_next_text_on(change):
    tokenizer = tiny_tokenizer()
    text = "The Cat tahc [SEP] ohc <x> ohcs cat"
    encode_text(text, tokenizer, max_tokens=None)
    CHANGES[change](tokenizer)
    row = encode_text(text, tokenizer, max_tokens=None)
    expected = tokenizer(text)
    assert list(row.ids) == expected["input_ids"]
    assert (row.token_type_ids is None) == ("token_type_ids" not in expected)


def test_tokens_added_in_any_order_keep_their_ids():
    tokenizer = tiny_tokenizer()
    for number in range(4):
        tokenizer.add_tokens([f"word{number}"])
        tokenizer.add_special_tokens({"additional_special_tokens": [f"<{number}>"]})
    text = "word3 <0> a word0 <3>"
    assert isolate_tokenizer(tokenizer)(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert isolate_tokenizer(tokenizer)._tokenizer.to_str() == tokenizer._tokenizer.to_str()


def test_a_tokenizer_that_cannot_be_built_again_is_used_itself():
    """An added token that a vocabulary taken later also has, with another id."""
    tokenizer = tiny_tokenizer()
    inner = Tokenizer(WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    inner.add_tokens(["b"])
    inner.model = WordPiece({"[UNK]": 0, "a": 1, "c": 2, "b": 3}, unk_token="[UNK]")
    tokenizer._tokenizer = inner
    assert isolate_tokenizer(tokenizer)("b")["input_ids"] == [2]


def test_the_vocabulary_is_shared_and_not_copied():
    tokenizer = tiny_tokenizer()
    isolated = isolate_tokenizer(tokenizer)
    isolated._tokenizer.model.continuing_subword_prefix = "@@"
    assert tokenizer._tokenizer.model.continuing_subword_prefix == "@@"


def test_a_tokenizer_that_is_not_fast_is_unchanged():
    class Slow:
        _tokenizer = None

    slow = Slow()
    assert isolate_tokenizer(slow) is slow


def test_many_texts_are_tokenized_in_one_call():
    calls = []

    class Counting(PreTrainedTokenizerFast):
        def __call__(self, *inputs, **named):
            calls.append(inputs)
            return super().__call__(*inputs, **named)

    tokenizer = Counting(tokenizer_object=tiny_tokenizer()._tokenizer, unk_token="[UNK]")
    assert None not in encode_batch([TEXT] * 64, tokenizer)
    assert len(calls) == 1


def test_a_used_tokenizer_is_garbage_collected():
    tokenizer = tiny_tokenizer()
    Explainer(tiny_bert(), tokenizer).explain(["a good film", TEXT], "random")
    alive = weakref.ref(tokenizer)
    del tokenizer
    collect_garbage()
    assert alive() is None


def test_one_tokenizer_is_made_for_a_whole_call(monkeypatch):
    created = []
    real = tokenizing._copy_backend
    monkeypatch.setattr(
        tokenizing, "_copy_backend", lambda *arguments: created.append(1) or real(*arguments)
    )
    explainer = Explainer(tiny_bert(), tiny_tokenizer())
    long = " ".join(["good film"] * 60)
    explainer.explain([long, long, "good", ("good", "film")], "random", long="stride")
    assert len(created) == 1
    explainer.explain(["good", "film"], "random")
    assert len(created) == 2  # what the user changed since would hold
