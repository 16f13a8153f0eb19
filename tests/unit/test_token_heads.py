"""Heads with an output for each token: masked language models and token classifiers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import BertForTokenClassification

import tokenlight as tl
from tests.tiny import randomised, tiny_bert_lm, tiny_config, tiny_tokenizer
from tokenlight.errors import BadInput, BadTarget, UnknownName, UnsupportedModel

MASKED = "the film was [MASK] and slow"
TAGGED = "the film was charming but the plot slow"


@pytest.fixture(scope="module")
def filler():
    return tl.Explainer(tiny_bert_lm(), tiny_tokenizer())


@pytest.fixture(scope="module")
def tagger():
    model = randomised(BertForTokenClassification(tiny_config()), torch.float64)
    return tl.Explainer(model, tiny_tokenizer())


def bare(explainer, row):
    arguments = {
        "input_ids": torch.tensor([row.ids]),
        "token_type_ids": torch.tensor([row.token_types]),
    }
    with torch.no_grad():
        return explainer.model(**arguments).logits[0].numpy()


class TestMasked:
    def test_the_logits_are_those_at_the_mask(self, filler):
        found = filler.explain(MASKED)
        assert found.row.pieces[found.row.at] == "[MASK]"
        np.testing.assert_allclose(found.logits, bare(filler, found.row)[found.row.at], atol=1e-9)
        assert found.target.index == int(np.argmax(found.logits))

    def test_a_word_its_number_and_a_contrast(self, filler):
        number = filler.tokenizer.convert_tokens_to_ids("good")
        for target in ("good", number):
            assert filler.explain(MASKED, target=target).target.index == number
        both = filler.explain(MASKED, "grad_x_input", tl.Contrast("good", "bad"))
        parts = [filler.explain(MASKED, "grad_x_input", word) for word in ("good", "bad")]
        np.testing.assert_allclose(both.scores, parts[0].scores - parts[1].scores, atol=1e-10)

    def test_of_two_masks_one_is_named_by_its_number(self, filler):
        text = "the [MASK] was [MASK]"
        with pytest.raises(BadInput, match="the text has 2"):
            filler.explain(text)
        found = filler.explain(text, target=tl.TokenTarget(4, "good"))
        assert found.row.at == 4
        np.testing.assert_allclose(found.logits, bare(filler, found.row)[4], atol=1e-9)

    def test_a_text_without_a_mask_says_how_to_write_one(self, filler):
        with pytest.raises(BadInput, match=r"the text has 0: write \[MASK\] once"):
            filler.explain("the film was good")

    @pytest.mark.parametrize(
        ("given", "target", "error"),
        [
            ((MASKED, MASKED), "predicted", UnsupportedModel),
            (tl.Question("who", MASKED), "predicted", UnsupportedModel),
            (MASKED, tl.NextToken("good"), BadTarget),
            (MASKED, tl.Continuation(" good"), BadTarget),
            (MASKED, "all", BadTarget),
        ],
    )
    def test_a_wrong_use_says_what_it_can_do(self, filler, given, target, error):
        with pytest.raises(error, match="fills in|name the tokens"):
            filler.explain(given, target=target)

    def test_occlusion_never_replaces_the_mask(self, filler):
        found = filler.explain(MASKED, ("occlusion", {"window": 1, "special": "replace"}))
        assert found.scores[found.row.at] == 0
        assert np.count_nonzero(found.scores) == len(found) - 1

    def test_removing_words_never_removes_the_mask(self, filler):
        found = filler.explain([MASKED, "a [MASK] cat sat on the mat"], ["occlusion", "random"])
        measured = filler.evaluate(found, ["aopc", "lodds", ("aopc", {"perturb": "mask"})])
        assert len(measured.rows) == 4
        from tokenlight.capture.perturbation import Original, StandIns, stream_logits

        row = found[0].row
        original = Original(row, StandIns.of(filler.live, filler.tokenizer))
        assert row.at not in original.rankable
        fewer = original.without([1, 2])
        (logits,) = stream_logits(filler.live, [fewer])
        kept = row.take([i for i in range(len(row)) if i not in (1, 2)])
        assert kept.at == row.at - 2 == fewer.at
        np.testing.assert_allclose(logits, bare(filler, kept)[kept.at], atol=1e-9)
        with pytest.raises(BadInput, match="cannot be deleted"):
            original.without([row.at])


class TestTagged:
    def test_a_word_is_found_and_its_first_token_asked(self, tagger):
        found = tagger.explain(TAGGED, target=tl.TokenTarget("charming"))
        assert found.row.pieces[found.row.at] == "charm"
        np.testing.assert_allclose(found.logits, bare(tagger, found.row)[found.row.at], atol=1e-9)
        assert found.prediction.label in tagger.labels

    def test_a_label_and_a_contrast_for_one_word(self, tagger):
        found = tagger.explain(TAGGED, target=tl.TokenTarget("plot", "neutral"))
        assert found.target.name == "neutral"
        with pytest.raises(UnknownName):
            tagger.explain(TAGGED, target=tl.TokenTarget("plot", "neutrl"))

    def test_of_equal_words_one_is_chosen(self, tagger):
        with pytest.raises(BadTarget, match="occurs 2 times"):
            tagger.explain(TAGGED, target=tl.TokenTarget("the"))
        first, second = (
            tagger.explain(TAGGED, target=tl.TokenTarget("the", occurrence=i)) for i in (0, 1)
        )
        assert first.row.at < second.row.at

    def test_without_a_word_the_error_tells_what_the_model_says_of_each(self, tagger):
        with pytest.raises(BadTarget, match=r"say which word .* film (negative|neutral|positive)"):
            tagger.explain(TAGGED)

    def test_all_is_every_word_with_the_label_it_gets(self, tagger):
        found = tagger.explain(TAGGED, ["attcat", "gae"], "all")
        assert len(found) == 2 * 8
        assert [a.method for a in found] == ["attcat"] * 8 + ["gae"] * 8
        for one in found:
            logits = bare(tagger, one.row)[one.row.at]
            np.testing.assert_allclose(one.logits, logits, atol=1e-9)
            assert one.target.index == int(np.argmax(logits))

    @pytest.mark.parametrize("at", [99, -1, "absent"])
    def test_a_token_that_is_not_there_is_refused(self, tagger, at):
        with pytest.raises(BadTarget):
            tagger.explain(TAGGED, target=tl.TokenTarget(at))

    def test_batch_mates_and_order_change_nothing(self, tagger):
        texts = [TAGGED, "a cat sat", "the plot was very very dull and slow"]
        targets = [tl.TokenTarget("plot"), tl.TokenTarget("cat"), tl.TokenTarget("dull")]
        for method in ("attcat", "transatt", "gae"):
            together = tagger.explain(texts, method, targets)
            for text, target, one in zip(texts, targets, together, strict=True):
                alone = tagger.explain(text, method, target)
                scale = np.abs(alone.scores).max()
                np.testing.assert_allclose(one.scores, alone.scores, rtol=0, atol=1e-9 * scale)

    def test_it_is_measured_without_losing_its_token(self, tagger):
        found = tagger.explain(TAGGED, ["occlusion", "random"], tl.TokenTarget("plot"))
        measured = tagger.evaluate(found, ["aopc", "comprehensiveness"])
        assert np.isfinite(measured.by_method["occlusion"].summary["aopc"]["mean"])

    def test_it_survives_a_file(self, tagger, tmp_path):
        found = tagger.explain(TAGGED, target=tl.TokenTarget("plot"))
        back = tl.Attribution.load(found.save(tmp_path / "token.json"))
        assert back.row == found.row
        assert back.row.at == found.row.at

    def test_a_classifier_refuses_a_token_target(self):
        from tests.tiny import tiny_bert

        explainer = tl.Explainer(tiny_bert(), tiny_tokenizer())
        with pytest.raises(BadTarget, match="it is a classifier with the labels"):
            explainer.explain(TAGGED, target=tl.TokenTarget("plot"))


NAMED = "the red cat sat in blue town"
TAGS = (
    "O",
    "B-ORG",
    "I-ORG",
    "O",
    "O",
    "I-LOC",
    "I-LOC",
)  # a name may begin with I, as CoNLL has it
LABELS = ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG")


@pytest.fixture(scope="module")
def namer():
    """A tagger whose last layer is solved for, so that it gives the words of NAMED their TAGS."""
    numbers = dict(enumerate(LABELS))
    config = tiny_config(id2label=numbers, label2id={name: i for i, name in numbers.items()})
    model = randomised(BertForTokenClassification(config), torch.float64)
    ids = torch.tensor([tiny_tokenizer()(NAMED)["input_ids"]])
    with torch.no_grad():
        states = model.bert(ids).last_hidden_state[0, 1:-1]
        wanted = 4.0 * torch.eye(len(LABELS), dtype=torch.float64)
        wanted = wanted[[LABELS.index(tag) for tag in TAGS]] - model.classifier.bias
        wanted += torch.cos(torch.arange(wanted.numel())).reshape(wanted.shape)  # no ties
        model.classifier.weight.copy_(torch.linalg.lstsq(states, wanted).solution.T)
    return tl.Explainer(model, tiny_tokenizer())


class TestNames:
    @pytest.mark.parametrize(
        "method", ["grad_x_input", "attnlrp", "integrated_gradients", "attcat"]
    )
    def test_two_words_are_one_target_whose_scores_are_their_sum(self, namer, method):
        whole = namer.explain(NAMED, method, tl.TokenTarget("red cat"))
        words = [namer.explain(NAMED, method, tl.TokenTarget(word)) for word in ("red", "cat")]
        assert [one.target.name for one in words] == ["B-ORG", "I-ORG"]
        assert whole.target.name == whole.prediction.label == "ORG"
        summed = words[0].scores + words[1].scores
        scale = np.abs(summed).max()
        np.testing.assert_allclose(whole.scores, summed, rtol=0, atol=1e-9 * scale)
        chances = [one.prediction.probability for one in words]
        assert whole.prediction.probability == pytest.approx(np.prod(chances), rel=1e-9)

    def test_entities_are_the_names_that_tags_mark(self, namer):
        found = namer.explain(NAMED, ["grad_x_input", "gae"], "entities")
        named = [(one.method, one.target.name, one.row.asked) for one in found]
        both = [("ORG", (2, 3)), ("LOC", (6, 7))]
        assert named == [(m, *name) for m in ("grad_x_input", "gae") for name in both]

    def test_a_type_stands_for_the_likeliest_of_its_tags_at_each_word(self, namer):
        found = namer.explain(NAMED, "grad_x_input", tl.TokenTarget("red cat", "LOC"))
        logits = bare(namer, found.row)[[2, 3]]
        expected = [1 + int(np.argmax(own[1:3])) for own in logits]
        assert found.row.answer == tuple(expected)
        np.testing.assert_allclose(found.logits[:2], logits[range(2), expected], rtol=0, atol=1e-9)
        one = namer.explain(NAMED, "grad_x_input", tl.TokenTarget("town", "LOC"))
        assert one.target.name in ("B-LOC", "I-LOC")

    @pytest.mark.parametrize("words", ["red cat", "town"])
    def test_a_contrast_of_labels_is_the_difference_of_two(self, namer, words):
        this, that = (
            namer.explain(NAMED, "grad_x_input", tl.TokenTarget(words, kind)).scores
            for kind in ("ORG", "LOC")
        )
        asked = tl.TokenTarget(words, tl.Contrast("ORG", "LOC"))
        found = namer.explain(NAMED, "grad_x_input", asked)
        np.testing.assert_allclose(found.scores, this - that, rtol=0, atol=1e-10)
        assert "rather than" in found.target.name

    def test_a_bare_contrast_is_asked_of_the_one_name_that_is_labelled_so(self, namer):
        bare_one = namer.explain(NAMED, "grad_x_input", tl.Contrast("ORG", "LOC"))
        asked = tl.TokenTarget("red cat", tl.Contrast("ORG", "LOC"))
        named = namer.explain(NAMED, "grad_x_input", asked)
        assert bare_one.row == named.row
        np.testing.assert_array_equal(bare_one.scores, named.scores)
        assert namer.explain(NAMED, "grad_x_input", "LOC").row.asked == (6, 7)
        with pytest.raises(BadTarget, match="say which"):  # two names, and none is meant more
            namer.explain(NAMED, "grad_x_input", tl.Contrast("predicted", "LOC"))

    def test_a_name_is_measured_trusted_saved_and_drawn(self, namer, tmp_path):
        from tokenlight.plots.scene import scenes
        from tokenlight.trust import trusted

        target = tl.TokenTarget("red cat", tl.Contrast("ORG", "LOC"))
        for asked in (target, tl.TokenTarget("red cat")):
            found = namer.explain(NAMED, [("occlusion", {"window": 1}), "gae"], asked)
            assert found[0].scores[[2, 3]] == pytest.approx(0, abs=1e-12)  # they are the question
            measured = namer.evaluate(found, ["aopc", "comprehensiveness", "top_k_drop"])
            assert np.isfinite(measured.by_method["occlusion"].summary["aopc"]["mean"])
            back = tl.Attribution.load(found[0].save(tmp_path / "name.json"))
            assert back.row == found[0].row
            checked = trusted(namer, found[1]).extras["trust"]["health"]
            assert {one["check"]: one["state"] for one in checked}["batch"] == "good"
            assert scenes(found)[0].targets[0].title.startswith("‘red cat’ as ORG")

    def test_what_is_no_name_is_refused(self, namer, tagger):
        with pytest.raises(BadTarget, match="no word 'cat town'"):
            namer.explain(NAMED, target=tl.TokenTarget("cat town"))
        with pytest.raises(UnknownName, match="LOC"):
            namer.explain(NAMED, target=tl.TokenTarget("red cat", "LOK"))
        with pytest.raises(BadTarget, match="names one label twice"):
            namer.explain(NAMED, target=tl.TokenTarget("red cat", tl.Contrast("ORG", "ORG")))
        with pytest.raises(BadTarget, match="say which"):
            tagger.explain(TAGGED, target="entities")  # its labels mark no names


@pytest.mark.parametrize(
    ("tags", "names"),
    [
        ("O B-A I-A B-A O", [(1, 2), (3,)]),
        ("I-A I-A I-B", [(0, 1), (2,)]),
        ("B-A E-A I-A S-A U-A", [(0, 1), (2,), (3,), (4,)]),
        ("A A O A", [(0, 1), (3,)]),
        ("O O", []),
    ],
)
def test_names_begin_and_end_as_their_tags_say(tags, names):
    from tokenlight.data.units import merged

    assert [tuple(one) for one in merged(tags.split())] == names
