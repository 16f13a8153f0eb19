"""Labels and marks as people write them: read in every form, or refused in words."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.tiny import tiny_bert, tiny_bert_qa
from tokenlight import Explainer, Question, Tokens
from tokenlight.errors import BadInput, UnknownName
from tokenlight.evaluation.run import Experiment, evaluate_file
from tokenlight.files.tables import Example, read

TEXT = "the film is not very good"


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(dtype=torch.float32), tokenizer, name="tiny")


@pytest.fixture
def found(explainer):
    return explainer.explain(TEXT, "attcat")


@pytest.mark.parametrize("label", ["²", "--1", "-", "1²", "٣", "9" * 5000])
def test_what_only_looks_like_a_number_is_an_unknown_label(explainer, found, tmp_path, label):
    with pytest.raises(UnknownName, match="unknown label"):
        explainer.explain(TEXT, "attcat", target=label)
    with pytest.raises(UnknownName, match="unknown label"):
        explainer.evaluate(found, "aopc", labels=[label])
    place = tmp_path / "texts.jsonl"
    place.write_text(json.dumps({"text": TEXT, "label": label}))
    examples = read(place)
    assert examples == [Example(TEXT, label)]
    with pytest.raises(UnknownName, match=r"^line 1 of texts.jsonl: unknown label"):
        evaluate_file(explainer, examples, Experiment(["attcat"], ["aopc"]), tmp_path / "out")


def test_an_example_knows_its_place_and_is_equal_wherever_it_stands(tmp_path):
    place = tmp_path / "texts.jsonl"
    place.write_text('{"text": "good"}\n\n{"text": "good"}\n')
    one, two = read(place)
    assert (one.place, two.place) == ("line 1 of texts.jsonl", "line 3 of texts.jsonl")
    assert one == two == Example("good")
    assert repr(one) == repr(two)


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
def test_numbers_of_numpy_mark_the_same_as_pythons_own(explainer, found, spans):
    expected = explainer.evaluate(found, "rationale", spans=[(4, 8)]).rows
    assert explainer.evaluate(found, "rationale", spans=spans).rows == expected


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ((5, 4, 8), r"span \(5, 4, 8\) .*stands outside of the text: part 0 has 25 characters"),
        ((-1, 4, 8), r"span \(-1, 4, 8\) .*stands outside of the text: part 0 has 25 characters"),
        ((4, 99), r"span \(4, 99\) .*stands outside of the text: part 0 has 25 characters"),
        ((30, 40), "stands outside of the text"),
        ((True, 8), "is none: give"),
        ((4.0, 8.0), "is none: give"),
        (np.array([4.0, 8.0]), "is none: give"),
        (5, "is none: give"),
    ],
)
def test_a_mark_that_is_not_in_the_text_is_refused(explainer, found, span, message):
    for spans in ([span], [[span]]):
        with pytest.raises(BadInput, match=message):
            explainer.evaluate(found, "rationale", spans=spans)


def test_a_wrong_mark_of_many_says_whose_it_is(explainer):
    xs = explainer.explain([TEXT, TEXT], ["attcat"])
    with pytest.raises(BadInput, match="of text 1 is empty or stands outside"):
        explainer.evaluate(xs, "rationale", spans=[(4, 8), (4, 99)])


def test_a_question_has_two_parts(tokenizer):
    explainer = Explainer(tiny_bert_qa(), tokenizer)
    a = explainer.explain(Question(question="who sat", context="the cat sat on the mat"), "attcat")
    for span in ((4, 7), (1, 4, 7), (0, 0, 3)):
        assert explainer.evaluate(a, "rationale", spans=[[span]]).rows[0]["rationale"] is not None
    with pytest.raises(
        BadInput, match=r"stands outside of the text: part 0 has 7, part 1 has 22 characters"
    ):
        explainer.evaluate(a, "rationale", spans=[[(2, 4, 7)]])
    with pytest.raises(BadInput, match=r"span \(0, 4, 8\) .*outside of the text: part 0 has 7"):
        explainer.evaluate(a, "rationale", spans=[[(0, 4, 8)]])


def test_token_ids_have_no_characters_to_mark(explainer):
    ids = explainer.tokenizer(TEXT, return_tensors="np")["input_ids"]
    a = explainer.explain(Tokens.from_ids(ids), "attcat")
    with pytest.raises(BadInput, match="token ids have no characters"):
        explainer.evaluate(a, "rationale", spans=[(4, 8)])


def test_marks_without_a_token_say_why(explainer, found):
    rows = explainer.evaluate(found, "rationale", spans=[(3, 4)]).rows
    assert rows[0]["rationale.skipped"].startswith(
        "the rationale covers no token: it was cut off, or"
    )
    text = "a dull film " * 40
    a = explainer.explain(text, "attcat", long="truncate")
    rows = explainer.evaluate(a, "rationale", spans=[(len(text) - 5, len(text) - 1)]).rows
    assert rows[0]["rationale.skipped"].startswith(
        "the rationale covers no token: it was cut off, or"
    )
    answer = [("precision_at_k", {"drop_truncated": True})]
    rows = explainer.evaluate(found, answer, spans=[(3, 4)]).rows
    assert "covers no token" in rows[0]["precision_at_k.skipped"]


def test_a_wrong_mark_in_a_file_costs_its_own_text(explainer, tmp_path):
    given = [Example(TEXT, None, ((4, 8),)), Example(TEXT, None, ((4, 99),))]
    job = Experiment(["attcat"], ["rationale"])
    found, refused = evaluate_file(explainer, given, job, tmp_path)
    assert [record.text for record in found.records] == [0]
    assert [(one.text, one.step) for one in refused] == [(1, "measured")]
    assert refused[0].reason.startswith("span (4, 99) is empty or stands outside of the text")
