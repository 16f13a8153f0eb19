"""gae checks its options like every other method."""

import pytest

from tests.helpers.expect import expect_error
from tokenlight.errors import BadInput
from tokenlight.methods.gae import GenericAttention


@pytest.mark.parametrize("options", [{"reduce": "nowhere"}, {"gradient": "none"}, {"variant": 2}])
def test_values_that_an_option_does_not_take_are_refused(options):
    with pytest.raises(BadInput):
        GenericAttention(**options)


def test_attention_maps_need_a_gradient():
    with expect_error(BadInput, "attention-without-gradient"):
        GenericAttention(gradient="attention_constant")
