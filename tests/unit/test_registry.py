"""Names to objects, and options that are checked before anything runs."""

from __future__ import annotations

import dataclasses
import importlib
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from tokenlight import registry
from tokenlight.cli.app import app
from tokenlight.errors import BadInput, BrokenPlugin, MissingExtra, UnknownName


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
    monkeypatch.setitem(sys.modules, "jinja2", None)
    for name in [name for name in sys.modules if name.startswith("tokenlight.plots")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match=r"pip install 'tokenlight\[cli\]'"):
        importlib.import_module("tokenlight.plots.html")


def test_only_names_about_as_near_as_the_nearest_are_offered():
    from tokenlight.errors import UnknownName

    said = str(UnknownName.among("label", "positve", ("positive", "negative", "predicted", "all")))
    assert "Did you mean 'positive'?" in said
    assert "Did you mean" not in str(UnknownName.among("label", "xyz", ("positive", "negative")))


class TestAsked:
    @pytest.mark.parametrize(
        ("entry", "expected"),
        [
            ("attcat", ("attcat", {})),
            ("attcat:hidden=output", ("attcat", {"hidden": "output"})),
            (("attcat", {}), ("attcat", {})),
            (("attcat", {"hidden": "output"}), ("attcat", {"hidden": "output"})),
        ],
    )
    def test_a_name_or_a_pair_is_taken(self, entry, expected):
        assert registry.asked("methods", entry) == expected

    @pytest.mark.parametrize(
        ("entry", "says"),
        [
            (("attcat", "gae"), "or a list of these"),
            (("attcat",), "a pair of name and options"),
            (("attcat", {}, {}), "a pair of name and options"),
            (("attcat", 3), "a pair of name and options"),
            ((3, {}), "(tuple) is not a method"),
            (None, "(NoneType) is not a method"),
            (5, "'5' (int) is not a method"),
            ([], "(list) is not a method"),
        ],
    )
    def test_anything_else_is_refused_with_what_to_give(self, entry, says):
        with pytest.raises(BadInput) as refusal:
            registry.asked("methods", entry)
        assert says in str(refusal.value)

    def test_metrics_are_asked_for_alike(self):
        assert registry.asked("metrics", ("aopc", {})) == ("aopc", {})
        with pytest.raises(BadInput, match="is not a metric"):
            registry.asked("metrics", 5)


@pytest.mark.parametrize("value", [["x"], {"x": 1}, 3, None])
def test_a_preset_that_is_no_name_is_refused(value):
    with pytest.raises(UnknownName, match="preset of attcat"):
        registry.build("methods", "attcat", {"preset": value})


@pytest.mark.parametrize("value", [np.arange(3), [1, 2], {}])
def test_a_value_of_many_parts_is_refused_for_a_choice(value):
    with pytest.raises(BadInput, match="it takes 'input'"):
        registry.build("methods", "attcat", {"hidden": value})


@pytest.mark.parametrize("preset", ["paper", "official"])
@pytest.mark.parametrize("method", registry.names("methods"))
def test_every_method_knows_the_paper_and_the_official_code(method, preset):
    built = registry.build("methods", method, {"preset": preset})
    named = registry.find("methods", method).presets.get(preset, {})
    assert built == registry.build("methods", method, named)


def test_a_preset_nobody_has_names_those_there_are():
    with pytest.raises(UnknownName, match="Known: official, paper"):
        registry.build("methods", "gae", {"preset": "mine"})
    with pytest.raises(UnknownName, match="Known: none"):
        registry.build("metrics", "deletion", {"preset": "official"})


def test_grad_sam_may_be_asked_to_average_its_queries():
    built = registry.build("methods", "att_grads", {"variant": "grad_sam", "reduce": "mean_query"})
    assert built.variant == "grad_sam"


@pytest.mark.parametrize(
    ("method", "lines"),
    [
        ("attcat", ["preset=paper   hidden='output'", "preset=official   the defaults"]),
        ("gae", []),
        ("grads", []),
    ],
)
def test_a_page_tells_of_presets_where_one_differs(method, lines):
    page = CliRunner().invoke(app, ["methods", method]).output
    assert [line.strip() for line in page.splitlines() if line.startswith("  preset=")] == lines


PLUGIN = """
from tokenlight.methods.random import RandomScores

class Mine(RandomScores):
    "Mine."
    width: int = 2

number = 3

class Plain:
    pass
"""
BROKEN = {
    "gone": "ModuleNotFoundError: No module named 'plugged_gone'",
    "nameless": "has no attribute 'Nobody'",
    "number": "not a dataclass",
    "plain": "not a dataclass",
    "raising": "RuntimeError: no licence",
}


@pytest.fixture
def plugged(tmp_path, monkeypatch):
    """A package whose entry points name one good method and several broken ones."""
    (tmp_path / "plugged.py").write_text(PLUGIN)
    (tmp_path / "raising.py").write_text("raise RuntimeError('no licence')")
    about = tmp_path / "plugged-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1\n")
    entries = {
        "mine": "plugged:Mine",
        "gone": "plugged_gone:X",
        "nameless": "plugged:Nobody",
        "number": "plugged:number",
        "plain": "plugged:Plain",
        "raising": "raising:X",
    }
    lines = [f"{name} = {place}" for name, place in entries.items()]
    (about / "entry_points.txt").write_text("\n".join(["[tokenlight.methods]", *lines]))
    monkeypatch.syspath_prepend(tmp_path)
    registry._modules.cache_clear()
    registry.find.cache_clear()
    yield
    registry._modules.cache_clear()
    registry.find.cache_clear()
    sys.modules.pop("plugged", None)


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.usefixtures("plugged")
def test_a_broken_plugin_is_named_with_its_package(name):
    with pytest.raises(BrokenPlugin) as refusal:
        registry.find("methods", name)
    for part in (f"the method '{name}' of the package 'plugged'", BROKEN[name]):
        assert part in str(refusal.value)


@pytest.mark.usefixtures("plugged")
def test_a_broken_plugin_is_listed_as_not_usable_and_spoils_no_other():
    assert "mine" in registry.usable("methods")
    assert not set(BROKEN) & set(registry.usable("methods"))
    assert set(BROKEN) < set(registry.names("methods"))
    listed = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "300"})
    assert listed.exit_code == 0
    assert listed.output.count("not usable: the method") == len(BROKEN)
    assert "Mine." in listed.output


@pytest.mark.usefixtures("plugged")
def test_a_plugin_is_a_frozen_dataclass_without_a_decorator():
    method = registry.build("methods", "mine", {"width": 3})
    assert method.options == {"width": 3}
    assert method == registry.build("methods", "mine", {"width": 3})
    assert method != registry.build("methods", "mine")
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'width'"):
        method.width = 4
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'width'"):
        del method.width


def test_a_number_of_numpy_is_a_number():
    assert registry.build("methods", "alti", {"p": np.int64(2)}).p == 2


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("rollout", "start_layer", np.int64(2)),
        ("integrated_gradients", "n_steps", np.int32(3)),
        ("random", "seed", np.uint8(7)),
        ("transatt", "row_normalize", np.bool_(False)),
        ("mask_lrp", "rules", np.str_("ours")),
    ],
)
def test_a_number_out_of_an_array_is_an_option(name, option, value):
    found = getattr(registry.build("methods", name, {option: value}), option)
    assert found == value
    assert type(found) in (int, bool, str)


def test_a_number_out_of_an_array_is_read_as_its_kind():
    assert (
        type(registry.build("metrics", "rationale", {"overlap": np.float32(0.5)}).overlap) is float
    )
    for wrong in (np.float64(1.5), np.bool_(True), np.array([1])):
        with pytest.raises(BadInput, match="option seed="):
            registry.build("methods", "random", {"seed": wrong})
