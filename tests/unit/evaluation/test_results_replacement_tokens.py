"""Does the order of methods depend on what stands in a removed token's place: words, and numbers by hand."""

from __future__ import annotations

from tokenlight import registry
from tokenlight.evaluation.measurement_records import Record
from tokenlight.evaluation.ranking_stability import check_ranking_stability
from tokenlight.evaluation.results import Evaluation
from tokenlight.metrics.base import Measurement

WAYS = ("delete", "mask", "pad")


def make_metrics(name="aopc"):
    return {way: registry.build("metrics", name, {"perturb": way}) for way in WAYS}


def make_means(**orders):
    """Methods of an order, best first, with means 0.9, 0.8 …"""
    return {way: {m: 0.9 - i / 10 for i, m in enumerate(order)} for way, order in orders.items()}


def test_the_same_order_under_every_removal_is_stable():
    notes = list(
        check_ranking_stability(make_metrics(), make_means(delete="abcd", mask="abcd", pad="abcd"))
    )
    assert notes == [
        (
            True,
            "aopc orders the 4 methods alike however tokens are removed (lowest: Kendall's tau 1.00 "
            "between tokens deleted and replaced by [MASK]); a is first.",
        )
    ]


def test_a_low_tau_or_another_best_method_is_unstable():
    # abcd against dcba: every pair turned. abcd against bacd: one of six pairs, tau 4 / 6.
    ((steady, sentence),) = check_ranking_stability(
        make_metrics(), make_means(delete="abcd", mask="dcba", pad="abcd")
    )
    assert not steady
    assert "tau -1.00 between tokens deleted and replaced by [MASK]" in sentence
    ((steady, _),) = check_ranking_stability(
        make_metrics(), make_means(delete="abcd", mask="abdc", pad="abcd")
    )
    assert steady
    # Another is first.
    assert list(
        check_ranking_stability(make_metrics(), make_means(delete="abcd", mask="bacd", pad="abcd"))
    ) == [
        (
            False,
            "The order of the 4 methods by aopc depends on how tokens are removed: Kendall's tau 0.67 "
            "between tokens deleted and replaced by [MASK]; first is “a” (deleted), “b” (replaced by "
            "[MASK]), “a” (replaced by [PAD]). Do not rank methods by one of these alone.",
        )
    ]


def test_the_lowest_is_first_if_lower_is_better():
    orders = make_means(delete="abc", mask="abc", pad="abc")
    ((_, sentence),) = check_ranking_stability(make_metrics("sufficiency"), orders)
    assert sentence.endswith("; c is first.")


def test_incomparable_removals_give_no_warning():
    assert not list(
        check_ranking_stability(make_metrics(), make_means(delete="ab", mask="ba", pad="ab"))
    )
    one_metric = {"delete": make_metrics()["delete"]}
    assert not list(check_ranking_stability(one_metric, make_means(delete="abc")))
    other = {
        **one_metric,
        "mask": registry.build("metrics", "aopc", {"perturb": "mask", "max_share": 0.5}),
    }
    assert not list(check_ranking_stability(other, make_means(delete="abc", mask="cba")))
    missing = make_means(delete="abc", mask="cba", pad="abc")
    missing["mask"]["a"] = float("nan")
    assert not list(check_ranking_stability(make_metrics(), missing))


def test_an_evaluation_warns_in_its_notes_and_on_its_page(tmp_path):
    requests = {f"aopc {way}": metric for way, metric in make_metrics().items()}
    orders = make_means(delete="abc", mask="cba", pad="abc")
    records = tuple(
        Record(
            0,
            method,
            "x",
            "x",
            None,
            4,
            {f"aopc {w}": Measurement(orders[w][method]) for w in WAYS},
        )
        for method in "abc"
    )
    evaluation = Evaluation(records, requests)
    (note,) = evaluation.notes
    assert "tau -1.00" in note
    assert note.endswith("Do not rank methods by one of these alone.")
    page = (evaluation.save(tmp_path) / "report.html").read_text()
    assert "Do not rank methods by one of these alone." in page
    evaluation = Evaluation(records, {"aopc delete": requests["aopc delete"]})
    assert evaluation.notes == ()
