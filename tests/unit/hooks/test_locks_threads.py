"""Threads and models that share a part; models that are explained inside torch.inference_mode()."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

from tests.helpers.deadlines import DEADLINE_SECONDS
from tests.helpers.expect import expect_error
from tests.helpers.garbage import collect_garbage
from tests.helpers.model_state import assert_unchanged, take_snapshot
from tests.helpers.tiny import (
    randomize_weights,
    tiny_bert,
    tiny_bert_qa,
    tiny_config,
    tiny_tokenizer,
)
from tokenlight import Explainer, Question, Tokens
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.explaining.session import find_pad_id
from tokenlight.hooks import locks
from tokenlight.hooks.instrument import instrumented
from tokenlight.trace.rescale import applied_rescale_rule

TOKENIZER = tiny_tokenizer()
TEXTS = ["the film is not very charming", "a dull plot"]


def models_with_one_config():
    config = tiny_config()
    return [
        randomize_weights(BertForSequenceClassification(config), torch.float64) for _ in range(2)
    ]


def share_encoder(source, model):
    """Give ``model`` the encoder and the config of ``source``."""
    model.bert = source.bert
    model.config = source.config
    return model


def models_with_one_encoder():
    first = tiny_bert()
    return [first, share_encoder(first, tiny_bert())]


def models_with_one_embedding():
    first = tiny_bert()
    second = tiny_bert()
    second.bert.embeddings = first.bert.embeddings
    return [first, second]


def models_sharing_after_use():
    first = tiny_bert()
    second = tiny_bert()
    for model in (first, second):
        Explainer(model, TOKENIZER).explain(TEXTS)
    return [first, share_encoder(first, second)]


SHARING_MODELS = [
    models_with_one_config,
    models_with_one_encoder,
    models_with_one_embedding,
    models_sharing_after_use,
]


@contextmanager
def instrument_in_thread(model):
    """Start a thread that instruments ``model``; yields the event that it has done so."""
    finished = threading.Event()

    def run():
        with instrumented(model, attention="unchanged", gradients=False):
            finished.set()

    thread = threading.Thread(target=run)
    thread.start()
    yield finished
    thread.join(timeout=DEADLINE_SECONDS)
    assert not thread.is_alive()


class TestSharedParts:
    def test_threads_that_would_wait_for_each_other_forever_are_refused(self, monkeypatch):
        """Models in a chain, and a hook that explains the first while the last is explained."""
        monkeypatch.setattr(locks, "LOCK_TIMEOUT_SECONDS", 0.2)
        first = tiny_bert()
        middle = tiny_bert()
        last = tiny_bert()
        share_encoder(first, middle)
        last.classifier = middle.classifier
        for model in (first, middle, last):
            Explainer(model, TOKENIZER).explain(TEXTS)  # so each has its locks, in this order
        has_started = threading.Event()
        go_on = threading.Event()
        codes = []

        def nested():
            with instrumented(last, attention="unchanged", gradients=False):
                has_started.set()
                go_on.wait(DEADLINE_SECONDS)
                try:
                    with instrumented(first, attention="unchanged", gradients=False):
                        pass
                except BadInput as error:
                    codes.append(error.code)

        def crossing():
            has_started.wait(DEADLINE_SECONDS)
            lowest = locks.get_locks([first.bert])
            with locks.acquire_in_order(lowest):
                go_on.set()
                with instrumented(middle, attention="unchanged", gradients=False):
                    pass

        threads = [threading.Thread(target=work) for work in (nested, crossing)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=DEADLINE_SECONDS)
            assert not thread.is_alive()
        assert codes == ["models-wait-for-each-other"]
        with instrumented(first, attention="unchanged", gradients=False):
            pass  # nothing is left held

    @pytest.mark.parametrize("context", [instrumented, applied_rescale_rule])
    @pytest.mark.parametrize("make_pair", SHARING_MODELS)
    @pytest.mark.parametrize("order", [1, -1])
    def test_models_that_share_a_part_wait_for_each_other(self, make_pair, order, context):
        first, second = make_pair()[::order]
        locked = (
            instrumented(first, attention="unchanged", gradients=False)
            if context is instrumented
            else applied_rescale_rule(first, "none")
        )
        with instrument_in_thread(tiny_bert()) as finished:
            assert finished.wait(DEADLINE_SECONDS), "a model that shares nothing need not wait"
        with locked:
            waiting = instrument_in_thread(second)
            finished = waiting.__enter__()
            assert not finished.wait(0.2)
        assert finished.wait(DEADLINE_SECONDS)
        waiting.__exit__(None, None, None)

    @pytest.mark.parametrize("make_pair", SHARING_MODELS)
    def test_models_that_share_a_part_are_explained_in_parallel_and_left_as_they_were(
        self, make_pair
    ):
        models = make_pair()
        methods = ["attcat", "rollout"]
        before = [take_snapshot(model) for model in models]
        expected = [Explainer(model, TOKENIZER).explain(TEXTS, methods) for model in models]
        errors: list[object] = []

        def explain(number):
            try:
                for _ in range(15):
                    attributions = Explainer(models[number], TOKENIZER).explain(TEXTS, methods)
                    for actual, reference in zip(attributions, expected[number], strict=True):
                        np.testing.assert_allclose(actual.scores, reference.scores, atol=1e-12)
            except Exception as error:  # noqa: BLE001 - asserted in the main thread
                errors.append(error)

        threads = [threading.Thread(target=explain, args=(i % 2,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=DEADLINE_SECONDS)
            assert not thread.is_alive()
        assert not errors
        for model, state in zip(models, before, strict=True):
            assert_unchanged(state, take_snapshot(model))

    def test_a_model_that_shares_nothing_has_one_lock(self):
        model = tiny_bert()
        parts = [*model.modules(), model.config]
        (lock,) = locks.get_locks(parts)
        assert locks.get_locks(reversed(parts)) == [lock]

    def test_locks_are_acquired_in_one_order_whatever_the_order_of_the_parts(self):
        class Part:
            pass

        a = Part()
        b = Part()
        c = Part()
        for part in (a, b, c):
            locks.get_locks([part])
        assert locks.get_locks([a, b, c]) == locks.get_locks([c, a, b])
        assert len(locks.get_locks([a, b, c])) == 3

    def test_locks_do_not_keep_modules_alive(self):
        collect_garbage()
        before = len(locks._locks_by_id)
        for make_pair in SHARING_MODELS:
            for model in make_pair():
                Explainer(model, TOKENIZER).explain(TEXTS)
            del model
        collect_garbage()
        assert len(locks._locks_by_id) <= before

    def test_a_temporary_padding_id_is_not_taken_for_the_models_own(self):
        config = GPT2Config(vocab_size=120, n_embd=32, n_layer=1, n_head=4, pad_token_id=None)
        model = randomize_weights(GPT2ForSequenceClassification(config), torch.float64)
        explainers = []
        thread = threading.Thread(target=lambda: explainers.append(Explainer(model)))
        with instrumented(model, attention="unchanged", gradients=False, pad_id=3):
            thread.start()
            thread.join(timeout=0.5)
        thread.join(timeout=DEADLINE_SECONDS)
        assert find_pad_id(explainers[0]) is None


class TestInferenceMode:
    def test_scores_and_metrics_are_the_same_in_inference_mode(self):
        explainer = Explainer(tiny_bert(), TOKENIZER)
        question = Question(question="who sat", context="the cat sat on the mat")
        qa_explainer = Explainer(tiny_bert_qa(), TOKENIZER)

        def work():
            attributions = explainer.explain(
                TEXTS, ["attcat", "integrated_gradients"], target="all"
            )
            evaluation = explainer.evaluate(attributions, ["aopc", "lodds"])
            spans = qa_explainer.explain(question, ["attcat", "transatt"])
            scores = np.concatenate([attribution.scores for attribution in (*attributions, *spans)])
            return scores, evaluation.summary["aopc"]["mean"]

        expected = work()
        with torch.inference_mode():
            inside = work()
        np.testing.assert_array_equal(inside[0], expected[0])
        assert inside[1] == expected[1]
        after = work()  # no cached tensor is an inference tensor
        np.testing.assert_array_equal(after[0], expected[0])

    def test_a_first_use_in_inference_mode_does_not_break_later_use(self):
        model = tiny_bert()
        before = take_snapshot(model)
        with torch.inference_mode():
            inside = Explainer(model, TOKENIZER).explain(TEXTS, ["attcat", "gae", "transatt"])
            assert torch.is_inference_mode_enabled()
            assert not torch.is_grad_enabled()
        assert_unchanged(before, take_snapshot(model))
        outside = Explainer(model, TOKENIZER).explain(TEXTS, ["attcat", "gae", "transatt"])
        for actual, expected in zip(inside, outside, strict=True):
            np.testing.assert_array_equal(actual.scores, expected.scores)

    @pytest.mark.parametrize("inside", [True, False])
    def test_a_model_loaded_in_inference_mode_is_refused_for_gradients(self, inside):
        with torch.inference_mode():
            model = tiny_bert()
        with (
            torch.inference_mode(mode=inside),
            expect_error(UnsupportedModel, "model-of-inference-mode"),
        ):
            Explainer(model, TOKENIZER).explain(TEXTS)

    def test_a_model_loaded_in_inference_mode_is_explained_without_gradients(self):
        with torch.inference_mode():
            model = tiny_bert()
        inside = Explainer(model, TOKENIZER).explain(TEXTS, "occlusion")
        outside = Explainer(tiny_bert(), TOKENIZER).explain(TEXTS, "occlusion")
        for actual, expected in zip(inside, outside, strict=True):
            np.testing.assert_array_equal(actual.scores, expected.scores)

    def test_ids_that_are_inference_tensors_are_read(self):
        explainer = Explainer(tiny_bert())
        with torch.inference_mode():
            ids = torch.tensor([[2, 9, 10, 3]])
            attribution = explainer.explain(Tokens.from_ids(ids, torch.ones_like(ids)), "gae")
        assert len(attribution) == 4
