"""The tape of a pass: it is read by its own thread, and only at the sites that were declared."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.errors import BadInput
from tokenlight.methods.base import Method
from tokenlight.trace.sites import Site

TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
TEXTS = ["good film", "the plot is dull , never good", "we love it"]
TEXT = "we love this dull old movie"


class TestThreads:
    def test_two_threads_on_one_model_never_see_each_others_tape(self):
        expected = [EXPLAINER.explain(text, "gae").scores for text in TEXTS]
        self.run_together([EXPLAINER] * 4, expected)

    def test_two_threads_on_two_models_never_see_each_others_tape(self):
        expected = [EXPLAINER.explain(text, "gae").scores for text in TEXTS]
        self.run_together([Explainer(tiny_bert(), TOKENIZER) for _ in range(4)], expected)

    def run_together(self, explainers, expected):
        wrong = []
        start = threading.Barrier(len(explainers))

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


class TestUndeclaredSites:
    @pytest.mark.parametrize(
        ("site", "read"),
        [
            (Site.ATTENTION, lambda tape: tape.attention[0]),
            (Site.ATTENTION_GRADIENT, lambda tape: tape.attention_gradients[0]),
            (Site.ATTENTION_RECEIVED, lambda tape: tape.received_attention),
            (Site.HIDDEN_STATES, lambda tape: tape.hidden_states[0]),
            (Site.HIDDEN_GRADIENT, lambda tape: tape.hidden_gradients[0]),
            (Site.READOUT, lambda tape: tape.readout),
            (Site.EMBEDDINGS, lambda tape: tape.embeddings.values),
            (Site.EMBEDDING_GRADIENT, lambda tape: tape.embedding_gradient),
            (Site.TOKEN_EMBEDDINGS, lambda tape: tape.token_embeddings.values),
        ],
    )
    def test_reading_a_site_that_was_not_declared_is_refused(self, site, read):
        class Reads(Method):
            cites = "none"
            needs = frozenset({Site.EMBEDDINGS} if site is Site.EMBEDDING_GRADIENT else ())

            def __call__(self, tape):
                read(tape)
                return tape.token_mask.double()

        with pytest.raises(BadInput, match=rf"needs = frozenset\(\{{Site\.{site.name}\}}\)"):
            EXPLAINER.explain(TEXT, Reads())

    def test_the_read_out_is_not_the_gradient_of_the_first_state(self):
        class Reads(Method):
            cites = "none"
            needs = frozenset({Site.HIDDEN_STATES, Site.READOUT})

            def __call__(self, tape):
                return torch.linalg.vector_norm(tape.hidden_gradients[0], dim=-1)

        with pytest.raises(BadInput, match=r"Site\.HIDDEN_GRADIENT"):
            EXPLAINER.explain(TEXT, Reads())
