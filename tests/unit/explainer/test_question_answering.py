"""Extractive question answering through the public API: targets, heads, windows, precision."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import (
    DistilBertConfig,
    DistilBertForQuestionAnswering,
    GPT2Config,
    GPT2ForQuestionAnswering,
    RobertaConfig,
    RobertaForQuestionAnswering,
)

from tests.helpers.expect import expect_error
from tests.helpers.html_reader import PageReader
from tests.helpers.tiny import randomize_weights, tiny_bert, tiny_bert_qa, tiny_tokenizer
from tests.helpers.tiny_byte_tokenizers import tiny_byte_tokenizer
from tokenlight import Contrast, Explainer, Question, SpanTarget, Tokens, load
from tokenlight.data.span_target import find_best_span
from tokenlight.errors import BadInput, BadTarget, UnsupportedModel
from tokenlight.evaluation.preflight import parse_labels
from tokenlight.evaluation.removal import RemovalRunner
from tokenlight.evaluation.trust import assess_trust
from tokenlight.inputs.encode import encode_windows
from tokenlight.plots.html import render_page
from tokenlight.plots.terminal import show

CONTEXT = "the cat sat on the mat . the dog sat in town , and the cat was great ."
QUESTION = Question(question="where is the dog ?", context=CONTEXT)
SMALL = {"num_attention_heads": 4, "hidden_size": 32, "num_hidden_layers": 2}


def explainers():
    shape = {**SMALL, "intermediate_size": 48, "vocab_size": 300}
    roberta = RobertaConfig(**shape, max_position_embeddings=200, pad_token_id=1, type_vocab_size=1)
    distil = DistilBertConfig(
        vocab_size=150, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=48
    )
    gpt2 = GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=200)
    bare = tiny_tokenizer()
    bare.model_input_names = ["input_ids", "attention_mask"]
    return {
        "bert": Explainer(tiny_bert_qa(), tiny_tokenizer()),
        "distilbert": Explainer(
            randomize_weights(DistilBertForQuestionAnswering(distil), torch.float64), bare
        ),
        "roberta": Explainer(
            randomize_weights(RobertaForQuestionAnswering(roberta), torch.float64),
            tiny_byte_tokenizer("roberta", 190),
        ),
        "gpt2": Explainer(
            randomize_weights(GPT2ForQuestionAnswering(gpt2), torch.float64), tiny_byte_tokenizer("gpt2", 190)
        ),
    }  # fmt: skip


EXPLAINERS = explainers()
BERT = EXPLAINERS["bert"]
every_head = pytest.mark.parametrize("family", EXPLAINERS)


def value(attribution) -> float:
    """The explained number, from the logits in the Attribution: all starts, then all ends."""
    sides = attribution.logits.reshape(2, -1)
    return sum(weight * sides[side, at] for (at, side), weight in attribution.target.terms)


class TestHeads:
    @every_head
    def test_the_logits_are_the_bare_models_and_the_answer_its_best_span(self, family):
        explainer = EXPLAINERS[family]
        attribution = explainer.explain(QUESTION)
        with torch.no_grad():
            encoded = explainer.tokenizer(
                QUESTION.question, QUESTION.context, return_tensors="pt", verbose=False
            )
            bare = explainer.model(**encoded)
        logits = torch.stack([bare.start_logits[0], bare.end_logits[0]], dim=1).numpy()
        np.testing.assert_allclose(attribution.logits.reshape(2, -1).T, logits, atol=1e-9)
        start, end = find_best_span(logits, attribution.row)
        assert [at for at, _ in attribution.target.terms] == [(start, 0), (end, 1)]
        assert attribution.prediction.label in CONTEXT
        assert attribution.target.name == f"the answer ‘{attribution.prediction.label}’"
        assert attribution.prediction.answer_score == pytest.approx(value(attribution))

    @every_head
    def test_official_targets_are_the_two_highest_logits(self, family):
        attribution = EXPLAINERS[family].explain(QUESTION, target=SpanTarget("argmax", "argmax"))
        starts, ends = attribution.logits.reshape(2, -1)
        assert {at for at, _ in attribution.target.terms} == {
            (int(np.argmax(starts)), 0), (int(np.argmax(ends)), 1)
        }  # fmt: skip

    @every_head
    @pytest.mark.parametrize("method", ["attcat", "rollout", "transatt", "mask_lrp"])
    def test_batch_and_left_padding_do_not_change_scores(self, family, method):
        explainer = EXPLAINERS[family]
        alone = explainer.explain(QUESTION, method)
        other_question = Question(question="who ?", context=CONTEXT[:40])
        together = explainer.explain([other_question, QUESTION], method)[1]
        np.testing.assert_allclose(together.scores, alone.scores, atol=1e-9)
        if family == "gpt2" or method != "attcat":
            return  # rows from ids: one method suffices, and GPT-2 has no segments to tell by
        row = alone.row
        pad = explainer.tokenizer.pad_token_id
        types = None if row.token_type_ids is None else [[0] * 3 + list(row.token_type_ids)]
        ids = Tokens.from_ids([[pad] * 3 + list(row.ids)], [[0] * 3 + [1] * len(row)], types)
        positions = [at[0] for at, _ in alone.target.terms]
        padded = explainer.explain(ids, method, SpanTarget(*positions))
        np.testing.assert_allclose(padded.scores, alone.scores, atol=1e-9)

    @every_head
    def test_question_and_context_have_their_shares(self, family):
        names = [part.name for part in EXPLAINERS[family].explain(QUESTION).segment_shares()]
        assert names == ["question", "context", *["special"] * (family != "gpt2")]


class TestAnswersOfOneToken:
    TOKENS = range(8, 16)  # of the context

    def scores(self, method, **span):
        return BERT.explain(QUESTION, method, SpanTarget(**span)).scores

    @pytest.mark.parametrize("method", ["gae", "grads", "att_grads", "att_gradcam"])
    @pytest.mark.parametrize("sides", [("start",), ("end",), ("start", "end")])
    def test_the_answer_itself_has_a_score(self, method, sides):
        context_positions = [
            self.scores(method, **({"start": None, "end": None} | dict.fromkeys(sides, at)))[at]
            for at in self.TOKENS
        ]
        assert np.abs(context_positions).max() > 0

    def test_a_positive_gradient_at_the_answer_is_kept(self):
        assert max(self.scores("cam", start=at, end=at)[at] for at in self.TOKENS) > 0

    def test_attention_flows_to_the_answer(self):
        assert self.scores("attention_flow", start=9, end=9)[9] > 0

    @pytest.mark.parametrize("method", ["gae", "att_gradcam", "cam", "lrp", "attention_flow"])
    def test_the_read_out_token_has_score_zero(self, method):
        assert self.scores(method, start=0, end=0)[0] == 0

    def test_the_lowest_score_replaces_the_read_out_only_for_classes(self):
        zero, lowest = (
            self.scores(("transatt", {"cls_value": value}), start=9, end=9)
            for value in ("zero", "min")
        )
        assert zero[9] > zero.min()
        np.testing.assert_array_equal(zero, lowest)


class TestGivenAnswers:
    @every_head
    def test_an_answer_is_found_by_its_characters(self, family):
        explainer = EXPLAINERS[family]
        by_text = explainer.explain(QUESTION, target=SpanTarget(answer="in town"))
        first = CONTEXT.index("in town")
        by_place = explainer.explain(QUESTION, target=SpanTarget(characters=(first, first + 7)))
        assert by_text.target == by_place.target
        assert by_text.target == explainer.explain(QUESTION, target="in town").target
        assert by_text.target.name == "the answer ‘in town’"
        (start, _), (end, _) = (at for at, _ in by_text.target.terms)
        spans = by_text.row.spans
        assert CONTEXT[spans[start][0] : spans[end][1]].strip() == "in town"

    def test_an_answer_that_occurs_more_than_once_needs_a_number(self):
        with pytest.raises(
            BadTarget, match=r"occurs 2 times .*characters 4, 55.*occurrence=0 to 1"
        ):
            BERT.explain(QUESTION, target=SpanTarget(answer="cat"))
        tokens = [
            BERT.explain(QUESTION, "cat", SpanTarget(answer="cat", occurrence=n)).target.terms[0][
                0
            ][0]
            for n in (0, 1)
        ]
        assert tokens[0] < tokens[1]

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            (SpanTarget(answer="a fish"), "'a fish' is not in the context"),
            (SpanTarget(answer="The Dog"), "exactly as they are written there"),
            (SpanTarget(answer="  "), "is not in the context"),
            (SpanTarget(answer="cat", occurrence=2), "occurrence=2 does not exist"),
            (SpanTarget(characters=(3, 3)), "contain no word"),
            (SpanTarget(characters=(0, 999)), "contain no word"),
            (Contrast("in town", "in town"), "names one span twice"),
            (Contrast("in town", 3), "3 is not an answer"),
        ],
    )
    def test_an_invalid_answer_is_refused(self, target, message):
        with pytest.raises(BadTarget, match=message):
            BERT.explain(QUESTION, target=target)

    def test_a_span_given_by_text_and_by_position_is_refused(self):
        with pytest.raises(BadTarget, match="in two ways"):
            SpanTarget(answer="cat", no_answer=True)
        with pytest.raises(BadTarget, match="in two ways"):
            SpanTarget(start=3, answer="cat")
        with pytest.raises(BadTarget, match="Give answer="):
            SpanTarget(occurrence=1)

    def test_an_answer_that_truncation_cut_off_is_refused(self):
        longer = Question(question=QUESTION.question, context=CONTEXT + " a red mat" * 20)
        with pytest.raises(BadTarget, match="truncated. Explain it with long='stride'"):
            BERT.explain(longer, target=SpanTarget(characters=(250, 253)), long="truncate")

    def test_a_row_of_ids_has_no_characters(self):
        ids = Tokens.from_ids([[2, 5, 6, 3, 7, 8, 3]])
        with pytest.raises(BadTarget, match="token ids have no text"):
            BERT.explain(ids, target="cat")


class TestNoAnswer:
    @every_head
    def test_the_prediction_states_the_null_score(self, family):
        attribution = EXPLAINERS[family].explain(QUESTION)
        sides = attribution.logits.reshape(2, -1)
        if family == "gpt2":
            assert attribution.prediction.null_score is None
            assert attribution.prediction.is_unanswered is None
            return
        assert attribution.prediction.null_score == pytest.approx(sides[:, 0].sum())
        assert attribution.prediction.is_unanswered == (
            sides[:, 0].sum() > attribution.prediction.answer_score
        )

    def test_no_answer_is_the_span_of_the_first_token(self):
        attribution = BERT.explain(QUESTION, "cat", SpanTarget(no_answer=True))
        assert attribution.target.name == "no answer"
        assert attribution.target.terms == (((0, 0), 1.0), ((0, 1), 1.0))

    def test_a_model_without_a_first_special_token_has_no_null_answer(self):
        with pytest.raises(BadTarget, match="does not begin with one"):
            EXPLAINERS["gpt2"].explain(QUESTION, target=SpanTarget(no_answer=True))

    def test_a_no_answer_prediction_is_shown_in_every_output(self, tmp_path):
        model = tiny_bert_qa()
        with torch.no_grad():  # the first token's own embedding now decides start and end
            model.qa_outputs.weight.zero_()
            model.qa_outputs.bias.zero_()
        plain = Explainer(model, tiny_tokenizer()).explain(QUESTION)
        assert plain.prediction.is_unanswered is False  # equal scores: the answer stands
        model = tiny_bert_qa()
        explainer = Explainer(model, tiny_tokenizer())
        states = []
        hook = model.bert.register_forward_hook(lambda _m, _i, out: states.append(out[0][0, 0]))
        explainer.explain(QUESTION)
        hook.remove()
        with torch.no_grad():
            model.qa_outputs.weight.copy_(states[-1].repeat(2, 1))
        attribution = explainer.explain(QUESTION)
        assert attribution.prediction.is_unanswered is True
        assert "gives no answer here" in render_page(attribution)
        stream = io.StringIO()
        show(attribution, console=Console(file=stream, width=200, color_system=None))
        assert "gives no answer here" in stream.getvalue()
        assert load(attribution.save(tmp_path / "a.json"))[0].prediction == attribution.prediction


class TestContrast:
    def test_one_answer_rather_than_another_is_the_difference_of_both(self):
        this = BERT.explain(QUESTION, "cat", "in town")
        that = BERT.explain(QUESTION, "cat", "on the mat")
        attribution = BERT.explain(QUESTION, "cat", Contrast("in town", "on the mat"))
        np.testing.assert_allclose(attribution.scores, this.scores - that.scores, atol=1e-9)
        assert attribution.target.name == "the answer ‘in town’ rather than ‘on the mat’"
        assert value(attribution) == pytest.approx(value(this) - value(that))

    @pytest.mark.parametrize("method", ["transatt", "occlusion", "attcat"])
    def test_every_kind_of_method_explains_a_contrast_of_answers(self, method):
        pair = [Contrast("in town", "on the mat"), "predicted"]
        together = BERT.explain([QUESTION, QUESTION], method, pair)
        alone = BERT.explain(QUESTION, method, pair[0])
        np.testing.assert_allclose(together[0].scores, alone.scores, atol=1e-9)

    def test_the_predicted_answer_is_contrasted_with_one_that_shares_a_boundary(self):
        attribution = BERT.explain(QUESTION, "cat", Contrast("the dog sat", "the dog"))
        assert len(attribution.target.terms) == 2  # both begin at one token, whose logit cancels

    def test_the_faithfulness_of_a_contrast_of_answers_can_be_measured_and_repeated(self):
        attribution = BERT.explain(QUESTION, "attcat", Contrast("in town", "on the mat"))
        measured = BERT.evaluate(attribution, ["aopc", "randomisation"], progress=False)
        assert not measured.skip_reasons
        assert measured.rows[0]["aopc"] is not None

    def test_both_answers_are_underlined_by_tokens_and_by_words(self):
        question = Question(question="what ?", context="a charming film , not a slower movie .")
        attribution = BERT.explain(question, target=Contrast("charming film", "slower"))
        for line in PageReader(render_page(attribution)).lines[
            1::2
        ]:  # the context, by tokens and by words
            under = {
                look: "".join(m[2] for m in line.marks if look in m[0].split())
                for look in ("answer", "rival")
            }
            assert under == {"answer": "charmingfilm", "rival": "slower"}


class TestWindows:
    filler = "the movie was slow and the acting was dull . " * 6
    question = Question(question="where ?", context=filler + "the cat sat in town . " + filler)

    def test_a_given_answer_is_explained_in_a_window_that_holds_it(self):
        attribution = BERT.explain(self.question, "cat", "in town", long="stride")
        (start, _), (end, _) = (at for at, _ in attribution.target.terms)
        assert attribution.row.surface_forms[start : end + 1] == ("in", "town")
        windows = attribution.extras["windows"]
        [used] = [w for w in windows if w["weight"] == 1.0]
        assert used["first"] <= start <= end <= used["last"]
        assert sum(w["weight"] for w in windows) == 1.0
        outside = [
            i for i, s in enumerate(attribution.row.segments)
            if s == 1 and not used["first"] <= i <= used["last"]
        ]  # fmt: skip
        assert outside
        assert not attribution.scores[outside].any()
        assert np.abs(attribution.scores[used["first"] : used["last"] + 1]).min() > 0

    def test_the_window_is_the_one_where_the_answer_scores_best(self):
        limit = BERT.max_tokens
        scores = []
        for row, _ in encode_windows(
            self.question, BERT.tokenizer, max_tokens=limit, overlap=limit // 4
        ):
            alone = BERT.explain(row, "cat")
            scores.append(alone.prediction.answer_score)
        attribution = BERT.explain(self.question, "cat", long="stride")
        weights = [w["weight"] for w in attribution.extras["windows"]]
        assert int(np.argmax(weights)) == int(np.argmax(scores))
        assert attribution.prediction.answer_score == pytest.approx(max(scores))

    def test_the_null_score_is_the_lowest_of_the_windows_and_explained_there(self):
        attribution = BERT.explain(self.question, "cat", SpanTarget(no_answer=True), long="stride")
        assert value(attribution) == pytest.approx(attribution.prediction.null_score)

    def test_trust_takes_words_from_the_window_that_answers_and_from_no_other(self):
        attribution = BERT.explain(self.question, "attcat", "in town", long="stride")
        watched = RemovalRunner(BERT, attribution, {})
        [used] = [w for w in attribution.extras["windows"] if w["weight"] == 1.0]
        context = [i for i in watched.removable_positions if attribution.row.segments[i] == 1]
        assert (context[0], context[-1]) == (used["first"], used["last"])
        number = attribution.extras["windows"].index(used)
        limit = BERT.max_tokens
        row, positions = encode_windows(
            self.question, BERT.tokenizer, max_tokens=limit, overlap=limit // 4
        )[number]
        with torch.no_grad():
            outputs = BERT.model(
                torch.tensor([row.ids]), token_type_ids=torch.tensor([row.token_type_ids])
            )
        sides = outputs.start_logits[0].softmax(0), outputs.end_logits[0].softmax(0)
        (start, _), (end, _) = (at for at, _ in attribution.target.terms)
        chance = float(sides[0][positions.index(start)] * sides[1][positions.index(end)])
        trust = assess_trust(BERT, attribution).extras["trust"]
        assert trust["before"] == pytest.approx(chance, abs=1e-9)

    def test_token_numbers_count_the_whole_text(self):
        by_words = BERT.explain(self.question, "cat", "in town", long="stride")
        (start, _), (end, _) = (at for at, _ in by_words.target.terms)
        by_number = BERT.explain(self.question, "cat", SpanTarget(start, end), long="stride")
        np.testing.assert_allclose(by_number.scores, by_words.scores)

    def test_answers_that_share_no_window_cannot_be_contrasted(self):
        last = Question(self.question.question, self.question.context + " a red dog")
        with expect_error(BadTarget, "answer-in-no-window") as refusal:
            BERT.explain(last, "cat", Contrast(SpanTarget(answer="slow", occurrence=0), "red dog"),
                         long="stride")  # fmt: skip
        assert "explain each by itself" in str(refusal.value)

    @pytest.mark.parametrize(("this", "that"), [(True, None), (True, False), (False, True)])
    def test_an_answer_longer_than_a_window_is_refused(self, this, that):
        answers = {True: self.filler.strip() + " the cat sat in town", False: "in town"}
        expected = answers[this] if that is None else Contrast(answers[this], answers[that])
        with expect_error(BadTarget, "answer-in-no-window"):
            BERT.explain(self.question, "cat", expected, long="stride")

    def test_a_context_that_fits_is_read_as_a_whole(self):
        unstrided, strided = (
            BERT.explain(QUESTION, "attcat", long=way) for way in ("error", "stride")
        )
        np.testing.assert_array_equal(strided.scores, unstrided.scores)
        assert "windows" not in strided.extras

    def test_precision_finds_the_gold_answer_in_its_own_window(self):
        attribution = BERT.explain(self.question, "attcat", "in town", long="stride")
        first = self.question.context.index("in town")
        gold = [(first, first + 7)]
        everything = ("precision_at_k", {"k": len(attribution)})
        measured = BERT.evaluate(attribution, everything, spans=[gold], progress=False)
        assert measured.summary["precision_at_k"]["mean"] == 2.0
        by_hand = np.argsort(-attribution.scores, kind="stable")[:5]
        positions = {at[0] for at, _ in attribution.target.terms}
        top = BERT.evaluate(attribution, ("precision_at_k", {"k": 5}), spans=[gold], progress=False)
        assert top.summary["precision_at_k"]["mean"] == len(positions & set(by_hand.tolist()))


class TestWrongUses:
    def test_a_question_for_a_classifier_is_refused_with_what_the_model_does(self):
        with expect_error(UnsupportedModel, "model-does-not-answer"):
            Explainer(tiny_bert(), tiny_tokenizer()).explain(QUESTION)

    @pytest.mark.parametrize("inputs", ["a text", ("a", "pair")])
    def test_a_text_or_a_pair_for_a_qa_model_is_refused_with_what_to_give(self, inputs):
        with expect_error(BadInput, "question-needed"):
            BERT.explain(inputs)

    def test_target_all_is_refused_for_a_model_without_classes(self):
        with pytest.raises(BadTarget, match="is not valid for this model: it answers questions"):
            BERT.explain(QUESTION, target="all")


def test_a_true_label_is_refused_where_there_are_only_answers():
    head = Explainer(tiny_bert_qa(), tiny_tokenizer()).runner.head
    with pytest.raises(
        BadInput, match="label 'positive' cannot be used: it answers questions.*labels out"
    ):
        parse_labels(["positive"], head)
