"""Extra passes of a recording: where they enter a model, and packs that do not fit in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.helpers.families import FAMILIES, build_model
from tests.helpers.model_state import assert_unchanged, take_snapshot
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, Tokens
from tokenlight.trace.extra_passes import ExtraPasses
from tokenlight.trace.record import record
from tokenlight.trace.sites import Site

TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
TEXT = "the film is not very charming , but we love it !"
WORKING = [name for name, (_, _, support_level) in FAMILIES.items() if support_level != "refused"]


@pytest.mark.parametrize("family", WORKING)
def test_embeddings_replaced_by_themselves_do_not_change_the_logits(family):
    """The door to h^0 is found in every family: its own value handed in gives its own logits."""
    model = build_model(family)
    before = take_snapshot(model)
    explainer = Explainer(model)
    ids = torch.randint(5, 120, (2, 8), generator=torch.Generator().manual_seed(3))
    ids[:, 7] = 2
    rows = list(Tokens.from_ids(ids))
    recording = record(explainer.runner, rows, frozenset({Site.EMBEDDINGS, Site.TOKEN_EMBEDDINGS}))
    logits = recording.logits.detach().double().numpy()
    targets = [explainer.runner.head.resolve(1, logits[i], row)[0] for i, row in enumerate(rows)]
    rerun = recording.make_tape(targets, release_graph=True).extra_passes
    for site, entered in (
        ("embeddings", recording.embeddings),
        ("token_embeddings", recording.token_embeddings),
    ):
        value = rerun.compute_value_at(entered.values, site=site)
        torch.testing.assert_close(value, rerun.target_value, atol=1e-5, rtol=1e-5)
        scaled = entered.values * torch.linspace(-2, 2, entered.values.shape[2])
        assert (rerun.compute_value_at(scaled, site=site) - rerun.target_value).abs().max() > 0
    vectors = rerun.compute_embeddings(rows)
    torch.testing.assert_close(vectors, recording.embeddings.values, atol=1e-5, rtol=1e-5)
    assert_unchanged(before, take_snapshot(model))


def test_a_pack_that_does_not_fit_in_memory_is_halved(monkeypatch):
    expected = EXPLAINER.explain(TEXT, "integrated_gradients")
    fits = ExtraPasses.compute_gradient_at
    sizes = []

    def run_small_packs(self, examples, vectors, **options):
        sizes.append(len(examples))
        if len(examples) > 4:
            raise torch.OutOfMemoryError("no room")
        return fits(self, examples, vectors, **options)

    monkeypatch.setattr(ExtraPasses, "compute_gradient_at", run_small_packs)
    attribution = EXPLAINER.explain(TEXT, "integrated_gradients")
    np.testing.assert_allclose(attribution.scores, expected.scores, atol=1e-12)
    assert sizes[0] > 4
    assert sizes[-1] <= 4
