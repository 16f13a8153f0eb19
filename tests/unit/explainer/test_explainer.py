"""The object users meet: what goes in, what comes out, and what it leaves alone."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from tests.helpers.expect import expect_error
from tests.helpers.garbage import collect_garbage
from tests.helpers.model_state import assert_unchanged, take_snapshot
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tests.helpers.tolerance import assert_close
from tokenlight import Attribution, Contrast, Explainer, Tokens
from tokenlight.errors import BadInput, TextTooLong, UnknownName
from tokenlight.explaining.batches import launch_batch
from tokenlight.hooks.instrument import instrumented

COVERED_MODULES = ("explaining/windows",)
TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
TEXTS = ["good film", "the plot is dull , never good", "we love it"]


class TestExplainReturns:
    def test_one_text_and_one_method_give_one_attribution(self):
        assert isinstance(EXPLAINER.explain("good film"), Attribution)
        assert isinstance(EXPLAINER.explain(("good", "bad")), Attribution)
        assert isinstance(EXPLAINER.explain(Tokens.from_ids([[2, 9, 3]])), Attribution)

    def test_several_texts_or_methods_give_a_list_grouped_by_text(self):
        attributions = EXPLAINER.explain(TEXTS, ["cat", "rollout"])
        assert [attribution.method for attribution in attributions] == ["cat", "rollout"] * 3
        assert [attribution.text for attribution in attributions] == [
            text for text in TEXTS for _ in range(2)
        ]
        assert len(EXPLAINER.explain(["good film"])) == 1
        assert len(EXPLAINER.explain("good film", ["cat"])) == 1

    def test_an_iterator_is_answered_one_by_one(self):
        consumed_texts = []

        def yield_forever():
            while True:
                consumed_texts.append(1)
                yield TEXTS[len(consumed_texts) % 3]

        stream = EXPLAINER.explain(yield_forever(), "cat")
        first = [next(stream) for _ in range(3)]
        assert [attribution.text for attribution in first] == [TEXTS[1], TEXTS[2], TEXTS[0]]
        assert len(consumed_texts) <= 8

    @pytest.mark.parametrize("bad", [0, 1, 5, 64, 90])
    def test_texts_before_a_refused_one_of_a_stream_are_explained(self, bad):
        texts = [TEXTS[i % 3] for i in range(100)]
        stream = EXPLAINER.explain(iter([*texts[:bad], "", *texts[bad:]]), "rollout")
        results = []
        with pytest.raises(BadInput, match=rf"\b{bad}\b"):
            results.extend(stream)
        assert [attribution.text for attribution in results] == texts[:bad]

    def test_texts_before_the_failure_of_an_iterator_are_explained(self):
        def source():
            yield from TEXTS
            yield TEXTS[0]
            raise OSError("the line is dead")

        results = []
        with pytest.raises(OSError, match="the line is dead"):
            results.extend(EXPLAINER.explain(source(), "rollout"))
        assert [attribution.text for attribution in results] == [*TEXTS, TEXTS[0]]

    def test_attributions_do_not_share_mutable_fields(self):
        first, other = EXPLAINER.explain(TEXTS[:2], ("attcat", {"hidden": "output"}))
        for field in ("extras", "options", "versions"):
            getattr(first, field)["mine"] = 1
            assert "mine" not in getattr(other, field)
        assert "mine" not in EXPLAINER.explain(TEXTS[0], "attcat").versions

    def test_all_methods_share_one_forward(self):
        EXPLAINER.explain(TEXTS[0], "rollout")  # the first use of a model is preceded by its checks
        calls = []
        handle = EXPLAINER.model.bert.embeddings.register_forward_hook(lambda *_: calls.append(1))
        EXPLAINER.explain(TEXTS[0], ["cat", "attcat", "gae", "rollout", "raw_att"], target="all")
        handle.remove()
        assert len(calls) == 1

    def test_an_attribution_records_its_provenance(self):
        attribution = EXPLAINER.explain("good film", ("attcat", {"hidden": "output"}), seed=3)
        assert attribution.method == "attcat"
        assert attribution.options == {"hidden": "output"}
        assert attribution.versions["torch"] == torch.__version__
        assert attribution.seed == 3
        assert attribution.model

    def test_unknown_tokens_are_noted(self):
        assert EXPLAINER.explain("good film", "cat").notes == ()
        attribution = EXPLAINER.explain("good 日 film", "cat")
        assert attribution.notes == ("1 of 5 tokens are not in the model's vocabulary",)

    def test_rows_without_segment_ids_leave_their_neighbors_theirs(self):
        pair = ("good film", "bad plot")
        ids = Tokens.from_ids([[2, 9, 10, 3]])
        together = EXPLAINER.explain([pair, ids], "cat")
        np.testing.assert_allclose(
            together[0].scores, EXPLAINER.explain(pair, "cat").scores, atol=1e-12
        )

    def test_small_batches_do_not_change_scores(self):
        wide = EXPLAINER.explain(TEXTS, "attcat", batch_tokens=1000)
        narrow = EXPLAINER.explain(TEXTS, "attcat", batch_tokens=1)
        for attribution, other in zip(wide, narrow, strict=True):
            np.testing.assert_allclose(attribution.scores, other.scores, atol=1e-13)

    def test_running_out_of_memory_halves_the_batch_and_continues(self, monkeypatch):
        explainer = Explainer(tiny_bert(), TOKENIZER)
        sizes = []

        def run_out_of_memory(explainer, rows, targets, options, **more_options):
            sizes.append(len(rows))
            if len(rows) > 1:
                raise torch.OutOfMemoryError("no room")
            return launch_batch(explainer, rows, targets, options, **more_options)

        monkeypatch.setattr("tokenlight.explaining.batches.launch_batch", run_out_of_memory)
        attributions = explainer.explain(TEXTS, "attcat")
        assert sizes[0] == 3
        for attribution, other in zip(
            attributions, EXPLAINER.explain(TEXTS, "attcat"), strict=True
        ):
            np.testing.assert_allclose(attribution.scores, other.scores, atol=1e-12)


class TestLongTexts:
    text = "the cat sat on the mat in town and the dog sat on the red mat " * 4

    def test_a_long_text_is_refused_by_default(self):
        with pytest.raises(TextTooLong, match="truncate"):
            EXPLAINER.explain(self.text)

    def test_truncation_is_noted(self):
        attribution = EXPLAINER.explain(self.text, "attcat", long="truncate")
        assert len(attribution) == 48
        assert "18 of 66 tokens were truncated" in attribution.notes[0]

    def test_windows_cover_the_whole_text(self):
        attributions = EXPLAINER.explain(self.text, ["attcat", "gae"], long="stride")
        assert len(attributions) == 2
        for attribution in attributions:
            assert len(attribution) == 66
            assert np.abs(attribution.scores[1:-1]).min() > 0
        windows = attributions[0].extras["windows"]
        assert windows[0]["first"] == 1
        assert windows[-1]["last"] == 64
        np.testing.assert_allclose(attributions[0].layers.sum(axis=0), attributions[0].scores)

    def test_windows_explain_the_mean_logit(self):
        attributions = EXPLAINER.explain(self.text, "cat", target="all", long="stride")
        assert [attribution.target.name for attribution in attributions] == [
            "negative",
            "neutral",
            "positive",
        ]
        assert attributions[0].prediction.index == int(np.argmax(attributions[0].logits))
        # cat is linear in the target: the sum over tokens is the mean over windows of each sum.
        from tokenlight.inputs.encode import encode_windows

        rows = [row for row, _ in encode_windows(self.text, TOKENIZER, max_tokens=48, overlap=12)]
        sums = [EXPLAINER.explain(row, "cat", target=0).scores.sum() for row in rows]
        assert attributions[0].scores.sum() == pytest.approx(np.mean(sums))

    def test_all_windows_explain_the_classes_of_the_whole_text(self):
        text = "good great charming fun love it . " * 8 + "bad dull slow hate plot . " * 10
        label = EXPLAINER.explain(text, "cat", long="stride").prediction.label
        for other in {*EXPLAINER.labels} - {label}:
            attribution, explicit_attribution = (
                EXPLAINER.explain(text, "cat", Contrast(this, other), long="stride")
                for this in ("predicted", label)
            )
            assert attribution.target.name == f"{label} rather than {other}"
            np.testing.assert_array_equal(attribution.scores, explicit_attribution.scores)

    def test_a_text_that_fits_is_explained_as_a_whole(self):
        strided = EXPLAINER.explain("good film", long="stride")
        np.testing.assert_array_equal(strided.scores, EXPLAINER.explain("good film").scores)


class TestInstrumentedModel:
    def run_model(self, model):
        return model(**TOKENIZER("good film", return_tensors="pt"), output_hidden_states=True)

    def test_a_nested_pass_leaves_the_model_unchanged(self):
        model = tiny_bert()
        before = take_snapshot(model)
        for _ in range(3):
            with instrumented(model, attention="unchanged", gradients=False):
                self.run_model(model)
                with instrumented(model, attention="unchanged", gradients=False):
                    self.run_model(model)
        assert_unchanged(before, take_snapshot(model))

    @pytest.mark.parametrize("method", ["attcat", "transatt", "occlusion"])
    def test_an_explained_model_is_garbage_collected(self, method):
        model = tiny_bert()
        Explainer(model, TOKENIZER).explain(TEXTS, method)
        alive = weakref.ref(model)
        del model
        collect_garbage()
        assert alive() is None

    def test_copies_made_by_randomisation_are_garbage_collected(self):
        def models():
            collect_garbage()
            return sum(type(obj) is type(EXPLAINER.model) for obj in gc.get_objects())

        before = models()
        EXPLAINER.evaluate(EXPLAINER.explain(TEXTS, ["attcat"]), ["randomisation"])
        assert models() == before

    def test_modules_added_later_are_instrumented_too(self):
        model = tiny_bert()
        explainer = Explainer(model, TOKENIZER)
        expected = explainer.explain("good film", "attcat")
        model.classifier = nn.Sequential(nn.Dropout(0.9), model.classifier).train()
        before = take_snapshot(model)
        attribution = explainer.explain("good film", "attcat")
        np.testing.assert_array_equal(attribution.scores, expected.scores)
        assert_unchanged(before, take_snapshot(model))

    def test_hooks_of_the_user_stay_and_state_is_reported_once(self):
        model = tiny_bert()
        explainer = Explainer(model, TOKENIZER)
        expected = explainer.explain("good film", "cat").scores
        with torch.no_grad():
            self.run_model(model)  # transformers now has hooks of its own on the model
        before = take_snapshot(model)
        attribution = explainer.explain("good film", "cat")
        np.testing.assert_array_equal(attribution.scores, expected)
        assert attribution.layers.shape[0] == 3
        assert_unchanged(before, take_snapshot(model))

    def test_a_rebuilt_model_is_verified_again(self):
        model = tiny_bert()
        explainer = Explainer(model, TOKENIZER)
        explainer.explain("good film", "cat")
        model.dropout = torch.nn.Dropout(0.9).train()
        first, second = (explainer.explain("good film", "cat").logits for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert model.dropout.training


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            (("", "cat"), BadInput, "is empty"),
            (([], "cat"), BadInput, "list of texts is empty"),
            ((7, "cat"), BadInput, "type int cannot be explained"),
            (("good", "atcat"), UnknownName, "Did you mean 'attcat'"),
            (("good", []), BadInput, "No method was given"),
            (("good", ("attcat", {"hiden": "input"})), UnknownName, "Did you mean 'hidden'"),
            (("good", ("attcat", {"hidden": "middle"})), BadInput, "'input' | 'output'"),
            (("good", ("rollout", {"start_layer": 9})), BadInput, "this model has 3"),
            (("good", ("gradcam", {"layer": 4})), BadInput, r"0 \(embedding\) to 3"),
        ],
    )
    def test_invalid_arguments_are_refused_with_what_to_do(self, arguments, error, message):
        with pytest.raises(error, match=message.replace("|", r"\|")):
            EXPLAINER.explain(*arguments)

    def test_unknown_choices_and_a_zero_batch_size_are_refused(self):
        for option in ("explain_mask", "token_types", "long"):
            with pytest.raises(BadInput, match=f"{option}='nonsense' is not valid"):
                EXPLAINER.explain("good", **{option: "nonsense"})
        with expect_error(BadInput, "not-an-integer", mentions="batch_tokens=0"):
            EXPLAINER.explain("good", batch_tokens=0)

    def test_ids_outside_the_vocabulary_are_refused(self):
        with pytest.raises(BadInput, match="knows 0 to 149"):
            EXPLAINER.explain(Tokens.from_ids([[2, 999]]))
        with expect_error(TextTooLong, "ids-too-long", mentions="49 tokens"):
            EXPLAINER.explain(Tokens.from_ids([[5] * 49]))

    def test_text_without_a_tokenizer_is_refused(self):
        with pytest.raises(BadInput, match=r"Tokens\.from_ids"):
            Explainer(tiny_bert()).explain("good film")

    def test_a_mask_of_all_tokens_is_refused(self):
        with expect_error(BadInput, "all-tokens-masked"):
            EXPLAINER.explain(Tokens.from_ids([[2, 3]], [[0, 0]]))

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({"text": "good film"}, r"dict has columns \(text\), not texts.*x\['text'\]"),
            (
                pd.DataFrame({"opinion": ["good"], "y": [1]}),
                r"no column 'text' in row 1 of the table, only opinion, y.*text_column='COLUMN'",
            ),
            (b"good film", "type bytes cannot be explained"),
        ],
        ids=["dict", "table", "bytes"],
    )
    def test_a_mapping_is_not_explained_by_the_names_of_its_columns(self, inputs, message):
        with pytest.raises(BadInput, match=message):
            EXPLAINER.explain(inputs)

    def test_a_column_of_a_table_is_a_list_of_texts(self):
        for column in (pd.Series(TEXTS), np.array(TEXTS), np.array(TEXTS, dtype=object)):
            attributions = EXPLAINER.explain(column, "rollout")
            assert [attribution.text for attribution in attributions] == TEXTS

    @pytest.mark.parametrize(
        "options",
        [
            {"seed": -1},
            {"seed": "x"},
            {"seed": None},
            {"seed": 1.5},
            {"seed": True},
            {"batch_tokens": "5"},
            {"batch_tokens": 0},
        ],
    )
    def test_options_that_are_not_integers_are_refused(self, options):
        with expect_error(BadInput, "not-an-integer"):
            EXPLAINER.explain("good film", "rollout", **options)

    def test_an_iterator_may_hold_token_ids(self):
        ids = TOKENIZER("good film")["input_ids"]
        attributions = list(
            EXPLAINER.explain(iter([Tokens.from_ids([ids, ids]), "good film"]), "rollout")
        )
        assert len(attributions) == 3
        for attribution in attributions[:2]:
            assert_close(attribution.scores, attributions[2].scores)


def test_the_prediction_ignores_the_explain_mask():
    words = ["good", "film", "dull", "never", "love", "plot", "the", "we", "is", "it"]
    texts = [f"{first} {second}" for first in words for second in words]
    attributions = EXPLAINER.explain(texts, "cat", explain_mask="cls_sep")
    plain = EXPLAINER.explain(texts, "cat")
    assert [attribution.prediction for attribution in attributions] == [
        attribution.prediction for attribution in plain
    ]
    assert [attribution.target for attribution in attributions] == [
        attribution.target for attribution in plain
    ]
    masked_indices = [int(attribution.logits.argmax()) for attribution in attributions]
    assert any(
        index != attribution.prediction.index
        for index, attribution in zip(masked_indices, plain, strict=True)
    )
    best = EXPLAINER.explain(texts, "cat", target=0, explain_mask="cls_sep")
    assert {attribution.target.index for attribution in best} == {0}
