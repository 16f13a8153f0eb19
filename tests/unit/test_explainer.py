"""The object users meet: what goes in, what comes out, and what it leaves alone."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from transformers import (
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from tests.state import same, snapshot
from tests.tiny import randomised, tiny_bert, tiny_config, tiny_tokenizer
from tests.tolerance import FLOAT32, close
from tokenlight import Attribution, Contrast, Explainer, Tokens
from tokenlight.capture.rewired import rewired
from tokenlight.errors import BadInput, TextTooLong, UnknownName, UnsupportedModel
from tokenlight.explaining.batch import queue_batch

TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
TEXTS = ["good film", "the plot is dull , never good", "we love it"]


class TestWhatComesOut:
    def test_one_text_and_one_method_give_one_attribution(self):
        assert isinstance(EXPLAINER.explain("good film"), Attribution)
        assert isinstance(EXPLAINER.explain(("good", "bad")), Attribution)
        assert isinstance(EXPLAINER.explain(Tokens.from_ids([[2, 9, 3]])), Attribution)

    def test_anything_else_gives_a_list_text_by_text(self):
        found = EXPLAINER.explain(TEXTS, ["cat", "rollout"])
        assert [a.method for a in found] == ["cat", "rollout"] * 3
        assert [a.text for a in found] == [text for text in TEXTS for _ in range(2)]
        assert len(EXPLAINER.explain(["good film"])) == 1
        assert len(EXPLAINER.explain("good film", ["cat"])) == 1

    def test_an_iterator_is_answered_one_by_one(self):
        taken = []

        def endless():
            while True:
                taken.append(1)
                yield TEXTS[len(taken) % 3]

        stream = EXPLAINER.explain(endless(), "cat")
        first = [next(stream) for _ in range(3)]
        assert [a.text for a in first] == [TEXTS[1], TEXTS[2], TEXTS[0]]
        assert len(taken) <= 8

    @pytest.mark.parametrize("bad", [0, 1, 5, 64, 90])
    def test_a_stream_answers_all_that_stands_before_a_refused_text(self, bad):
        texts = [TEXTS[i % 3] for i in range(100)]
        stream = EXPLAINER.explain(iter([*texts[:bad], "", *texts[bad:]]), "rollout")
        found = []
        with pytest.raises(BadInput, match=rf"\b{bad}\b"):
            found.extend(stream)
        assert [a.text for a in found] == texts[:bad]

    def test_a_source_that_fails_loses_no_text_it_gave_before(self):
        def source():
            yield from TEXTS
            yield TEXTS[0]
            raise OSError("the line is dead")

        found = []
        with pytest.raises(OSError, match="the line is dead"):
            found.extend(EXPLAINER.explain(source(), "rollout"))
        assert [a.text for a in found] == [*TEXTS, TEXTS[0]]

    def test_what_is_written_into_one_attribution_is_in_no_other(self):
        one, other = EXPLAINER.explain(TEXTS[:2], ("attcat", {"hidden": "output"}))
        for kept in ("extras", "options", "versions"):
            getattr(one, kept)["mine"] = 1
            assert "mine" not in getattr(other, kept)
        assert "mine" not in EXPLAINER.explain(TEXTS[0], "attcat").versions

    def test_all_methods_share_one_forward(self):
        EXPLAINER.explain(TEXTS[0], "rollout")  # the first use of a model is preceded by its checks
        calls = []
        handle = EXPLAINER.model.bert.embeddings.register_forward_hook(lambda *_: calls.append(1))
        EXPLAINER.explain(TEXTS[0], ["cat", "attcat", "gae", "rollout", "raw_att"], target="all")
        handle.remove()
        assert len(calls) == 1

    def test_an_attribution_says_where_it_comes_from(self):
        found = EXPLAINER.explain("good film", ("attcat", {"hidden": "output"}), seed=3)
        assert found.method == "attcat"
        assert found.options == {"hidden": "output"}
        assert found.versions["torch"] == torch.__version__
        assert found.seed == 3
        assert found.model

    def test_words_the_model_does_not_know_are_told(self):
        assert EXPLAINER.explain("good film", "cat").notes == ()
        found = EXPLAINER.explain("good 日 film", "cat")
        assert found.notes == ("1 of 5 tokens are unknown to the model's vocabulary",)

    def test_rows_without_segment_ids_leave_their_neighbours_theirs(self):
        pair = ("good film", "bad plot")
        ids = Tokens.from_ids([[2, 9, 10, 3]])
        together = EXPLAINER.explain([pair, ids], "cat")
        np.testing.assert_allclose(
            together[0].scores, EXPLAINER.explain(pair, "cat").scores, atol=1e-12
        )

    def test_small_packs_change_nothing(self):
        wide = EXPLAINER.explain(TEXTS, "attcat", batch_tokens=1000)
        narrow = EXPLAINER.explain(TEXTS, "attcat", batch_tokens=1)
        for one, other in zip(wide, narrow, strict=True):
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-13)

    def test_running_out_of_memory_halves_the_batch_and_goes_on(self, monkeypatch):
        explainer = Explainer(tiny_bert(), TOKENIZER)
        sizes = []

        def short_of_memory(explainer, rows, targets, how, **again):
            sizes.append(len(rows))
            if len(rows) > 1:
                raise torch.OutOfMemoryError("no room")
            return queue_batch(explainer, rows, targets, how, **again)

        monkeypatch.setattr("tokenlight.explaining.batch.queue_batch", short_of_memory)
        found = explainer.explain(TEXTS, "attcat")
        assert sizes[0] == 3
        for one, other in zip(found, EXPLAINER.explain(TEXTS, "attcat"), strict=True):
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-12)


class TestLongTexts:
    text = "the cat sat on the mat in town and the dog sat on the red mat " * 4

    def test_a_long_text_is_refused_by_default(self):
        with pytest.raises(TextTooLong, match="truncate"):
            EXPLAINER.explain(self.text)

    def test_truncation_is_told(self):
        found = EXPLAINER.explain(self.text, "attcat", long="truncate")
        assert len(found) == 48
        assert "18 of 66 tokens were cut off" in found.notes[0]

    def test_windows_cover_the_whole_text(self):
        found = EXPLAINER.explain(self.text, ["attcat", "gae"], long="stride")
        assert len(found) == 2
        for attribution in found:
            assert len(attribution) == 66
            assert np.abs(attribution.scores[1:-1]).min() > 0
        windows = found[0].extras["windows"]
        assert windows[0]["first"] == 1
        assert windows[-1]["last"] == 64
        np.testing.assert_allclose(found[0].layers.sum(axis=0), found[0].scores)

    def test_windows_explain_the_mean_logit(self):
        found = EXPLAINER.explain(self.text, "cat", target="all", long="stride")
        assert [a.target.name for a in found] == ["negative", "neutral", "positive"]
        assert found[0].prediction.index == int(np.argmax(found[0].logits))
        # cat is linear in the target: the sum over tokens is the mean over windows of each sum.
        from tokenlight.inputs.encode import encode_windows

        rows = [row for row, _ in encode_windows(self.text, TOKENIZER, limit=48, overlap=12)]
        sums = [EXPLAINER.explain(row, "cat", target=0).scores.sum() for row in rows]
        assert found[0].scores.sum() == pytest.approx(np.mean(sums))

    def test_windows_are_all_asked_for_the_classes_of_the_whole_text(self):
        text = "good great charming fun love it . " * 8 + "bad dull slow hate plot . " * 10
        said = EXPLAINER.explain(text, "cat", long="stride").prediction.label
        for other in {*EXPLAINER.labels} - {said}:
            found, named = (
                EXPLAINER.explain(text, "cat", Contrast(this, other), long="stride")
                for this in ("predicted", said)
            )
            assert found.target.name == f"{said} rather than {other}"
            np.testing.assert_array_equal(found.scores, named.scores)

    def test_a_text_that_fits_is_explained_as_a_whole(self):
        strided = EXPLAINER.explain("good film", long="stride")
        np.testing.assert_array_equal(strided.scores, EXPLAINER.explain("good film").scores)


class TestThreads:
    def test_two_threads_on_one_model_never_see_each_others_tape(self):
        expected = [EXPLAINER.explain(text, "gae").scores for text in TEXTS]
        self.run_together([EXPLAINER] * 4, expected)

    def test_two_threads_on_two_models_never_see_each_others_tape(self):
        expected = [EXPLAINER.explain(text, "gae").scores for text in TEXTS]
        self.run_together([Explainer(tiny_bert(), TOKENIZER) for _ in range(4)], expected)

    def run_together(self, explainers, expected):
        wrong, start = [], threading.Barrier(len(explainers))

        def work(explainer, offset):
            start.wait()
            for turn in range(6):
                which = (turn + offset) % 3
                scores = explainer.explain(TEXTS[which], "gae").scores
                if not np.allclose(scores, expected[which], atol=1e-12):
                    wrong.append((offset, turn))

        threads = [
            threading.Thread(target=work, args=(explainer, i))
            for i, explainer in enumerate(explainers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class TestRewiring:
    def states(self, model):
        return model(**TOKENIZER("good film", return_tensors="pt"), output_hidden_states=True)

    def test_a_pass_inside_a_pass_leaves_nothing_behind(self):
        model = tiny_bert()
        before = snapshot(model)
        for _ in range(3):
            with rewired(model, attention="own", gradients=False):
                self.states(model)
                with rewired(model, attention="own", gradients=False):
                    self.states(model)
        assert same(before, snapshot(model))

    @pytest.mark.parametrize("method", ["attcat", "transatt", "occlusion"])
    def test_an_explained_model_can_die(self, method):
        model = tiny_bert()
        Explainer(model, TOKENIZER).explain(TEXTS, method)
        alive = weakref.ref(model)
        del model
        gc.collect()
        assert alive() is None

    def test_the_copies_that_randomisation_makes_die(self):
        def models():
            gc.collect()
            return sum(type(one) is type(EXPLAINER.model) for one in gc.get_objects())

        before = models()
        EXPLAINER.evaluate(EXPLAINER.explain(TEXTS, ["attcat"]), ["randomisation"])
        assert models() == before

    def test_modules_that_a_model_got_later_are_rewired_too(self):
        model = tiny_bert()
        explainer = Explainer(model, TOKENIZER)
        expected = explainer.explain("good film", "attcat")
        model.classifier = nn.Sequential(nn.Dropout(0.9), model.classifier).train()
        before = snapshot(model)
        found = explainer.explain("good film", "attcat")
        np.testing.assert_array_equal(found.scores, expected.scores)
        assert same(before, snapshot(model))

    def test_hooks_the_person_caused_stay_and_states_are_told_once(self):
        model = tiny_bert()
        explainer = Explainer(model, TOKENIZER)
        expected = explainer.explain("good film", "cat").scores
        with torch.no_grad():
            self.states(model)  # transformers now has hooks of its own on the model
        before = snapshot(model)
        found = explainer.explain("good film", "cat")
        np.testing.assert_array_equal(found.scores, expected)
        assert found.layers.shape[0] == 3
        assert same(before, snapshot(model))

    def test_a_model_rebuilt_since_is_looked_at_again(self):
        model = tiny_bert()
        explainer = Explainer(model, TOKENIZER)
        explainer.explain("good film", "cat")
        model.dropout = torch.nn.Dropout(0.9).train()
        first, second = (explainer.explain("good film", "cat").logits for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert model.dropout.training


class TestOtherKindsOfModel:
    def test_a_model_inside_no_grad_is_explained(self):
        with torch.no_grad():
            found = EXPLAINER.explain("good film")
        np.testing.assert_array_equal(found.scores, EXPLAINER.explain("good film").scores)

    def test_frozen_weights_change_nothing(self):
        model = tiny_bert().requires_grad_(False)
        found = Explainer(model, TOKENIZER).explain("good film")
        np.testing.assert_array_equal(found.scores, EXPLAINER.explain("good film").scores)
        assert not any(parameter.requires_grad for parameter in model.parameters())

    def test_an_adapter_is_explained_with_its_weights(self):
        peft = pytest.importorskip("peft")
        settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
        model = peft.get_peft_model(tiny_bert(), settings)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
        model.double().eval()
        found = Explainer(model, TOKENIZER).explain("good film")
        with torch.no_grad():
            bare = model(**TOKENIZER("good film", return_tensors="pt")).logits[0].numpy()
        np.testing.assert_allclose(found.logits, bare, atol=1e-12)
        assert np.abs(found.logits - EXPLAINER.explain("good film").logits).max() > 1e-3

    def test_an_adapter_with_tokens_of_its_own_is_refused_by_name(self):
        peft = pytest.importorskip("peft")
        settings = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)
        model = peft.get_peft_model(tiny_bert(torch.float32), settings)
        with pytest.raises(UnsupportedModel, match="PromptTuningConfig"):
            Explainer(model, TOKENIZER)

    def test_a_model_spread_by_a_device_map_is_explained(self, tmp_path):
        accelerate = pytest.importorskip("accelerate")
        plain = tiny_bert(torch.float32)
        expected = Explainer(plain, TOKENIZER).explain("good film").scores
        places = {
            "bert.embeddings": "cpu",
            "bert.encoder": "cpu",
            "bert.pooler": "disk",
            "classifier": "cpu",
        }
        model = accelerate.dispatch_model(
            tiny_bert(torch.float32), places, offload_dir=tmp_path, main_device="cpu"
        )
        found = Explainer(model, TOKENIZER).explain("good film")
        close(found.scores, expected, FLOAT32)

    @pytest.mark.filterwarnings("ignore")  # the library's own words on its processor kernels
    def test_an_eight_bit_model_is_explained_and_relevance_refused_by_name(self, tmp_path):
        pytest.importorskip("bitsandbytes")
        from transformers import BertForSequenceClassification, BitsAndBytesConfig

        plain = tiny_bert(torch.float32, hidden_size=64, intermediate_size=128)
        plain.save_pretrained(tmp_path)
        model = BertForSequenceClassification.from_pretrained(
            tmp_path, quantization_config=BitsAndBytesConfig(load_in_8bit=True), device_map="cpu"
        )
        explainer = Explainer(model, TOKENIZER)
        found = explainer.explain("the film is not good", "attcat", target=0)
        with torch.no_grad():
            bare = model(**TOKENIZER("the film is not good", return_tensors="pt")).logits[0]
        np.testing.assert_allclose(found.logits, bare.double().numpy(), atol=1e-3)
        full = Explainer(plain, TOKENIZER).explain("the film is not good", "attcat", target=0)
        assert np.corrcoef(found.scores, full.scores)[0, 1] > 0.9
        with pytest.raises(UnsupportedModel, match="MatMul8bitLt"):
            explainer.explain("the film is not good", "transatt")

    def test_a_compiled_model_is_explained_by_the_model_inside(self):
        model = torch.compile(tiny_bert())
        found = Explainer(model, TOKENIZER).explain("good film")
        np.testing.assert_array_equal(found.scores, EXPLAINER.explain("good film").scores)

    def test_a_classifier_without_a_padding_id_reads_batches(self):
        config = GPT2Config(
            vocab_size=150, n_embd=32, n_layer=2, n_head=4, n_positions=48, num_labels=3
        )
        model = randomised(GPT2ForSequenceClassification(config), torch.float64)
        assert model.config.pad_token_id is None
        before = snapshot(model)
        explainer = Explainer(model)
        together = explainer.explain(
            [Tokens.from_ids([[5, 6, 7]]), Tokens.from_ids([[8, 9]])], "attcat"
        )
        alone = explainer.explain(Tokens.from_ids([[8, 9]]), "attcat")
        np.testing.assert_allclose(together[1].scores, alone.scores, atol=1e-12)
        assert same(before, snapshot(model))

    @pytest.mark.parametrize(
        ("head", "says"),
        [
            (BertForMultipleChoice, "BertForMultipleChoice has a head"),
            (BertForNextSentencePrediction, "tokenlight takes models that classify texts"),
        ],
    )
    def test_heads_we_do_not_take_are_refused_by_name(self, head, says):
        with pytest.raises(UnsupportedModel, match=says):
            Explainer(head(tiny_config()), TOKENIZER)

    def test_what_is_no_transformers_model_is_refused(self):
        with pytest.raises(UnsupportedModel, match="Linear is not a transformers model"):
            Explainer(torch.nn.Linear(2, 2))


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "error", "says"),
        [
            (("", "cat"), BadInput, "is empty"),
            (([], "cat"), BadInput, "list of texts is empty"),
            ((7, "cat"), BadInput, "cannot explain int"),
            (("good", "atcat"), UnknownName, "Did you mean 'attcat'"),
            (("good", []), BadInput, "no method was given"),
            (("good", ("attcat", {"hiden": "input"})), UnknownName, "Did you mean 'hidden'"),
            (("good", ("attcat", {"hidden": "middle"})), BadInput, "'input' | 'output'"),
            (("good", ("rollout", {"start_layer": 9})), BadInput, "this model has 3"),
            (("good", ("gradcam", {"layer": 4})), BadInput, r"0 \(embedding\) to 3"),
        ],
    )
    def test_is_refused_with_what_to_do(self, arguments, error, says):
        with pytest.raises(error, match=says.replace("|", r"\|")):
            EXPLAINER.explain(*arguments)

    def test_options_of_explain_are_checked(self):
        for option in ("explain_mask", "token_types", "long"):
            with pytest.raises(BadInput, match=f"{option}='nonsense' cannot be"):
                EXPLAINER.explain("good", **{option: "nonsense"})
        with pytest.raises(BadInput, match="batch_tokens=0"):
            EXPLAINER.explain("good", batch_tokens=0)

    def test_ids_outside_the_vocabulary_are_refused(self):
        with pytest.raises(BadInput, match="knows 0 to 149"):
            EXPLAINER.explain(Tokens.from_ids([[2, 999]]))
        with pytest.raises(TextTooLong, match="49 tokens"):
            EXPLAINER.explain(Tokens.from_ids([[5] * 49]))

    def test_text_without_a_tokenizer_is_refused(self):
        with pytest.raises(BadInput, match=r"Tokens\.from_ids"):
            Explainer(tiny_bert()).explain("good film")

    def test_all_masked_is_refused(self):
        with pytest.raises(BadInput, match="every token of the text is masked"):
            EXPLAINER.explain(Tokens.from_ids([[2, 3]], [[0, 0]]))

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"text": "good film"}, r"dict holds columns \(text\), not texts.*x\['text'\]"),
            (
                pd.DataFrame({"opinion": ["good"], "y": [1]}),
                r"row 1 of the table has no column 'text', only opinion, y.*text='COLUMN'",
            ),
            (b"good film", "cannot explain bytes"),
        ],
        ids=["dict", "table", "bytes"],
    )
    def test_what_holds_columns_is_not_explained_by_their_names(self, given, says):
        with pytest.raises(BadInput, match=says):
            EXPLAINER.explain(given)

    def test_a_column_of_a_table_is_a_list_of_texts(self):
        for column in (pd.Series(TEXTS), np.array(TEXTS), np.array(TEXTS, dtype=object)):
            found = EXPLAINER.explain(column, "rollout")
            assert [a.text for a in found] == TEXTS

    @pytest.mark.parametrize(
        "how",
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
    def test_numbers_that_are_none_are_refused(self, how):
        with pytest.raises(BadInput, match="give a whole number"):
            EXPLAINER.explain("good film", "rollout", **how)

    def test_an_iterator_may_hold_token_ids(self):
        ids = TOKENIZER("good film")["input_ids"]
        found = list(EXPLAINER.explain(iter([Tokens.from_ids([ids, ids]), "good film"]), "rollout"))
        assert len(found) == 3
        for one in found[:2]:
            close(one.scores, found[2].scores)


def test_the_prediction_is_that_of_the_text_even_where_the_explanation_hides_its_separators():
    words = ["good", "film", "dull", "never", "love", "plot", "the", "we", "is", "it"]
    texts = [f"{a} {b}" for a in words for b in words]
    found = EXPLAINER.explain(texts, "cat", explain_mask="cls_sep")
    plain = EXPLAINER.explain(texts, "cat")
    assert [a.prediction for a in found] == [a.prediction for a in plain]
    assert [a.target for a in found] == [a.target for a in plain]
    hidden = [int(a.logits.argmax()) for a in found]  # what the masked pass says
    assert any(said != a.prediction.index for said, a in zip(hidden, plain, strict=True))
    best = EXPLAINER.explain(texts, "cat", target=0, explain_mask="cls_sep")
    assert {a.target.index for a in best} == {0}
