"""Pairs: segments stay apart in words, shares, perturbation and batches."""

from __future__ import annotations

import html
import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import RobertaConfig, RobertaForSequenceClassification

from tests.tiny import randomised, tiny_bert, tiny_tokenizer
from tests.tiny_bytes import tiny_bytes
from tokenlight import Attribution, Explainer, Tokens, load
from tokenlight.capture.perturbation import Original, StandIns
from tokenlight.data.postprocess import merge_words
from tokenlight.errors import BadInput
from tokenlight.plots.facts import special_line
from tokenlight.plots.html import page
from tokenlight.plots.terminal import show

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
    model = randomised(RobertaForSequenceClassification(config), torch.float64)
    return Explainer(model, tiny_bytes("roberta"))


EXPLAINERS = {"bert": bert(), "roberta": roberta()}
FOUND = {name: explainer.explain(PAIR) for name, explainer in EXPLAINERS.items()}
both = pytest.mark.parametrize("family", EXPLAINERS)


def printed(attributions) -> str:
    stream = io.StringIO()
    show(attributions, console=Console(file=stream, width=100, color_system=None, markup=False))
    return stream.getvalue()


@both
def test_words_never_join_two_segments(family):
    # Nothing stands between the parts but their segment: "the" and "re" would be one word.
    found = EXPLAINERS[family].explain(("in the", "re is a cat"))
    words = [token for token, _ in found.words()]
    assert words == ["in", "the", "re", "is", "a", "cat"]
    homes = merge_words(found).row.segments
    assert [home for home in homes if home is not None] == [0, 0, 1, 1, 1, 1]


@both
def test_shares_and_sums_of_the_parts_are_those_of_their_tokens(family):
    found = FOUND[family]
    parts = {part.name: part for part in found.segment_shares()}
    assert list(parts) == ["premise", "hypothesis", "special"]
    homes = np.array([-1 if s is None else s for s in found.row.segments])
    whole = np.abs(found.scores).sum()
    for name, home in (("premise", 0), ("hypothesis", 1), ("special", -1)):
        own = found.scores[homes == home]
        assert parts[name].share == pytest.approx(np.abs(own).sum() / whole)
        assert parts[name].total == pytest.approx(own.sum())


@both
def test_shares_stand_in_terminal_page_and_file(family, tmp_path):
    found = FOUND[family]
    first, second, special = found.segment_shares()
    text, source = printed(found), page(found)
    for part in (first, second):
        assert f"{part.name} {100 * part.share:.0f} %" in text
        assert f"{100 * part.share:.0f} % of the weight" in source
    assert html.escape(special_line(found, special)) in source
    assert f"{100 * special.share:.0f} %" in text
    assert "premise ·" in source
    written = json.loads(found.save(tmp_path / "a.json").read_text())
    assert [part["name"] for part in written["segments"]] == ["premise", "hypothesis", "special"]
    assert written["segments"][0]["share"] == pytest.approx(first.share)
    assert load(tmp_path / "a.json")[0].segment_shares() == found.segment_shares()


def test_a_single_text_and_a_row_of_ids_have_shares_too():
    explainer = EXPLAINERS["bert"]
    assert [p.name for p in explainer.explain("the cat").segment_shares()] == ["text", "special"]
    ids = Tokens.from_ids([[2, 5, 3, 7, 3]], token_type_ids=[[0, 0, 0, 1, 1]])
    parts = explainer.explain(ids).segment_shares()
    assert sum(part.share for part in parts) == pytest.approx(1)
    assert [part.segment for part in parts] == [0, 1, None]


def test_scores_that_are_all_zero_have_shares_of_zero():
    found = FOUND["bert"]
    nothing = Attribution(
        found.row, np.zeros(len(found)), "zero", found.target, found.prediction, found.logits
    )
    assert [part.share for part in nothing.segment_shares()] == [0.0, 0.0, 0.0]


def inputs_of(family):
    explainer, row = EXPLAINERS[family], FOUND[family].row
    original = Original(row, StandIns.of(explainer.live, explainer.tokenizer))
    premise = [i for i, segment in enumerate(row.segments) if segment == 0]
    return explainer, row, original, premise


@both
def test_deleting_a_whole_segment_keeps_separators_and_segment_ids(family):
    explainer, row, original, premise = inputs_of(family)
    left = original.without(premise)
    names = explainer.tokenizer.convert_ids_to_tokens(left.ids.tolist())
    assert names[:3] == (["[CLS]", "[SEP]", "a"] if family == "bert" else ["<s>", "</s>", "</s>"])
    assert names[-1] == ("[SEP]" if family == "bert" else "</s>")
    kept = [i for i in range(len(row)) if i not in premise]
    assert left.ids.tolist() == [row.ids[i] for i in kept]
    if family == "bert":
        assert left.token_types.tolist() == [0, 0, 1, 1, 1, 1]
    else:
        assert left.token_types is None


@both
@pytest.mark.parametrize("way", ["replaced", "hidden"])
def test_masking_a_whole_segment_keeps_every_place_and_every_separator(family, way):
    explainer, row, original, premise = inputs_of(family)
    changed = getattr(original, way)(premise)
    stand_ins = original.stand_ins
    assert len(changed) == len(row)
    if row.token_types is not None:
        assert changed.token_types.tolist() == list(row.token_types)
    for i, (old, new) in enumerate(zip(row.ids, changed.ids, strict=True)):
        if i in premise:
            assert new == (stand_ins.pad if way == "replaced" else stand_ins.mask)
        else:
            assert new == old
    assert changed.attention.tolist() == [
        0 if way == "hidden" and i in premise else 1 for i in range(len(row))
    ]
    assert explainer.tokenizer.mask_token_id == stand_ins.mask


@both
def test_faithfulness_of_a_pair_can_be_measured(family):
    explainer = EXPLAINERS[family]
    measured = explainer.evaluate(FOUND[family], ["aopc", "sufficiency"], progress=False)
    assert measured.summary["aopc"]["count"] == 1
    assert np.isfinite(measured.summary["aopc"]["mean"])


@both
@pytest.mark.parametrize("method", ["attcat", "gae", "transatt"])
def test_batch_mates_and_the_side_of_the_padding_do_not_matter(family, method):
    explainer, row = EXPLAINERS[family], FOUND[family].row
    alone = explainer.explain(PAIR, method)
    mates = [PAIR, ("good", "bad"), (PAIR[1], PAIR[0] + " and never ever a dull one")]
    together = explainer.explain(mates, method)[0]
    np.testing.assert_allclose(together.scores, alone.scores, atol=1e-9)
    pad, more = explainer.tokenizer.pad_token_id, 4
    for left in (True, False):

        def padded(values, fill, left=left):
            return [[fill] * more + list(values) if left else list(values) + [fill] * more]

        types = None if row.token_types is None else padded(row.token_types, 0)
        ids = Tokens.from_ids(padded(row.ids, pad), padded([1] * len(row), 0), types)
        again = explainer.explain(ids, method)
        np.testing.assert_allclose(again.scores, alone.scores, atol=1e-9)


@pytest.mark.parametrize("method", ["attcat", "gae", "attnlrp", "integrated_gradients"])
def test_swapped_segments_give_swapped_scores_on_a_model_blind_to_order(method):
    model = tiny_bert()
    with torch.no_grad():  # neither place nor segment reaches such a model: a bag of tokens
        model.bert.embeddings.position_embeddings.weight.zero_()
        model.bert.embeddings.token_type_embeddings.weight.zero_()
    explainer = Explainer(model, tiny_tokenizer())
    there = explainer.explain(PAIR, method, target=0)
    back = explainer.explain(PAIR[::-1], method, target=0)
    for mine, theirs in ((0, 1), (1, 0)):
        one = there.scores[[s == mine for s in there.row.segments]]
        other = back.scores[[s == theirs for s in back.row.segments]]
        np.testing.assert_allclose(one, other, atol=1e-9)
    assert np.ptp(there.scores) > 1e-3


def test_an_empty_text_of_many_is_named_by_its_number():
    with pytest.raises(BadInput, match=r"text 2 \(counted from 0\): the text '' is empty"):
        EXPLAINERS["bert"].explain(["good", "bad", ""])
    with pytest.raises(BadInput, match=r"text 1 \(counted from 0\)"):
        EXPLAINERS["bert"].explain([PAIR, ("good", " ")])
    with pytest.raises(BadInput, match=r"text 513 \(counted from 0\)"):
        list(EXPLAINERS["bert"].explain(iter(["good"] * 513 + [""]), "random"))
    with pytest.raises(BadInput, match=r"^the text '' is empty"):
        EXPLAINERS["bert"].explain("")
