"""Names to objects, and options that are checked before anything runs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.helpers.expect import expect_error
from tokenlight import registry
from tokenlight.cli.app import app
from tokenlight.errors import BadInput, BrokenPlugin, UnknownName


def test_a_file_is_a_method():
    assert {"attcat", "rollout", "gae", "random"} <= set(registry.list_names("methods"))
    assert not [name for name in registry.list_names("methods") if name.startswith("_")]


def test_near_names_are_offered():
    with pytest.raises(UnknownName, match="Unknown method 'rolout'. Did you mean 'rollout'"):
        registry.load_class("methods", "rolout")


@pytest.mark.parametrize(
    ("spelling", "alias", "method"),
    [
        ("LRP_EPS", "lrp_eps", "lrp"),
        ("Gradient_X_Input", "gradient_x_input", "grad_x_input"),
        ("LeaveOneOut", "leave_one_out", "occlusion"),
        ("SHAP", "shap", "shapley"),
    ],
)
def test_an_alias_in_another_spelling_is_offered(spelling, alias, method):
    with expect_error(UnknownName, "alias-spelled-differently") as caught:
        registry.load_class("methods", spelling)
    assert f"Did you mean {alias!r}, another name of {method!r}?" in str(caught.value)


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
    assert registry.parse_spec(text) == expected


def test_an_option_without_a_value_is_refused():
    with expect_error(BadInput, "option-without-value"):
        registry.parse_spec("attcat:hidden")


def test_text_becomes_the_type_an_option_has():
    built = registry.build("methods", "rollout", {"start_layer": "2", "residual": "false"})
    assert built.start_layer == 2
    assert built.residual is False


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("rollout", {"start_layer": "two"}, "of type int"),
        ("rollout", {"start_layer": True}, "of type int"),
        ("rollout", {"residual": "perhaps"}, "of type bool"),
        ("attcat", {"hidden": "both"}, "'input' | 'output'"),
    ],
)
def test_a_value_an_option_cannot_have_is_refused(method, options, message):
    with pytest.raises(BadInput) as refusal:
        registry.build("methods", method, options)
    assert message in str(refusal.value)


def test_explicit_options_win_over_a_preset():
    built = registry.build("methods", "attcat", {"preset": "paper", "hidden": "input"})
    assert built.hidden == "input"
    assert registry.build("methods", "attcat", {"preset": "paper"}).hidden == "output"


def test_only_options_that_differ_are_recorded():
    assert registry.build("methods", "attcat", {"hidden": "input"}).options == {}
    assert registry.build("methods", "attcat", {"hidden": "output"}).options == {"hidden": "output"}


def test_options_are_described_with_type_and_default():
    described = registry.describe_options("methods", "attcat")
    assert described["hidden"] == ("'input' | 'output'", "input")


@pytest.mark.parametrize(
    ("kind", "name", "saved", "present"),
    [
        ("methods", "integrated_gradients", {"n_steps": 8, "at": "words"},
         {"num_steps": 8, "site": "token_embeddings"}),
        ("methods", "subset_relevance", {"samples": "4"}, {"num_samples": 4}),
        ("methods", "attcat", {"abs": True}, {"absolute": True}),
        ("methods", "lrp", {"rules": "orig"}, {"rules": "chefer_orig"}),
        ("metrics", "aopc", {"min_len": 4, "abs_diff": True, "until": 0.5},
         {"min_tokens": 4, "absolute": True, "max_share": 0.5}),
        ("metrics", "comprehensiveness", {"bins": (0.5,)}, {"shares": (0.5,)}),
        ("metrics", "deletion", {"steps": 4}, {"num_steps": 4}),
        ("metrics", "hiding_game", {"first": "least", "reference": "predicted"},
         {"order": "bottom", "target": "predicted"}),
        ("metrics", "naopc", {"beam": 3, "longest": 40}, {"beam_width": 3, "max_tokens": 40}),
        ("metrics", "rationale", {"share": 0.5, "overlap": 0.7, "area": "steps", "iou_over": "micro"},
         {"selected_share": 0.5, "min_iou": 0.7, "integration": "steps", "iou_average": "micro"}),
    ],
)  # fmt: skip
def test_options_saved_under_earlier_names_are_read(kind, name, saved, present):
    built = registry.build(kind, name, saved)
    assert built == registry.build(kind, name, present)
    assert built.options == {**present}


def test_a_missing_library_names_the_line_to_run():
    # In a process of its own: modules that are imported twice here would outlive the test.
    script = "import sys; sys.modules['jinja2'] = None; import tokenlight.plots.html"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert process.returncode == 1
    last_line = process.stderr.strip().splitlines()[-1]
    assert "MissingExtra" in last_line
    assert "pip install 'tokenlight[cli]'" in last_line


def test_only_names_about_as_near_as_the_nearest_are_offered():
    from tokenlight.errors import UnknownName

    message = str(
        UnknownName.from_choices("label", "positve", ("positive", "negative", "predicted", "all"))
    )
    assert "Did you mean 'positive'?" in message
    assert "Did you mean" not in str(
        UnknownName.from_choices("label", "xyz", ("positive", "negative"))
    )


class TestNamesAndOptions:
    @pytest.mark.parametrize(
        ("entry", "expected"),
        [
            ("attcat", ("attcat", {})),
            ("attcat:hidden=output", ("attcat", {"hidden": "output"})),
            (("attcat", {}), ("attcat", {})),
            (("attcat", {"hidden": "output"}), ("attcat", {"hidden": "output"})),
        ],
    )
    def test_a_spec_is_a_name_or_a_pair(self, entry, expected):
        assert registry.resolve_spec("methods", entry) == expected

    @pytest.mark.parametrize(
        ("entry", "message"),
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
    def test_an_invalid_spec_is_refused_with_what_to_give(self, entry, message):
        with pytest.raises(BadInput) as refusal:
            registry.resolve_spec("methods", entry)
        assert message in str(refusal.value)

    def test_specs_of_metrics_follow_the_same_rules(self):
        assert registry.resolve_spec("metrics", ("aopc", {})) == ("aopc", {})
        with expect_error(BadInput, "not-a-spec"):
            registry.resolve_spec("metrics", 5)


@pytest.mark.parametrize("value", [["x"], {"x": 1}, 3, None])
def test_a_preset_that_is_no_name_is_refused(value):
    with pytest.raises(UnknownName, match="preset of attcat"):
        registry.build("methods", "attcat", {"preset": value})


@pytest.mark.parametrize("value", [np.arange(3), [1, 2], {}])
def test_a_value_of_many_parts_is_refused_for_a_choice(value):
    with expect_error(BadInput, "option-type"):
        registry.build("methods", "attcat", {"hidden": value})


@pytest.mark.parametrize("preset", ["paper", "official"])
@pytest.mark.parametrize("method", registry.list_names("methods"))
def test_every_method_accepts_the_presets_paper_and_official(method, preset):
    built = registry.build("methods", method, {"preset": preset})
    preset_options = registry.load_class("methods", method).presets.get(preset, {})
    assert built == registry.build("methods", method, preset_options)


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(UnknownName, match="Known: official, paper"):
        registry.build("methods", "gae", {"preset": "mine"})
    with pytest.raises(UnknownName, match="Known: none"):
        registry.build("metrics", "deletion", {"preset": "official"})


def test_grad_sam_can_average_over_queries():
    built = registry.build("methods", "att_grads", {"variant": "grad_sam", "reduce": "mean_query"})
    assert built.variant == "grad_sam"


@pytest.mark.parametrize(
    ("method", "lines"),
    [
        (
            "attcat",
            [
                "preset=paper   hidden='output'",
                "preset=official   the defaults",
                "preset=libra   gradient='libra'",
            ],
        ),
        ("gae", []),
        ("grads", []),
    ],
)
def test_the_description_lists_presets_that_differ(method, lines):
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
    lines = [f"{name} = {position}" for name, position in entries.items()]
    (about / "entry_points.txt").write_text("\n".join(["[tokenlight.methods]", *lines]))
    monkeypatch.syspath_prepend(tmp_path)
    registry._find_entries.cache_clear()
    registry.load_class.cache_clear()
    yield
    registry._find_entries.cache_clear()
    registry.load_class.cache_clear()
    sys.modules.pop("plugged", None)


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.usefixtures("plugged")
def test_a_broken_plugin_is_named_with_its_package(name):
    with pytest.raises(BrokenPlugin) as refusal:
        registry.load_class("methods", name)
    for part in (f"The method '{name}' of the package 'plugged'", BROKEN[name]):
        assert part in str(refusal.value)


@pytest.mark.usefixtures("plugged")
def test_a_broken_plugin_is_listed_as_not_usable_and_spoils_no_other():
    assert "mine" in registry.list_loadable("methods")
    assert not set(BROKEN) & set(registry.list_loadable("methods"))
    assert set(BROKEN) < set(registry.list_names("methods"))
    listed = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "300"})
    assert listed.exit_code == 0
    assert listed.output.count("not usable: The method") == len(BROKEN)
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
        ("integrated_gradients", "num_steps", np.int32(3)),
        ("random", "seed", np.uint8(7)),
        ("transatt", "row_normalize", np.bool_(False)),
        ("mask_lrp", "rules", np.str_("chefer")),
    ],
)
def test_a_number_out_of_an_array_is_an_option(name, option, value):
    result = getattr(registry.build("methods", name, {option: value}), option)
    assert result == value
    assert type(result) in (int, bool, str)


def test_a_number_out_of_an_array_is_read_as_its_kind():
    assert (
        type(registry.build("metrics", "rationale", {"min_iou": np.float32(0.5)}).min_iou) is float
    )
    for wrong in (np.float64(1.5), np.bool_(True), np.array([1])):
        with expect_error(BadInput, "option-type"):
            registry.build("methods", "random", {"seed": wrong})
