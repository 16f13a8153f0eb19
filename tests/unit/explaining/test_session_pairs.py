"""What an explanation says of a pair: whether the model was trained on two texts."""

import pytest

from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer

PAIR = ("the film is good", "the plot is bad")
UNKNOWN = "nothing shows whether this model was trained on pairs"


def explain_pair(labels, text=PAIR):
    names = dict(enumerate(labels))
    model = tiny_bert(id2label=names, label2id={name: index for index, name in names.items()})
    return Explainer(model, tiny_tokenizer()).explain(text, "grad_x_input")


def test_a_pair_for_a_model_of_unknown_training_has_a_note():
    (note,) = explain_pair(("negative", "neutral", "positive")).notes
    assert note.startswith("a pair of texts: ")
    assert UNKNOWN in note


def test_a_single_text_has_no_note():
    assert explain_pair(("negative", "positive"), "the film is good").notes == ()


@pytest.mark.parametrize(
    "labels",
    [
        ("CONTRADICTION", "NEUTRAL", "ENTAILMENT"),
        ("not_duplicate", "duplicate"),
        ("not_equivalent", "equivalent"),
        ("relevance",),
    ],
)
def test_labels_that_name_a_relation_show_a_model_of_pairs(labels):
    assert explain_pair(labels).notes == ()


@pytest.mark.parametrize("name", ["tokenlight/sentiment", "tokenlight/topics"])
def test_the_embedded_models_of_single_texts_are_named(name):
    attribution = Explainer.from_pretrained(name).explain(PAIR, "grad_x_input")
    (note,) = attribution.notes
    assert note.startswith(f"a pair of texts: {name} was trained on single texts")
    assert "fine-tuned on pairs" in note
