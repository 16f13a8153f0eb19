"""A planted fact stands in one document alone, and a model that copies is traced to it."""

from __future__ import annotations

import re

import document_facts as bench
import pytest
from pair_records import read_records

from tests.helpers.copy_model import draw_case as copied_case
from tests.helpers.copy_model import make_copy_explainer


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("num_facts", [None, 1, 2])
def test_the_fact_is_in_one_document_only(seed, num_facts):
    case = bench.build_case(seed)
    if num_facts is not None:
        case = bench.build_short_case(seed, num_facts)
        # Every sentence states one fact.
        assert {text.count(".") for text in case.context.documents} == {num_facts}
    documents = list(case.context.documents)
    assert len(documents) == bench.NUM_DOCUMENTS
    stating = [i for i, text in enumerate(documents) if f" {case.value}" in text]
    assert stating == [case.index]
    assert case.value not in case.context.question


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("num_facts", [1, 2])
def test_documents_with_distinct_facts_share_no_kind_of_fact(seed, num_facts):
    case = bench.draw_case(seed, num_facts, is_distinct=True)
    documents = list(case.context.documents)
    beginning = case.context.question.removeprefix("Complete the sentence: ")
    # The sentence to complete begins in one document, and goes on with the value.
    assert [f"{beginning} {case.value}" in text for text in documents].count(True) == 1
    assert f"{beginning} {case.value}" in documents[case.index]
    assert case.other_value not in " ".join(documents)
    statements = [text.split(". ") for text in documents]
    assert {len(sentences) for sentences in statements} == {num_facts}
    for statement, _, _ in bench.ALL_FACTS:
        pattern = statement.replace("{name}", ".+").replace("{value}", r"\w+")
        assert sum(re.search(pattern, text) is not None for text in documents) <= 1


def test_an_answer_with_the_name_of_another_person_is_wrong():
    case = bench.build_distinct_case(1, 2)
    assert case.is_answered_by(f"{case.name} did it, with a {case.value}.")
    assert case.is_answered_by(f"It is {case.value}")
    other = next(name for name in bench.NAMES if name != case.name)
    assert not case.is_answered_by(f"{other} did it, with a {case.value}.")
    assert not case.is_answered_by(f"It is a {case.value}ian.")


def test_cases_are_drawn_with_their_seed():
    assert bench.build_case(3) == bench.build_case(3)
    assert len({bench.build_case(seed).value for seed in range(40)}) > 15


def test_a_changed_fact_changes_one_document_alone():
    for case in (bench.build_case(2), bench.build_short_case(2, 2)):
        before, after = case.context.documents, case.change_fact().documents
        assert [i for i in range(len(before)) if before[i] != after[i]] == [case.index]
        assert not any(f" {case.other_value}" in text for text in before)
        assert after[case.index].replace(case.other_value, case.value) == before[case.index]


def test_a_copied_answer_is_traced_to_its_document(monkeypatch):
    """The planted model has no generate(): its answer, the value after the name, is known."""
    cases = []
    for seed in range(4):
        context, answer, index = copied_case(seed)
        cases.append(bench.Case(context, answer.strip(), index, "value0"))
    answers = {id(case.context): f" {case.value}" for case in cases}
    wrong = bench.Case(cases[0].context, "another value", 0, "value0")
    monkeypatch.setattr(
        bench, "generate_answer", lambda _explainer, context, _stop: (answers[id(context)], 1.0)
    )
    deletions = "leave one document out"
    methods = {name: bench.METHODS[name] for name in ("grad_x_input", deletions, "random")}
    explainer = make_copy_explainer()
    records = [bench.measure_case(explainer, case, methods) for case in [*cases, wrong]]
    results = bench.summarize(records, methods)
    assert (results["asked"], results["answered"]) == (5, 4)
    assert results["rows"]["grad_x_input"]["right"] == 1.0
    assert results["rows"][deletions]["right"] == 1.0


def test_a_record_that_was_cut_short_is_measured_again(tmp_path):
    path = tmp_path / "records.jsonl"
    assert read_records(path) == []
    path.write_text('{"kept": true}\n{"kept": fal', encoding="utf-8")
    assert read_records(path) == [{"kept": True}]
    assert path.read_text("utf-8") == '{"kept": true}\n'
