"""Which examples a part has, which cells a plan has, and what a run makes besides its parts."""

import gzip
import json
import shutil
from dataclasses import asdict

import pytest
import torch
from pydantic import TypeAdapter

from tests.helpers.bench_runs import make_sentences, read_csv_rows, write_suite
from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert_lm
from tokenlight.bench import planner as planning
from tokenlight.bench.part_runner import counted_forwards
from tokenlight.bench.plan import (
    Cell,
    Plan,
    RunRequest,
    find_data_file,
    map_labels,
    read_chosen_examples,
    resolve_data_source,
)
from tokenlight.bench.run import Engine, run_suite
from tokenlight.bench.run_folder import RunFolder
from tokenlight.bench.suite import Suite, read_suite_file
from tokenlight.bench.suite_entries import DataSetEntry
from tokenlight.errors import BadInput
from tokenlight.files.parts import describe_changes
from tokenlight.models import embedded
from tokenlight.scale.engine import load_explainer

pytestmark = pytest.mark.xdist_group("bench")
PARSED = "".join(
    f"# text = {text}\n"
    + "".join(
        f"{i}\t{word}\t{word}\tNOUN\t_\t_\t{2 if i == 1 else 0 if i == 2 else 2}\t"
        f"{'nsubj' if i == 1 else 'root' if i == 2 else 'obj'}\t_\t_\n"
        for i, word in enumerate(text.split(), 1)
    )
    + "\n"
    for text in make_sentences(6)
)


@pytest.fixture
def numbered(tmp_path):
    path = tmp_path / "set" / "test.jsonl.gz"
    path.parent.mkdir()
    rows = [{"text": f"text {i}", "label": i % 2} for i in range(50)]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def test_a_data_file_is_found_by_folder_and_split(numbered, tmp_path):
    assert find_data_file("set/test", [tmp_path]) == numbered
    assert find_data_file("set/dev", [tmp_path]) is None
    data = DataSetEntry("set", local="set/dev", hub="glue:set")
    suite = Suite("s", folder=str(tmp_path))
    with expect_error(BadInput, "data-set-not-found", mentions="set/dev is not in"):
        resolve_data_source(data, suite, tmp_path, offline=False)
    assert resolve_data_source(data, suite, None, offline=False) == "glue:set"
    with expect_error(BadInput, "data-set-offline"):
        resolve_data_source(data, suite, None, offline=True)


def test_a_missing_file_is_named_with_the_path_that_was_searched(tmp_path):
    (tmp_path / "reviews.jsonl").write_text("{}")
    data = DataSetEntry("r", local="review.jsonl")
    suite = Suite("s", folder=str(tmp_path))
    for folder in (None, tmp_path):
        with pytest.raises(BadInput) as refused:
            resolve_data_source(data, suite, folder, offline=True)
        message = str(refused.value)
        assert f"review.jsonl is not in {tmp_path}" in message
        assert "review.jsonl." not in message


def test_examples_are_drawn_the_same_way_every_time(numbered):
    def draw_texts(**fields):
        data = DataSetEntry("set", **fields)
        return [
            example.text
            for example in read_chosen_examples(data, str(numbered), seed=3, limit=None)
        ]

    assert draw_texts(size=4) == ["text 0", "text 1", "text 2", "text 3"]
    sample = draw_texts(size=10, sample="random")
    assert sample == draw_texts(size=10, sample="random")
    assert sample == sorted(sample, key=lambda text: int(text.split()[1]))
    assert sample != draw_texts(size=10)
    assert draw_texts(classes=("1",), size=2) == ["text 1", "text 3"]
    limited = read_chosen_examples(DataSetEntry("set", size=9), str(numbered), seed=0, limit=2)
    assert len(limited) == 2


def test_labels_of_a_data_set_become_the_models_own(numbered):
    data = DataSetEntry("set")
    examples = read_chosen_examples(data, str(numbered), seed=0, limit=3)
    assert [example.label for example in map_labels(examples, ["no", "0"], data)] == ["no", 0, "no"]
    with expect_error(BadInput, "data-set-label-unmapped", mentions="the label 1"):
        map_labels(examples, ["no"], data)


def test_a_plan_survives_its_file():
    cell = Cell(0, "m", "d", "Ours", "mask_lrp", {"mask": "random"}, "/m", 7, ("1", "0"))
    plan = Plan((cell,), (), {"d": "/d"}, {"versions": {"torch": "2"}})
    assert TypeAdapter(Plan).validate_python(json.loads(json.dumps(asdict(plan)))) == plan
    assert [(part.first, part.count) for part in plan.iter_parts(Suite("s", part_size=3))] == [
        (0, 3),
        (3, 3),
        (6, 1),
    ]
    assert describe_changes({"a": {"b": 1}}, {"a": {"b": 2}}) == ["a b (was 1, now 2)"]


def test_every_layer_of_the_model_at_hand_is_a_cell(bert_folder, tmp_path):
    methods = [{"name": "gradcam", "label": "layer {layer}", "each": {"layer": "layers"}}]
    suite, _ = read_suite_file(write_suite(tmp_path, bert_folder, 2, methods=methods))
    plan, problems = planning.plan_run(suite, RunRequest())
    assert problems == []
    layers = load_explainer(str(bert_folder), "cpu").model.config.num_hidden_layers
    assert [cell.method_label for cell in plan.cells] == [f"layer {i}" for i in range(layers + 1)]
    assert [cell.options["layer"] for cell in plan.cells] == list(range(layers + 1))


def test_forward_passes_are_counted(bert_folder):
    explainer = load_explainer(str(bert_folder), "cpu")
    with counted_forwards(explainer) as counts:
        explainer.explain(["a good film", "the plot"], method=["attcat"], progress=False)
    assert counts["texts"] == 2
    with counted_forwards(explainer) as counts:
        explainer.explain("a good film", method="occlusion", progress=False)
    assert counts["texts"] > 3
    before = dict(counts)
    explainer.explain("a good film", method="attcat", progress=False)
    assert counts == before  # the hook is gone


def test_a_run_makes_heads_and_hands_them_to_the_method(bert_folder, tmp_path):
    path = write_suite(
        tmp_path / "suite", bert_folder, 4,
        methods=["mask_lrp", *(
            {"name": "mask_lrp", "label": mask, "options": {"mask": mask}}
            for mask in ("syntactic", "random", "corrupted", "empty")
        )],
        heads={"conllu": "parsed.conllu", "share": 0.2, "align": "official"},
        metrics=["aopc", "token_overlap"], num_stored=1,
    )  # fmt: skip
    (path.parent / "parsed.conllu").write_text(PARSED)
    finished = run_suite(path, tmp_path / "run", engine=Engine(workers=1), progress=False)
    assert finished.failed_parts == ()
    run = RunFolder.open(tmp_path / "run")
    heads = json.loads(run.heads_path(run.cells[0]).read_text())
    assert set(heads["mask"]) >= {"syntactic", "positional"}
    reading = {"include_zero_offset": True, "exclude_special": False, "explain_mask": "sep"}
    assert heads["options"].items() >= reading.items()
    rows = list(run.iter_rows(method="mask_lrp"))
    assert [row["error"] for row in rows] == [None] * 4
    stored = json.loads(rows[0]["attribution"])
    assert stored["options"]["heads"].endswith(".json")
    assert rows[1]["attribution"] is None
    detail = rows[0]["measured"]["token_overlap"]["detail"]
    assert set(detail["weights"]) <= set(detail["pieces"])
    scores = {row["metric"] for row in read_csv_rows(tmp_path / "run" / "scores.csv")}
    assert scores == {"aopc", "token_overlap"}


def test_a_run_may_cut_larger_parts_than_its_suite():
    cells = (
        Cell(0, "m", "d", "random", "random", examples=130),
        Cell(1, "m", "d", "none", "none", examples=130, reason="no local model"),
    )
    for part_size, expected in ((0, [64, 64, 2]), (100, [100, 30])):
        parts = list(
            Plan(cells, (), {}, {}, part_size=part_size).iter_parts(Suite("s", part_size=64))
        )
        assert [part.count for part in parts] == expected
        assert [part.first for part in parts] == [sum(expected[:i]) for i in range(len(expected))]


def test_a_given_heads_file_is_kept_with_the_run(bert_folder, tmp_path):
    path = write_suite(
        tmp_path / "made", bert_folder, 2, methods=["mask_lrp"],
        heads={"conllu": "parsed.conllu", "share": 0.2},
    )  # fmt: skip
    (path.parent / "parsed.conllu").write_text(PARSED)
    run_suite(path, tmp_path / "one", engine=Engine(workers=1), progress=False)
    first_run = RunFolder.open(tmp_path / "one")
    heads_file = tmp_path / "heads.json"
    shutil.move(first_run.heads_path(first_run.cells[0]), heads_file)
    request = RunRequest(heads={first_run.cells[0].model: str(heads_file)})
    run_suite(path, tmp_path / "two", request, engine=Engine(workers=1), progress=False)
    content = heads_file.read_bytes()
    heads_file.unlink()
    second_run = RunFolder.open(tmp_path / "two")
    assert second_run.heads_path(second_run.cells[0]).read_bytes() == content


def test_a_language_model_and_a_corpus_may_not_change_under_a_run(bert_folder, tokenizer, tmp_path):
    lm = tmp_path / "lm"
    corpus = tmp_path / "suite" / "wiki.txt"
    tiny_bert_lm(dtype=torch.float32).save_pretrained(lm)
    tokenizer.save_pretrained(lm)
    path = write_suite(
        tmp_path / "suite", bert_folder, 2, methods=["decoded_simple"],
        metrics=[{"name": "token_overlap", "options": {"corpus": "wiki.txt"}}],
    )  # fmt: skip
    corpus.write_text("the film\n")
    request = RunRequest(language_models={"tiny": str(lm)})

    def run():
        run_suite(path, tmp_path / "run", request, engine=Engine(workers=1), progress=False)

    run()
    run()
    corpus.write_text("the movie\n")
    with pytest.raises(BadInput, match="corpora .*wiki.txt"):
        run()
    corpus.write_text("the film\n")
    (lm / "config.json").write_text((lm / "config.json").read_text() + "\n")
    with pytest.raises(BadInput, match="language models .*lm"):
        run()


def test_a_model_of_the_hub_is_identified_by_its_commit(monkeypatch):
    import huggingface_hub

    cache = {"a/b": "/cache/snapshots/abc123/config.json", "a/c": None}
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, _: cache[name])
    assert embedded.digest_folder("a/b") == "abc123"
    assert embedded.digest_folder("a/c") == ""
    monkeypatch.undo()
    assert embedded.digest_folder("no name: at all") == ""


def test_a_suite_may_explain_the_true_label_of_each_text(bert_folder, tmp_path):
    path = write_suite(
        tmp_path / "suite", bert_folder, 6, methods=["cat"], protocol={"target": "label"}
    )
    run_suite(path, tmp_path / "run", engine=Engine(workers=1), progress=False)
    rows = list(RunFolder.open(tmp_path / "run").iter_rows(method="cat"))
    assert [row["error"] for row in rows] == [None] * 6
    assert [row["target"] for row in rows] == [row["label"] for row in rows]
    assert any(row["label"] != row["predicted"] for row in rows)
