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

from tests.tiny import randomised, tiny_bert, tiny_bert_qa, tiny_tokenizer
from tests.tiny_bytes import tiny_bytes
from tests.unit.reading_html import Reader
from tokenlight import Contrast, Explainer, Question, SpanTarget, Tokens, load
from tokenlight.data.answers import best_span
from tokenlight.errors import BadInput, BadTarget, UnsupportedModel
from tokenlight.evaluation.preflight import read_labels
from tokenlight.evaluation.removal import Watched
from tokenlight.evaluation.trust import trusted
from tokenlight.inputs.encode import encode_windows
from tokenlight.plots.html import page
from tokenlight.plots.terminal import show

CONTEXT = "the cat sat on the mat . the dog sat in town , and the cat was great ."
ASKED = Question(question="where is the dog ?", context=CONTEXT)
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
        "distilbert": Explainer(randomised(DistilBertForQuestionAnswering(distil), torch.float64), bare),
        "roberta": Explainer(
            randomised(RobertaForQuestionAnswering(roberta), torch.float64),
            tiny_bytes("roberta", 190),
        ),
        "gpt2": Explainer(
            randomised(GPT2ForQuestionAnswering(gpt2), torch.float64), tiny_bytes("gpt2", 190)
        ),
    }  # fmt: skip


EXPLAINERS = explainers()
BERT = EXPLAINERS["bert"]
every_head = pytest.mark.parametrize("family", EXPLAINERS)


def value(found) -> float:
    """The explained number, from the logits in the Attribution: all starts, then all ends."""
    sides = found.logits.reshape(2, -1)
    return sum(weight * sides[side, at] for (at, side), weight in found.target.terms)


class TestHeads:
    @every_head
    def test_the_logits_are_the_bare_models_and_the_answer_its_best_span(self, family):
        explainer = EXPLAINERS[family]
        found = explainer.explain(ASKED)
        with torch.no_grad():
            encoded = explainer.tokenizer(
                ASKED.question, ASKED.context, return_tensors="pt", verbose=False
            )
            bare = explainer.model(**encoded)
        logits = torch.stack([bare.start_logits[0], bare.end_logits[0]], dim=1).numpy()
        np.testing.assert_allclose(found.logits.reshape(2, -1).T, logits, atol=1e-9)
        start, end = best_span(logits, found.row)
        assert [at for at, _ in found.target.terms] == [(start, 0), (end, 1)]
        assert found.prediction.label in CONTEXT
        assert found.target.name == f"the answer ‘{found.prediction.label}’"
        assert found.prediction.answer_score == pytest.approx(value(found))

    @every_head
    def test_official_targets_are_the_two_highest_logits(self, family):
        found = EXPLAINERS[family].explain(ASKED, target=SpanTarget("argmax", "argmax"))
        starts, ends = found.logits.reshape(2, -1)
        assert {at for at, _ in found.target.terms} == {
            (int(np.argmax(starts)), 0), (int(np.argmax(ends)), 1)
        }  # fmt: skip

    @every_head
    @pytest.mark.parametrize("method", ["attcat", "rollout", "transatt", "mask_lrp"])
    def test_batch_mates_and_left_padding_do_not_matter(self, family, method):
        explainer = EXPLAINERS[family]
        alone = explainer.explain(ASKED, method)
        mate = Question(question="who ?", context=CONTEXT[:40])
        together = explainer.explain([mate, ASKED], method)[1]
        np.testing.assert_allclose(together.scores, alone.scores, atol=1e-9)
        if family == "gpt2" or method != "attcat":
            return  # rows from ids: one method suffices, and GPT-2 has no segments to tell by
        row, pad = alone.row, explainer.tokenizer.pad_token_id
        types = None if row.token_types is None else [[0] * 3 + list(row.token_types)]
        ids = Tokens.from_ids([[pad] * 3 + list(row.ids)], [[0] * 3 + [1] * len(row)], types)
        places = [at[0] for at, _ in alone.target.terms]
        again = explainer.explain(ids, method, SpanTarget(*places))
        np.testing.assert_allclose(again.scores, alone.scores, atol=1e-9)

    @every_head
    def test_question_and_context_have_their_shares(self, family):
        names = [part.name for part in EXPLAINERS[family].explain(ASKED).segment_shares()]
        assert names == ["question", "context", *["special"] * (family != "gpt2")]


class TestAnswersOfOneToken:
    TOKENS = range(8, 16)  # of the context

    def scores(self, method, **span):
        return BERT.explain(ASKED, method, SpanTarget(**span)).scores

    @pytest.mark.parametrize("method", ["gae", "grads", "att_grads", "att_gradcam"])
    @pytest.mark.parametrize("sides", [("start",), ("end",), ("start", "end")])
    def test_the_answer_itself_has_a_score(self, method, sides):
        own = [
            self.scores(method, **({"start": None, "end": None} | dict.fromkeys(sides, at)))[at]
            for at in self.TOKENS
        ]
        assert np.abs(own).max() > 0

    def test_a_positive_gradient_at_the_answer_is_kept(self):
        assert max(self.scores("cam", start=at, end=at)[at] for at in self.TOKENS) > 0

    def test_attention_flows_to_the_answer(self):
        assert self.scores("attention_flow", start=9, end=9)[9] > 0

    @pytest.mark.parametrize("method", ["gae", "att_gradcam", "cam", "lrp", "attention_flow"])
    def test_the_first_token_is_nothing_to_itself(self, method):
        assert self.scores(method, start=0, end=0)[0] == 0

    def test_the_lowest_score_is_for_a_class_alone(self):
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
        by_text = explainer.explain(ASKED, target=SpanTarget(answer="in town"))
        first = CONTEXT.index("in town")
        by_place = explainer.explain(ASKED, target=SpanTarget(characters=(first, first + 7)))
        assert by_text.target == by_place.target
        assert by_text.target == explainer.explain(ASKED, target="in town").target
        assert by_text.target.name == "the answer ‘in town’"
        (start, _), (end, _) = (at for at, _ in by_text.target.terms)
        spans = by_text.row.spans
        assert CONTEXT[spans[start][0] : spans[end][1]].strip() == "in town"

    def test_several_places_need_a_number(self):
        with pytest.raises(
            BadTarget, match=r"occurs 2 times .*characters 4, 55.*occurrence=0 to 1"
        ):
            BERT.explain(ASKED, target=SpanTarget(answer="cat"))
        tokens = [
            BERT.explain(ASKED, "cat", SpanTarget(answer="cat", occurrence=n)).target.terms[0][0][0]
            for n in (0, 1)
        ]
        assert tokens[0] < tokens[1]

    @pytest.mark.parametrize(
        ("target", "says"),
        [
            (SpanTarget(answer="a fish"), "'a fish' is not in the context"),
            (SpanTarget(answer="The Dog"), "exactly as they are written there"),
            (SpanTarget(answer="  "), "is not in the context"),
            (SpanTarget(answer="cat", occurrence=2), "occurrence=2 does not exist"),
            (SpanTarget(characters=(3, 3)), "hold no word"),
            (SpanTarget(characters=(0, 999)), "hold no word"),
            (Contrast("in town", "in town"), "names one span twice"),
            (Contrast("in town", 3), "3 is not an answer"),
        ],
    )
    def test_what_is_no_answer_is_refused_in_words(self, target, says):
        with pytest.raises(BadTarget, match=says):
            BERT.explain(ASKED, target=target)

    def test_one_span_is_not_named_in_two_ways(self):
        with pytest.raises(BadTarget, match="in two ways"):
            SpanTarget(answer="cat", no_answer=True)
        with pytest.raises(BadTarget, match="in two ways"):
            SpanTarget(start=3, answer="cat")
        with pytest.raises(BadTarget, match="give answer="):
            SpanTarget(occurrence=1)

    def test_an_answer_that_truncation_cut_off_is_refused(self):
        longer = Question(question=ASKED.question, context=CONTEXT + " a red mat" * 20)
        with pytest.raises(BadTarget, match="cut off; explain it with long='stride'"):
            BERT.explain(longer, target=SpanTarget(characters=(250, 253)), long="truncate")

    def test_a_row_of_ids_has_no_characters(self):
        ids = Tokens.from_ids([[2, 5, 6, 3, 7, 8, 3]])
        with pytest.raises(BadTarget, match="a row of ids knows no text"):
            BERT.explain(ids, target="cat")


class TestNoAnswer:
    @every_head
    def test_the_prediction_states_the_null_score(self, family):
        found = EXPLAINERS[family].explain(ASKED)
        sides = found.logits.reshape(2, -1)
        if family == "gpt2":
            assert found.prediction.null_score is None
            assert found.prediction.unanswered is None
            return
        assert found.prediction.null_score == pytest.approx(sides[:, 0].sum())
        assert found.prediction.unanswered == (sides[:, 0].sum() > found.prediction.answer_score)

    def test_no_answer_is_the_span_of_the_first_token(self):
        found = BERT.explain(ASKED, "cat", SpanTarget(no_answer=True))
        assert found.target.name == "no answer"
        assert found.target.terms == (((0, 0), 1.0), ((0, 1), 1.0))

    def test_a_model_without_a_first_special_token_cannot_say_it(self):
        with pytest.raises(BadTarget, match="begins with none"):
            EXPLAINERS["gpt2"].explain(ASKED, target=SpanTarget(no_answer=True))

    def test_a_model_that_says_no_answer_is_told_so_everywhere(self, tmp_path):
        model = tiny_bert_qa()
        with torch.no_grad():  # the first token's own embedding now decides start and end
            model.qa_outputs.weight.zero_()
            model.qa_outputs.bias.zero_()
        plain = Explainer(model, tiny_tokenizer()).explain(ASKED)
        assert plain.prediction.unanswered is False  # equal scores: the answer stands
        model = tiny_bert_qa()
        explainer = Explainer(model, tiny_tokenizer())
        states = []
        hook = model.bert.register_forward_hook(lambda _m, _i, out: states.append(out[0][0, 0]))
        explainer.explain(ASKED)
        hook.remove()
        with torch.no_grad():
            model.qa_outputs.weight.copy_(states[-1].repeat(2, 1))
        found = explainer.explain(ASKED)
        assert found.prediction.unanswered is True
        assert "says that there is none" in page(found)
        stream = io.StringIO()
        show(found, console=Console(file=stream, width=200, color_system=None))
        assert "says that there is none" in stream.getvalue()
        assert load(found.save(tmp_path / "a.json"))[0].prediction == found.prediction


class TestContrast:
    def test_one_answer_rather_than_another_is_the_difference_of_both(self):
        this = BERT.explain(ASKED, "cat", "in town")
        that = BERT.explain(ASKED, "cat", "on the mat")
        found = BERT.explain(ASKED, "cat", Contrast("in town", "on the mat"))
        np.testing.assert_allclose(found.scores, this.scores - that.scores, atol=1e-9)
        assert found.target.name == "the answer ‘in town’ rather than ‘on the mat’"
        assert value(found) == pytest.approx(value(this) - value(that))

    @pytest.mark.parametrize("method", ["transatt", "occlusion", "attcat"])
    def test_every_kind_of_method_explains_it_beside_a_plain_one(self, method):
        pair = [Contrast("in town", "on the mat"), "predicted"]
        together = BERT.explain([ASKED, ASKED], method, pair)
        alone = BERT.explain(ASKED, method, pair[0])
        np.testing.assert_allclose(together[0].scores, alone.scores, atol=1e-9)

    def test_it_can_hold_the_predicted_answer_against_one_that_shares_a_side(self):
        found = BERT.explain(ASKED, "cat", Contrast("the dog sat", "the dog"))
        assert len(found.target.terms) == 2  # both begin at one token, whose logit cancels

    def test_its_faithfulness_can_be_measured_and_repeated(self):
        found = BERT.explain(ASKED, "attcat", Contrast("in town", "on the mat"))
        measured = BERT.evaluate(found, ["aopc", "randomisation"], progress=False)
        assert not measured.skipped
        assert measured.rows[0]["aopc"] is not None

    def test_both_answers_are_underlined_by_tokens_and_by_words(self):
        asked = Question(question="what ?", context="a charming film , not a slower movie .")
        found = BERT.explain(asked, target=Contrast("charming film", "slower"))
        for line in Reader(page(found)).lines[1::2]:  # the context, by tokens and by words
            under = {
                look: "".join(m[2] for m in line.marks if look in m[0].split())
                for look in ("answer", "rival")
            }
            assert under == {"answer": "charmingfilm", "rival": "slower"}


class TestWindows:
    filler = "the movie was slow and the acting was dull . " * 6
    asked = Question(question="where ?", context=filler + "the cat sat in town . " + filler)

    def test_a_given_answer_is_explained_in_a_window_that_holds_it(self):
        found = BERT.explain(self.asked, "cat", "in town", long="stride")
        (start, _), (end, _) = (at for at, _ in found.target.terms)
        assert found.row.surface[start : end + 1] == ("in", "town")
        windows = found.extras["windows"]
        [used] = [w for w in windows if w["weight"] == 1.0]
        assert used["first"] <= start <= end <= used["last"]
        assert sum(w["weight"] for w in windows) == 1.0
        outside = [
            i for i, s in enumerate(found.row.segments)
            if s == 1 and not used["first"] <= i <= used["last"]
        ]  # fmt: skip
        assert outside
        assert not found.scores[outside].any()
        assert np.abs(found.scores[used["first"] : used["last"] + 1]).min() > 0

    def test_the_window_is_the_one_where_the_answer_scores_best(self):
        limit = BERT.max_tokens
        scores = []
        for row, _ in encode_windows(self.asked, BERT.tokenizer, limit=limit, overlap=limit // 4):
            alone = BERT.explain(row, "cat")
            scores.append(alone.prediction.answer_score)
        found = BERT.explain(self.asked, "cat", long="stride")
        weights = [w["weight"] for w in found.extras["windows"]]
        assert int(np.argmax(weights)) == int(np.argmax(scores))
        assert found.prediction.answer_score == pytest.approx(max(scores))

    def test_the_null_score_is_the_lowest_of_the_windows_and_explained_there(self):
        found = BERT.explain(self.asked, "cat", SpanTarget(no_answer=True), long="stride")
        assert value(found) == pytest.approx(found.prediction.null_score)

    def test_trust_takes_words_from_the_window_that_answers_and_from_no_other(self):
        found = BERT.explain(self.asked, "attcat", "in town", long="stride")
        watched = Watched(BERT, found, {})
        [used] = [w for w in found.extras["windows"] if w["weight"] == 1.0]
        context = [i for i in watched.places if found.row.segments[i] == 1]
        assert (context[0], context[-1]) == (used["first"], used["last"])
        number = found.extras["windows"].index(used)
        limit = BERT.max_tokens
        row, places = encode_windows(self.asked, BERT.tokenizer, limit=limit, overlap=limit // 4)[
            number
        ]
        with torch.no_grad():
            said = BERT.model(
                torch.tensor([row.ids]), token_type_ids=torch.tensor([row.token_types])
            )
        sides = said.start_logits[0].softmax(0), said.end_logits[0].softmax(0)
        (start, _), (end, _) = (at for at, _ in found.target.terms)
        chance = float(sides[0][places.index(start)] * sides[1][places.index(end)])
        trust = trusted(BERT, found).extras["trust"]
        assert trust["before"] == pytest.approx(chance, abs=1e-9)

    def test_token_numbers_count_the_whole_text(self):
        by_words = BERT.explain(self.asked, "cat", "in town", long="stride")
        (start, _), (end, _) = (at for at, _ in by_words.target.terms)
        by_number = BERT.explain(self.asked, "cat", SpanTarget(start, end), long="stride")
        np.testing.assert_allclose(by_number.scores, by_words.scores)

    def test_answers_that_share_no_window_cannot_be_held_against_each_other(self):
        last = Question(self.asked.question, self.asked.context + " a red dog")
        with pytest.raises(
            BadTarget, match="windows holds .* both answers of a contrast"
        ) as refusal:
            BERT.explain(last, "cat", Contrast(SpanTarget(answer="slow", occurrence=0), "red dog"),
                         long="stride")  # fmt: skip
        assert "explain each by itself" in str(refusal.value)

    @pytest.mark.parametrize(("this", "that"), [(True, None), (True, False), (False, True)])
    def test_an_answer_longer_than_a_window_is_refused(self, this, that):
        answers = {True: self.filler.strip() + " the cat sat in town", False: "in town"}
        wanted = answers[this] if that is None else Contrast(answers[this], answers[that])
        with pytest.raises(BadTarget, match="windows holds the answer as a whole"):
            BERT.explain(self.asked, "cat", wanted, long="stride")

    def test_a_context_that_fits_is_read_as_a_whole(self):
        whole, strided = (BERT.explain(ASKED, "attcat", long=way) for way in ("error", "stride"))
        np.testing.assert_array_equal(strided.scores, whole.scores)
        assert "windows" not in strided.extras

    def test_precision_finds_the_gold_answer_in_its_own_window(self):
        found = BERT.explain(self.asked, "attcat", "in town", long="stride")
        first = self.asked.context.index("in town")
        gold = [(first, first + 7)]
        everything = ("precision_at_k", {"k": len(found)})
        measured = BERT.evaluate(found, everything, spans=[gold], progress=False)
        assert measured.summary["precision_at_k"]["mean"] == 2.0
        by_hand = np.argsort(-found.scores, kind="stable")[:5]
        places = {at[0] for at, _ in found.target.terms}
        top = BERT.evaluate(found, ("precision_at_k", {"k": 5}), spans=[gold], progress=False)
        assert top.summary["precision_at_k"]["mean"] == len(places & set(by_hand.tolist()))


class TestWrongUses:
    def test_a_question_to_a_classifier_says_what_the_model_does(self):
        with pytest.raises(UnsupportedModel, match="does not answer questions: it is a classifier"):
            Explainer(tiny_bert(), tiny_tokenizer()).explain(ASKED)

    @pytest.mark.parametrize("given", ["a text", ("a", "pair")])
    def test_a_text_or_a_pair_to_a_model_of_questions_says_what_to_give(self, given):
        with pytest.raises(BadInput, match=r"give Question\(question=…, context=…\)"):
            BERT.explain(given)

    def test_all_classes_of_a_model_without_classes(self):
        with pytest.raises(BadTarget, match="is none of this model: it answers questions"):
            BERT.explain(ASKED, target="all")


def test_a_true_label_is_refused_where_there_are_only_answers():
    head = Explainer(tiny_bert_qa(), tiny_tokenizer()).live.head
    with pytest.raises(
        BadInput, match="label 'positive' has no use: it answers questions.*labels out"
    ):
        read_labels(["positive"], head)
