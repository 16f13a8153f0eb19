"""Pairs: segments stay apart in words, shares, perturbation and batches."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from markupsafe import escape
from transformers import RobertaConfig, RobertaForSequenceClassification

from tests.helpers.terminal import render_terminal
from tests.helpers.tiny import randomize_weights, tiny_bert, tiny_tokenizer
from tests.helpers.tiny_byte_tokenizers import tiny_byte_tokenizer
from tokenlight import Attribution, Explainer, Tokens, load
from tokenlight.data.postprocess import merge_words
from tokenlight.errors import BadInput
from tokenlight.perturb.variants import Perturber, ReplacementIds
from tokenlight.plots.descriptions import describe_special_share, round_segment_shares
from tokenlight.plots.html import render_page

NLI = {0: "entailment", 1: "neutral", 2: "contradiction"}
PAIR = ("the cat sat on the mat", "a dog sat")


def bert():
    labels = {name: i for i, name in NLI.items()}
    return Explainer(tiny_bert(id2label=NLI, label2id=labels), tiny_tokenizer())


def roberta():
    config = RobertaConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=70, pad_token_id=1, type_vocab_size=1,
        id2label=NLI, label2id={name: i for i, name in NLI.items()},
    )  # fmt: skip
    model = randomize_weights(RobertaForSequenceClassification(config), torch.float64)
    return Explainer(model, tiny_byte_tokenizer("roberta"))


EXPLAINERS = {"bert": bert(), "roberta": roberta()}
ATTRIBUTIONS = {name: explainer.explain(PAIR) for name, explainer in EXPLAINERS.items()}
for_both_families = pytest.mark.parametrize("family", EXPLAINERS)


@for_both_families
def test_words_never_join_two_segments(family):
    # Nothing stands between the parts but their segment: "the" and "re" would be one word.
    attribution = EXPLAINERS[family].explain(("in the", "re is a cat"))
    words = [token for token, _ in attribution.words()]
    assert words == ["in", "the", "re", "is", "a", "cat"]
    homes = merge_words(attribution).row.segments
    assert [home for home in homes if home is not None] == [0, 0, 1, 1, 1, 1]


@for_both_families
def test_shares_and_sums_of_the_parts_are_sums_over_their_tokens(family):
    attribution = ATTRIBUTIONS[family]
    parts = {part.name: part for part in attribution.segment_shares()}
    assert list(parts) == ["premise", "hypothesis", "special"]
    homes = np.array([-1 if s is None else s for s in attribution.row.segments])
    total = np.abs(attribution.scores).sum()
    for name, home in (("premise", 0), ("hypothesis", 1), ("special", -1)):
        segment_scores = attribution.scores[homes == home]
        assert parts[name].share == pytest.approx(np.abs(segment_scores).sum() / total)
        assert parts[name].total == pytest.approx(segment_scores.sum())


@for_both_families
def test_shares_are_shown_in_terminal_page_and_file(family, tmp_path):
    attribution = ATTRIBUTIONS[family]
    first, second, special = round_segment_shares(attribution)
    text = render_terminal(attribution)
    source = render_page(attribution)
    for part in (first, second):
        assert f"{part.name} {part.percent} %" in text
        assert f"{part.percent} % of the total score" in source
    assert escape(describe_special_share(attribution, special)) in source
    assert f"{special.percent} %" in text
    assert "premise ·" in source
    saved_json = json.loads(attribution.save(tmp_path / "a.json").read_text())
    assert [part["name"] for part in saved_json["segments"]] == ["premise", "hypothesis", "special"]
    assert saved_json["segments"][0]["share"] == pytest.approx(first.share)
    assert load(tmp_path / "a.json")[0].segment_shares() == attribution.segment_shares()


def test_a_single_text_and_a_row_of_ids_have_shares_too():
    explainer = EXPLAINERS["bert"]
    assert [p.name for p in explainer.explain("the cat").segment_shares()] == ["text", "special"]
    ids = Tokens.from_ids([[2, 5, 3, 7, 3]], token_type_ids=[[0, 0, 0, 1, 1]])
    parts = explainer.explain(ids).segment_shares()
    assert sum(part.share for part in parts) == pytest.approx(1)
    assert [part.segment for part in parts] == [0, 1, None]


def test_scores_that_are_all_zero_have_shares_of_zero():
    attribution = ATTRIBUTIONS["bert"]
    nothing = Attribution(
        attribution.row,
        np.zeros(len(attribution)),
        "zero",
        attribution.target,
        attribution.prediction,
        attribution.logits,
    )
    assert [part.share for part in nothing.segment_shares()] == [0.0, 0.0, 0.0]


def make_inputs(family):
    explainer = EXPLAINERS[family]
    row = ATTRIBUTIONS[family].row
    original = Perturber(row, ReplacementIds.from_model(explainer.runner, explainer.tokenizer))
    premise = [i for i, segment in enumerate(row.segments) if segment == 0]
    return explainer, row, original, premise


@for_both_families
def test_deleting_a_whole_segment_keeps_separators_and_segment_ids(family):
    explainer, row, original, premise = make_inputs(family)
    remaining = original.delete_tokens(premise)
    names = explainer.tokenizer.convert_ids_to_tokens(remaining.ids.tolist())
    assert names[:3] == (["[CLS]", "[SEP]", "a"] if family == "bert" else ["<s>", "</s>", "</s>"])
    assert names[-1] == ("[SEP]" if family == "bert" else "</s>")
    kept_positions = [i for i in range(len(row)) if i not in premise]
    assert remaining.ids.tolist() == [row.ids[i] for i in kept_positions]
    if family == "bert":
        assert remaining.token_type_ids.tolist() == [0, 0, 1, 1, 1, 1]
    else:
        assert remaining.token_type_ids is None


@for_both_families
@pytest.mark.parametrize("way", ["replace_tokens", "hide_tokens"])
def test_masking_a_whole_segment_keeps_every_position_and_separator(family, way):
    explainer, row, original, premise = make_inputs(family)
    changed = getattr(original, way)(premise)
    replacement_ids = original.replacement_ids
    assert len(changed) == len(row)
    if row.token_type_ids is not None:
        assert changed.token_type_ids.tolist() == list(row.token_type_ids)
    for i, (old, new) in enumerate(zip(row.ids, changed.ids, strict=True)):
        if i in premise:
            assert new == (
                replacement_ids.pad_id if way == "replace_tokens" else replacement_ids.mask_id
            )
        else:
            assert new == old
    assert changed.attention_mask.tolist() == [
        0 if way == "hide_tokens" and i in premise else 1 for i in range(len(row))
    ]
    assert explainer.tokenizer.mask_token_id == replacement_ids.mask_id


@for_both_families
def test_faithfulness_of_a_pair_can_be_measured(family):
    explainer = EXPLAINERS[family]
    measured = explainer.evaluate(ATTRIBUTIONS[family], ["aopc", "sufficiency"], progress=False)
    assert measured.summary["aopc"]["count"] == 1
    assert np.isfinite(measured.summary["aopc"]["mean"])


@for_both_families
@pytest.mark.parametrize("method", ["attcat", "gae", "transatt"])
def test_other_texts_in_a_batch_and_the_padding_side_change_no_score(family, method):
    explainer = EXPLAINERS[family]
    row = ATTRIBUTIONS[family].row
    alone = explainer.explain(PAIR, method)
    pairs = [PAIR, ("good", "bad"), (PAIR[1], PAIR[0] + " and never ever a dull one")]
    together = explainer.explain(pairs, method)[0]
    np.testing.assert_allclose(together.scores, alone.scores, atol=1e-9)
    pad = explainer.tokenizer.pad_token_id
    more = 4
    for is_left in (True, False):

        def pad_values(values, fill, is_left=is_left):
            return [[fill] * more + list(values) if is_left else list(values) + [fill] * more]

        types = None if row.token_type_ids is None else pad_values(row.token_type_ids, 0)
        ids = Tokens.from_ids(pad_values(row.ids, pad), pad_values([1] * len(row), 0), types)
        padded_attribution = explainer.explain(ids, method)
        np.testing.assert_allclose(padded_attribution.scores, alone.scores, atol=1e-9)


@pytest.mark.parametrize("method", ["attcat", "gae", "attnlrp", "integrated_gradients"])
def test_swapped_segments_give_swapped_scores_on_a_model_without_positions(method):
    model = tiny_bert()
    with torch.no_grad():  # neither place nor segment reaches such a model: a bag of tokens
        model.bert.embeddings.position_embeddings.weight.zero_()
        model.bert.embeddings.token_type_embeddings.weight.zero_()
    explainer = Explainer(model, tiny_tokenizer())
    attribution = explainer.explain(PAIR, method, target=0)
    back = explainer.explain(PAIR[::-1], method, target=0)
    for mine, expected in ((0, 1), (1, 0)):
        segment_scores = attribution.scores[[s == mine for s in attribution.row.segments]]
        other = back.scores[[s == expected for s in back.row.segments]]
        np.testing.assert_allclose(segment_scores, other, atol=1e-9)
    assert np.ptp(attribution.scores) > 1e-3


def test_an_empty_text_of_many_is_named_by_its_number():
    with pytest.raises(BadInput, match=r"Text 2 \(counted from 0\): The text '' is empty"):
        EXPLAINERS["bert"].explain(["good", "bad", ""])
    with pytest.raises(BadInput, match=r"Text 1 \(counted from 0\)"):
        EXPLAINERS["bert"].explain([PAIR, ("good", " ")])
    with pytest.raises(BadInput, match=r"Text 513 \(counted from 0\)"):
        list(EXPLAINERS["bert"].explain(iter(["good"] * 513 + [""]), "random"))
    with pytest.raises(BadInput, match=r"^The text '' is empty"):
        EXPLAINERS["bert"].explain("")
