"""What explain() takes by itself: the table decides, the model may refuse, and the answer says which."""

from __future__ import annotations

import pytest

from tests.helpers.families import build_model
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, Tokens, registry
from tokenlight.errors import UnsupportedModel
from tokenlight.explaining.default_method import (
    KIND_DESCRIPTIONS,
    describe_choice,
    list_candidate_methods,
    load_measured_results,
)
from tokenlight.methods.attnlrp import AttentionAwareRelevance


@pytest.fixture
def explainer():
    return Explainer(tiny_bert(), tiny_tokenizer())


def test_the_table_names_a_signed_method_for_every_kind_of_input():
    assert set(load_measured_results()["kinds"]) == set(KIND_DESCRIPTIONS)
    for kind in KIND_DESCRIPTIONS:
        for name in list_candidate_methods(kind):
            assert registry.load_class("methods", name).signed


def test_the_default_method_is_as_good_as_the_best_measured():
    for row in load_measured_results()["kinds"].values():
        means = row["means"]
        best = max(means.values())
        chance = means["random"]
        assert best - means[row["method"]] <= 0.1 * (best - chance) + 1e-4


def test_the_default_method_is_auto_and_a_note_gives_the_reason(explainer):
    attribution = explainer.explain("good film")
    assert attribution.method == list_candidate_methods("text")[0]
    assert attribution.notes[0].startswith(f"method='auto': {attribution.method}, ")
    explicit_attribution = explainer.explain("good film", attribution.method)
    assert (attribution.scores == explicit_attribution.scores).all()
    assert not explicit_attribution.notes


def test_the_reason_names_what_was_measured():
    assert "(AOPC 0.61; random 0.19)" in describe_choice("text", "attnlrp", is_fallback=False)
    picture = describe_choice("image", "integrated_gradients", is_fallback=False)
    assert "(insertion − deletion 0.51; random 0.00)" in picture


def test_a_pair_is_a_separate_kind_of_input(explainer):
    assert explainer.explain(("good film", "bad film")).method == list_candidate_methods("pair")[0]


def test_auto_may_be_one_of_several_methods(explainer):
    attributions = explainer.explain(["good film", "bad"], ["auto", "attcat"])
    assert [attribution.method for attribution in attributions] == [
        list_candidate_methods("text")[0],
        "attcat",
    ] * 2
    assert [bool(attribution.notes) for attribution in attributions] == [True, False] * 2


def test_the_first_text_of_an_iterator_decides_and_none_is_lost(explainer):
    attributions = list(explainer.explain(iter(["good film", "bad", "a film"])))
    assert [len(attribution.row) for attribution in attributions] == [4, 3, 4]
    assert {attribution.method for attribution in attributions} == {
        list_candidate_methods("text")[0]
    }
    assert list(explainer.explain(iter([]))) == []


def test_an_unsupported_model_falls_back_to_integrated_gradients_with_a_note(
    explainer, monkeypatch
):
    def refuse(*_):
        raise UnsupportedModel("no rule for this operation.")

    monkeypatch.setattr(AttentionAwareRelevance, "__call__", refuse)
    for inputs in ("good film", iter(["good film"])):
        attributions = explainer.explain(inputs)
        attribution = attributions if isinstance(inputs, str) else next(attributions)
        assert attribution.method == "integrated_gradients"
        assert "attnlrp does not support this model" in attribution.notes[0]


def test_an_encoder_decoder_gets_integrated_gradients():
    explainer = Explainer(build_model("bart"))
    assert (
        explainer.explain(Tokens.from_ids([[5, 6, 7, 2]], [[1] * 4])).method
        == "integrated_gradients"
    )


def test_attnlrp_is_refused_where_a_gate_is_written_out_within_experts():
    explainer = Explainer(build_model("gpt_oss"))
    with pytest.raises(UnsupportedModel, match="spells out its gate"):
        explainer.explain(Tokens.from_ids([[5, 6, 7]], [[1] * 3]), "attnlrp")


def test_the_note_states_a_tie_of_methods():
    """Case 3: three methods for questions have one mean."""
    reason = describe_choice("span", "attnlrp", is_fallback=False)
    assert reason == (
        "method='auto': attnlrp, tied with gae and transatt for the most faithful of 8 methods measured "
        "for an answer in a context (AOPC 0.59; random 0.51)"
    )
    assert "tied" not in describe_choice("image", "integrated_gradients", is_fallback=False)
