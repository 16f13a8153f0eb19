"""The rule sets: tables from operation to rule.

A new rule set is a new :class:`RuleSet` in this file, with rules from ``rules.py`` or ``attnlrp.py``.
"""

from functools import partial

from tokenlight.lrp import attnlrp, rules
from tokenlight.lrp.rules import GradientShares, Operation, Rule, RuleSet

# Chefer et al., CVPR 2021: conserves relevance within each example.
_CHEFER_RULES: dict[Operation, Rule] = {
    **dict.fromkeys((Operation.LINEAR, Operation.CONV1D), rules.z_plus),
    Operation.MATMUL: rules.halved_product,
    Operation.GATE: rules.halved_gate,
    Operation.ADD: rules.balanced_add,
    Operation.SUM: rules.proportional_sum,
    Operation.SCALE: rules.pass_through_scale,
    Operation.SOFTMAX: rules.balanced_mask,
    **dict.fromkeys(
        (Operation.ADD_CONSTANT, Operation.QUOTIENT, Operation.ACTIVATION, Operation.NORM),
        rules.pass_through,
    ),
}
# The same authors' "original LRP": its sums grow with depth.
_ORIGINAL_LRP_RULES: dict[Operation, Rule] = {
    **dict.fromkeys((Operation.LINEAR, Operation.CONV1D), rules.z_plus_by_sign),
    Operation.ADD: rules.proportional_add,
    Operation.SOFTMAX: rules.proportional_mask,
}
CHEFER = RuleSet("chefer", _CHEFER_RULES, divides_clones=True)
CHEFER_ORIG = RuleSet("chefer_orig", _CHEFER_RULES | _ORIGINAL_LRP_RULES, divides_clones=True)
# The official Mask-LRP code on GPT-2: loses relevance in every Conv1D.
MASK_LRP_GPT2 = RuleSet(
    "mask_lrp_gpt2", _CHEFER_RULES | {Operation.CONV1D: rules.mask_lrp_conv1d}, divides_clones=True
)

# Achtibat et al., ICML 2024; Ali et al., ICML 2022 ("conservative propagation").
_GRADIENT_RULES: dict[Operation, Rule] = {
    Operation.ACTIVATION: attnlrp.activation_gradient,
    Operation.NORM: attnlrp.norm_gradient,
}
_GRADIENT_SHARES: dict[Operation, GradientShares] = {
    **dict.fromkeys((Operation.MATMUL, Operation.GATE), attnlrp.equal_shares),
    Operation.QUOTIENT: attnlrp.numerator_shares,
    Operation.ATTENTION: attnlrp.attention_shares,
}
_CONSTANT_ATTENTION_SHARES = dict.fromkeys(
    (Operation.MATMUL, Operation.ATTENTION), attnlrp.values_only_shares
)
ATTNLRP = RuleSet(
    "attnlrp", _GRADIENT_RULES, rewrites_gradients=True, gradient_shares=_GRADIENT_SHARES
)
CP_LRP = RuleSet(
    "cp_lrp",
    _GRADIENT_RULES,
    rewrites_gradients=True,
    gradient_shares=_GRADIENT_SHARES | _CONSTANT_ATTENTION_SHARES,
)
# Attention maps are constants; everything else is the model's own gradient.
ATTENTION_CONSTANT = RuleSet(
    "attention_constant", {}, rewrites_gradients=True, gradient_shares=_CONSTANT_ATTENTION_SHARES
)

# Edin et al. 2025 ("gradient interaction modifications"): activations keep their own slope.
_GIM_TEMPERATURE = 2.0
GIM = RuleSet(
    "gim",
    {
        Operation.NORM: attnlrp.norm_gradient,
        Operation.SOFTMAX: partial(attnlrp.softmax_gradient, temperature=_GIM_TEMPERATURE),
    },
    rewrites_gradients=True,
    gradient_shares=_GRADIENT_SHARES,
    softmax_temperature=_GIM_TEMPERATURE,
)

# AttnLRP and CP-LRP rule by rule, with epsilon in every denominator.
_EPSILON_RULES: dict[Operation, Rule] = _CHEFER_RULES | {
    **dict.fromkeys((Operation.LINEAR, Operation.CONV1D), attnlrp.epsilon_linear),
    Operation.MATMUL: partial(rules.halved_product, divide=attnlrp.epsilon_divide),
    Operation.ADD: partial(rules.proportional_add, divide=attnlrp.epsilon_divide),
    Operation.SUM: partial(rules.proportional_sum, divide=attnlrp.epsilon_divide),
    Operation.ADD_CONSTANT: attnlrp.epsilon_add_constant,
    Operation.SOFTMAX: attnlrp.softmax_taylor,
    Operation.NORM: attnlrp.norm_linear,
}
_VALUES_ONLY_RULES: dict[Operation, Rule] = {
    Operation.MATMUL: attnlrp.values_only_product,
    Operation.SOFTMAX: rules.pass_through,
}
ATTNLRP_RULES = RuleSet("attnlrp by rules", _EPSILON_RULES, starts_at_value=True)
CP_LRP_RULES = RuleSet("cp_lrp by rules", _EPSILON_RULES | _VALUES_ONLY_RULES, starts_at_value=True)
