"""Kendall's tau between classes, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.planted_model import MASK, PAD, make_attribution, make_planted_explainer
from tests.helpers.planted_words import WORDS, make_weights
from tokenlight import registry
from tokenlight.data.target import ResolvedTarget
from tokenlight.metrics.base import Case
from tokenlight.perturb.variants import Perturber, ReplacementIds


def test_kendall_equals_the_value_by_hand():
    metric = registry.build("metrics", "kendall")
    order = registry.build("metrics", "kendall", {"preset": "attcat"})
    explainer = make_planted_explainer(make_weights(), labels=2)
    attribution = make_attribution(explainer, WORDS, [3, 2, 1, 0.5], special=False, target=1)
    b = replace(
        attribution,
        scores=[3, 2, 0.5, 1],
        target=ResolvedTarget("class", "LABEL_0", (((0,), 1.0),)),
    )
    case = Case(
        attribution,
        Perturber(attribution.row, ReplacementIds(PAD, MASK)),
        explainer.runner.head,
        extra_attributions=(b,),
    )
    assert metric.measure(case, []).value == pytest.approx(2 / 3)  # one of six pairs turned
    # Index lists [0 1 2 3] and [0 1 3 2]: also one of six pairs.
    assert order.measure(case, []).value == pytest.approx(2 / 3)
    c = replace(b, scores=[0.5, 3, 2, 1])
    case = replace(case, extra_attributions=(c,))
    # Ranks: pairs with the first token turn, three of six → τ = 0. Index lists [0 1 2 3], [1 2 3 0]:
    # again three of six.
    assert metric.measure(case, []).value == pytest.approx(0)
    case = replace(case, extra_attributions=(b, c))
    assert metric.measure(case, []).value == pytest.approx(1 / 3)


def test_kendall_on_index_lists_is_not_kendall_on_ranks():
    explainer = make_planted_explainer(make_weights())
    attribution = make_attribution(explainer, WORDS, [1, 4, 2, 3], special=False, target=1)
    b = replace(
        attribution, scores=[2, 1, 4, 3], target=ResolvedTarget("class", "LABEL_0", (((0,), 1.0),))
    )
    case = Case(
        attribution,
        Perturber(attribution.row, ReplacementIds(PAD, MASK)),
        explainer.runner.head,
        extra_attributions=(b,),
    )
    # ranks 1 4 2 3 | 2 1 4 3: pairs (01)− (02)+ (03)+ (12)− (13)− (23)− → −2/6
    assert registry.build("metrics", "kendall").measure(case, []).value == pytest.approx(-1 / 3)
    # index lists [1 3 2 0] | [2 3 0 1]: (01)+ (02)− (03)+ … = (1,3)(2,3): 1<3,2<3 + ; 1<2,2>0 − ;
    # 1>0,2>1 + ; 3>2,3>0 + ; 3>0,3>1 + ; 2>0,0<1 − → 4 − 2 over 6
    ordered = registry.build("metrics", "kendall", {"kendall_on": "order"})
    assert ordered.measure(case, []).value == pytest.approx(1 / 3)
