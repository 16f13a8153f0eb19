"""Options of methods and metrics that a request may set, and what they cost."""

import pytest

from tokenlight import registry
from tokenlight.web import options as allowed
from tokenlight.web.api_errors import ApiError
from tokenlight.web.limits import ServerLimits


def test_no_option_that_takes_more_than_a_number_or_a_word_is_allowed():
    """The rule is the type, so that an option added later is not let in by being forgotten."""
    for kind in ("methods", "metrics"):
        for name in registry.list_names(kind):
            for option, (words, _) in registry.describe_options(kind, name).items():
                opens = "Any" in words or "str" in words.split(" | ") or "tuple" in words
                if opens:
                    with pytest.raises(ApiError) as caught:
                        allowed.parse_allowed_spec(kind, f"{name}:{option}=x")
                    assert caught.value.code == "not_allowed"


def test_attention_flow_costs_more_than_its_pass():
    method = registry.build("methods", "attention_flow")
    assert (
        allowed.count_token_passes([method], 128, 1) < ServerLimits().explain_token_passes
    )  # two seconds
    assert allowed.count_token_passes([method], 200, 1) > ServerLimits().explain_token_passes


@pytest.mark.parametrize("metric", ["hiding_game", "revealing_game", "deletion", "insertion"])
def test_a_curve_has_a_few_hundred_points_at_most(metric):
    allowed.parse_allowed_spec("metrics", f"{metric}:num_steps=200")
    with pytest.raises(ApiError) as caught:
        allowed.parse_allowed_spec("metrics", f"{metric}:num_steps=201")
    assert caught.value.hint == "At most 200."
