"""What one call of explain() checks before the model runs."""

import pytest

from tests.helpers.expect import expect_error
from tokenlight import Contrast, Explainer
from tokenlight.errors import BadTarget, UnknownName


@pytest.fixture
def explainer_that_cannot_run(monkeypatch):
    """The embedded classifier; any pass over it fails the test."""
    explainer = Explainer.from_pretrained("tokenlight/sentiment")

    def fail(*_arguments, **_keywords):
        raise AssertionError("the model ran")

    monkeypatch.setattr(explainer.model, "forward", fail)
    return explainer


@pytest.mark.parametrize("method", ["auto", "attcat"])
@pytest.mark.parametrize(
    ("target", "error", "code"),
    [
        ("neutral", UnknownName, "unknown-name"),
        (2, BadTarget, "label-number-range"),
        (Contrast("positive", "neutral"), UnknownName, "unknown-name"),
        (Contrast("predicted", "all"), UnknownName, "unknown-name"),
    ],
)
def test_an_unknown_label_is_refused_before_the_model_runs(
    explainer_that_cannot_run, method, target, error, code
):
    with expect_error(error, code):
        explainer_that_cannot_run.explain("Never dull.", method, target)
    with expect_error(error, code):
        explainer_that_cannot_run.explain(iter(["Never dull."]), method, target)


def test_the_error_of_one_of_several_targets_names_its_text(explainer_that_cannot_run):
    with expect_error(UnknownName, "unknown-name", mentions="Text 1"):
        explainer_that_cannot_run.explain(["Good.", "Bad."], "attcat", ["positive", "neutral"])
