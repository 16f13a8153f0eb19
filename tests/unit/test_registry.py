"""Names to objects, and options that are checked before anything runs."""

from __future__ import annotations

import pytest

from tokenlight import registry
from tokenlight.errors import BadInput, MissingExtra, UnknownName
from tokenlight.late import late


def test_a_file_is_a_method():
    assert {"attcat", "rollout", "gae", "random"} <= set(registry.names("methods"))
    assert not [name for name in registry.names("methods") if name.startswith("_")]


def test_near_names_are_offered():
    with pytest.raises(UnknownName, match="unknown method 'rolout'. Did you mean 'rollout'"):
        registry.find("methods", "rolout")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("attcat", ("attcat", {})),
        ("attcat:hidden=output", ("attcat", {"hidden": "output"})),
        (
            "rollout:start_layer=2,residual=false",
            ("rollout", {"start_layer": "2", "residual": "false"}),
        ),
    ],
)
def test_a_method_can_be_written_on_one_line(text, expected):
    assert registry.parse(text) == expected


def test_an_option_without_a_value_is_refused():
    with pytest.raises(BadInput, match="name=value"):
        registry.parse("attcat:hidden")


def test_text_becomes_the_type_an_option_has():
    built = registry.build("methods", "rollout", {"start_layer": "2", "residual": "false"})
    assert built.start_layer == 2
    assert built.residual is False


@pytest.mark.parametrize(
    ("method", "options", "says"),
    [
        ("rollout", {"start_layer": "two"}, "it takes int"),
        ("rollout", {"start_layer": True}, "it takes int"),
        ("rollout", {"residual": "perhaps"}, "it takes bool"),
        ("attcat", {"hidden": "both"}, "'input' | 'output'"),
    ],
)
def test_a_value_an_option_cannot_have_is_refused(method, options, says):
    with pytest.raises(BadInput) as refusal:
        registry.build("methods", method, options)
    assert says in str(refusal.value)


def test_explicit_options_win_over_a_preset():
    built = registry.build("methods", "attcat", {"preset": "paper", "hidden": "input"})
    assert built.hidden == "input"
    assert registry.build("methods", "attcat", {"preset": "paper"}).hidden == "output"


def test_only_options_that_differ_are_recorded():
    assert registry.build("methods", "attcat", {"hidden": "input"}).options == {}
    assert registry.build("methods", "attcat", {"hidden": "output"}).options == {"hidden": "output"}


def test_options_are_described_with_type_and_default():
    described = registry.options_of("methods", "attcat")
    assert described["hidden"] == ("'input' | 'output'", "input")


def test_a_missing_library_names_the_line_to_run(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "jinja2", None)
    for name in [name for name in sys.modules if name.startswith("tokenlight.plots")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match=r"pip install 'tokenlight\[cli\]'"):
        late("tokenlight.plots.html", "page")


def test_only_names_about_as_near_as_the_nearest_are_offered():
    from tokenlight.errors import UnknownName

    said = str(UnknownName.among("label", "positve", ("positive", "negative", "predicted", "all")))
    assert "Did you mean 'positive'?" in said
    assert "Did you mean" not in str(UnknownName.among("label", "xyz", ("positive", "negative")))
