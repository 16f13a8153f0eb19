"""The shipped suites: they load, name real things, and carry every number of the papers' tables."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from tokenlight import registry
from tokenlight.bench.plan import read_chosen_examples
from tokenlight.bench.report.comparison import find_published_score, get_directions
from tokenlight.bench.suite import SUITES_FOLDER, load_suite
from tokenlight.bench.suite_entries import DataSetEntry
from tokenlight.files.tables import read_examples

# Suite to how many numbers its table has in the paper.
NUMBERS = {
    "attcat_table1": 6 * 8 * 2,
    "attcat_table2": 6 * 6,
    "attcat_table5": 6 * 8 * 2,
    "attcat_figures": 0,
    "mask_lrp_table1": 5 * 10 * 2,
    "mask_lrp_table2": 6 * 4,
    "mask_lrp_table3": 2 * 3 * 2,
    "mask_lrp_table4": 3 * 2 * 2,
    "mask_lrp_figures": 0,
    "decoded_table1a": 9 * 2,
    "decoded_table1b": 12 * 2,
    "decoded_table2": 2 * 4 * 2,
    "decoded_figures": 2 * 4,
}
RANGES = {
    "AOPC": (0.04, 0.53),
    "LOdds": (-6.01, 0.33),
    "tau": (0.008, 0.965),
    "Precision@20": (4.6, 67.4),
    "Revealing": (0.74, 0.91),
    "Hiding": (0.56, 0.85),
    "Overlap": (0, 20),
}
# Where the paper's own method is not the best of its column, who is (bold in the paper).
OWN_SUITES = {
    "attcat_table1": ("AttCAT", {("qqp", "AOPC"): "TransAtt"}),
    "attcat_table2": ("AttCAT", {("qqp", "tau"): "AttGrads"}),
    "attcat_table5": ("AttCAT", {("qqp", "AOPC"): "TransAtt"}),
    "mask_lrp_table1": ("Ours", {("yelp", "LOdds"): "AttCAT"}),
    "mask_lrp_table2": ("Ours", {}),
    "mask_lrp_table4": ("Ours", {}),
    "decoded_table1a": ("Decoded Grad-CAM l7", {}),
    "decoded_table1b": (
        "Decoded Grad-CAM l6",
        {("ag_news", "Revealing"): "Shapley", ("ag_news", "Hiding"): "Shapley"},
    ),
}


def list_numbers(suite):
    """Every published number as (cell, method, metric, mean)."""
    for cell, methods in suite.published.items():
        for method, by_metric in methods.items():
            for metric, number in by_metric.items():
                yield cell, method, metric, number["mean"] if isinstance(number, dict) else number


def list_rows(suite, layers=12):
    return {
        variant.group or variant.label
        for method in suite.methods
        for variant in method.expand(layers)
    }


@pytest.mark.parametrize("name", NUMBERS)
def test_a_suite_has_every_number_of_its_table_and_each_is_plausible(name):
    published = list(list_numbers(load_suite(name)))
    assert len(published) == NUMBERS[name]
    for cell, method, metric, mean in published:
        low, high = RANGES[metric]
        assert low <= mean <= high, (cell, method, metric, mean)


@pytest.mark.parametrize("name", OWN_SUITES)
def test_the_best_of_each_column_is_the_one_the_paper_prints_in_bold(name):
    suite = load_suite(name)
    (best_method, others) = OWN_SUITES[name]
    better = get_directions(suite)
    columns = {(cell, metric) for cell, _, metric, _ in list_numbers(suite)}
    for cell, metric in columns:
        column = {m: mean for c, m, k, mean in list_numbers(suite) if (c, k) == (cell, metric)}
        sign = 1 if better[metric] == "higher" else -1
        best = max(column, key=lambda method: sign * column[method])
        assert best == others.get((cell, metric), best_method)


@pytest.mark.parametrize(
    ("name", "pair", "method", "metric", "mean"),
    [
        ("attcat_table1", ("BERT-base", "imdb"), "AttCAT", "LOdds", -3.671),
        ("attcat_table1_code", ("BERT-base", "sst2"), "AttCAT", "AOPC", 0.371),
        ("attcat_table5", ("BERT-base", "qqp"), "PartialLRP", "AOPC", 0.519),
        ("attcat_table2", ("BERT-base", "mnli"), "AttCAT", "tau", 0.017),
        ("mask_lrp_table1", ("BERT-base", "mnli"), "GAE", "LOdds", -0.421),
        ("mask_lrp_table2", ("GPT-2", "squad_v2"), "Ours", "Precision@20", 49.63),
        ("mask_lrp_table4", ("BERT-base", "yelp"), "ALTI", "LOdds", -1.428),
        ("decoded_table1b", ("RoBERTa-base", "ag_news"), "DeepLiftShap", "Hiding", 0.842),
        ("decoded_table2", ("RoBERTa-base", "ag_news"), "Simple", "Revealing", 0.883),
    ],
)
def test_a_printed_number_is_found_where_it_is_printed(name, pair, method, metric, mean):
    assert find_published_score(load_suite(name), pair, method, metric).published == mean


def test_random_masks_are_printed_with_their_spread():
    score = find_published_score(
        load_suite("mask_lrp_table1"), ("BERT-base", "sst2"), "Random", "LOdds"
    )
    assert (score.published, score.published_sd) == (-1.205, 0.004)


@pytest.mark.parametrize("name", NUMBERS)
def test_every_claim_and_figure_names_existing_rows_metrics_and_data(name):
    suite = load_suite(name)
    known_rows = list_rows(suite)
    data = {entry.name for entry in suite.data}
    metrics = {entry.label for entry in suite.metrics}
    assert suite.claims
    for claim in suite.claims:
        assert {claim.method, claim.control, *claim.baselines} - {""} <= known_rows
        assert claim.metric in metrics or claim.highest_token or claim.untestable_because
        assert claim.method or claim.untestable_because
    for figure in suite.report.figures:
        assert set(figure.data) <= data
        assert set(figure.metrics) <= metrics
        for pattern in figure.methods:
            assert any(fnmatchcase(row, pattern) for row in known_rows), pattern
    assert set(suite.report.readings) <= metrics


@pytest.mark.parametrize("name", NUMBERS)
def test_every_method_and_metric_can_be_built(name):
    suite = load_suite(name)
    for method in suite.methods:
        for variant in method.expand(12):
            for options in (variant.options, variant.options | variant.stand_in):
                # A heads file is given by the run; here its place is enough.
                needs = {"heads": "heads.json"} if variant.name == "mask_lrp" else {}
                registry.build("methods", variant.name, options | needs)
    assert all(way in ("higher", "lower") for way in get_directions(suite).values())


@pytest.mark.parametrize("name", NUMBERS)
def test_every_suite_names_its_papers_checkpoints_data_and_an_offline_stand_in(name):
    suite = load_suite(name)
    assert all(
        model.hub.count("/") == 1 or model.hub.startswith("distilbert") for model in suite.models
    )
    assert any(model.stand_in.startswith("tokenlight/") for model in suite.models)
    assert all(
        data_set.hub or (SUITES_FOLDER / data_set.local).is_file() for data_set in suite.data
    )
    assert suite.paper in {"qiang2022attcat", "song2024mask", "hou2023decoding"}
    assert suite.notes


@pytest.mark.parametrize("name", ["attcat_figure5", "mask_lrp_figure6"])
def test_the_sentence_of_a_figure_can_be_read(name):
    (example,) = read_examples(SUITES_FOLDER / f"{name}.jsonl")
    assert isinstance(example.text, str)
    assert example.label in (0, 1)


def test_the_accuracies_of_attcats_table_3_are_shown_next_to_ours():
    printed = {
        "sst2": 92.43,
        "qqp": 92.4,
        "mnli": 84.0,
        "amazon": 94.65,
        "yelp": 96.3,
        "imdb": 91.9,
    }
    for name in ("attcat_table1", "attcat_table2", "attcat_table5"):
        assert load_suite(name).report.accuracy == printed


class TestTheirData:
    def test_a_limit_takes_part_in_a_random_draw(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(f'{{"text": "number {i}", "label": 0}}\n' for i in range(50)))
        data = DataSetEntry("rows", sample="random", size=20)
        sample = [e.text for e in read_chosen_examples(data, str(path), seed=0, limit=5)]
        assert sample == [e.text for e in read_chosen_examples(data, str(path), seed=0, limit=5)]
        assert len(sample) == 5
        assert max(int(text.split()[1]) for text in sample) > 20  # from the whole file
        assert len(read_chosen_examples(data, str(path), seed=0, limit=None)) == 20
        first = read_chosen_examples(DataSetEntry("rows", size=20), str(path), seed=0, limit=5)
        assert [e.text for e in first] == [f"number {i}" for i in range(5)]

    def test_a_line_separator_inside_a_string_does_not_end_the_line(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        path.write_text('{"text": "one\x85two\u2028three", "label": 1}\n', encoding="utf-8")
        assert [e.text for e in read_examples(path)] == ["one\x85two\u2028three"]

    def test_pairs_named_text_a_and_text_b_are_found(self, tmp_path):
        path = tmp_path / "pairs.jsonl"
        path.write_text('{"text_a": "one", "text_b": "two", "label": 1}\n')
        assert read_examples(path)[0].text == ("one", "two")
