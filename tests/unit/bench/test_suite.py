"""A suite says all that is wrong with it at once, and a user's own fits in ten lines."""

import pytest
import yaml

from tests.helpers.bench_runs import write_suite
from tests.helpers.expect import expect_error
from tokenlight.bench import plan_checks
from tokenlight.bench import planner as planning
from tokenlight.bench.plan import RunRequest, make_slug
from tokenlight.bench.run import run_suite
from tokenlight.bench.suite import (
    InvalidSuite,
    find_suite,
    list_shipped,
    load_suite,
    parse_suite,
    read_suite_file,
)
from tokenlight.bench.suite_entries import MethodEntry
from tokenlight.cli import main
from tokenlight.errors import DamagedFile, UnknownName

TEN_LINES = """\
data: [reviews.jsonl]
models: [tokenlight/sentiment]
methods: [attcat, "transatt:row_normalize=false", random]
metrics: [aopc, lodds]
"""


def describe(text):
    return parse_suite(yaml.safe_load(text), name="mine", folder=".")


def test_a_users_suite_needs_four_lines():
    suite, problems = describe(TEN_LINES)
    assert problems == []
    assert (suite.name, suite.data[0].name, suite.models[0].name) == (
        "mine",
        "reviews",
        "sentiment",
    )
    assert suite.methods[1].options == {"row_normalize": "false"}
    assert [metric.label for metric in suite.metrics] == ["aopc", "lodds"]
    assert (suite.part_size, suite.seed, suite.protocol.long) == (64, 0, "truncate")


def test_every_shipped_suite_can_be_read_and_names_real_methods_and_metrics():
    assert "quick" in list_shipped()
    for name in list_shipped():
        assert list(plan_checks.find_entry_problems(load_suite(name))) == [], name


def test_each_makes_one_entry_for_every_combination():
    entry = MethodEntry(
        "mask_lrp", "rate {corruption}", {"mask": "corrupted"},
        each={"corruption": [0.1, 0.2], "seed": [0, 1, 2]}, group="rate {corruption}",
    )  # fmt: skip
    variants = list(entry.expand())
    assert len(variants) == 6
    assert variants[4].options == {"mask": "corrupted", "corruption": 0.2, "seed": 1}
    assert {variant.group for variant in variants} == {"rate 0.1", "rate 0.2"}
    plain = MethodEntry("attcat", "attcat", each={"hidden": ["input", "output"]})
    assert [variant.label for variant in plain.expand()] == [
        "attcat hidden=input",
        "attcat hidden=output",
    ]
    layers = MethodEntry("decoded_gradcam", "layer {layer}", each={"layer": "layers"})
    assert [variant.label for variant in layers.expand(2)] == ["layer 0", "layer 1", "layer 2"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("metrcs: [aopc]", "key 'metrcs'. Did you mean 'metrics'?"),
        ("part_size: 0", "part_size: 0 is not valid. It should be greater than or equal to 1"),
        ("seed: soon", "seed: 'soon' is not valid. It should be a valid integer"),
        ("protocol: {explain_mask: cls}", "explain_mask: 'cls' is not valid. It should be 'none', 'cls_sep'"),
        ("protocol: {target: all}", "It explains several classes per text"),
        ("methods: [{label: Ours}]", "methods, entry 1, name: This key is missing"),
        ("data: [{name: a}, {name: a}]", "The data set 'a' is given twice"),
        ("models: [{name: m, data: reviws}]", "data set 'reviws'"),
        ("published: {reviews: {atcat: {aopc: 1}}}", "method 'atcat'. Did you mean 'attcat'?"),
        ("published: {reviews: {attcat: {aopcc: 1}}}", "metric 'aopcc'"),
        ("published: {reviews: {attcat: {aopc: high}}}", "could not convert string to float: 'high'"),
        ("heads: {margin: 0.1}", "heads, conllu: This key is missing"),
        ("kind: tabel", "kind: 'tabel' is not valid. It should be 'table' or 'figure'"),
    ],
)  # fmt: skip
def test_each_mistake_is_reported_with_its_location_and_the_nearest_name(text, expected):
    content = yaml.safe_load(TEN_LINES) | yaml.safe_load(text)
    _, problems = parse_suite(content, name="mine", folder=".")
    assert any(expected in problem for problem in problems), problems


def test_numbers_that_yaml_takes_for_texts_are_numbers():
    suite, problems = describe(TEN_LINES + "published: {reviews: {attcat: {lodds: -.641}}}")
    assert problems == []
    assert suite.published["reviews"]["attcat"]["lodds"] == -0.641


def test_published_numbers_and_notes_do_not_change_what_is_computed():
    bare, _ = describe(TEN_LINES)
    annotated, _ = describe(TEN_LINES + "notes: [x]\npublished: {reviews: {attcat: {aopc: .3}}}")
    other, _ = describe(TEN_LINES + "seed: 1")
    assert bare.compute_digest() == annotated.compute_digest() != other.compute_digest()


def test_a_missing_suite_is_reported_with_the_existing_ones(tmp_path):
    with expect_error(UnknownName, "unknown-name", mentions="Did you mean 'quick'"):
        find_suite("quik")
    with expect_error(DamagedFile, "missing-suite"):
        find_suite(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("data: [")
    with expect_error(DamagedFile, "suite-not-yaml"):
        read_suite_file(tmp_path / "broken.yaml")


def test_all_problems_are_listed_before_any_work(bert_folder, tmp_path, capsys):
    path = write_suite(
        tmp_path / "suite", bert_folder, 6,
        data=["texts.jsonl", {"name": "lost", "local": "lost/test"}],
        methods=["atcat", "rollout:residul=1", {"name": "decoded_gradcam", "options": {"layer": 9}}],
        metrics=["aopc", "aopcc", "rationale"],
        btach_tokens=3,
    )  # fmt: skip
    with pytest.raises(SystemExit) as end:
        main(["bench", "run", str(path), "--data", str(tmp_path), "-o", str(tmp_path / "out")])
    assert end.value.code == 2
    errors = " ".join(capsys.readouterr().err.split())
    assert "nothing was run" in errors
    for problem in (
        "key 'btach_tokens'. Did you mean 'batch_tokens'?",
        "method 'atcat'",
        "option of method rollout 'residul'",
        "metric 'aopcc'",
        "Data set lost: lost/test is not in",
        "rationale compares with spans that a person marked",
    ):
        assert problem in errors, problem
    assert not (tmp_path / "out").exists()


def test_a_method_that_fails_on_a_model_is_refused_unless_the_model_is_a_stand_in(
    bert_folder, tmp_path
):
    methods = ["rollout", {"name": "gradcam", "label": "deep", "options": {"layer": 99}}]
    path = write_suite(tmp_path / "a", bert_folder, 4, methods=methods)
    with pytest.raises(InvalidSuite, match=r"tiny on texts .*: deep: .*layer=99"):
        run_suite(path, tmp_path / "out")
    rows = [{"text": "a good film", "label": 1}]
    models = [{"name": "big", "hub": "someone/big", "stand_in": "tokenlight/sentiment"}]
    path = write_suite(tmp_path / "b", bert_folder, 1, rows=rows, methods=methods, models=models)
    suite, _ = read_suite_file(path)
    plan, problems = planning.plan_run(suite, RunRequest(offline=True))
    assert problems == []
    assert [cell.is_run for cell in plan.cells] == [True, False]
    assert "layer=99" in plan.cells[1].reason


def test_suites_with_the_keys_of_earlier_versions_are_read_and_keep_their_digest():
    required = {"models": ["tokenlight/sentiment"], "methods": ["attcat"], "metrics": ["aopc"]}
    old = {
        **required,
        "data": [{"local": "a.jsonl", "otherwise": "b.jsonl"}],
        "slice": 3,
        "keep": 2,
        "expect": [
            {"claim": "c", "metric": "aopc", "better": "a", "than": ["b"], "by": 5.0, "until": 0.5},
            {"claim": "d", "better": "a", "highest": "good", "lowest": "bad"},
            {"claim": "e", "cannot": "no model"},
        ],
    }
    new = {
        **required,
        "data": [{"local": "a.jsonl", "fallback": "b.jsonl"}],
        "part_size": 3,
        "num_stored": 2,
        "claims": [
            {
                "claim": "c",
                "metric": "aopc",
                "method": "a",
                "baselines": ["b"],
                "min_percent": 5.0,
                "max_point": 0.5,
            },
            {"claim": "d", "method": "a", "highest_token": "good", "lowest_token": "bad"},
            {"claim": "e", "untestable_because": "no model"},
        ],
    }
    (old_suite, old_problems), (new_suite, new_problems) = (
        parse_suite(content, name="s", folder="") for content in (old, new)
    )
    assert (old_problems, new_problems) == ([], [])
    assert old_suite == new_suite
    assert old_suite.compute_digest() == new_suite.compute_digest()
    # As the version before the keys were renamed computed it.
    assert (
        old_suite.compute_digest()
        == "d8d9f9c5e3be9dbc8c66db747a738d0642f1347559f213f9d699d89a8794ff77"
    )


def test_suites_with_the_key_twin_are_read_and_keep_their_digest(bert_folder, tmp_path):
    suites = []
    for key in ("twin", "stand_in"):
        models = [{"name": "big", "hub": "someone/big", key: "tokenlight/sentiment"}]
        methods = [{"name": "rollout", key: {"residual": 0.5}}]
        path = write_suite(tmp_path / key, bert_folder, 1, methods=methods, models=models)
        suites.append(read_suite_file(path)[0])
    twin, stand_in = suites
    assert twin.models[0].stand_in == "tokenlight/sentiment"
    assert twin.methods[0].stand_in == {"residual": 0.5}
    assert twin.compute_digest() == stand_in.compute_digest()


def test_a_data_set_of_another_task_is_refused(bert_folder, tmp_path):
    rows = [{"question": "who?", "context": "the film"}]
    path = write_suite(tmp_path / "a", bert_folder, 1, rows=rows)
    with pytest.raises(InvalidSuite, match="The model is a classifier, but the data set is for qa"):
        run_suite(path, tmp_path / "out")


def test_the_most_specific_name_wins():
    mapping = {"m": "1", "d": "2", "m/d": "3"}
    assert RunRequest.lookup(mapping, "m", "d") == "3"
    assert RunRequest.lookup(mapping, "n", "d") == "2"
    assert RunRequest.lookup(mapping, "m", "e") == "1"
    assert RunRequest.lookup(mapping, "n", "e") == ""


def test_slugs_are_safe_file_names_and_distinct():
    names = ["attcat", "a/b", "a b", "../x", "Grad-CAM l0", "α", ""]
    slugs = [make_slug(name) for name in names]
    assert slugs[0] == "attcat"
    assert len(set(slugs)) == len(names)
    assert all("/" not in slug and not slug.startswith(".") for slug in slugs)
