"""Which logits a head resolves a target to, and what it predicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tests.helpers.tolerance import PASS_CONDITION, assert_close, tolerance_for
from tokenlight import Contrast, Explainer, SpanTarget
from tokenlight.data.head import Head
from tokenlight.errors import BadInput, BadTarget, UnknownName
from tokenlight.evaluation.preflight import try_explaining
from tokenlight.inputs.encode import encode_text

COVERED_MODULES = ("data/target",)

TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
ROW = encode_text("good film", TOKENIZER, max_tokens=None)
HEAD = Head("text-classification", ("negative", "neutral", "positive"))
LOGITS = np.array([0.5, 2.0, -1.0])


def test_the_predicted_class_is_the_default():
    attribution = EXPLAINER.explain("good film", "cat")
    assert attribution.target.index == int(np.argmax(attribution.logits))
    assert attribution.target.name == attribution.prediction.label


@pytest.mark.parametrize("same", ["positive", 2, np.int64(2), "2"])
def test_a_label_is_given_by_name_or_number(same):
    (target,) = HEAD.resolve(same, LOGITS, ROW)
    assert target.name == "positive"
    assert target.compute_value(LOGITS) == -1.0


def test_target_all_gives_one_target_per_class_from_one_forward():
    explained = EXPLAINER.explain("good film", "attcat", target="all")
    assert [attribution.target.name for attribution in explained] == [
        "negative",
        "neutral",
        "positive",
    ]
    for attribution in explained:
        alone = EXPLAINER.explain("good film", "attcat", target=attribution.target.name)
        assert_close(attribution.scores, alone.scores, tolerance_for(torch.float64, PASS_CONDITION))


def test_a_contrast_is_the_difference_of_two_classes():
    contrast = EXPLAINER.explain("good film", "attcat", target=Contrast("positive", "negative"))
    this, that = (EXPLAINER.explain("good film", "attcat", target=t) for t in (2, 0))
    assert_close(
        contrast.scores, this.scores - that.scores, tolerance_for(torch.float64, PASS_CONDITION)
    )
    assert contrast.target.name == "positive rather than negative"


def test_each_text_may_have_its_own_target():
    attributions = EXPLAINER.explain(["good film", "bad film"], "cat", target=["negative", 2])
    assert [attribution.target.index for attribution in attributions] == [0, 2]
    with pytest.raises(BadInput, match="1 targets were given for 2 texts"):
        EXPLAINER.explain(["good film", "bad film"], "cat", target=["negative"])


@pytest.mark.parametrize(
    ("target", "error", "code"),
    [
        ("positve", UnknownName, "unknown-name"),
        (3, BadTarget, "label-number-range"),
        (-1, BadTarget, "label-number-range"),
        (Contrast("positive", 2), BadTarget, "contrast-of-equal-targets"),
        (SpanTarget(), BadTarget, "target-of-other-head"),
        (True, BadTarget, "target-type"),
        (1.5, BadTarget, "target-type"),
    ],
)
def test_a_target_the_head_does_not_have_is_refused(target, error, code):
    with expect_error(error, code):
        EXPLAINER.explain("good film", "cat", target=target)


def test_several_labels_give_independent_probabilities():
    model = tiny_bert()
    model.config.problem_type = "multi_label_classification"
    attribution = Explainer(model, TOKENIZER).explain("good film", "cat")
    np.testing.assert_allclose(
        attribution.prediction.probabilities, 1 / (1 + np.exp(-attribution.logits))
    )


def test_a_regression_head_has_a_value_and_no_probability():
    model = tiny_bert(id2label={0: "score"}, label2id={"score": 0})
    attribution = Explainer(model, TOKENIZER).explain("good film", "cat")
    assert attribution.prediction.probabilities == ()
    assert float(attribution.prediction.label) == pytest.approx(attribution.logits[0], rel=1e-3)


class TestSeveralNumbers:
    """Two outputs of a regression: each is predicted, none instead of the other."""

    model = tiny_bert(id2label={0: "joy", 1: "anger"}, label2id={"joy": 0, "anger": 1})
    model.config.problem_type = "regression"
    explainer = Explainer(model, TOKENIZER)

    def test_the_prediction_states_every_regression_output(self):
        attribution = self.explainer.explain("good film", "cat", target="anger")
        with torch.no_grad():
            bare = self.model(**TOKENIZER("good film", return_tensors="pt")).logits[0].tolist()
        assert attribution.prediction.label == f"joy {bare[0]:.4g}, anger {bare[1]:.4g}"
        assert [
            attribution.target.name
            for attribution in self.explainer.explain("good film", target="all")
        ] == [
            "joy",
            "anger",
        ]

    @pytest.mark.parametrize("target", ["predicted", Contrast("predicted", "joy")])
    def test_predicted_is_refused_for_several_regression_outputs(self, target):
        with expect_error(BadTarget, "predicted-of-numbers", mentions="joy, anger"):
            self.explainer.explain("good film", "cat", target=target)

    def test_a_method_is_tried_on_an_output_that_is_there(self):
        assert try_explaining(self.explainer, "cat")[0] is None


def test_labels_with_the_same_name_need_a_number():
    names = {0: "a", 1: "b", 2: "a"}
    explainer = Explainer(tiny_bert(id2label=names, label2id={"a": 0, "b": 1}), TOKENIZER)
    with pytest.raises(BadTarget, match="2 labels of this model are named 'a'.* 0 or 2"):
        explainer.explain("good film", "random", target="a")
    assert explainer.explain("good film", "random", target="b").target.index == 1
    assert explainer.explain("good film", "random", target=2).target.index == 2
