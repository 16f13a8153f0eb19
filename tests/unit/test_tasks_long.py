"""Long texts: windows, sentences, and the zoom from sentence to token in page and terminal."""

from __future__ import annotations

import dataclasses
import io
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.tiny import tiny_bert, tiny_tokenizer
from tests.unit.hand_made import attribution_of, row_of, sample, split
from tests.unit.reading_html import Reader
from tokenlight import Explainer
from tokenlight.data.units import sentence_spans
from tokenlight.evaluation.removal import Watched
from tokenlight.evaluation.trust import trusted
from tokenlight.inputs.encode import encode_windows
from tokenlight.plots.html import page
from tokenlight.plots.scene import scenes
from tokenlight.plots.terminal import show

EXPLAINER = Explainer(tiny_bert(), tiny_tokenizer())
LONG = "The film was very slow. We love the charming plot! " * 8 + "Never dull."
FOUND = EXPLAINER.explain(LONG, "attcat", long="stride")


def test_windows_that_do_not_fit_together_are_read_in_halves():
    sizes = []

    def short_of_memory(_module, _given, named):
        if not torch.is_grad_enabled():  # the windows are read before they are explained
            sizes.append(len(named["input_ids"]))
            if sizes[-1] > 1:
                raise torch.OutOfMemoryError("no room")

    handle = EXPLAINER.model.register_forward_pre_hook(short_of_memory, with_kwargs=True)
    try:
        found = EXPLAINER.explain(LONG, "attcat", long="stride")
    finally:
        handle.remove()
    assert sizes[0] == len(FOUND.extras["windows"]) > 2
    np.testing.assert_allclose(found.scores, FOUND.scores, atol=1e-12)
    np.testing.assert_allclose(found.logits, FOUND.logits, atol=1e-12)


def sentences(text):
    return [text[a:b] for a, b in sentence_spans(text)]


def printed(attribution, width=100) -> str:
    stream = io.StringIO()
    show(attribution, console=Console(file=stream, width=width, color_system=None, markup=False))
    return stream.getvalue()


class TestSentences:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("He left. She stayed!  Why? ", ["He left.", "She stayed!", "Why?"]),
            ("Mr. Smith met J. R. Tolkien. Good.", ["Mr. Smith met J. R. Tolkien.", "Good."]),
            ("It costs 3.5 dollars, e.g. at noon. Fine.",
             ["It costs 3.5 dollars, e.g. at noon.", "Fine."]),
            ("“Go.” (Now.) Gone", ["“Go.”", "(Now.)", "Gone"]),
            ("it goes on . but it is great .", ["it goes on .", "but it is great ."]),
            ("これは本です。良い！はい", ["これは本です。", "良い！", "はい"]),
            ("هل هذا جيد؟ نعم.", ["هل هذا جيد؟", "نعم."]),
            ("Great 🎉! Really… yes", ["Great 🎉!", "Really…", "yes"]),
            ("A title\n\nIts text", ["A title", "Its text"]),
            ("no stop at all", ["no stop at all"]),
            (" \n ", []),
        ],
    )  # fmt: skip
    def test_are_cut_where_a_reader_would(self, text, found):
        assert sentences(text) == found

    @given(st.text(alphabet="ab .!?\n。A'\"…", max_size=60))
    def test_lose_no_character_but_white_space(self, text):
        spans = sentence_spans(text)
        assert "".join("".join(sentences(text)).split()) == "".join(text.split())
        assert all(a < b for a, b in spans)
        assert all(b <= c for (_, b), (c, _) in pairwise(spans))

    def test_scores_are_the_sums_of_their_tokens(self):
        found = FOUND.sentences()
        assert [one.text for one in found] == sentences(LONG)
        assert sum(one.score for one in found) == pytest.approx(FOUND.scores[1:-1].sum())
        places = [place for one in found for place in one.positions]
        assert places == list(range(1, len(FOUND) - 1))
        for one in found:
            assert one.score == pytest.approx(FOUND.scores[list(one.positions)].sum())

    def test_of_a_pair_stand_in_their_own_part(self):
        found = EXPLAINER.explain(("One film. Two.", "Good. Bad plot."), "cat").sentences()
        assert [(s.segment, s.text) for s in found] == [
            (0, "One film."), (0, "Two."), (1, "Good."), (1, "Bad plot.")
        ]  # fmt: skip


class TestPage:
    def test_a_long_text_is_shown_by_sentences_that_open_to_their_tokens(self):
        reader = Reader(page(FOUND))
        inside = [line.text.strip() for line in reader.lines if line.kind == "sentence"]
        strongest, everything = inside[:6], inside[6 : 6 + len(sentences(LONG))]
        assert everything == sentences(LONG)
        order = sorted(FOUND.sentences(), key=lambda one: -abs(one.score))[:6]
        assert strongest == [one.text for one in sorted(order, key=lambda one: one.start)]
        folded = [v for tag, v in reader.tags if tag == "details" and v.get("class") == "sentence"]
        assert len(folded) == 2 * (6 + len(sentences(LONG)))  # by tokens and by words
        whole = [line.text for line in reader.lines if line.kind != "sentence"]
        assert LONG in whole

    def test_the_strongest_sentence_has_the_full_bar_and_is_open(self):
        row = row_of(["One. Two. Three."], [split("One. Two. Three.")])
        scores = np.zeros(len(row))
        scores[3] = -2.0  # Two
        scores[1] = 1.0  # One
        made = attribution_of(row, scores, extras={"windows": []})
        source = page(made)
        bars = re.findall(r'<summary><svg[^>]*><rect class="(\w*)" width="([\d.]+)%"', source)
        assert [width for _, width in bars] == ["50.0", "100.0", "0.0"]
        assert bars[0][0].startswith("f")
        assert bars[1][0].startswith("a")
        opened = re.findall(r'<details class="sentence"( open)?>', source)
        assert opened == ["", " open", ""]

    def test_the_direction_of_a_line_is_its_texts_not_its_chips(self):
        source = page(EXPLAINER.explain("سجل film", "attcat"))
        assert re.findall(r'<span class="chip"( dir="ltr")? ', source) == [' dir="ltr"'] * 2
        assert '<p class="line" dir="auto">' in source

    def test_a_short_text_has_no_sentences(self):
        assert '<details class="sentence"' not in page(sample("One. Two."))

    def test_no_script_and_nothing_of_the_text_as_markup(self):
        text = "<b>Bold.</b> <script>alert(1)</script>. " * 80
        source = page(sample(text))
        assert "<script" not in source.lower()
        assert "<b>Bold" not in source


class TestTerminal:
    def test_a_long_text_shows_its_strongest_sentences_by_number(self):
        text = printed(FOUND)
        found = FOUND.sentences()
        assert f"the 6 strongest of {len(found)} sentences" in text
        order = sorted(range(len(found)), key=lambda i: -abs(found[i].score))[:6]
        shown = [int(n) - 1 for n in re.findall(r"^ +(\d+)  [+−]\d", text, re.MULTILINE)]
        assert shown == sorted(order)

    def test_sentences_that_were_cut_off_are_not_counted_as_read(self):
        row = FOUND.row
        half = len(row) // 2
        cut = dataclasses.replace(row.take(range(half)), cut=len(row) - half)
        a = attribution_of(cut, FOUND.scores[:half])
        whole, read = len(FOUND.sentences()), len(a.sentences())
        assert read < whole
        assert all(sentence.positions for sentence in a.sentences())
        text = printed(dataclasses.replace(a, extras={"windows": []}))
        assert f"the 6 strongest of {read} sentences that were read, of {whole}, by number" in text

    def test_no_line_ends_in_blanks_where_it_is_piped(self):
        for attribution in (FOUND, sample(), EXPLAINER.explain(("good film", "bad"), "attcat")):
            lines = printed(attribution).splitlines()
            assert lines == [line.rstrip() for line in lines]


def shown_sentences(attribution):
    return scenes(attribution, ("tokens",))[0].methods[0].views[0].sentences


class TestParts:
    def test_join_to_the_whole_text(self):
        parts = shown_sentences(FOUND)
        joined = "".join(m.text for part in parts for m in part.marks if not m.special)
        assert joined == LONG
        assert [part.place for part in parts] == list(range(1, len(parts) + 1))
        assert [p.score for p in parts] == pytest.approx([s.score for s in FOUND.sentences()])

    def test_of_a_byte_level_tokenizer_begin_with_their_own_token(self):
        from tests.tiny_bytes import tiny_bytes
        from tokenlight.inputs.encode import encode

        row = encode("in the end! the cat sat.", tiny_bytes("roberta"), limit=None)
        scores = np.arange(len(row), dtype=float)
        made = attribution_of(row, scores, extras={"windows": []})
        second = shown_sentences(made)[1]
        assert second.text == "the cat sat."
        assert second.score == pytest.approx(made.sentences()[1].score)


class TestTrust:
    def test_what_was_read_in_windows_is_tested_in_the_same_windows(self):
        """Each window without the tokens taken, one pass each; the class by their mean logits."""
        watched = Watched(EXPLAINER, FOUND, {})
        taken = watched.places[::7]
        limit = EXPLAINER.max_tokens
        logits = {0: [], 1: []}
        for row, places in encode_windows(
            LONG, EXPLAINER.tokenizer, limit=limit, overlap=limit // 4
        ):
            for round_, gone in enumerate(([], taken)):
                ids = [[i for i, at in zip(row.ids, places, strict=True) if at not in gone]]
                with torch.no_grad():
                    logits[round_].append(EXPLAINER.model(torch.tensor(ids)).logits[0])
        expected = [
            torch.stack(own).mean(dim=0).softmax(dim=-1)[FOUND.target.index].item()
            for own in logits.values()
        ]
        assert len(logits[0]) == len(FOUND.extras["windows"]) > 2
        np.testing.assert_allclose(watched.left([taken[:0], taken]), expected, atol=1e-12)

    def test_its_trust_has_a_grade_of_all_its_words(self):
        trust = trusted(EXPLAINER, FOUND).extras["trust"]
        assert trust["before"] == pytest.approx(
            FOUND.prediction.probabilities[FOUND.target.index], abs=1e-9
        )
        assert trust["top_words"]
        assert "not tested" not in trust["verdict"]

    def test_a_row_too_long_and_not_read_in_windows_is_not_tested_and_says_so(self):
        extras = {key: value for key, value in FOUND.extras.items() if key != "windows"}
        whole = dataclasses.replace(FOUND, extras=extras)
        verdict = trusted(EXPLAINER, whole, repeat=False).extras["trust"]["verdict"]
        assert verdict.startswith(
            "not tested: the removal test asks the model about the whole text"
        )
        assert "long='truncate'" in verdict

    @pytest.mark.parametrize("metric", ["aopc", "kendall", "randomisation"])
    def test_metrics_that_ask_again_leave_it_out_with_the_reason(self, metric):
        found = EXPLAINER.evaluate(FOUND, metric, progress=False)
        [reason] = found.summary[metric]["skipped"]
        assert reason.startswith(f"{metric} asks the model about the whole text again")

    def test_marked_spans_need_no_asking(self):
        first = LONG.index("Never")
        found = EXPLAINER.evaluate(FOUND, "rationale", spans=[[(first, first + 5)]], progress=False)
        assert found.summary["rationale"]["count"] == 1


def test_notes_count_the_whole_text_not_its_first_window():
    unknown = "the ☃ film . " * 20
    found = EXPLAINER.explain(unknown, "attcat", long="stride")
    assert f"20 of {len(found)} tokens are unknown to the model's vocabulary" in found.notes
    assert sum("unknown" in note for note in found.notes) == 1
