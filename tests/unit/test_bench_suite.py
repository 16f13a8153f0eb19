"""A suite says all that is wrong with it at once, and a user's own fits in ten lines."""

import pytest
import yaml

from tests.bench_runs import make
from tokenlight.bench import request as planning
from tokenlight.bench.entries import MethodEntry
from tokenlight.bench.plan import Request, slug
from tokenlight.bench.run import run_suite
from tokenlight.bench.suite import SuiteRefused, find, from_dict, load, read, shipped
from tokenlight.cli import main
from tokenlight.errors import DamagedFile, UnknownName

TEN_LINES = """\
data: [reviews.jsonl]
models: [tokenlight/sentiment]
methods: [attcat, "transatt:row_normalize=false", random]
metrics: [aopc, lodds]
"""


def described(text):
    return from_dict(yaml.safe_load(text), name="mine", folder=".")


def test_a_suite_of_a_users_own_needs_four_lines():
    suite, problems = described(TEN_LINES)
    assert problems == []
    assert (suite.name, suite.data[0].name, suite.models[0].name) == (
        "mine",
        "reviews",
        "sentiment",
    )
    assert suite.methods[1].options == {"row_normalize": "false"}
    assert [one.label for one in suite.metrics] == ["aopc", "lodds"]
    assert (suite.slice, suite.seed, suite.protocol.long) == (64, 0, "truncate")


def test_every_shipped_suite_can_be_read_and_names_real_methods_and_metrics():
    assert "quick" in shipped()
    for name in shipped():
        assert list(planning.entry_problems(load(name))) == [], name


def test_each_makes_one_entry_for_every_combination():
    entry = MethodEntry(
        "mask_lrp", "rate {corruption}", {"mask": "corrupted"},
        each={"corruption": [0.1, 0.2], "seed": [0, 1, 2]}, group="rate {corruption}",
    )  # fmt: skip
    found = list(entry.expanded())
    assert len(found) == 6
    assert found[4].options == {"mask": "corrupted", "corruption": 0.2, "seed": 1}
    assert {one.group for one in found} == {"rate 0.1", "rate 0.2"}
    plain = MethodEntry("attcat", "attcat", each={"hidden": ["input", "output"]})
    assert [one.label for one in plain.expanded()] == [
        "attcat hidden=input",
        "attcat hidden=output",
    ]
    layers = MethodEntry("decoded_gradcam", "layer {layer}", each={"layer": "layers"})
    assert [one.label for one in layers.expanded(2)] == ["layer 0", "layer 1", "layer 2"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("metrcs: [aopc]", "unknown key 'metrcs'. Did you mean 'metrics'?"),
        ("slice: 0", "slice: it is 0; it should be greater than or equal to 1"),
        ("seed: soon", "seed: it is 'soon'; it should be a valid integer"),
        ("protocol: {explain_mask: cls}", "explain_mask: it is 'cls'; it should be 'none', 'cls_sep'"),
        ("protocol: {target: all}", "target: all explains several classes of a text"),
        ("methods: [{label: Ours}]", "methods, entry 1, name: it is missing"),
        ("data: [{name: a}, {name: a}]", "the data set 'a' is there twice"),
        ("models: [{name: m, data: reviws}]", "unknown data set 'reviws'"),
        ("published: {reviews: {atcat: {aopc: 1}}}", "unknown method 'atcat'. Did you mean 'attcat'?"),
        ("published: {reviews: {attcat: {aopcc: 1}}}", "unknown metric 'aopcc'"),
        ("published: {reviews: {attcat: {aopc: high}}}", "could not convert string to float: 'high'"),
        ("heads: {margin: 0.1}", "heads, conllu: it is missing"),
        ("kind: tabel", "kind: it is 'tabel'; it should be 'table' or 'figure'"),
    ],
)  # fmt: skip
def test_each_mistake_is_told_with_its_place_and_the_nearest_name(text, told):
    content = yaml.safe_load(TEN_LINES) | yaml.safe_load(text)
    _, problems = from_dict(content, name="mine", folder=".")
    assert any(told in problem for problem in problems), problems


def test_numbers_that_yaml_takes_for_texts_are_numbers():
    suite, problems = described(TEN_LINES + "published: {reviews: {attcat: {lodds: -.641}}}")
    assert problems == []
    assert suite.published["reviews"]["attcat"]["lodds"] == -0.641


def test_published_numbers_and_notes_do_not_change_what_is_computed():
    bare, _ = described(TEN_LINES)
    told, _ = described(TEN_LINES + "notes: [x]\npublished: {reviews: {attcat: {aopc: .3}}}")
    other, _ = described(TEN_LINES + "seed: 1")
    assert bare.digest() == told.digest() != other.digest()


def test_a_suite_that_is_not_there_names_those_that_are(tmp_path):
    with pytest.raises(UnknownName, match="Did you mean 'quick'"):
        find("quik")
    with pytest.raises(DamagedFile, match="does not exist"):
        find(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("data: [")
    with pytest.raises(DamagedFile, match="no readable YAML"):
        read(tmp_path / "broken.yaml")


def test_all_problems_are_listed_before_any_work(bert_folder, tmp_path, capsys):
    place = make(
        tmp_path / "suite", bert_folder, 6,
        data=["texts.jsonl", {"name": "lost", "local": "lost/test"}],
        methods=["atcat", "rollout:residul=1", {"name": "decoded_gradcam", "options": {"layer": 9}}],
        metrics=["aopc", "aopcc", "rationale"],
        btach_tokens=3,
    )  # fmt: skip
    with pytest.raises(SystemExit) as end:
        main(["bench", "run", str(place), "--data", str(tmp_path), "-o", str(tmp_path / "out")])
    assert end.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "nothing was run" in said
    for told in (
        "unknown key 'btach_tokens'. Did you mean 'batch_tokens'?",
        "unknown method 'atcat'",
        "unknown option of method rollout 'residul'",
        "unknown metric 'aopcc'",
        "data set lost: lost/test is not in",
        "rationale compares with spans that a person marked",
    ):
        assert told in said, told
    assert not (tmp_path / "out").exists()


def test_a_model_that_cannot_do_a_method_is_refused_unless_it_only_stands_in(bert_folder, tmp_path):
    methods = ["rollout", {"name": "gradcam", "label": "deep", "options": {"layer": 99}}]
    place = make(tmp_path / "a", bert_folder, 4, methods=methods)
    with pytest.raises(SuiteRefused, match=r"tiny on texts .*: deep: .*layer=99"):
        run_suite(place, tmp_path / "out")
    rows = [{"text": "a good film", "label": 1}]
    models = [{"name": "big", "hub": "someone/big", "twin": "tokenlight/sentiment"}]
    place = make(tmp_path / "b", bert_folder, 1, rows=rows, methods=methods, models=models)
    suite, _ = read(place)
    plan, problems = planning.plan(suite, Request(offline=True))
    assert problems == []
    assert [cell.runs for cell in plan.cells] == [True, False]
    assert "layer=99" in plan.cells[1].reason


def test_a_data_set_of_another_task_is_refused(bert_folder, tmp_path):
    rows = [{"question": "who?", "context": "the film"}]
    place = make(tmp_path / "a", bert_folder, 1, rows=rows)
    with pytest.raises(SuiteRefused, match="the model is a classifier, but the data set is for qa"):
        run_suite(place, tmp_path / "out")


def test_the_most_specific_name_wins():
    given = {"m": "1", "d": "2", "m/d": "3"}
    assert Request.mapped(given, "m", "d") == "3"
    assert Request.mapped(given, "n", "d") == "2"
    assert Request.mapped(given, "m", "e") == "1"
    assert Request.mapped(given, "n", "e") == ""


def test_names_of_files_are_safe_and_distinct():
    names = ["attcat", "a/b", "a b", "../x", "Grad-CAM l0", "α", ""]
    slugs = [slug(name) for name in names]
    assert slugs[0] == "attcat"
    assert len(set(slugs)) == len(names)
    assert all("/" not in one and not one.startswith(".") for one in slugs)
