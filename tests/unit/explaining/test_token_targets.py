"""Heads with an output for each token: masked language models and token classifiers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import BertForTokenClassification

import tokenlight as tl
from tests.helpers.expect import expect_error
from tests.helpers.tiny import randomize_weights, tiny_bert_lm, tiny_config, tiny_tokenizer
from tokenlight.errors import BadInput, BadTarget, UnknownName, UnsupportedModel

MASKED = "the film was [MASK] and slow"
TAGGED = "the film was charming but the plot slow"


@pytest.fixture(scope="module")
def masked_lm():
    return tl.Explainer(tiny_bert_lm(), tiny_tokenizer())


@pytest.fixture(scope="module")
def tagger():
    model = randomize_weights(BertForTokenClassification(tiny_config()), torch.float64)
    return tl.Explainer(model, tiny_tokenizer())


def run_bare_model(explainer, row):
    arguments = {
        "input_ids": torch.tensor([row.ids]),
        "token_type_ids": torch.tensor([row.token_type_ids]),
    }
    with torch.no_grad():
        return explainer.model(**arguments).logits[0].numpy()


class TestMasked:
    def test_the_logits_are_read_at_the_mask(self, masked_lm):
        attribution = masked_lm.explain(MASKED)
        assert attribution.row.pieces[attribution.row.target_position] == "[MASK]"
        np.testing.assert_allclose(
            attribution.logits,
            run_bare_model(masked_lm, attribution.row)[attribution.row.target_position],
            atol=1e-9,
        )
        assert attribution.target.index == int(np.argmax(attribution.logits))

    def test_a_masked_token_takes_a_word_an_id_or_a_contrast_as_target(self, masked_lm):
        number = masked_lm.tokenizer.convert_tokens_to_ids("good")
        for target in ("good", number):
            assert masked_lm.explain(MASKED, target=target).target.index == number
        contrast = masked_lm.explain(MASKED, "grad_x_input", tl.Contrast("good", "bad"))
        parts = [masked_lm.explain(MASKED, "grad_x_input", word) for word in ("good", "bad")]
        np.testing.assert_allclose(contrast.scores, parts[0].scores - parts[1].scores, atol=1e-10)

    def test_one_of_two_masks_is_named_by_its_number(self, masked_lm):
        text = "the [MASK] was [MASK]"
        with expect_error(BadInput, "not-one-mask", mentions="2 masked tokens"):
            masked_lm.explain(text)
        attribution = masked_lm.explain(text, target=tl.TokenTarget(4, "good"))
        assert attribution.row.target_position == 4
        np.testing.assert_allclose(
            attribution.logits, run_bare_model(masked_lm, attribution.row)[4], atol=1e-9
        )

    def test_a_text_without_a_mask_states_how_to_write_one(self, masked_lm):
        with expect_error(BadInput, "not-one-mask", mentions="0 masked tokens"):
            masked_lm.explain("the film was good")

    @pytest.mark.parametrize(
        ("text", "target", "error"),
        [
            ((MASKED, MASKED), "predicted", UnsupportedModel),
            (tl.Question("who", MASKED), "predicted", UnsupportedModel),
            (MASKED, tl.SpanTarget(), BadTarget),
            (MASKED, tl.Continuation(" good"), BadTarget),
            (MASKED, "all", BadTarget),
        ],
    )
    def test_an_invalid_input_is_refused_with_what_the_model_does(
        self, masked_lm, text, target, error
    ):
        with pytest.raises(error, match="fills in|Name the tokens"):
            masked_lm.explain(text, target=target)

    def test_a_masked_token_is_contrasted_with_its_alternatives(self, masked_lm):
        default = masked_lm.explain(MASKED, "grad_x_input", "good")
        assert (
            default.target == masked_lm.explain(MASKED, "grad_x_input", tl.NextToken("good")).target
        )
        expected = np.zeros(len(default))
        for (index,), weight in default.target.terms:
            plain = tl.NextToken(index, against=None)
            expected += weight * masked_lm.explain(MASKED, "grad_x_input", plain).scores
        np.testing.assert_allclose(default.scores, expected, rtol=0, atol=1e-9)
        position = default.row.target_position
        by_position = tl.TokenTarget(position, tl.NextToken("good", against=None))
        plain = masked_lm.explain(MASKED, "grad_x_input", by_position)
        assert plain.question == "‘good’, its logit alone"

    def test_occlusion_never_replaces_the_mask(self, masked_lm):
        attribution = masked_lm.explain(MASKED, ("occlusion", {"window": 1, "special": "replace"}))
        assert attribution.scores[attribution.row.target_position] == 0
        assert np.count_nonzero(attribution.scores) == len(attribution) - 1

    def test_removing_words_never_removes_the_mask(self, masked_lm):
        attributions = masked_lm.explain(
            [MASKED, "a [MASK] cat sat on the mat"], ["occlusion", "random"]
        )
        measured = masked_lm.evaluate(
            attributions, ["aopc", "lodds", ("aopc", {"perturb": "mask"})]
        )
        assert len(measured.rows) == 4
        from tokenlight.perturb.logits_stream import stream_logits
        from tokenlight.perturb.variants import Perturber, ReplacementIds

        row = attributions[0].row
        original = Perturber(row, ReplacementIds.from_model(masked_lm.runner, masked_lm.tokenizer))
        assert row.target_position not in original.rankable_positions
        fewer = original.delete_tokens([1, 2])
        (logits,) = stream_logits(masked_lm.runner, [fewer])
        shortened = row.take([i for i in range(len(row)) if i not in (1, 2)])
        assert shortened.target_position == row.target_position - 2 == fewer.target_position
        np.testing.assert_allclose(
            logits, run_bare_model(masked_lm, shortened)[shortened.target_position], atol=1e-9
        )
        with pytest.raises(BadInput, match="cannot be deleted"):
            original.delete_tokens([row.target_position])


class TestTokenClassifier:
    def test_a_word_is_found_and_read_at_its_first_token(self, tagger):
        attribution = tagger.explain(TAGGED, target=tl.TokenTarget("charming"))
        assert attribution.row.pieces[attribution.row.target_position] == "charm"
        np.testing.assert_allclose(
            attribution.logits,
            run_bare_model(tagger, attribution.row)[attribution.row.target_position],
            atol=1e-9,
        )
        assert attribution.prediction.label in tagger.labels

    def test_a_word_has_a_label_or_a_contrast_as_target(self, tagger):
        attribution = tagger.explain(TAGGED, target=tl.TokenTarget("plot", "neutral"))
        assert attribution.target.name == "neutral"
        with pytest.raises(UnknownName):
            tagger.explain(TAGGED, target=tl.TokenTarget("plot", "neutrl"))

    def test_one_of_equal_words_can_be_chosen(self, tagger):
        with pytest.raises(BadTarget, match="occurs 2 times"):
            tagger.explain(TAGGED, target=tl.TokenTarget("the"))
        first, second = (
            tagger.explain(TAGGED, target=tl.TokenTarget("the", occurrence=i)) for i in (0, 1)
        )
        assert first.row.target_position < second.row.target_position

    def test_without_a_word_the_error_lists_the_label_of_each_word(self, tagger):
        with expect_error(BadTarget, "which-word"):
            tagger.explain(TAGGED)

    def test_target_all_explains_every_word_with_its_predicted_label(self, tagger):
        attributions = tagger.explain(TAGGED, ["attcat", "gae"], "all")
        assert len(attributions) == 2 * 8
        assert [attribution.method for attribution in attributions] == ["attcat"] * 8 + ["gae"] * 8
        for attribution in attributions:
            logits = run_bare_model(tagger, attribution.row)[attribution.row.target_position]
            np.testing.assert_allclose(attribution.logits, logits, atol=1e-9)
            assert attribution.target.index == int(np.argmax(logits))

    @pytest.mark.parametrize("at", [99, -1, "absent"])
    def test_a_missing_word_or_position_is_refused(self, tagger, at):
        with pytest.raises(BadTarget):
            tagger.explain(TAGGED, target=tl.TokenTarget(at))

    def test_batch_and_order_do_not_change_scores(self, tagger):
        texts = [TAGGED, "a cat sat", "the plot was very very dull and slow"]
        targets = [tl.TokenTarget("plot"), tl.TokenTarget("cat"), tl.TokenTarget("dull")]
        for method in ("attcat", "transatt", "gae"):
            together = tagger.explain(texts, method, targets)
            for text, target, attribution in zip(texts, targets, together, strict=True):
                alone = tagger.explain(text, method, target)
                scale = np.abs(alone.scores).max()
                np.testing.assert_allclose(
                    attribution.scores, alone.scores, rtol=0, atol=1e-9 * scale
                )

    def test_measuring_a_labeled_token_never_removes_it(self, tagger):
        attribution = tagger.explain(TAGGED, ["occlusion", "random"], tl.TokenTarget("plot"))
        measured = tagger.evaluate(attribution, ["aopc", "comprehensiveness"])
        assert np.isfinite(measured.by_method["occlusion"].summary["aopc"]["mean"])

    def test_a_token_target_survives_saving_and_loading(self, tagger, tmp_path):
        attribution = tagger.explain(TAGGED, target=tl.TokenTarget("plot"))
        back = tl.Attribution.load(attribution.save(tmp_path / "token.json"))
        assert back.row == attribution.row
        assert back.row.target_position == attribution.row.target_position

    def test_a_classifier_refuses_a_token_target(self):
        from tests.helpers.tiny import tiny_bert

        explainer = tl.Explainer(tiny_bert(), tiny_tokenizer())
        with expect_error(BadTarget, "no-token-labels"):
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
def entity_tagger():
    """A tagger whose last layer is solved for, so that it gives the words of NAMED their TAGS."""
    numbers = dict(enumerate(LABELS))
    config = tiny_config(id2label=numbers, label2id={name: i for i, name in numbers.items()})
    model = randomize_weights(BertForTokenClassification(config), torch.float64)
    ids = torch.tensor([tiny_tokenizer()(NAMED)["input_ids"]])
    with torch.no_grad():
        states = model.bert(ids).last_hidden_state[0, 1:-1]
        expected = 4.0 * torch.eye(len(LABELS), dtype=torch.float64)
        expected = expected[[LABELS.index(tag) for tag in TAGS]] - model.classifier.bias
        expected += torch.cos(torch.arange(expected.numel())).reshape(expected.shape)  # no ties
        model.classifier.weight.copy_(torch.linalg.lstsq(states, expected).solution.T)
    return tl.Explainer(model, tiny_tokenizer())


class TestNames:
    @pytest.mark.parametrize(
        "method", ["grad_x_input", "attnlrp", "integrated_gradients", "attcat"]
    )
    def test_two_words_are_one_target_whose_scores_are_their_sum(self, entity_tagger, method):
        joint = entity_tagger.explain(NAMED, method, tl.TokenTarget("red cat"))
        words = [
            entity_tagger.explain(NAMED, method, tl.TokenTarget(word)) for word in ("red", "cat")
        ]
        assert [attribution.target.name for attribution in words] == ["B-ORG", "I-ORG"]
        assert joint.target.name == joint.prediction.label == "ORG"
        summed = words[0].scores + words[1].scores
        scale = np.abs(summed).max()
        np.testing.assert_allclose(joint.scores, summed, rtol=0, atol=1e-9 * scale)
        chances = [attribution.prediction.probability for attribution in words]
        assert joint.prediction.probability == pytest.approx(np.prod(chances), rel=1e-9)

    def test_entities_are_the_names_that_tags_mark(self, entity_tagger):
        attributions = entity_tagger.explain(NAMED, ["grad_x_input", "gae"], "entities")
        method_entities = [
            (attribution.method, attribution.target.name, attribution.row.target_positions)
            for attribution in attributions
        ]
        entities = [("ORG", (2, 3)), ("LOC", (6, 7))]
        assert method_entities == [(m, *name) for m in ("grad_x_input", "gae") for name in entities]

    def test_an_entity_type_means_the_likeliest_of_its_tags_at_each_word(self, entity_tagger):
        attribution = entity_tagger.explain(NAMED, "grad_x_input", tl.TokenTarget("red cat", "LOC"))
        logits = run_bare_model(entity_tagger, attribution.row)[[2, 3]]
        expected = [1 + int(np.argmax(word_logits[1:3])) for word_logits in logits]
        assert attribution.row.continuation_ids == tuple(expected)
        np.testing.assert_allclose(
            attribution.logits[:2], logits[range(2), expected], rtol=0, atol=1e-9
        )
        explained = entity_tagger.explain(NAMED, "grad_x_input", tl.TokenTarget("town", "LOC"))
        assert explained.target.name in ("B-LOC", "I-LOC")

    @pytest.mark.parametrize("words", ["red cat", "town"])
    def test_a_contrast_of_labels_is_the_difference_of_two(self, entity_tagger, words):
        this, that = (
            entity_tagger.explain(NAMED, "grad_x_input", tl.TokenTarget(words, kind)).scores
            for kind in ("ORG", "LOC")
        )
        target_object = tl.TokenTarget(words, tl.Contrast("ORG", "LOC"))
        attribution = entity_tagger.explain(NAMED, "grad_x_input", target_object)
        np.testing.assert_allclose(attribution.scores, this - that, rtol=0, atol=1e-10)
        assert "rather than" in attribution.target.name

    def test_a_contrast_of_labels_targets_the_one_entity_with_that_label(self, entity_tagger):
        bare_one = entity_tagger.explain(NAMED, "grad_x_input", tl.Contrast("ORG", "LOC"))
        target_object = tl.TokenTarget("red cat", tl.Contrast("ORG", "LOC"))
        explicit_attribution = entity_tagger.explain(NAMED, "grad_x_input", target_object)
        assert bare_one.row == explicit_attribution.row
        np.testing.assert_array_equal(bare_one.scores, explicit_attribution.scores)
        assert entity_tagger.explain(NAMED, "grad_x_input", "LOC").row.target_positions == (6, 7)
        with expect_error(BadTarget, "which-word"):  # two names, and none is meant more
            entity_tagger.explain(NAMED, "grad_x_input", tl.Contrast("predicted", "LOC"))

    def test_a_name_is_measured_trusted_saved_and_drawn(self, entity_tagger, tmp_path):
        from tokenlight.plots.scene import build_scenes
        from tokenlight.trust import assess_trust

        target = tl.TokenTarget("red cat", tl.Contrast("ORG", "LOC"))
        for target_object in (target, tl.TokenTarget("red cat")):
            attributions = entity_tagger.explain(
                NAMED, [("occlusion", {"window": 1}), "gae"], target_object
            )
            # They are the question.
            assert attributions[0].scores[[2, 3]] == pytest.approx(0, abs=1e-12)
            measured = entity_tagger.evaluate(
                attributions, ["aopc", "comprehensiveness", "top_k_drop"]
            )
            assert np.isfinite(measured.by_method["occlusion"].summary["aopc"]["mean"])
            back = tl.Attribution.load(attributions[0].save(tmp_path / "name.json"))
            assert back.row == attributions[0].row
            checked = assess_trust(entity_tagger, attributions[1]).extras["trust"]["health"]
            assert {check["check"]: check["state"] for check in checked}["batch"] == "good"
            assert build_scenes(attributions)[0].targets[0].title.startswith("‘red cat’ as ORG")

    def test_an_invalid_entity_name_is_refused(self, entity_tagger, tagger):
        with expect_error(BadTarget, "word-not-in-text", mentions="cat town"):
            entity_tagger.explain(NAMED, target=tl.TokenTarget("cat town"))
        with pytest.raises(UnknownName, match="LOC"):
            entity_tagger.explain(NAMED, target=tl.TokenTarget("red cat", "LOK"))
        with expect_error(BadTarget, "contrast-of-equal-labels"):
            entity_tagger.explain(
                NAMED, target=tl.TokenTarget("red cat", tl.Contrast("ORG", "ORG"))
            )
        with expect_error(BadTarget, "which-word"):
            tagger.explain(TAGGED, target="entities")  # its labels mark no names
