"""Does the order of methods depend on what stands in a removed token's place: words, and numbers by hand."""

from __future__ import annotations

from tokenlight import registry
from tokenlight.evaluation.measure import Record
from tokenlight.evaluation.results import Evaluation
from tokenlight.metrics._metric import Measured
from tokenlight.metrics._ranking import removal_orders

WAYS = ("delete", "mask", "pad")


def metrics(name="aopc"):
    return {way: registry.build("metrics", name, {"perturb": way}) for way in WAYS}


def means(**orders):
    """Methods of an order, best first, with means 0.9, 0.8 …"""
    return {way: {m: 0.9 - i / 10 for i, m in enumerate(order)} for way, order in orders.items()}


def test_the_same_order_in_every_way_is_steady():
    found = list(removal_orders(metrics(), means(delete="abcd", mask="abcd", pad="abcd")))
    assert found == [
        (
            True,
            "aopc orders the 4 methods alike however tokens are removed (at least, Kendall's tau 1.00 "
            "between tokens deleted and replaced by [MASK]); a is first.",
        )
    ]


def test_a_low_tau_or_another_winner_is_told():
    # abcd against dcba: every pair turned. abcd against bacd: one of six pairs, tau 4 / 6.
    ((steady, said),) = removal_orders(metrics(), means(delete="abcd", mask="dcba", pad="abcd"))
    assert not steady
    assert "tau -1.00 between tokens deleted and replaced by [MASK]" in said
    ((steady, _),) = removal_orders(metrics(), means(delete="abcd", mask="abdc", pad="abcd"))
    assert steady
    # Another is first.
    assert list(removal_orders(metrics(), means(delete="abcd", mask="bacd", pad="abcd"))) == [
        (
            False,
            "The order of the 4 methods by aopc depends on how tokens are removed: Kendall's tau 0.67 "
            "between tokens deleted and replaced by [MASK]; first is “a” (deleted), “b” (replaced by "
            "[MASK]), “a” (replaced by [PAD]). Do not rank methods by one of these alone.",
        )
    ]


def test_where_lower_is_better_the_lowest_is_first():
    orders = means(delete="abc", mask="abc", pad="abc")
    ((_, said),) = removal_orders(metrics("sufficiency"), orders)
    assert said.endswith("; c is first.")


def test_too_few_methods_one_way_other_options_or_no_number_say_nothing():
    assert not list(removal_orders(metrics(), means(delete="ab", mask="ba", pad="ab")))
    one = {"delete": metrics()["delete"]}
    assert not list(removal_orders(one, means(delete="abc")))
    other = {**one, "mask": registry.build("metrics", "aopc", {"perturb": "mask", "until": 0.5})}
    assert not list(removal_orders(other, means(delete="abc", mask="cba")))
    missing = means(delete="abc", mask="cba", pad="abc")
    missing["mask"]["a"] = float("nan")
    assert not list(removal_orders(metrics(), missing))


def test_an_evaluation_warns_in_its_notes_and_on_its_page(tmp_path):
    asked = {f"aopc {way}": metric for way, metric in metrics().items()}
    orders = means(delete="abc", mask="cba", pad="abc")
    records = tuple(
        Record(
            0, method, "x", "x", None, 4, {f"aopc {w}": Measured(orders[w][method]) for w in WAYS}
        )
        for method in "abc"
    )
    found = Evaluation(records, asked)
    (note,) = found.notes
    assert "tau -1.00" in note
    assert note.endswith("Do not rank methods by one of these alone.")
    page = (found.save(tmp_path) / "report.html").read_text()
    assert "Do not rank methods by one of these alone." in page
    one = Evaluation(records, {"aopc delete": asked["aopc delete"]})
    assert one.notes == ()
