"""Every metric on an example small enough to compute by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from tests.planted import MASK, PAD, VOCABULARY, oracle, planted, scored
from tests.unit.hand_made import attribution_of, split
from tests.unit.hand_made import row_of as text_row
from tokenlight import Explainer, registry
from tokenlight.capture.perturbation import Original, StandIns
from tokenlight.data.target import Head, ResolvedTarget
from tokenlight.errors import BadInput
from tokenlight.metrics._metric import Case, Measured
from tokenlight.metrics._ranking import midranks, ranking, shares_to_counts
from tokenlight.metrics.rationale import area_under

WORDS = [10, 11, 12, 13]  # weights for class 1 against class 0: +2, +1, 0, −1


def weights(**more):
    table = np.zeros((VOCABULARY, 2))
    table[10:14, 1] = [2, 1, 0, -1]
    for token, weight in more.items():
        table[int(token[1:]), 1] = weight
    return table


def sigmoid(x):
    return 1 / (1 + exp(-x))


def value(explainer, attribution, metric, **known):
    (row,) = explainer.evaluate(attribution, metric, **known).rows
    key = metric if isinstance(metric, str) else metric[0]
    assert row[f"{key}.skipped"] is None, row[f"{key}.skipped"]
    return row[key], row.get(f"{key}.curve")


def test_orders_and_counts():
    assert ranking([1, 3, 2, 3]).tolist() == [1, 3, 2, 0]  # equal scores keep the text's order
    assert ranking([1, 3, 2, 3], "bottom").tolist() == [0, 2, 1, 3]
    assert ranking([np.nan, 1, 2]).tolist() == [2, 1, 0]
    assert ranking([np.nan, 1, 2], "bottom").tolist() == [1, 2, 0]
    tenths = [k / 10 for k in range(11)]
    assert shares_to_counts(tenths, 5) == [0, 0, 1, 2, 2, 2, 3, 4, 4, 4, 5]  # 0.5 → 0, 2.5 → 2
    ninths = [k / 9 for k in range(1, 10)]
    assert shares_to_counts(ninths, 10) == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert midranks([5, 1, 5, 9]).tolist() == [2.5, 1, 2.5, 4]


def test_aopc():
    explainer = planted(weights())
    a = scored(explainer, WORDS, [2, 1, 0, -1])
    # Σw = 2; counts of 4 words at 0 … 100 %: 0 0 1 1 2 2 2 3 3 4 4; left: 2, 0, −1, −1, 0
    whole, left = sigmoid(2), {0: sigmoid(2), 1: 0.5, 2: sigmoid(-1), 3: sigmoid(-1), 4: 0.5}
    expected = [whole - left[count] for count in (0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4)]
    mean, curve = value(explainer, a, "aopc")
    assert curve == pytest.approx(expected, abs=1e-12)
    assert mean == pytest.approx(0.416588, abs=1e-6)


def test_aopc_from_the_bottom_and_of_another_class():
    explainer = planted(weights())
    a = scored(explainer, WORDS, [2, 1, 0, -1])
    # Bottom first: −1, 0, +1, +2 go: left 3, 3, 2, 0
    left = {0: 2, 1: 3, 2: 3, 3: 2, 4: 0}
    expected = [sigmoid(2) - sigmoid(left[c]) for c in (0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4)]
    assert value(explainer, a, ("aopc", {"order": "bottom"}))[1] == pytest.approx(expected)
    other = scored(explainer, WORDS, [2, 1, 0, -1], target=0)
    flipped = [-v for v in value(explainer, a, "aopc")[1]]
    assert value(explainer, other, "aopc")[1] == pytest.approx(flipped)


def test_lodds_replaces_by_padding():
    explainer = planted(weights(w0=0.5, w4=-0.5))
    a = scored(explainer, WORDS, [2, 1, 0, -1])
    left = {0: 2, 1: 0 + 0.5, 2: -1 + 1.0, 3: -1 + 1.5, 4: 0 + 2.0}
    counts = (0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4)
    expected = [log(sigmoid(left[c]) / sigmoid(2)) for c in counts]
    mean, curve = value(explainer, a, "lodds")
    assert curve == pytest.approx(expected)
    assert mean == pytest.approx(np.mean(expected))
    masked = {c: left[c] - 1.0 * c for c in left}
    expected = [log(sigmoid(masked[c]) / sigmoid(2)) for c in counts]
    assert value(explainer, a, ("lodds", {"perturb": "mask"}))[1] == pytest.approx(expected)


def test_lodds_clips_a_probability_of_zero():
    explainer = planted(weights(w10=1000))
    a = scored(explainer, [10, 13], [1, 0])
    _, curve = value(explainer, a, "lodds")
    assert curve[-1] == pytest.approx(log(0.5))
    other = scored(explainer, [10, 13], [1, 0], target=0)
    assert value(explainer, other, "lodds")[1][-1] == pytest.approx(log(0.5 / 1e-12))


@pytest.mark.parametrize("preset", ["attcat", "mask_lrp"])
def test_the_official_lodds_do_not_clip(preset):
    words, scores = [10, *[12] * 20], [1.0] + [0.0] * 20
    settings = ("lodds", {"preset": preset})
    steep = planted(weights(w10=60))
    low = scored(steep, words, scores, target=0)
    _, curve = value(steep, low, settings, labels=[0])
    assert curve[-1] == pytest.approx(log(0.5) + 60)  # clipped: ln(0.5 / 1e-12), less than 28
    _, curve = value(steep, low, ("lodds", {"preset": preset, "clip": True}), labels=[0])
    assert curve[-1] == pytest.approx(log(0.5 / 1e-12))


def test_a_text_with_a_probability_of_zero_is_left_out_where_lodds_do_not_clip():
    scores = [1.0] + [0.0] * 20
    explainer = planted(weights(w10=1000, w11=-1000))
    at_first = scored(explainer, [10, *[12] * 20], scores, target=0)
    # Word 11, ranked last, stays: without word 10 it speaks alone.
    later = scored(explainer, [10, *[12] * 19, 11], [*scores[:-1], -1.0], target=1)
    fine = scored(explainer, [12] * 21, scores, target=1)
    found = explainer.evaluate(
        [at_first, later, fine], ("lodds", {"preset": "attcat"}), labels=[0, 1, 1]
    )
    for row in found.rows[:2]:
        assert "is zero and has no logarithm; clip=true" in row["lodds.skipped"]
    assert found.rows[2]["lodds.skipped"] is None
    assert list(found.summary["lodds"]["skipped"].values()) == [2]
    assert found.summary["lodds"]["mean"] == 0  # of the third alone: its words weigh nothing


def test_padding_without_attention_is_as_if_it_weighed_nothing():
    explainer = planted(weights(w0=5))
    a = scored(explainer, WORDS, [2, 1, 0, -1])
    plain = value(planted(weights()), a, "lodds")[1]
    assert value(explainer, a, ("lodds", {"mask_pad_attention": True}))[1] == pytest.approx(plain)


def test_the_official_nine_steps_never_take_the_lowest_ranked_token():
    # Eight words and two special tokens: ten tokens, counts 1 2 3 4 6 7 8 9 10.
    words = [10, 11, 12, 13, 20, 21, 22, 23]
    explainer = planted(weights(w20=0.1, w21=0.2, w22=0.3, w23=0.4))
    scores = [8.0, 7.0, 6.0, -9.0, 5.0, 4.0, 3.0, 2.0]  # word 13 is ranked last of all ten
    a = scored(explainer, words, scores)
    w = {10: 2, 11: 1, 12: 0, 13: -1, 20: 0.1, 21: 0.2, 22: 0.3, 23: 0.4}
    walk = [10, 11, 12, 20, 21, 22, 23]  # [CLS] and [SEP] skipped, 13 never taken
    total = sum(w.values())
    expected = []
    for count in (1, 2, 3, 4, 6, 7, 8, 9, 10):
        expected.append(sigmoid(total) - sigmoid(total - sum(w[i] for i in walk[:count])))
    mean, curve = value(explainer, a, ("aopc", {"grid": "linspace9"}))
    assert curve == pytest.approx(expected)
    assert mean == pytest.approx(np.mean(expected))


def test_presets_are_the_official_readings():
    explainer = planted(weights(w20=0.1, w0=0.7))
    words = [10, 13, 13, 13, 20, 11, 12, 12]
    a = scored(explainer, words, [1, 8, 7, 6, 5, 4, 3, 2], target=1)
    signed, curve = value(
        explainer, a, ("aopc", {"grid": "linspace9", "target": "label"}), labels=[0]
    )
    assert min(curve) < 0 < max(curve)
    attcat, _ = value(explainer, a, ("aopc", {"preset": "attcat"}), labels=[0])
    assert attcat == pytest.approx(np.mean(np.abs(curve)))
    assert attcat != pytest.approx(signed)
    built = registry.build("metrics", "aopc", {"preset": "mask_lrp"})
    assert (built.perturb, built.min_len, built.abs_diff, built.target) == (
        "pad",
        20,
        False,
        "label",
    )
    built = registry.build("metrics", "lodds", {"preset": "attcat"})
    assert (built.perturb, built.grid, built.min_len) == ("pad", "linspace9", 10)
    assert built.label == "lodds(preset=attcat)"


def test_comprehensiveness_and_sufficiency():
    explainer = planted(weights())
    a = scored(explainer, WORDS, [2, 1, 0, -1])
    options = {"bins": (0.25, 0.5)}
    mean, curve = value(explainer, a, ("comprehensiveness", options))
    assert curve == pytest.approx([sigmoid(2) - sigmoid(0), sigmoid(2) - sigmoid(-1)])
    assert mean == pytest.approx(np.mean(curve))
    _, curve = value(explainer, a, ("sufficiency", options))
    assert curve == pytest.approx([0.0, sigmoid(2) - sigmoid(3)], abs=1e-12)  # kept: 10; 10 and 11


def test_a_bin_takes_at_least_one_token():
    explainer = planted(weights())
    a = scored(explainer, WORDS, [2, 1, 0, -1])
    assert value(explainer, a, ("comprehensiveness", {"bins": (0.01,)}))[0] == pytest.approx(
        sigmoid(2) - 0.5
    )


def test_games():
    explainer = planted(weights())
    words = [10, 13, 13, 12]  # 2 − 1 − 1 + 0 = 0; argmax of a tie is class 0
    a = scored(explainer, words, [4, 3, 2, 1], target=1)
    hidden, curve = value(explainer, a, ("hiding_game", {"steps": 4}), labels=[1])
    # left: 0, −2, −1, 0, 0: always class 0
    assert curve == [0, 0, 0, 0, 0]
    assert hidden == 0
    shown, curve = value(explainer, a, ("revealing_game", {"steps": 4}), labels=[1])
    # shown: 0, 2, 1, 0, 0: class 1 at 1/4 and 2/4
    assert curve == [0, 1, 1, 0, 0]
    assert shown == pytest.approx(0.5)  # trapezoids ⅛ + ¼ + ⅛
    hidden, curve = value(explainer, a, ("hiding_game", {"steps": 4}), labels=[0])
    assert curve == [1, 1, 1, 1, 1]
    assert hidden == pytest.approx(1)
    least, curve = value(explainer, a, ("hiding_game", {"steps": 4, "first": "least"}), labels=[1])
    # hidden 12, 13, 13, 10: left 0, 0, 1, 2, 0
    assert curve == [0, 0, 1, 1, 0]
    assert least == pytest.approx(0.5)


def test_hiding_masks_the_id_and_takes_the_attention_away():
    explainer = planted(weights(w4=9))
    a = scored(explainer, WORDS, [2, 1, 0, -1])
    # [MASK] would weigh 9 if it were attended to; hidden tokens are not.
    assert value(explainer, a, ("hiding_game", {"steps": 1}), labels=[1])[1] == [1, 0]


def test_a_game_against_the_models_own_prediction_needs_no_label():
    explainer = planted(weights())
    a = scored(explainer, WORDS, [2, 1, 0, -1])
    options = {"steps": 4, "reference": "predicted"}
    assert value(explainer, a, ("hiding_game", options))[1] == [1, 0, 0, 0, 0]


def test_kendall():
    metric = registry.build("metrics", "kendall")
    order = registry.build("metrics", "kendall", {"preset": "attcat"})
    explainer = planted(weights(), labels=2)
    a = scored(explainer, WORDS, [3, 2, 1, 0.5], special=False, target=1)
    b = replace(a, scores=[3, 2, 0.5, 1], target=ResolvedTarget("class", "LABEL_0", (((0,), 1.0),)))
    case = Case(a, Original(a.row, StandIns(PAD, MASK)), explainer.live.head, others=(b,))
    assert metric.measure(case, []).value == pytest.approx(2 / 3)  # one of six pairs turned
    # Index lists [0 1 2 3] and [0 1 3 2]: also one of six pairs.
    assert order.measure(case, []).value == pytest.approx(2 / 3)
    c = replace(b, scores=[0.5, 3, 2, 1])
    case = replace(case, others=(c,))
    # Ranks: pairs with the first token turn, three of six → τ = 0. Index lists [0 1 2 3], [1 2 3 0]:
    # again three of six.
    assert metric.measure(case, []).value == pytest.approx(0)
    case = replace(case, others=(b, c))
    assert metric.measure(case, []).value == pytest.approx(1 / 3)


def test_kendall_on_index_lists_is_not_kendall_on_ranks():
    explainer = planted(weights())
    a = scored(explainer, WORDS, [1, 4, 2, 3], special=False, target=1)
    b = replace(a, scores=[2, 1, 4, 3], target=ResolvedTarget("class", "LABEL_0", (((0,), 1.0),)))
    case = Case(a, Original(a.row, StandIns(PAD, MASK)), explainer.live.head, others=(b,))
    # ranks 1 4 2 3 | 2 1 4 3: pairs (01)− (02)+ (03)+ (12)− (13)− (23)− → −2/6
    assert registry.build("metrics", "kendall").measure(case, []).value == pytest.approx(-1 / 3)
    # index lists [1 3 2 0] | [2 3 0 1]: (01)+ (02)− (03)+ … = (1,3)(2,3): 1<3,2<3 + ; 1<2,2>0 − ;
    # 1>0,2>1 + ; 3>2,3>0 + ; 3>0,3>1 + ; 2>0,0<1 − → 4 − 2 over 6
    ordered = registry.build("metrics", "kendall", {"kendall_on": "order"})
    assert ordered.measure(case, []).value == pytest.approx(1 / 3)


def qa_case(scores, spans, *, cut=0, context="red blue green cat"):
    row = text_row(["who", context], [split("who"), split(context)], cut=cut)
    a = attribution_of(row, scores)
    return Case(a, Original(row, StandIns(PAD, MASK)), Head("span"), spans=spans)


def test_precision_at_k():
    # [CLS] who [SEP] red blue green cat [SEP]; the answer is "blue green": tokens 4 and 5
    scores, answer = [0, 9, 8, 1, 7, 0.5, 2, 3], ((1, 4, 14),)
    for k, count in ((1, 0), (2, 0), (3, 1), (6, 1), (7, 2), (20, 2)):
        metric = registry.build("metrics", "precision_at_k", {"k": k})
        found = metric.measure(qa_case(scores, answer), [])
        assert (found.value, found.detail["length"]) == (count, 2)
    ratio = registry.build("metrics", "precision_at_k", {"k": 3, "preset": "mask_lrp"})
    other = qa_case(scores, ((1, 0, 3),))  # "red", one token, score 1: not among three
    both = [ratio.measure(case, []) for case in (qa_case(scores, answer), other)]
    assert ratio.summarise(both).interval.mean == pytest.approx(100 * 1 / 3)
    mean = registry.build("metrics", "precision_at_k", {"k": 3}).summarise(both).interval.mean
    assert mean == pytest.approx(0.5)


def test_an_answer_that_was_cut_off_counts_as_the_first_token():
    metric = registry.build("metrics", "precision_at_k", {"k": 1})
    gone = qa_case([9, 0, 0, 0, 0, 0, 0, 0], ((1, 30, 36),), cut=5)
    assert metric.measure(gone, []).value == 1
    dropping = registry.build("metrics", "precision_at_k", {"drop_truncated": True})
    with pytest.raises(Exception, match="cut off"):
        dropping.measure(gone, [])
    with pytest.raises(Exception, match="no answer"):
        metric.measure(qa_case([0] * 8, ()), [])
    keeping = registry.build("metrics", "precision_at_k", {"k": 1, "drop_unanswerable": False})
    assert keeping.measure(qa_case([9] + [0] * 7, ()), []).value == 1


def rationale(scores, spans, text="one two three four five six", **options):
    row = text_row([text], [split(text)], cut=options.pop("cut", 0))
    a = attribution_of(row, [0, *scores, 0])
    case = Case(
        a, Original(row, StandIns(PAD, MASK)), Head("classification", ("no", "yes")), spans=spans
    )
    return registry.build("metrics", "rationale", options).measure(case, [])


def test_rationale():
    # Marked: "two three" (tokens 2, 3 of 1 … 6). Ranked: two, five, three, …
    found = rationale([0.1, 0.9, 0.7, 0.2, 0.8, 0.0], ((0, 4, 13),))
    # Points (recall, precision): (0, 1), (½, 1), (½, ½), (1, 2/3), …; by steps 1/1 and 2/3 count half.
    assert found.value == pytest.approx(0.5 * 1 + 0.5 * (1 / 2 + 2 / 3) / 2)
    steps = rationale([0.1, 0.9, 0.7, 0.2, 0.8, 0.0], ((0, 4, 13),), area="steps")
    assert steps.value == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert found.parts["f1"] == pytest.approx(0.5)  # chosen: two, five; one of two is right
    # Runs chosen {2}, {5}; marked {2, 3}: overlap ½ matches; precision ½, recall 1
    assert found.parts["iou"] == pytest.approx(2 / 3)
    assert found.parts["seen"] == 1
    strict = rationale([0.1, 0.9, 0.7, 0.2, 0.8, 0.0], ((0, 4, 13),), overlap=0.6, report="iou")
    assert strict.value == 0
    third = rationale([0.1, 0.9, 0.7, 0.2, 0.8, 0.0], ((0, 4, 13),), share=0.5, report="f1")
    assert third.value == pytest.approx(2 * 2 / 5)  # chosen: two, five, three


def test_average_precision_treats_equal_scores_as_one_threshold():
    gold = np.array([True, False, True, False])
    for scores, area in (([1.0, 1, 1, 1], 0.5), ([4.0, 3, 2, 1], 0.5 + 1 / 3), ([2.0, 1, 2, 1], 1)):
        assert area_under(np.array(scores), gold, steps=True) == pytest.approx(area)


def test_the_area_is_what_the_official_code_asks_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(0)
    for size in (1, 2, 5, 40):
        gold, scores = generator.random(size) < 0.4, generator.integers(0, 6, size).astype(float)
        gold[0] = True
        precision, recall, _ = sklearn.precision_recall_curve(gold, scores)
        assert area_under(scores, gold) == pytest.approx(sklearn.auc(recall, precision), abs=1e-14)
        steps = sklearn.average_precision_score(gold, scores)
        assert area_under(scores, gold, steps=True) == pytest.approx(steps, abs=1e-14)


def test_iou_f1_over_texts_is_of_mean_precision_and_recall_of_counts_or_the_mean():
    # Text one: chosen {2}, {5} against {2, 3}: right 1 of 2 and of 1. Text two: {1, 2}, all right of two.
    first = [0.1, 0.9, 0.7, 0.2, 0.8, 0.0], ((0, 4, 13),)
    second = [0.9, 0.8, 0.1, 0.1, 0.1, 0.3], ((0, 0, 7), (0, 24, 27))
    f1 = {
        "macro": 2 * 0.75 * 1 / 1.75,  # precision (½ + 1) / 2, recall (1 + 1) / 2
        "micro": 2 * (3 / 4) * (3 / 3) / (3 / 4 + 1),
        "texts": (2 / 3 + 1) / 2,
    }
    for over, expected in f1.items():
        metric = registry.build("metrics", "rationale", {"report": "iou", "iou_over": over})
        found = [rationale(*one, report="iou", iou_over=over) for one in (first, second)]
        summary = metric.summarise(found)
        assert summary.interval.mean == pytest.approx(expected)
        assert summary.parts["iou"] == summary.interval
    lopsided = [Measured(0, detail={"right": r, "selected": s, "marked": m}, parts={"iou": 0})
                for r, s, m in ((1, 1, 4), (0, 3, 1))]  # fmt: skip
    for over, expected in (("macro", 2 * 0.5 * 0.125 / 0.625), ("micro", 2 * 0.25 * 0.2 / 0.45)):
        metric = registry.build("metrics", "rationale", {"report": "iou", "iou_over": over})
        assert metric.summarise(lopsided).interval.mean == pytest.approx(expected)


def test_the_share_of_a_rationale_that_truncation_left():
    found = rationale([1, 1, 1, 1, 1, 1], ((0, 4, 7), (0, 100, 103)), cut=9)
    assert found.parts["seen"] == pytest.approx(0.5)


def test_token_overlap():
    explainer = planted(weights(w20=-3, w21=-2, w22=3))
    one = scored(explainer, [10, 11, 22], [5, 4, 1])  # predicted 1
    two = scored(explainer, [20, 21, 10], [5, 4, 3])  # predicted 0
    plain = {"idf": "none", "k": 2}
    summary = explainer.evaluate([one, two], ("token_overlap", plain)).summary["token_overlap"]
    assert summary["mean"] == 0  # {10, 11} and {20, 21}
    summary = explainer.evaluate([one, two], ("token_overlap", plain | {"k": 3})).summary
    assert summary["token_overlap"]["mean"] == pytest.approx(1 / 3)  # word 10 is in both
    counted = explainer.evaluate(
        [one, two], ("token_overlap", plain | {"k": 3, "report": "count"})
    ).summary
    assert counted["token_overlap"]["mean"] == pytest.approx(1)
    # ln(2 / 2) = 0: a word of every text has no weight, but stands in the lists
    logged = explainer.evaluate([one, two], ("token_overlap", {"k": 3})).summary
    assert logged["token_overlap"]["mean"] == pytest.approx(1 / 3)
    logged = explainer.evaluate([one, two], ("token_overlap", {"k": 3, "tokens": "positive"}))
    assert logged.summary["token_overlap"]["mean"] == 0


def test_token_overlap_lists_words_that_speak_against_a_class_last():
    explainer = planted(weights(w20=-3, w21=-2, w22=3))
    one = scored(explainer, [10, 11, 22], [-5, 4, 1])  # predicted 1
    two = scored(explainer, [20, 21, 10], [5, -4, 3])  # predicted 0
    plain = {"idf": "none", "report": "count"}
    for k, shared in ((2, 0), (3, 1)):  # {11, 22} and {20, 10}; with the third 10 and 21
        summary = explainer.evaluate([one, two], ("token_overlap", plain | {"k": k})).summary
        assert summary["token_overlap"]["mean"] == shared
    found = explainer.evaluate([one, two], ("token_overlap", plain | {"tokens": "positive"}))
    assert found.summary["token_overlap"]["mean"] == 0  # word 10 speaks against class 1


@pytest.mark.parametrize(("normalize", "total", "decoded"), [("none", 1, 1), ("l1", 8, 5)])
def test_token_overlap_counts_the_score_of_a_type_once_a_text(normalize, total, decoded):
    explainer = planted(weights())
    metric = registry.build("metrics", "token_overlap", {"normalize": normalize})
    position = scored(explainer, [10, 11, 10], [3, 2, 3])
    by_type = replace(position, method="decoded_gradcam")
    for a, expected in (
        (position, {"10": 6 / total, "11": 2 / total}),
        (by_type, {"10": 3 / decoded, "11": 2 / decoded}),
    ):
        case = Case(a, Original(a.row, StandIns(PAD, MASK)), explainer.live.head)
        assert metric.measure(case, []).detail["weights"] == pytest.approx(expected)


def test_randomisation_of_a_planted_model():
    explainer = planted()
    words = list(range(10, 22))
    a = scored(explainer, words, oracle(explainer, words, 1), target=1)
    metric = registry.build("metrics", "randomisation")
    case = Case(a, Original(a.row, StandIns(PAD, MASK)), explainer.live.head)
    same, turned = replace(a, method="same"), replace(a, scores=-a.scores)
    flat = replace(a, scores=np.zeros(len(a)))
    found = metric.measure(replace(case, others=(same, turned, flat)), [])
    assert found.curve == pytest.approx((1, -1, 0))
    assert found.value == pytest.approx(0)
    magnitudes = registry.build("metrics", "randomisation", {"absolute": True})
    assert magnitudes.measure(replace(case, others=(turned,)), []).value == pytest.approx(1)


def test_probabilities_of_a_contrast_and_of_labels_that_do_not_exclude_each_other():
    from tokenlight.metrics._erasing import chance

    logits = np.array([1.0, 3.0, -2.0])
    single, multi = (
        Head("classification", ("a", "b", "c")),
        Head("classification", ("a", "b", "c"), "multi"),
    )
    contrast = ResolvedTarget("contrast", "b rather than a", (((1,), 1.0), ((0,), -1.0)))
    plain = ResolvedTarget("class", "b", (((1,), 1.0),))
    assert chance(single, contrast, None, logits) == pytest.approx(sigmoid(2))
    assert chance(multi, plain, None, logits) == pytest.approx(sigmoid(3))
    total = exp(1) + exp(3) + exp(-2)
    assert chance(single, plain, None, logits) == pytest.approx(exp(3) / total)


def test_a_span_whose_token_is_deleted_has_probability_zero(tokenizer):
    from tests.tiny import tiny_bert_qa
    from tokenlight import Question

    explainer = Explainer(tiny_bert_qa(), tokenizer)
    a = explainer.explain(Question(question="who sat", context="the cat sat on the mat"), "attcat")
    places = [at[0] for at, _ in a.target.terms]
    scores = np.zeros(len(a))
    scores[places[0]] = 9
    top = replace(a, scores=scores)
    _, curve = value(explainer, top, "aopc")
    chance = float(
        np.prod([_softmax(a.logits.reshape(2, -1)[side])[p] for side, p in enumerate(places)])
    )
    assert curve[0] == pytest.approx(0, abs=1e-9)
    assert curve[2] == pytest.approx(chance)  # the start is gone


def _softmax(logits):
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def test_normalised_aopc_stands_between_the_worst_and_the_best_order():
    explainer = planted(weights())
    # [MASK] weighs nothing: deleting and masking are alike. Falls are taken after 1, 2, 3, 4 words.
    falls = {}
    for order in itertools.permutations(range(4)):
        left = [2 - sum((2, 1, 0, -1)[i] for i in order[:count]) for count in (1, 2, 3, 4)]
        falls[order] = np.mean([sigmoid(2) - sigmoid(one) for one in left])
    low, high = min(falls.values()), max(falls.values())
    for order in itertools.permutations(range(4)):
        ranks = [4 - order.index(i) for i in range(4)]
        a = scored(explainer, WORDS, ranks)
        found = explainer.evaluate([a], [("naopc", {"beam": 24})]).rows[0]
        assert found["naopc"] == pytest.approx((falls[order] - low) / (high - low), abs=1e-9)
    best = scored(explainer, WORDS, [2, 1, 0, -1])
    assert value(explainer, best, "naopc")[0] == pytest.approx(1.0)
    worst = scored(explainer, WORDS, [-2, -1, 0, 1])
    assert value(explainer, worst, "naopc")[0] == pytest.approx(0.0)


def test_normalised_aopc_leaves_out_what_is_too_long_or_decided_by_no_token():
    explainer = planted(weights())
    a = scored(explainer, WORDS, [2, 1, 0, -1])
    found = explainer.evaluate([a], [("naopc", {"longest": 3})])
    assert "longest=3" in str(found.summary["naopc"]["skipped"])
    nothing = planted(np.zeros((VOCABULARY, 2)))
    found = nothing.evaluate([scored(nothing, WORDS, [2, 1, 0, -1])], ["naopc"])
    assert "same AOPC" in str(found.summary["naopc"]["skipped"])
    with pytest.raises(BadInput, match="beam=0"):
        explainer.evaluate([a], [("naopc", {"beam": 0})])


def test_pointing_game():
    text = "one two three four five six"
    row = text_row([text], [split(text)])
    head = Head("classification", labels=("negative", "positive"))
    metric = registry.build("metrics", "pointing_game", {})
    for scores, hit in (([9, 1, 2, 5, 4, 3, 0, 9], 1.0), ([9, 6, 2, 5, 4, 3, 0, 9], 0.0)):
        a = attribution_of(row, scores)  # [CLS] and [SEP] have the highest score, and never count
        case = Case(a, Original(row, StandIns(0, 0)), head, spans=((0, 8, 18),))  # three four
        found = metric.measure(case, [])
        assert found.value == hit
        assert found.parts["chance"] == pytest.approx(2 / 6)
    with pytest.raises(BadInput, match="marked"):
        metric.measure(replace(case, spans=()), [])


def test_aopc_until_half_of_the_tokens():
    explainer = planted(weights())
    a = scored(explainer, WORDS, [2, 1, 0, -1])
    whole, half = (value(explainer, a, ("aopc", {"until": k}))[1] for k in (1.0, 0.5))
    assert len(half) == 6
    assert half == whole[:6]


def test_soft_erasure_of_scores_that_are_all_or_nothing_zeroes_whole_embeddings():
    explainer = planted(weights())
    both = ["soft_comprehensiveness", "soft_sufficiency"]
    room = sigmoid(2) - sigmoid(0)
    # Scaled, 5 is 1 and −3 is 0: every number is kept for sure or gone for sure. Weights: 2, 1, 0, −1.
    for scores, without, alone, kept in (
        ([-3, 5, -3, -3], 1, 1, 1 / 4),  # the word of weight 1 is named
        ([5, -3, -3, -3], 0, 2, 1 / 4),
        ([5, 5, -3, -3], -1, 3, 1 / 2),  # more is lost than the text has to give: cut to 1
        ([-3, 5, 5, 5], 2, 0, 3 / 4),
    ):
        row = explainer.evaluate([scored(explainer, WORDS, scores)], both).rows[0]
        lost = min(1.0, (sigmoid(2) - sigmoid(without)) / room)
        left = 1 - max(0.0, sigmoid(2) - sigmoid(alone)) / room
        assert row["soft_comprehensiveness"] == pytest.approx(lost)
        assert row["soft_sufficiency"] == pytest.approx(left)
        assert row["soft_comprehensiveness.kept"] == pytest.approx(1 - kept)
        assert row["soft_sufficiency.kept"] == pytest.approx(kept)


def test_soft_erasure_leaves_out_what_has_nothing_to_lose_or_no_order():
    explainer = planted(weights())
    flat = scored(explainer, WORDS, [1, 1, 1, 1])
    against = scored(explainer, WORDS, [2, 1, 0, -1], target=0)
    found = explainer.evaluate([flat, against], ["soft_comprehensiveness"])
    reasons = str(found.summary["soft_comprehensiveness"]["skipped"])
    assert "all scores of this text are equal" in reasons
    assert "no likelier with the tokens" in reasons
    with pytest.raises(BadInput, match="samples=0"):
        explainer.evaluate([flat], [("soft_sufficiency", {"samples": 0})])


def test_f_fidelity_by_hand():
    explainer = planted(weights())
    a = scored(explainer, WORDS, [2, 1, 0, -1])
    # Everything goes for sure: of shares 1/4, 1/2 and 1 the first word, the first two, all four.
    sure = {"alpha": 1.0, "beta": 1.0, "shares": (0.25, 0.5, 1.0), "samples": 2}
    _, curve = value(explainer, a, ("f_fidelity", sure))
    left = [2 - 2, 2 - 3, 2 - 2]
    assert curve == pytest.approx([sigmoid(2) - sigmoid(one) for one in left])
    _, curve = value(explainer, a, ("f_fidelity", sure | {"side": "minus"}))
    assert curve == pytest.approx([sigmoid(2) - sigmoid(one) for one in (2, 3, 2)])
    for wrong in ({"alpha": 0.0}, {"beta": 1.5}, {"samples": 0}):
        with pytest.raises(BadInput, match=next(iter(wrong))):
            value(explainer, a, ("f_fidelity", wrong))


def test_sign_agreement_by_hand():
    text = "good bad fine odd"
    row = text_row([text], [split(text)])
    head = Head("classification", labels=("negative", "positive"))
    metric = registry.build("metrics", "sign_agreement", {})
    a = attribution_of(row, [9, 2, -1, -3, 4, 9])  # explains positive
    case = Case(a, Original(row, StandIns(0, 0)), head, label=1, spans=((0, 0, 4), (0, 9, 13)))
    found = metric.measure(case, [])
    assert found.value == 1 / 2  # good has +, fine has −
    assert found.parts["chance"] == 2 / 4
    negative = replace(case, label=0, spans=((0, 5, 8),))  # bad has −, as it should
    assert metric.measure(negative, []).value == 1.0
    both = replace(case, spans=((0, 0, 8),))  # one word of two tokens: their sum counts
    assert metric.measure(both, []).value == 1.0
    for signs, right in ((1, 1.0), (-1, 0.0)):  # one sign everywhere is right half of the time
        plain = replace(case, attribution=attribution_of(row, [signs] * 6))
        assert metric.measure(plain, []).value == right
        turned = replace(plain, label=0, spans=((0, 5, 8),))
        assert metric.measure(turned, []).value == 1 - right
    for wrong, words in (({"spans": ()}, "marked"), ({"label": None}, "no label")):
        with pytest.raises(BadInput, match=words):
            metric.measure(replace(case, **wrong), [])


def test_the_share_that_is_kept_has_no_better_way():
    explainer = planted(weights())
    a = scored(explainer, WORDS, [2, 1, 0, -1])
    found = explainer.evaluate([a], ["soft_sufficiency", "naopc"])
    ways = {key: one["better"] for key, one in found.summary.items()}
    assert ways["soft_sufficiency"] == ways["naopc.aopc"] == "higher"
    assert {ways["soft_sufficiency.kept"], ways["naopc.lowest"], ways["naopc.highest"]} == {
        "neither"
    }
    assert "soft_sufficiency.kept  " in found.table()
