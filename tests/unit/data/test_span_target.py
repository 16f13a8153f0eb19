"""Answers of questions as targets: a span of the context, its start and its end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_bert_qa, tiny_tokenizer
from tests.helpers.tolerance import PASS_CONDITION, assert_close, tolerance_for
from tokenlight import Explainer, Question, SpanTarget
from tokenlight.data.span_target import find_best_span
from tokenlight.errors import BadInput, BadTarget, UnsupportedModel
from tokenlight.inputs.encode import encode_text

TOKENIZER = tiny_tokenizer()

EXPLAINER = Explainer(tiny_bert(), TOKENIZER)


class TestSpans:
    explainer = Explainer(tiny_bert_qa(), TOKENIZER)
    question = Question(question="who sat on the mat", context="the cat sat on the mat in town")

    def test_the_best_span_is_the_best_of_all_valid_ones(self):
        row = encode_text(self.question, TOKENIZER, max_tokens=None)
        logits = np.random.default_rng(0).normal(size=(len(row), 2)) * 3
        context = [i for i, segment in enumerate(row.segments) if segment == 1]
        best = max(
            ((s, e) for s in context for e in context if s <= e < s + 30),
            key=lambda span: logits[span[0], 0] + logits[span[1], 1],
        )
        assert find_best_span(logits, row) == best

    def test_the_answer_is_a_piece_of_the_context(self):
        attribution = self.explainer.explain(self.question, "attcat")
        assert attribution.prediction.label in self.question.context
        assert attribution.target.kind == "span"
        assert attribution.target.name == f"the answer ‘{attribution.prediction.label}’"

    def test_a_span_of_given_positions_is_the_sum_of_its_start_and_end(self):
        joint = self.explainer.explain(self.question, "cat", SpanTarget(8, 9))
        start = self.explainer.explain(self.question, "cat", SpanTarget(8, None))
        end = self.explainer.explain(self.question, "cat", SpanTarget(None, 9))
        assert_close(
            joint.scores, start.scores + end.scores, tolerance_for(torch.float64, PASS_CONDITION)
        )

    @pytest.mark.parametrize(
        ("target", "code"),
        [
            (SpanTarget(99, None), "span-side"),
            (SpanTarget(None, None), "span-without-sides"),
            (SpanTarget("first", None), "span-side"),
            ("positive", "answer-not-in-context"),
            ("all", "target-of-other-head"),
            (1, "target-of-other-head"),
        ],
    )
    def test_a_span_outside_the_text_is_refused(self, target, code):
        with expect_error(BadTarget, code):
            self.explainer.explain(self.question, "cat", target)

    def test_a_question_for_a_classifier_is_refused_with_what_it_does(self):
        with pytest.raises(UnsupportedModel, match="labels negative, neutral, positive"):
            EXPLAINER.explain(self.question, "cat")

    def test_a_plain_text_for_a_span_head_is_refused_with_what_to_give(self):
        with pytest.raises(BadInput, match=r"Question\(question=…, context=…\)"):
            self.explainer.explain("good film", "cat")
