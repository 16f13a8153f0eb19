"""effort= and stable= choose the method by the rule of ADR 0019, say so, and refuse what cannot be."""

import json
from pathlib import Path

import pytest

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.errors import BadInput
from tokenlight.explaining.effort import EFFORT_SAMPLES, count_samples
from tokenlight.progress import nested_progress, progress_bar

TEXT = "Charming film , but slower"
EXPLAINER = Explainer(tiny_bert(), tiny_tokenizer())
FRONTIER = Path(__file__).parents[3] / "docs" / "results" / "frontier" / "frontier.json"


def test_efforts_equal_the_choices_of_the_rule():
    choices = json.loads(FRONTIER.read_text(encoding="utf-8"))["choices"]
    samples = [EFFORT_SAMPLES[name] for name in ("instant", "normal", "thorough")]
    expected = ["attnlrp"] + [f"subset_relevance, {count} sub-texts" for count in samples[1:]]
    assert samples[0] == 0
    assert [choice["chosen"] for choice in choices] == expected


@pytest.mark.parametrize(
    ("effort", "method", "samples", "note"),
    [
        ("instant", "attnlrp", None, "effort='instant': attnlrp, one pass"),
        ("normal", "subset_relevance", 8, "8 partial texts (9 passes), ahead of"),
        ("thorough", "subset_relevance", 64, "64 partial texts (65 passes), slightly ahead of 8"),
        (2, "attnlrp", None, "effort=2: attnlrp, one pass"),
        (3, "subset_relevance", 2, "effort=3: subset_relevance, 2 partial texts (3 passes)"),
    ],
)
def test_an_effort_chooses_the_method_and_reports_it(effort, method, samples, note):
    attribution = EXPLAINER.explain(TEXT, effort=effort)
    assert attribution.method == method
    assert note in attribution.notes[0]
    assert (attribution.standard_errors is None) == (samples is None)
    if samples is not None:
        assert attribution.extras["sampling"]["samples"] == samples
        explicit_attribution = EXPLAINER.explain(
            TEXT, ("subset_relevance", {"num_samples": samples})
        )
        assert attribution.scores.tolist() == explicit_attribution.scores.tolist()


def test_passes_are_counted_with_the_whole_text():
    assert [count_samples(passes) for passes in (1, 2, 3, 9, 65)] == [0, 0, 2, 8, 64]


def test_sampling_stops_when_the_top_is_stable_or_the_effort_is_spent():
    easy = EXPLAINER.explain(TEXT, stable=0.01)
    assert easy.extras["sampling"]["samples"] == 8
    assert "at most 128" in easy.notes[0]
    # A top of five cannot be certain with so few tokens that differ: the effort ends it.
    bounded = EXPLAINER.explain(f"{TEXT} , {TEXT} , {TEXT}", stable=1, effort=20)
    assert bounded.extras["sampling"]["samples"] <= 19
    assert bounded.options["max_samples"] == 19


def test_other_kinds_of_input_keep_their_default_and_give_the_reason():
    pair = EXPLAINER.explain(("good film", "bad film"), effort="thorough")
    assert pair.method == EXPLAINER.get_default_method(("good film", "bad film"))
    assert "more passes were not found better for a pair of texts" in pair.notes[0]
    with expect_error(BadInput, "stable-unsupported", mentions="a pair of texts"):
        EXPLAINER.explain(("good film", "bad film"), stable=0.9)


@pytest.mark.parametrize("effort", ["much", 0, -3, 2.5, True, []])
def test_a_bad_effort_is_refused(effort):
    with expect_error(BadInput, "effort-value", mentions="instant, normal, thorough"):
        EXPLAINER.explain(TEXT, effort=effort)


@pytest.mark.parametrize("stable", [0, -1, 1.5, float("nan"), "0.9", True])
def test_a_bad_stability_is_refused(stable):
    with expect_error(BadInput, "stable-value"):
        EXPLAINER.explain(TEXT, stable=stable)


@pytest.mark.parametrize("method", ["attcat", "best", ["auto", "attcat"], ("subset_relevance", {})])
def test_an_effort_next_to_a_method_is_refused(method):
    with expect_error(BadInput, "effort-with-method", mentions="Leave out the method"):
        EXPLAINER.explain(TEXT, method, effort="normal")
    with expect_error(BadInput, "effort-with-method"):
        EXPLAINER.explain_texts([TEXT], method, stable=0.9)


def test_stability_needs_more_than_one_pass():
    with expect_error(BadInput, "stable-without-effort", mentions="effort='instant'"):
        EXPLAINER.explain(TEXT, effort="instant", stable=0.9)


def test_an_iterator_of_texts_takes_an_effort():
    attributions = list(EXPLAINER.explain(iter([TEXT, "good film"]), effort="normal"))
    assert [attribution.method for attribution in attributions] == ["subset_relevance"] * 2


def test_samples_add_a_line_to_the_bar_that_is_shown_and_none_to_a_hidden_one():
    from tokenlight.progress import _current_bar

    with progress_bar("explaining", 1, True):
        bar = _current_bar.get()
        with nested_progress("partial texts", 8) as advance:
            advance(3)
            assert [(task.description, task.completed) for task in bar.tasks] == [
                ("explaining", 0),
                ("partial texts", 3),
            ]
            with (
                progress_bar("measuring", 1, False),
                nested_progress("hidden", 1) as advance_hidden,
            ):
                advance_hidden(1)
                assert len(bar.tasks) == 2
        assert [task.description for task in bar.tasks] == ["explaining"]
    assert _current_bar.get() is None
