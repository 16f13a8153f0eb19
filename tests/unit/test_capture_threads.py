"""Two threads and models that share a part; models that are explained in any mode of torch."""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

from tests.state import same, snapshot
from tests.tiny import randomised, tiny_bert, tiny_bert_qa, tiny_config, tiny_tokenizer
from tokenlight import Explainer, Question, Tokens
from tokenlight.capture import turns
from tokenlight.capture.altered import rescaled
from tokenlight.capture.rewired import rewired
from tokenlight.errors import BadInput, UnsupportedModel

TOKENIZER = tiny_tokenizer()
TEXTS = ["the film is not very charming", "a dull plot"]


def of_one_config():
    config = tiny_config()
    return [randomised(BertForSequenceClassification(config), torch.float64) for _ in range(2)]


def lent(encoder_of, model):
    """``model`` with another's encoder, and its config, which older transformers switch alone."""
    model.bert, model.config = encoder_of.bert, encoder_of.config
    return model


def of_one_encoder():
    first = tiny_bert()
    return [first, lent(first, tiny_bert())]


def of_one_embedding():
    first, second = tiny_bert(), tiny_bert()
    second.bert.embeddings = first.bert.embeddings
    return [first, second]


def swapped_after_use():
    first, second = tiny_bert(), tiny_bert()
    for model in (first, second):
        Explainer(model, TOKENIZER).explain(TEXTS)
    return [first, lent(first, second)]


SHARING = [of_one_config, of_one_encoder, of_one_embedding, swapped_after_use]


@contextmanager
def elsewhere(model):
    """A thread that wants to run ``model`` rewired; gives the event that it has done so."""
    done = threading.Event()

    def run():
        with rewired(model, attention="own", gradients=False):
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    yield done
    thread.join(timeout=60)
    assert not thread.is_alive()


class TestSharedParts:
    def test_threads_that_would_wait_for_each_other_for_ever_are_refused(self, monkeypatch):
        """Models in a chain, and a hook that explains the first while the last is explained."""
        monkeypatch.setattr(turns, "PATIENCE", 0.2)
        first, middle, last = tiny_bert(), tiny_bert(), tiny_bert()
        lent(first, middle)
        last.classifier = middle.classifier
        for model in (first, middle, last):
            Explainer(model, TOKENIZER).explain(TEXTS)  # so each has its locks, in this order
        begun, go_on = threading.Event(), threading.Event()
        refused = []

        def nested():
            with rewired(last, attention="own", gradients=False):
                begun.set()
                go_on.wait(5)
                try:
                    with rewired(first, attention="own", gradients=False):
                        pass
                except BadInput as why:
                    refused.append(str(why))

        def crossing():
            begun.wait(5)
            lowest = turns.locks_of([first.bert])
            with turns.taken(lowest):
                go_on.set()
                with rewired(middle, attention="own", gradients=False):
                    pass

        threads = [threading.Thread(target=work) for work in (nested, crossing)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=20)
            assert not thread.is_alive()
        assert len(refused) == 1
        assert "explain one after the other" in refused[0]
        with rewired(first, attention="own", gradients=False):
            pass  # nothing is left held

    @pytest.mark.parametrize("holding", [rewired, rescaled])
    @pytest.mark.parametrize("pair", SHARING)
    @pytest.mark.parametrize("order", [1, -1])
    def test_models_that_share_a_part_wait_for_each_other(self, pair, order, holding):
        first, second = pair()[::order]
        held = (
            rewired(first, attention="own", gradients=False)
            if holding is rewired
            else rescaled(first, "none")
        )
        with elsewhere(tiny_bert()) as done:
            assert done.wait(5), "a model that shares nothing need not wait"
        with held:
            waiting = elsewhere(second)
            done = waiting.__enter__()
            assert not done.wait(0.2)
        assert done.wait(5)
        waiting.__exit__(None, None, None)

    @pytest.mark.parametrize("pair", SHARING)
    def test_they_are_explained_at_once_and_left_as_they_were(self, pair):
        models = pair()
        methods = ["attcat", "rollout"]
        before = [snapshot(model) for model in models]
        expected = [Explainer(model, TOKENIZER).explain(TEXTS, methods) for model in models]
        wrong: list[object] = []

        def explain(number):
            try:
                for _ in range(15):
                    found = Explainer(models[number], TOKENIZER).explain(TEXTS, methods)
                    for ours, theirs in zip(found, expected[number], strict=True):
                        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-12)
            except Exception as error:  # noqa: BLE001 - told in the main thread
                wrong.append(error)

        threads = [threading.Thread(target=explain, args=(i % 2,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
        assert not wrong
        for model, state in zip(models, before, strict=True):
            assert same(state, snapshot(model))

    def test_a_model_takes_one_lock_where_it_shares_nothing(self):
        model = tiny_bert()
        parts = [*model.modules(), model.config]
        (lock,) = turns.locks_of(parts)
        assert turns.locks_of(reversed(parts)) == [lock]

    def test_locks_are_taken_in_one_order_whatever_the_order_of_the_parts(self):
        class Part:
            pass

        a, b, c = Part(), Part(), Part()
        for part in (a, b, c):
            turns.locks_of([part])
        assert turns.locks_of([a, b, c]) == turns.locks_of([c, a, b])
        assert len(turns.locks_of([a, b, c])) == 3

    def test_locks_hold_no_part(self):
        gc.collect()
        before = len(turns._held)
        for pair in SHARING:
            for model in pair():
                Explainer(model, TOKENIZER).explain(TEXTS)
            del model
        gc.collect()
        assert len(turns._held) <= before

    def test_a_padding_id_lent_to_a_pass_is_not_taken_for_the_models_own(self):
        config = GPT2Config(vocab_size=120, n_embd=32, n_layer=1, n_head=4, pad_token_id=None)
        model = randomised(GPT2ForSequenceClassification(config), torch.float64)
        made = []
        thread = threading.Thread(target=lambda: made.append(Explainer(model)))
        with rewired(model, attention="own", gradients=False, filler=3):
            thread.start()
            thread.join(timeout=0.5)
        thread.join(timeout=60)
        assert made[0].pad_id is None


class TestInferenceMode:
    def test_answers_and_measures_are_the_same_inside(self):
        explainer = Explainer(tiny_bert(), TOKENIZER)
        asked = Question(question="who sat", context="the cat sat on the mat")
        answering = Explainer(tiny_bert_qa(), TOKENIZER)

        def work():
            found = explainer.explain(TEXTS, ["attcat", "integrated_gradients"], target="all")
            measured = explainer.evaluate(found, ["aopc", "lodds"])
            spans = answering.explain(asked, ["attcat", "transatt"])
            scores = np.concatenate([a.scores for a in (*found, *spans)])
            return scores, measured.summary["aopc"]["mean"]

        expected = work()
        with torch.inference_mode():
            inside = work()
        np.testing.assert_array_equal(inside[0], expected[0])
        assert inside[1] == expected[1]
        after = work()  # nothing that was kept inside is an inference tensor
        np.testing.assert_array_equal(after[0], expected[0])

    def test_a_first_use_inside_leaves_nothing_that_fails_outside(self):
        model = tiny_bert()
        before = snapshot(model)
        with torch.inference_mode():
            inside = Explainer(model, TOKENIZER).explain(TEXTS, ["attcat", "gae", "transatt"])
            assert torch.is_inference_mode_enabled()
            assert not torch.is_grad_enabled()
        assert same(before, snapshot(model))
        outside = Explainer(model, TOKENIZER).explain(TEXTS, ["attcat", "gae", "transatt"])
        for ours, theirs in zip(inside, outside, strict=True):
            np.testing.assert_array_equal(ours.scores, theirs.scores)

    @pytest.mark.parametrize("inside", [True, False])
    def test_a_model_loaded_inside_is_refused_in_words(self, inside):
        with torch.inference_mode():
            model = tiny_bert()
        with (
            torch.inference_mode(mode=inside),
            pytest.raises(
                UnsupportedModel, match=r"loaded inside torch\.inference_mode\(\).*outside"
            ),
        ):
            Explainer(model, TOKENIZER).explain(TEXTS)

    def test_a_model_loaded_inside_is_explained_where_no_gradient_is_wanted(self):
        with torch.inference_mode():
            model = tiny_bert()
        inside = Explainer(model, TOKENIZER).explain(TEXTS, "occlusion")
        outside = Explainer(tiny_bert(), TOKENIZER).explain(TEXTS, "occlusion")
        for ours, theirs in zip(inside, outside, strict=True):
            np.testing.assert_array_equal(ours.scores, theirs.scores)

    def test_ids_that_are_inference_tensors_are_read(self):
        explainer = Explainer(tiny_bert())
        with torch.inference_mode():
            ids = torch.tensor([[2, 9, 10, 3]])
            found = explainer.explain(Tokens.from_ids(ids, torch.ones_like(ids)), "gae")
        assert len(found) == 4
