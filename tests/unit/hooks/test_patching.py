"""Attributes and hooks are set inside a block and gone after it."""

import pytest
from torch import nn, ones

from tokenlight.hooks.patching import forward_hooks, patched_attributes


class Owner:
    inherited = 1

    def __init__(self):
        self.own = 2


def test_attributes_are_restored_even_after_an_error():
    owner = Owner()
    inside = []

    def fail_inside():
        with patched_attributes([owner], own=5, inherited=6):
            inside.append((owner.own, owner.inherited))
            raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        fail_inside()
    assert inside == [(5, 6)]
    assert vars(owner) == {"own": 2}
    assert owner.inherited == 1


def test_hooks_see_arguments_and_replace_outputs():
    layer = nn.Identity()
    inputs = []

    def pre_hook(_module, args, _kwargs):
        inputs.append(args[0])

    with forward_hooks([layer], pre_hook=pre_hook, post_hook=lambda *call: call[-1] + 1):
        assert layer(ones(1)).item() == 2
    assert len(inputs) == 1
    assert layer(ones(1)).item() == 1
