"""What explain() takes by itself: the table decides, the model may refuse, and the answer says which."""

from __future__ import annotations

import pytest

from tests.families import build
from tests.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, Tokens, registry
from tokenlight.errors import UnsupportedModel
from tokenlight.explaining.default import KINDS, candidates, reason, table
from tokenlight.methods.attnlrp import AttentionAwareRelevance


@pytest.fixture
def explainer():
    return Explainer(tiny_bert(), tiny_tokenizer())


def test_the_table_names_a_signed_method_for_every_kind_of_input():
    assert set(table()["kinds"]) == set(KINDS)
    for kind in KINDS:
        for name in candidates(kind):
            assert registry.find("methods", name).signed


def test_the_method_taken_is_as_good_as_the_best_measured():
    for row in table()["kinds"].values():
        means = row["means"]
        best, chance = max(means.values()), means["random"]
        assert best - means[row["method"]] <= 0.1 * (best - chance) + 1e-4


def test_no_method_means_auto_and_the_answer_says_why(explainer):
    found = explainer.explain("good film")
    assert found.method == candidates("text")[0]
    assert found.notes[0].startswith(f"method='auto': {found.method}, ")
    named = explainer.explain("good film", found.method)
    assert (found.scores == named.scores).all()
    assert not named.notes


def test_the_reason_names_what_was_measured():
    assert "(AOPC 0.61; random 0.19)" in reason("text", "attnlrp", None)
    picture = reason("image", "integrated_gradients", None)
    assert "(insertion − deletion 0.51; random 0.00)" in picture


def test_a_pair_is_a_kind_of_its_own(explainer):
    assert explainer.explain(("good film", "bad film")).method == candidates("pair")[0]


def test_auto_stands_beside_others(explainer):
    found = explainer.explain(["good film", "bad"], ["auto", "attcat"])
    assert [a.method for a in found] == [candidates("text")[0], "attcat"] * 2
    assert [bool(a.notes) for a in found] == [True, False] * 2


def test_an_iterator_is_decided_by_its_first_text_and_loses_none(explainer):
    found = list(explainer.explain(iter(["good film", "bad", "a film"])))
    assert [len(a.row) for a in found] == [4, 3, 4]
    assert {a.method for a in found} == {candidates("text")[0]}
    assert list(explainer.explain(iter([]))) == []


def test_a_model_that_refuses_gets_integrated_gradients_and_is_told_so(explainer, monkeypatch):
    def refuse(*_):
        raise UnsupportedModel("no rule for this operation.")

    monkeypatch.setattr(AttentionAwareRelevance, "__call__", refuse)
    for given in ("good film", iter(["good film"])):
        found = explainer.explain(given)
        one = found if isinstance(given, str) else next(found)
        assert one.method == "integrated_gradients"
        assert "attnlrp does not serve this model" in one.notes[0]


def test_a_model_with_a_decoder_gets_what_has_its_share():
    explainer = Explainer(build("bart"))
    assert (
        explainer.explain(Tokens.from_ids([[5, 6, 7, 2]], [[1] * 4])).method
        == "integrated_gradients"
    )


def test_attnlrp_is_refused_where_a_gate_is_written_out_within_experts():
    explainer = Explainer(build("gpt_oss"))
    with pytest.raises(UnsupportedModel, match="writes its gate out"):
        explainer.explain(Tokens.from_ids([[5, 6, 7]], [[1] * 3]), "attnlrp")
