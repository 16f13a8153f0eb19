"""The rule sets, tables from operation to rule."""

from functools import partial

from tokenlight.relevance import attnlrp, rules
from tokenlight.relevance.rules import Operation as On
from tokenlight.relevance.rules import Rule, RuleSet, Split

# Chefer et al., CVPR 2021, which conserves relevance within each example.
_chefer: dict[On, Rule] = {
    **dict.fromkeys((On.LINEAR, On.CONV1D), rules.z_plus),
    On.MATMUL: rules.halved_product,
    On.GATE: rules.halved_gate,
    On.ADD: rules.balanced_add,
    On.TOTAL: rules.proportional_total,
    On.SCALE: rules.scaled,
    On.SOFTMAX: rules.balanced_mask,
    **dict.fromkeys((On.SHIFT, On.QUOTIENT, On.ACTIVATION, On.NORM), rules.passed),
}
# The same authors' "original LRP", whose sums grow with depth.
_original: dict[On, Rule] = {
    **dict.fromkeys((On.LINEAR, On.CONV1D), rules.z_plus_separate),
    On.ADD: rules.proportional_add,
    On.SOFTMAX: rules.proportional_mask,
}
CHEFER = RuleSet("chefer", _chefer, divides_clones=True)
CHEFER_ORIG = RuleSet("chefer_orig", _chefer | _original, divides_clones=True)
# The official Mask-LRP code on GPT-2: loses relevance in every Conv1D.
MASK_LRP_GPT2 = RuleSet(
    "mask_lrp_gpt2", _chefer | {On.CONV1D: rules.gpt2_official}, divides_clones=True
)

# Achtibat et al., ICML 2024; Ali et al., ICML 2022 ("conservative propagation").
_slopes: dict[On, Rule] = {On.ACTIVATION: attnlrp.activation_slope, On.NORM: attnlrp.norm_slope}
_splits: dict[On, Split] = {
    # As much to each activation; of a quotient, all to the numerator.
    **dict.fromkeys((On.MATMUL, On.GATE), lambda active: (1 / sum(active),) * len(active)),
    On.QUOTIENT: lambda active: (1.0, *(0.0 for _ in active[1:])),
    On.ATTENTION: attnlrp.attention_parts,
}
_constant = dict.fromkeys((On.MATMUL, On.ATTENTION), attnlrp.last_alone)
ATTNLRP = RuleSet("attnlrp", _slopes, rewrites_gradients=True, splits=_splits)
CP_LRP = RuleSet("cp_lrp", _slopes, rewrites_gradients=True, splits=_splits | _constant)
# Attention maps are constants, all else is the model's own gradient.
ATTENTION_CONSTANT = RuleSet("attention_constant", {}, rewrites_gradients=True, splits=_constant)

# The two rule by rule, with epsilon in every denominator.
_by_epsilon: dict[On, Rule] = _chefer | {
    **dict.fromkeys((On.LINEAR, On.CONV1D), attnlrp.epsilon),
    On.MATMUL: partial(rules.halved_product, divide=attnlrp.epsilon_divide),
    On.ADD: partial(rules.proportional_add, divide=attnlrp.epsilon_divide),
    On.TOTAL: partial(rules.proportional_total, divide=attnlrp.epsilon_divide),
    On.SHIFT: attnlrp.epsilon_shifted,
    On.SOFTMAX: attnlrp.softmax_taylor,
    On.NORM: attnlrp.norm_linear,
}
_by_values: dict[On, Rule] = {On.MATMUL: attnlrp.second_only_product, On.SOFTMAX: rules.passed}
ATTNLRP_RULES = RuleSet("attnlrp by rules", _by_epsilon, starts_at_value=True)
CP_LRP_RULES = RuleSet("cp_lrp by rules", _by_epsilon | _by_values, starts_at_value=True)
