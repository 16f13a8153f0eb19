"""What number is explained, and what the model is said to predict."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tiny import tiny_bert, tiny_bert_qa, tiny_tokenizer
from tests.tolerance import PLAIN, allowed, close
from tokenlight import Contrast, Explainer, Question, SpanTarget
from tokenlight.data.answers import best_span
from tokenlight.data.target import Head
from tokenlight.errors import BadInput, BadTarget, UnknownName, UnsupportedModel
from tokenlight.evaluation.preflight import attempt
from tokenlight.inputs.encode import encode

TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
ROW = encode("good film", TOKENIZER, limit=None)
HEAD = Head("classification", ("negative", "neutral", "positive"))
LOGITS = np.array([0.5, 2.0, -1.0])


def test_the_predicted_class_is_the_default():
    found = EXPLAINER.explain("good film", "cat")
    assert found.target.index == int(np.argmax(found.logits))
    assert found.target.name == found.prediction.label


@pytest.mark.parametrize("same", ["positive", 2, np.int64(2), "2"])
def test_a_label_is_given_by_name_or_number(same):
    (target,) = HEAD.resolve(same, LOGITS, ROW)
    assert target.name == "positive"
    assert target.value(LOGITS) == -1.0


def test_all_gives_one_target_a_class_from_one_forward():
    found = EXPLAINER.explain("good film", "attcat", target="all")
    assert [a.target.name for a in found] == ["negative", "neutral", "positive"]
    for attribution in found:
        alone = EXPLAINER.explain("good film", "attcat", target=attribution.target.name)
        close(attribution.scores, alone.scores, allowed(torch.float64, PLAIN))


def test_a_contrast_is_the_difference_of_two_classes():
    contrast = EXPLAINER.explain("good film", "attcat", target=Contrast("positive", "negative"))
    this, that = (EXPLAINER.explain("good film", "attcat", target=t) for t in (2, 0))
    close(contrast.scores, this.scores - that.scores, allowed(torch.float64, PLAIN))
    assert contrast.target.name == "positive rather than negative"


def test_each_text_may_have_its_own_target():
    found = EXPLAINER.explain(["good film", "bad film"], "cat", target=["negative", 2])
    assert [a.target.index for a in found] == [0, 2]
    with pytest.raises(BadInput, match="1 targets were given for 2 texts"):
        EXPLAINER.explain(["good film", "bad film"], "cat", target=["negative"])


@pytest.mark.parametrize(
    ("target", "error", "says"),
    [
        ("positve", UnknownName, "Did you mean 'positive'"),
        (3, BadTarget, "3 labels, 0 to 2"),
        (-1, BadTarget, "label number -1 does not exist"),
        (Contrast("positive", 2), BadTarget, "names one class twice"),
        (SpanTarget(), BadTarget, "is none of this model: it is a classifier"),
        (True, BadTarget, "is a bool"),
        (1.5, BadTarget, "is a float"),
    ],
)
def test_a_target_the_head_does_not_have_is_refused(target, error, says):
    with pytest.raises(error, match=says):
        EXPLAINER.explain("good film", "cat", target=target)


def test_several_labels_give_independent_probabilities():
    model = tiny_bert()
    model.config.problem_type = "multi_label_classification"
    found = Explainer(model, TOKENIZER).explain("good film", "cat")
    np.testing.assert_allclose(found.prediction.probabilities, 1 / (1 + np.exp(-found.logits)))


def test_a_regression_head_has_a_value_and_no_probability():
    model = tiny_bert(id2label={0: "score"}, label2id={"score": 0})
    found = Explainer(model, TOKENIZER).explain("good film", "cat")
    assert found.prediction.probabilities == ()
    assert float(found.prediction.label) == pytest.approx(found.logits[0], rel=1e-3)


class TestSpans:
    explainer = Explainer(tiny_bert_qa(), TOKENIZER)
    asked = Question(question="who sat on the mat", context="the cat sat on the mat in town")

    def test_the_best_span_is_the_best_of_all_valid_ones(self):
        row = encode(self.asked, TOKENIZER, limit=None)
        logits = np.random.default_rng(0).normal(size=(len(row), 2)) * 3
        context = [i for i, segment in enumerate(row.segments) if segment == 1]
        best = max(
            ((s, e) for s in context for e in context if s <= e < s + 30),
            key=lambda span: logits[span[0], 0] + logits[span[1], 1],
        )
        assert best_span(logits, row) == best

    def test_the_answer_is_a_piece_of_the_context(self):
        found = self.explainer.explain(self.asked, "attcat")
        assert found.prediction.label in self.asked.context
        assert found.target.kind == "span"
        assert found.target.name == f"the answer ‘{found.prediction.label}’"

    def test_a_given_place_is_explained(self):
        both = self.explainer.explain(self.asked, "cat", SpanTarget(8, 9))
        start = self.explainer.explain(self.asked, "cat", SpanTarget(8, None))
        end = self.explainer.explain(self.asked, "cat", SpanTarget(None, 9))
        close(both.scores, start.scores + end.scores, allowed(torch.float64, PLAIN))

    @pytest.mark.parametrize(
        ("target", "says"),
        [
            (SpanTarget(99, None), "a token of the text, 0 to"),
            (SpanTarget(None, None), "nothing to explain"),
            (SpanTarget("first", None), "not 'first'"),
            ("positive", "'positive' is not in the context"),
            ("all", "is none of this model: it answers questions"),
            (1, "is none of this model: it answers questions"),
        ],
    )
    def test_a_place_that_is_none_is_refused(self, target, says):
        with pytest.raises(BadTarget, match=says):
            self.explainer.explain(self.asked, "cat", target)

    def test_a_question_to_a_classifier_says_what_it_can_do(self):
        with pytest.raises(UnsupportedModel, match="labels negative, neutral, positive"):
            EXPLAINER.explain(self.asked, "cat")

    def test_a_plain_text_to_a_span_head_says_what_it_takes(self):
        with pytest.raises(BadInput, match=r"Question\(question=…, context=…\)"):
            self.explainer.explain("good film", "cat")


class TestSeveralNumbers:
    """Two outputs of a regression: each is predicted, none instead of the other."""

    model = tiny_bert(id2label={0: "joy", 1: "anger"}, label2id={"joy": 0, "anger": 1})
    model.config.problem_type = "regression"
    explainer = Explainer(model, TOKENIZER)

    def test_the_prediction_says_every_output(self):
        found = self.explainer.explain("good film", "cat", target="anger")
        with torch.no_grad():
            bare = self.model(**TOKENIZER("good film", return_tensors="pt")).logits[0].tolist()
        assert found.prediction.label == f"joy {bare[0]:.4g}, anger {bare[1]:.4g}"
        assert [a.target.name for a in self.explainer.explain("good film", target="all")] == [
            "joy",
            "anger",
        ]

    @pytest.mark.parametrize("target", ["predicted", Contrast("predicted", "joy")])
    def test_predicted_names_none_of_them(self, target):
        with pytest.raises(BadTarget, match="predicts 2 numbers.*name one .joy, anger."):
            self.explainer.explain("good film", "cat", target=target)

    def test_a_method_is_tried_on_an_output_that_is_there(self):
        assert attempt(self.explainer, "cat")[0] is None
