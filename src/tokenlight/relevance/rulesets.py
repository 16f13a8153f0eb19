"""The rule sets: each a table from operation to rule."""

from functools import partial

from tokenlight.relevance import gradients, products, sums
from tokenlight.relevance.case import Operation as On
from tokenlight.relevance.case import Rule, RuleSet
from tokenlight.relevance.division import epsilon_divide

# The sets that go rule by rule, each a column: Chefer et al., CVPR 2021, which conserves relevance
# within each example; the same authors' "original LRP", whose sums grow with depth; Achtibat et al.,
# ICML 2024; Ali et al., ICML 2022 ("conservative propagation").
_epsilon_product = partial(products.halved_product, divide=epsilon_divide)
_epsilon_add = partial(sums.proportional_add, divide=epsilon_divide)
_epsilon_total = partial(sums.proportional_total, divide=epsilon_divide)
_linear = products.z_plus, products.z_plus_separate, products.epsilon, products.epsilon
_TABLE: dict[On, tuple[Rule, Rule, Rule, Rule]] = {
    On.LINEAR: _linear,
    On.CONV1D: _linear,
    On.MATMUL: (*(products.halved_product,) * 2, _epsilon_product, products.second_only_product),
    On.GATE: (products.halved_gate,) * 4,
    On.ADD: (sums.balanced_add, sums.proportional_add, _epsilon_add, _epsilon_add),
    On.TOTAL: (*(sums.proportional_total,) * 2, *(_epsilon_total,) * 2),
    On.SHIFT: (*(sums.passed,) * 2, *(sums.epsilon_shifted,) * 2),
    On.SCALE: (sums.scaled,) * 4,
    On.QUOTIENT: (sums.passed,) * 4,
    On.ACTIVATION: (sums.passed,) * 4,
    On.SOFTMAX: (sums.balanced_mask, sums.proportional_mask, sums.softmax_taylor, sums.passed),
    On.NORM: (*(sums.passed,) * 2, *(sums.norm_linear,) * 2),
}
_chefer, _original, _attnlrp, _cp = ({on: row[i] for on, row in _TABLE.items()} for i in range(4))

CHEFER = RuleSet("chefer", _chefer, divides_clones=True)
CHEFER_ORIG = RuleSet("chefer_orig", _original, divides_clones=True)
ATTNLRP = RuleSet("attnlrp by rules", _attnlrp, starts_at_value=True)
CP_LRP = RuleSet("cp_lrp by rules", _cp, starts_at_value=True)

# The last two by rewritten gradients: equal to the rules in the limit of no epsilon.
ATTNLRP_GRADIENT = RuleSet(
    "attnlrp",
    {On.ACTIVATION: gradients.activation_slope, On.NORM: gradients.norm_slope},
    rewrites_gradients=True,
    splits={
        On.MATMUL: gradients.equal_parts,
        On.GATE: gradients.equal_parts,
        On.QUOTIENT: gradients.first_alone,
        On.ATTENTION: gradients.attention_parts,
    },
)
_constant = {On.MATMUL: gradients.last_alone, On.ATTENTION: gradients.last_alone}
CP_LRP_GRADIENT = RuleSet(
    "cp_lrp",
    ATTNLRP_GRADIENT.rules,
    rewrites_gradients=True,
    splits={**ATTNLRP_GRADIENT.splits, **_constant},
)
# Attention maps are constants, all else is the model's own gradient.
ATTENTION_CONSTANT = RuleSet("attention_constant", {}, rewrites_gradients=True, splits=_constant)

# The official Mask-LRP code on GPT-2: loses relevance in every Conv1D.
MASK_LRP_GPT2 = RuleSet(
    "mask_lrp_gpt2", {**_chefer, On.CONV1D: products.gpt2_official}, divides_clones=True
)
