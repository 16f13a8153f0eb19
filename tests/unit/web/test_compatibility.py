"""A saved explanation is run again only if the served model can run it."""

from dataclasses import replace

import pytest

from tests.helpers.api_server import TEXT
from tokenlight.data.tokens import Question
from tokenlight.web.compatibility import can_read


@pytest.fixture(scope="module")
def attribution(models):
    return models.get_model("tiny").explainer.explain(TEXT)


def test_a_models_own_explanations_can_be_run(models, attribution):
    assert can_read(attribution, models.get_model("tiny"))
    answers = models.get_model("answers")
    question = Question(question="who?", context="the cat sat.")
    answer = answers.explainer.explain(question)
    assert can_read(answer, answers)
    assert not can_read(answer, models.get_model("tiny"))
    assert not can_read(attribution, answers)


@pytest.mark.parametrize(
    "change",
    [
        {"target_position": 2},
        {"target_positions": (1, 2)},
        {"reference_embedding": (0.5,)},
        {"source_length": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_rows_that_no_served_head_reads_cannot_be_run(models, attribution, change):
    changed = replace(attribution, row=replace(attribution.row, **change))
    assert not can_read(changed, models.get_model("tiny"))


def test_ids_and_types_outside_the_model_cannot_be_run(models, attribution):
    served_model = models.get_model("tiny")
    row = attribution.row
    ids = (served_model.explainer.runner.vocab_size, *row.ids[1:])
    assert not can_read(replace(attribution, row=replace(row, ids=ids)), served_model)
    types = (9, *([0] * (len(row) - 1)))
    assert not can_read(replace(attribution, row=replace(row, token_type_ids=types)), served_model)


def test_targets_outside_the_output_cannot_be_run(models, attribution):
    target = replace(attribution.target, terms=(((7,), 1.0),))
    assert not can_read(replace(attribution, target=target), models.get_model("tiny"))
