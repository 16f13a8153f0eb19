"""Long texts: windows, sentences, and the zoom from sentence to token in page and terminal."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.handmade_attributions import make_attribution, make_row, make_sample, split_words
from tests.helpers.html_reader import PageReader
from tests.helpers.terminal import render_terminal
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.data.units import find_sentence_spans
from tokenlight.evaluation.removal import RemovalRunner
from tokenlight.evaluation.trust import assess_trust
from tokenlight.inputs.encode import encode_windows
from tokenlight.plots.html import render_page
from tokenlight.plots.scene import build_scenes

COVERED_MODULES = ("explaining/windows",)
EXPLAINER = Explainer(tiny_bert(), tiny_tokenizer())
LONG = "The film was very slow. We love the charming plot! " * 8 + "Never dull."
ATTRIBUTION = EXPLAINER.explain(LONG, "attcat", long="stride")


def test_windows_that_do_not_fit_together_are_read_in_halves():
    sizes = []

    def run_out_of_memory(_module, _arguments, keywords):
        if not torch.is_grad_enabled():  # the windows are read before they are explained
            sizes.append(len(keywords["input_ids"]))
            if sizes[-1] > 1:
                raise torch.OutOfMemoryError("no room")

    handle = EXPLAINER.model.register_forward_pre_hook(run_out_of_memory, with_kwargs=True)
    try:
        attribution = EXPLAINER.explain(LONG, "attcat", long="stride")
    finally:
        handle.remove()
    assert sizes[0] == len(ATTRIBUTION.extras["windows"]) > 2
    np.testing.assert_allclose(attribution.scores, ATTRIBUTION.scores, atol=1e-12)
    np.testing.assert_allclose(attribution.logits, ATTRIBUTION.logits, atol=1e-12)


def sentences(text):
    return [text[start:end] for start, end in find_sentence_spans(text)]


class TestSentences:
    @pytest.mark.parametrize(
        ("text", "expected"),
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
    def test_sentences_are_split_at_sentence_ends(self, text, expected):
        assert sentences(text) == expected

    @given(st.text(alphabet="ab .!?\n。A'\"…", max_size=60))
    def test_sentences_lose_no_character_but_white_space(self, text):
        spans = find_sentence_spans(text)
        assert "".join("".join(sentences(text)).split()) == "".join(text.split())
        assert all(start < end for start, end in spans)
        assert all(b <= c for (_, b), (c, _) in pairwise(spans))

    def test_sentence_scores_are_the_sums_of_their_tokens(self):
        scored_sentences = ATTRIBUTION.sentences()
        assert [sentence.text for sentence in scored_sentences] == sentences(LONG)
        assert sum(sentence.score for sentence in scored_sentences) == pytest.approx(
            ATTRIBUTION.scores[1:-1].sum()
        )
        positions = [position for sentence in scored_sentences for position in sentence.positions]
        assert positions == list(range(1, len(ATTRIBUTION) - 1))
        for sentence in scored_sentences:
            assert sentence.score == pytest.approx(
                ATTRIBUTION.scores[list(sentence.positions)].sum()
            )

    def test_sentences_of_a_pair_belong_to_their_own_segment(self):
        found_sentences = EXPLAINER.explain(
            ("One film. Two.", "Good. Bad plot."), "cat"
        ).sentences()
        assert [(sentence.segment, sentence.text) for sentence in found_sentences] == [
            (0, "One film."), (0, "Two."), (1, "Good."), (1, "Bad plot.")
        ]  # fmt: skip


class TestPage:
    def test_a_long_text_is_shown_by_sentences_that_open_to_their_tokens(self):
        reader = PageReader(render_page(ATTRIBUTION))
        inside = [line.text.strip() for line in reader.lines if line.kind == "sentence"]
        strongest = inside[:6]
        everything = inside[6 : 6 + len(sentences(LONG))]
        assert everything == sentences(LONG)
        order = sorted(ATTRIBUTION.sentences(), key=lambda sentence: -abs(sentence.score))[:6]
        assert strongest == [
            sentence.text for sentence in sorted(order, key=lambda sentence: sentence.start)
        ]
        folded = [v for tag, v in reader.tags if tag == "details" and v.get("class") == "sentence"]
        assert len(folded) == 2 * (6 + len(sentences(LONG)))  # by tokens and by words
        full_lines = [line.text for line in reader.lines if line.kind != "sentence"]
        assert LONG in full_lines

    def test_the_strongest_sentence_has_the_full_bar_and_is_open(self):
        row = make_row(["One. Two. Three."], [split_words("One. Two. Three.")])
        scores = np.zeros(len(row))
        scores[3] = -2.0  # Two
        scores[1] = 1.0  # One
        attribution = make_attribution(row, scores, extras={"windows": []})
        source = render_page(attribution)
        bars = re.findall(r'<summary><svg[^>]*><rect class="(\w*)" width="([\d.]+)%"', source)
        assert [width for _, width in bars] == ["50.0", "100.0", "0.0"]
        assert bars[0][0].startswith("f")
        assert bars[1][0].startswith("a")
        opened = re.findall(r'<details class="sentence"( open)?>', source)
        assert opened == ["", " open", ""]

    def test_the_direction_of_a_line_is_its_texts_not_its_chips(self):
        source = render_page(EXPLAINER.explain("سجل film", "attcat"))
        assert re.findall(r'<span class="chip"( dir="ltr")? ', source) == [' dir="ltr"'] * 2
        assert '<p class="line" dir="auto">' in source

    def test_a_short_text_has_no_sentences(self):
        assert '<details class="sentence"' not in render_page(make_sample("One. Two."))

    def test_the_page_has_no_script_and_no_markup_from_the_text(self):
        text = "<b>Bold.</b> <script>alert(1)</script>. " * 80
        source = render_page(make_sample(text))
        assert "<script" not in source.lower()
        assert "<b>Bold" not in source


class TestTerminal:
    def test_a_long_text_shows_its_strongest_sentences_by_number(self):
        text = render_terminal(ATTRIBUTION)
        scored_sentences = ATTRIBUTION.sentences()
        assert f"the 6 strongest of {len(scored_sentences)} sentences" in text
        order = sorted(range(len(scored_sentences)), key=lambda i: -abs(scored_sentences[i].score))[
            :6
        ]
        shown_numbers = [int(n) - 1 for n in re.findall(r"^ +(\d+)  [+−]\d", text, re.MULTILINE)]
        assert shown_numbers == sorted(order)

    def test_sentences_that_were_cut_off_are_not_counted_as_read(self):
        row = ATTRIBUTION.row
        half = len(row) // 2
        cut = dataclasses.replace(row.take(range(half)), num_truncated=len(row) - half)
        attribution = make_attribution(cut, ATTRIBUTION.scores[:half])
        num_sentences = len(ATTRIBUTION.sentences())
        num_read = len(attribution.sentences())
        assert num_read < num_sentences
        assert all(sentence.positions for sentence in attribution.sentences())
        text = render_terminal(dataclasses.replace(attribution, extras={"windows": []}))
        counts = f"{num_read} sentences that were read, of {num_sentences}, by number"
        assert f"the 6 strongest of {counts}" in text

    def test_no_line_ends_in_blanks_where_it_is_piped(self):
        for attribution in (
            ATTRIBUTION,
            make_sample(),
            EXPLAINER.explain(("good film", "bad"), "attcat"),
        ):
            lines = render_terminal(attribution).splitlines()
            assert lines == [line.rstrip() for line in lines]


def list_shown_sentences(attribution):
    return build_scenes(attribution, ("tokens",))[0].methods[0].views[0].sentences


class TestParts:
    def test_shown_sentences_join_to_the_whole_text(self):
        parts = list_shown_sentences(ATTRIBUTION)
        joined = "".join(m.text for part in parts for m in part.marks if not m.is_special)
        assert joined == LONG
        assert [part.line_number for part in parts] == list(range(1, len(parts) + 1))
        assert [p.score for p in parts] == pytest.approx([s.score for s in ATTRIBUTION.sentences()])

    def test_shown_sentences_of_a_byte_level_tokenizer_begin_with_their_own_token(self):
        from tests.helpers.tiny_byte_tokenizers import tiny_byte_tokenizer
        from tokenlight.inputs.encode import encode_text

        row = encode_text(
            "in the end! the cat sat.", tiny_byte_tokenizer("roberta"), max_tokens=None
        )
        scores = np.arange(len(row), dtype=float)
        attribution = make_attribution(row, scores, extras={"windows": []})
        second = list_shown_sentences(attribution)[1]
        assert second.text == "the cat sat."
        assert second.score == pytest.approx(attribution.sentences()[1].score)


class TestTrust:
    def test_a_text_read_in_windows_is_tested_in_the_same_windows(self):
        """Each window without the tokens taken, one pass each; the class by their mean logits."""
        watched = RemovalRunner(EXPLAINER, ATTRIBUTION, {})
        removed_positions = watched.removable_positions[::7]
        limit = EXPLAINER.max_tokens
        logits = {0: [], 1: []}
        for row, positions in encode_windows(
            LONG, EXPLAINER.tokenizer, max_tokens=limit, overlap=limit // 4
        ):
            for round_, removed in enumerate(([], removed_positions)):
                ids = [[i for i, at in zip(row.ids, positions, strict=True) if at not in removed]]
                with torch.no_grad():
                    logits[round_].append(EXPLAINER.model(torch.tensor(ids)).logits[0])
        expected = [
            torch.stack(window_logits).mean(dim=0).softmax(dim=-1)[ATTRIBUTION.target.index].item()
            for window_logits in logits.values()
        ]
        assert len(logits[0]) == len(ATTRIBUTION.extras["windows"]) > 2
        np.testing.assert_allclose(
            watched.compute_probabilities([removed_positions[:0], removed_positions]),
            expected,
            atol=1e-12,
        )

    def test_the_trust_of_a_windowed_text_covers_all_its_words(self):
        trust = assess_trust(EXPLAINER, ATTRIBUTION).extras["trust"]
        assert trust["before"] == pytest.approx(
            ATTRIBUTION.prediction.probabilities[ATTRIBUTION.target.index], abs=1e-9
        )
        assert trust["top_words"]
        assert "not tested" not in trust["verdict"]

    def test_a_long_row_outside_windows_is_not_tested(self):
        extras = {key: value for key, value in ATTRIBUTION.extras.items() if key != "windows"}
        full_lines = dataclasses.replace(ATTRIBUTION, extras=extras)
        verdict = assess_trust(EXPLAINER, full_lines, repeat=False).extras["trust"]["verdict"]
        assert verdict.startswith("not tested: The removal test runs the model on the whole text")
        assert "long=truncate" in verdict

    @pytest.mark.parametrize("metric", ["aopc", "kendall", "randomisation"])
    def test_metrics_that_run_the_model_skip_windowed_texts_with_a_reason(self, metric):
        evaluation = EXPLAINER.evaluate(ATTRIBUTION, metric, progress=False)
        [reason] = evaluation.summary[metric]["skipped"]
        assert reason.startswith(f"{metric} runs the model on the whole text again")

    def test_metrics_of_marked_spans_measure_windowed_texts(self):
        first = LONG.index("Never")
        evaluation = EXPLAINER.evaluate(
            ATTRIBUTION, "rationale", spans=[[(first, first + 5)]], progress=False
        )
        assert evaluation.summary["rationale"]["count"] == 1


def test_notes_count_the_whole_text_not_its_first_window():
    unknown = "the ☃ film . " * 20
    attribution = EXPLAINER.explain(unknown, "attcat", long="stride")
    assert f"20 of {len(attribution)} tokens are not in the model's vocabulary" in attribution.notes
    assert sum("vocabulary" in note for note in attribution.notes) == 1
