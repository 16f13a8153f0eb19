"""Labels and marks as people write them: read in every form, or refused in words."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_bert_qa
from tokenlight import Explainer, Question, Tokens
from tokenlight.errors import BadInput, UnknownName
from tokenlight.evaluation.run import Experiment, evaluate_file
from tokenlight.files.tables import Example, read_examples

TEXT = "the film is not very good"


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(dtype=torch.float32), tokenizer, name="tiny")


@pytest.fixture
def attribution(explainer):
    return explainer.explain(TEXT, "attcat")


@pytest.mark.parametrize("label", ["²", "--1", "-", "1²", "٣", "9" * 5000])
def test_a_text_that_only_resembles_a_number_is_an_unknown_label(
    explainer, attribution, tmp_path, label
):
    with pytest.raises(UnknownName, match="Unknown label"):
        explainer.explain(TEXT, "attcat", target=label)
    with expect_error(UnknownName, "unknown-true-label"):
        explainer.evaluate(attribution, "aopc", labels=[label])
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"text": TEXT, "label": label}))
    examples = read_examples(path)
    assert examples == [Example(TEXT, label)]
    row = "line 1 of texts.jsonl: "
    with expect_error(UnknownName, "unknown-true-label", mentions=row):
        evaluate_file(explainer, examples, Experiment(["attcat"], ["aopc"]), tmp_path / "out")


def test_the_location_of_an_example_is_ignored_by_equality(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "good"}\n\n{"text": "good"}\n')
    examples, two = read_examples(path)
    assert (examples.location, two.location) == ("line 1 of texts.jsonl", "line 3 of texts.jsonl")
    assert examples == two == Example("good")
    assert repr(examples) == repr(two)


@pytest.mark.parametrize(
    "spans",
    [
        [(np.int64(4), np.int64(8))],
        np.array([[4, 8]]),
        [np.array([[4, 8]])],
        [[np.array([4, 8])]],
        np.array([[[0, 4, 8]]]),
        [[[np.int32(0), 4, 8]]],
    ],
)
def test_numbers_of_numpy_mark_the_same_as_pythons_own(explainer, attribution, spans):
    expected = explainer.evaluate(attribution, "rationale", spans=[(4, 8)]).rows
    assert explainer.evaluate(attribution, "rationale", spans=spans).rows == expected


@pytest.mark.parametrize(
    ("span", "code", "mentions"),
    [
        ((5, 4, 8), "span-outside-text", "Span (5, 4, 8) is"),
        ((-1, 4, 8), "span-outside-text", "Span (-1, 4, 8) is"),
        ((4, 99), "span-outside-text", "part 0 has 25 characters"),
        ((30, 40), "span-outside-text", "Span (30, 40) is"),
        ((True, 8), "span-format", ""),
        ((4.0, 8.0), "span-format", ""),
        (np.array([4.0, 8.0]), "span-format", ""),
        (5, "span-format", ""),
    ],
)
def test_a_span_outside_of_the_text_is_refused(explainer, attribution, span, code, mentions):
    for spans in ([span], [[span]]):
        with expect_error(BadInput, code, mentions=mentions):
            explainer.evaluate(attribution, "rationale", spans=spans)


def test_the_error_of_a_wrong_span_names_its_text(explainer):
    attributions = explainer.explain([TEXT, TEXT], ["attcat"])
    with expect_error(BadInput, "span-outside-text", mentions="of text 1 is empty"):
        explainer.evaluate(attributions, "rationale", spans=[(4, 8), (4, 99)])


def test_a_question_has_two_parts(tokenizer):
    explainer = Explainer(tiny_bert_qa(), tokenizer)
    attribution = explainer.explain(
        Question(question="who sat", context="the cat sat on the mat"), "attcat"
    )
    for span in ((4, 7), (1, 4, 7), (0, 0, 3)):
        assert (
            explainer.evaluate(attribution, "rationale", spans=[[span]]).rows[0]["rationale"]
            is not None
        )
    lengths = "part 0 has 7, part 1 has 22 characters"
    with expect_error(BadInput, "span-outside-text", mentions=lengths):
        explainer.evaluate(attribution, "rationale", spans=[[(2, 4, 7)]])
    with expect_error(BadInput, "span-outside-text", mentions="Span (0, 4, 8)"):
        explainer.evaluate(attribution, "rationale", spans=[[(0, 4, 8)]])


def test_token_ids_have_no_characters_to_mark(explainer):
    ids = explainer.tokenizer(TEXT, return_tensors="np")["input_ids"]
    attribution = explainer.explain(Tokens.from_ids(ids), "attcat")
    with expect_error(BadInput, "span-outside-text", mentions="token ids have no characters"):
        explainer.evaluate(attribution, "rationale", spans=[(4, 8)])


def test_a_mark_that_covers_no_token_is_refused_with_the_reason(explainer, attribution):
    rows = explainer.evaluate(attribution, "rationale", spans=[(3, 4)]).rows
    assert rows[0]["rationale.skipped"].startswith(
        "The rationale covers no token: it was truncated, or"
    )
    text = "a dull film " * 40
    truncated = explainer.explain(text, "attcat", long="truncate")
    rows = explainer.evaluate(truncated, "rationale", spans=[(len(text) - 5, len(text) - 1)]).rows
    assert rows[0]["rationale.skipped"].startswith(
        "The rationale covers no token: it was truncated, or"
    )
    answer = [("precision_at_k", {"drop_truncated": True})]
    rows = explainer.evaluate(attribution, answer, spans=[(3, 4)]).rows
    assert "covers no token" in rows[0]["precision_at_k.skipped"]


def test_an_invalid_mark_in_a_file_fails_only_its_text(explainer, tmp_path):
    examples = [Example(TEXT, None, ((4, 8),)), Example(TEXT, None, ((4, 99),))]
    job = Experiment(["attcat"], ["rationale"])
    evaluation, refused = evaluate_file(explainer, examples, job, tmp_path)
    assert [record.text_index for record in evaluation.records] == [0]
    assert [(failure.text_index, failure.stage) for failure in refused] == [(1, "measured")]
    assert refused[0].reason.startswith("Span (4, 99) is empty or outside the text")
