"""Prompts that a model does not complete as expected are counted and left out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.helpers.bench_runs import write_suite
from tests.helpers.copy_model import make_copy_explainer
from tests.helpers.expect import expect_error
from tests.helpers.tiny_gguf import write_tiny_gguf
from tokenlight import Explainer
from tokenlight.bench.completions import (
    CompletedPrompts,
    find_completed_prompts,
    is_expected,
    predict_next_tokens,
)
from tokenlight.bench.plan import RunRequest
from tokenlight.bench.report.writers import write_report
from tokenlight.bench.run import run_suite
from tokenlight.bench.run_folder import RunFolder
from tokenlight.bench.suite import InvalidSuite
from tokenlight.errors import BadInput
from tokenlight.files.tables import Example
from tokenlight.scale import Engine

pytestmark = pytest.mark.xdist_group("bench")
PROMPT = "word1 name3 value5 word2 name3"
OTHER = "word1 name3 value9 word2 name3"


def make_example(completions, other=OTHER, other_completions=("value9",)):
    columns = {"completions": completions}
    if other is not None:
        columns |= {
            "counterfactuals": [other],
            "counterfactual_completions": [[*other_completions]],
        }
    return Example(PROMPT, spans=((12, 18),), location="line 1", extra_columns=columns)


@pytest.mark.parametrize(
    ("token", "expected"),
    [(" Lisbon", True), (" Lis", True), (" L", False), (" Paris", False), (" ", False)],
)
def test_the_beginning_of_a_word_counts_from_two_letters(token, expected):
    assert is_expected(token, ["Porto", "Lisbon"]) is expected


def test_a_single_letter_that_is_the_whole_word_counts():
    assert is_expected(" a", ["a"])


def test_both_prompts_must_be_completed_as_expected_and_differently():
    examples = [
        make_example(["value5"]),
        make_example(["value7"]),
        make_example(["value5"], other_completions=["value5"]),
        make_example(["value5"], other=PROMPT, other_completions=["value5"]),  # the same token
        make_example(["value5"], other=None),
    ]
    completed = find_completed_prompts(make_copy_explainer(), examples)
    assert completed == CompletedPrompts(5, (0, 4))
    assert completed.num_excluded == 3
    assert completed.select(examples) == [examples[0], examples[4]]


def test_every_counterfactual_must_be_completed_as_expected():
    example = make_example(["value5"])
    columns = {
        "counterfactuals": [OTHER, OTHER.replace("value9", "value4")],
        "counterfactual_completions": [["value9"], ["value4"]],
    }
    both_right = replace(example, extra_columns=example.extra_columns | columns)
    columns = columns | {"counterfactual_completions": [["value9"], ["value3"]]}
    one_wrong = replace(example, extra_columns=example.extra_columns | columns)
    completed = find_completed_prompts(make_copy_explainer(), [both_right, one_wrong])
    assert completed.indices == (0,)


def test_every_counterfactual_needs_its_own_completions():
    example = make_example(["value5"])
    columns = example.extra_columns | {"counterfactual_completions": []}
    with expect_error(BadInput, "counterfactual-completions-format", mentions="line 1"):
        find_completed_prompts(make_copy_explainer(), [replace(example, extra_columns=columns)])


@pytest.mark.parametrize("cell", [OTHER, [], [5], None])
def test_counterfactuals_must_be_a_list_of_prompts(cell):
    example = make_example(["value5"])
    columns = example.extra_columns | {"counterfactuals": cell}
    with expect_error(BadInput, "completions-format", mentions="counterfactuals"):
        find_completed_prompts(make_copy_explainer(), [replace(example, extra_columns=columns)])


@pytest.mark.parametrize("cell", ["value5", [], [5], None])
def test_completions_must_be_a_list_of_words(cell):
    with expect_error(BadInput, "completions-format", mentions="line 1"):
        find_completed_prompts(make_copy_explainer(), [make_example(cell)])


PROMPTS = [
    "the cat sat on the",
    "the cat sat on",
    "on the cat the",
    "the sat cat on the cat",
    "sat the cat on on",
    "cat on the sat the",
]


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def suite(gguf_path, tmp_path_factory):
    """A suite of six prompts; of every second one, the expected completion is not the model's."""
    next_tokens = predict_next_tokens(Explainer.from_pretrained(gguf_path, device="cpu"), PROMPTS)
    rows = []
    for index, prompt in enumerate(PROMPTS):
        word = next_tokens[prompt].strip()
        assert word
        expected = [word] if index % 2 == 0 else [f"not {word}"]
        rows.append({"text": prompt, "spans": [[0, 3]], "completions": expected})
    return write_suite(
        tmp_path_factory.mktemp("completions"),
        gguf_path,
        0,
        rows,
        data=[{"local": "texts.jsonl", "task": "next_token"}],
        methods=["attnlrp", "random"],
        metrics=["deciding_word"],
        part_size=2,
    )


def test_a_run_on_a_gguf_file_measures_only_completed_prompts_and_resumes(suite, tmp_path):
    summary = run_suite(suite, tmp_path / "run", engine=Engine(workers=1), progress=False)
    # Two methods, each with a part of two prompts and a part of one.
    assert (summary.num_parts_made, summary.failed_parts) == (4, ())
    lines = list(summary.describe())
    assert any(line.startswith("tiny/texts: 3 of 6 prompts measured") for line in lines)
    run = RunFolder.open(tmp_path / "run")
    assert run.plan.get_completed("tiny", "texts") == CompletedPrompts(6, (0, 2, 4))
    part = run.parts[1]
    assert [row["example"] for row in run.read_rows(part)] == [2]
    before = run.read_rows(part)
    # A part that is missing is made again, from the same prompts.
    run.part_path(part).unlink()
    resumed = run_suite(suite, tmp_path / "run", engine=Engine(workers=1), progress=False)
    assert (resumed.num_parts_made, resumed.num_existing) == (1, 3)
    assert run.read_rows(part) == before
    report = write_report(tmp_path / "run", "md", include_timings=False)
    assert "3 of 6 planned (of the others: the model does not complete the prompt" in report


def test_a_model_that_completes_nothing_is_refused(suite, tmp_path):
    row = {"text": PROMPTS[0], "spans": [[0, 3]], "completions": ["nothing like it"]}
    (tmp_path / "texts.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "suite.yaml").write_text(suite.read_text())
    with pytest.raises(InvalidSuite, match="completes none of 1 prompts"):
        run_suite(tmp_path / "suite.yaml", tmp_path / "run", progress=False)


def test_a_classifier_completes_nothing(suite, bert_folder, tmp_path):
    request = RunRequest(models={"": str(bert_folder)})
    with pytest.raises(InvalidSuite, match="not a language model"):
        run_suite(suite, tmp_path / "run", request, progress=False)
