"""Two models compared on the same texts: ranks, flips and faithfulness."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from markupsafe import escape

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer
from tokenlight.errors import BadInput
from tokenlight.evaluation.compare import ComparedModel, compare
from tokenlight.files.tables import Example

TEXTS = ["the film is not very good", "we love this movie", "a dull plot", "never ever hate it"]


def make_compared_models(tokenizer, **more):
    explainer = Explainer(tiny_bert(), tokenizer)
    return ComparedModel(explainer), ComparedModel(explainer, **more)


def test_prompts_are_compared_on_the_words_of_the_text(tokenizer):
    examples = [Example(text) for text in TEXTS]
    before, after = make_compared_models(tokenizer, prompt="the movie : {text} !")
    comparison = compare(before, after, examples)
    assert comparison.num_texts == 4
    assert comparison.rank_correlation.count == 4
    assert comparison.rank_correlation.mean < 1
    same = compare(before, before, examples)
    assert same.rank_correlation.mean == pytest.approx(1)
    assert same.list_failures() == []


@pytest.mark.filterwarnings("ignore")  # the library's own words on its processor kernels
def test_a_quantized_model_is_compared_with_the_full_one(tokenizer, tmp_path):
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    tiny_bert(torch.float32, hidden_size=64, intermediate_size=128).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    full = Explainer.from_pretrained(tmp_path)
    eight_bit = Explainer.from_pretrained(
        tmp_path, quantization_config=BitsAndBytesConfig(load_in_8bit=True), device_map="cpu"
    )
    comparison = compare(
        ComparedModel(full), ComparedModel(eight_bit), [Example(text) for text in TEXTS]
    )
    assert comparison.num_texts == 4
    assert comparison.flip_rate.mean == 0
    assert 0.8 < comparison.rank_correlation.mean <= 1
    assert comparison.aopc_change.mean != 0  # eight bits were indeed read


def test_every_limit_is_checked(tokenizer):
    before, after = make_compared_models(tokenizer, prompt="bad dull {text}")
    comparison = compare(before, after, [Example(text) for text in TEXTS])
    assert (
        len(comparison.list_failures(max_flip_rate=-1, min_rank_correlation=1.1, max_aopc_drop=-9))
        == 3
    )


def test_incomparable_models_are_refused(tokenizer):
    with pytest.raises(BadInput, match="exactly once"):
        make_compared_models(tokenizer, prompt="no place")
    before, after = make_compared_models(tokenizer)
    with pytest.raises(BadInput, match="plain texts"):
        compare(before, after, [Example(("a", "b"))])
    other = ComparedModel(
        Explainer(tiny_bert(id2label={0: "x", 1: "y"}, label2id={"x": 0, "y": 1}), tokenizer)
    )
    with pytest.raises(BadInput, match="different labels"):
        compare(before, other, [Example("good")])


def test_true_labels_that_no_model_predicts_are_refused(tokenizer):
    before, after = make_compared_models(tokenizer)
    foreign = [Example(text, label="five stars") for text in TEXTS]
    with expect_error(BadInput, "no-label-of-the-model", mentions="the texts have five stars"):
        compare(before, after, foreign)
    label = before.explainer.labels[0]
    comparison = compare(before, after, [Example(TEXTS[0], label=label), *foreign[1:]])
    assert comparison.accuracy_before is not None
    assert comparison.accuracy_before.count == len(TEXTS)


def test_word_scores_are_sums_over_their_tokens(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = explainer.explain("charming film , slower", "attcat")
    scores_by_word = ComparedModel(explainer).word_scores("charming film , slower", attribution)
    expected = [score for _, score in attribution.words()]
    np.testing.assert_allclose(scores_by_word, expected)


def test_texts_that_changed_have_their_source_and_label_and_whole_words(tokenizer):
    long_text = "the film is not very good , but we love this movie and hate a dull plot " * 2
    examples = [
        Example(long_text, label=1, location="row 3 of reviews.csv", extra_columns={"id": "r<3>"}),
        Example("a dull plot", label=0, location="row 4 of reviews.csv"),
        Example("we love this movie"),
    ]
    before, after = make_compared_models(tokenizer, prompt="bad dull hate {text} !")
    comparison = compare(before, after, examples)
    changed_by_text = {changed.text: changed for changed in comparison.most_changed}
    labels = before.explainer.labels
    assert changed_by_text[long_text].describe_source() == f"id r<3>, true label {labels[1]}"
    lines = list(comparison.describe())
    (shown_text,) = [line for line in lines if "the film is" in line]
    assert shown_text.endswith(" …")
    assert set(shown_text.split()[1:-1]) <= set(long_text.split())
    page = comparison.to_html()
    assert comparison.models is not None
    for side, name in zip("AB", comparison.models, strict=True):
        assert f"{side}  {name}" in lines
        assert f"{side}: {escape(name)}" in page
    assert comparison.models[1].endswith("prompt 'bad dull hate {text} !'")
    assert "id r&lt;3&gt;" in page
    assert "<script" not in page
    assert comparison.to_dict()["most_changed"][0][1] in changed_by_text
    assert "attributions" not in comparison.to_dict()
