"""Accents, emoji and what joins them: never torn from the letter a person wrote them on."""

from __future__ import annotations

import csv
import io
import json
from itertools import pairwise

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from rich.console import Console

from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tests.helpers.tiny_byte_tokenizers import (
    byte_tokenizer,
    metaspace_tokenizer,
    tiny_byte_tokenizer,
)
from tokenlight import Explainer
from tokenlight.errors import BadInput
from tokenlight.inputs.combining_marks import extend_over_marks, is_combining_mark
from tokenlight.inputs.encode import encode_text
from tokenlight.inputs.prompt import encode_prompt
from tokenlight.plots.characters import to_single_line
from tokenlight.plots.terminal import show
from tokenlight.plots.text_segments import split_segments
from tokenlight.plots.word_pieces import locate_in_word

TOKENIZER = tiny_tokenizer()  # it strips accents, as all embedded models do
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
ACUTE = "\u0301"
HEART = "\u2764\ufe0f"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
CHARACTERS = st.sampled_from([
    *"ab1 !\n", ACUTE, "\u0308", "\ufe0f", "\u20e3", "\u200d", "\u2764", "\U0001f468", "\U0001f3fd",
    "\u0915", "\u093f", "\u3099", "\u65e5", "\x00", "\u00e9",
])  # fmt: skip


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (f"cafe{ACUTE} good", ("c", "a", "f", f"e{ACUTE}", "good")),
        (f"a{ACUTE}{ACUTE}!", (f"a{ACUTE}{ACUTE}", "!")),
        (f"good {HEART} film", ("good", HEART, "film")),
        (f"{FAMILY} film", (FAMILY, "film")),
        (f"{ACUTE}a", ("a",)),  # it stands on nothing
        (f"a {ACUTE} a", ("a", "a")),
        (f"a {ACUTE}a", ("a", "a")),
    ],
)
def test_a_combining_mark_belongs_to_its_letter(text, tokens):
    assert encode_text(text, TOKENIZER, max_tokens=None).surface_forms[1:-1] == tokens


def test_the_parts_of_a_pair_have_separate_marks():
    row = encode_text((f"a{ACUTE}", f"{ACUTE} a{ACUTE} film"), TOKENIZER, max_tokens=None)
    forms = zip(row.surface_forms, row.special_tokens_mask, strict=True)
    assert [form for form, is_special in forms if not is_special] == [
        f"a{ACUTE}",
        f"a{ACUTE}",
        "film",
    ]


def encode_or_reject(text, tokenizer):
    """Return the row of a text; an example without any real token is drawn anew."""
    try:
        return encode_text(text, tokenizer, max_tokens=None)
    except BadInput as refusal:
        assert refusal.code in ("text-empty", "text-without-tokens")
        reject()


@given(st.text(CHARACTERS, min_size=1, max_size=14))
def test_tokens_are_widened_over_marks_and_nothing_else(text):
    row = encode_or_reject(text, TOKENIZER)
    narrow = [
        offset
        for offset, special in zip(
            TOKENIZER(text, return_offsets_mapping=True)["offset_mapping"],
            row.special_tokens_mask,
            strict=True,
        )
        if not special
    ]
    spans = [span for span in row.spans if span is not None]
    for (start, end), (first, last) in zip(spans, narrow, strict=True):
        assert 0 <= start <= first <= last <= end <= len(text)
        added = text[start:first] + text[last:end]
        assert all(is_combining_mark(c) or "\u200d" in added for c in added)
        assert not any(c.isspace() for c in added)
    for (_, end), (start, _) in pairwise(spans):
        assert end <= start  # no character twice
    covered = {position for start, end in spans for position in range(start, end)}
    for position in range(1, len(text)):
        if is_combining_mark(text[position]) and position - 1 in covered:
            assert position in covered


@pytest.mark.parametrize("make", [byte_tokenizer, metaspace_tokenizer])
@given(text=st.text(CHARACTERS, min_size=1, max_size=14))
def test_a_token_that_has_its_characters_keeps_them(make, text):
    tokenizer = make()
    row = encode_or_reject(text, tokenizer)
    expected = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    for (start, end), (first, last) in zip(row.spans, expected, strict=True):
        assert (start, end) == (first, last) or first < last
        assert start <= first
        assert last <= end
    starts = [start for start, _ in row.spans]
    assert starts == sorted(starts)


def test_tokens_out_of_order_have_their_marks():
    assert extend_over_marks(f"a{ACUTE} b{ACUTE}", [(3, 4), (0, 1)]) == [(3, 5), (0, 2)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"re{ACUTE}sume{ACUTE}!", [f"re{ACUTE}sume{ACUTE}", "!"]),
        (f"cafe{ACUTE}, {HEART} 1\ufe0f\u20e3", [f"cafe{ACUTE}", ",", HEART, "1\ufe0f\u20e3"]),
        ("\u0915\u093f\u0924\u093e\u092c", ["\u0915\u093f\u0924\u093e\u092c"]),
        (f"a {ACUTE}b", ["a", ACUTE, "b"]),
    ],
)
def test_no_word_of_a_byte_level_tokenizer_begins_with_a_mark(text, words):
    row = encode_text(text, byte_tokenizer(), max_tokens=None)
    result = []
    for number in dict.fromkeys(row.word_ids):
        spans = [span for span, word in zip(row.spans, row.word_ids, strict=True) if word == number]
        result.append(text[spans[0][0] : spans[-1][1]].strip())
    assert result == words


def test_a_prompt_keeps_its_marks():
    text = f"cafe{ACUTE} a"
    row = encode_prompt(text, tiny_byte_tokenizer("gpt2"), max_tokens=None)
    assert row.word_ids[:4] == (0, 0, 0, 0)
    assert encode_prompt(text, TOKENIZER, max_tokens=None).surface_forms[4] == f"e{ACUTE}"


class TestPictures:
    text = f"the cafe{ACUTE} is good {HEART} !"
    attribution = EXPLAINER.explain(text, "grad_x_input")

    def printed(self, attribution):
        console = Console(file=io.StringIO(), color_system=None, width=100)
        show(attribution, console=console)
        return console.file.getvalue()

    def test_no_combining_mark_is_drawn_on_a_bracket(self):
        printed = self.printed(self.attribution)
        assert f"){ACUTE}" not in printed
        assert f"]{ACUTE}" not in printed
        assert f"e{ACUTE}" in printed

    def test_html_holds_letter_and_mark_in_one_span(self):
        page = self.attribution.to_html()
        assert f"</span>{ACUTE}" not in page
        assert "</span>\ufe0f" not in page
        assert f">e{ACUTE}</span>" in page
        assert f">{HEART}</span>" in page

    def test_files_hold_the_text_as_written(self, tmp_path):
        saved_json = json.loads(
            self.attribution.save(tmp_path / "a.json").read_text(encoding="utf-8")
        )
        assert {f"e{ACUTE}", HEART} <= set(saved_json["tokens"])
        with self.attribution.save(tmp_path / "a.csv").open(newline="", encoding="utf-8") as lines:
            assert f"e{ACUTE}" in {row["token"] for row in csv.DictReader(lines)}
        assert f"cafe{ACUTE}" in dict(self.attribution.words())

    def test_an_accent_that_is_a_token_is_drawn_with_its_letter(self):
        row = encode_text(f"cafe{ACUTE} a", byte_tokenizer(), max_tokens=None)
        (passage,) = split_segments(row)
        assert f"e{ACUTE}" in [stretch.text for stretch in passage.runs]
        accent = row.surface_forms.index(ACUTE)
        assert locate_in_word(row, accent).bracketed == f"cafe[◌{ACUTE}]"
        assert locate_in_word(row, accent - 1).bracketed == f"caf[e{ACUTE}]"
        assert to_single_line(ACUTE) == f"◌{ACUTE}"


class TestBlanks:
    def test_a_token_of_blanks_is_named_by_its_text(self):
        row = encode_text("a\n\r b", byte_tokenizer(), max_tokens=None)
        assert row.surface_forms == ("a", "\n", "\r", " ", "b")

    @pytest.mark.parametrize(
        ("blank", "visible"), [(" ", "␣"), ("\n", "↵"), ("\r\n", "␍↵"), ("\u00a0", "␣"), ("", "")]
    )
    def test_only_rendered_output_makes_blanks_visible(self, blank, visible):
        assert to_single_line(blank) == visible
