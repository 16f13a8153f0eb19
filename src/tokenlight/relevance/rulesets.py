"""The rule sets: each a table from operation to rule."""

from tokenlight.relevance import elements, gradients, linear, products, sums
from tokenlight.relevance.case import Operation, Rule, RuleSet

_PASSED: dict[Operation, Rule] = {
    Operation.SHIFT: elements.passed,
    Operation.SCALE: elements.scaled,
    Operation.QUOTIENT: elements.passed,
    Operation.ACTIVATION: elements.passed,
    Operation.SOFTMAX: elements.passed,
    Operation.NORM: elements.passed,
    Operation.GATE: products.halved_gate,
}

# Chefer et al., CVPR 2021: conserves relevance within each example.
CHEFER = RuleSet(
    "chefer",
    _PASSED
    | {
        Operation.LINEAR: linear.z_plus,
        Operation.CONV1D: linear.z_plus,
        Operation.MATMUL: products.halved_product,
        Operation.ADD: sums.balanced_add,
        Operation.TOTAL: sums.proportional_total,
        Operation.SOFTMAX: sums.balanced_mask,
    },
    divides_clones=True,
)

# The same authors' "original LRP": sums grow with depth.
CHEFER_ORIG = RuleSet(
    "chefer_orig",
    {
        **CHEFER.rules,
        Operation.LINEAR: linear.z_plus_separate,
        Operation.CONV1D: linear.z_plus_separate,
        Operation.ADD: sums.proportional_add,
        Operation.SOFTMAX: sums.proportional_mask,
    },
    divides_clones=True,
)

# Achtibat et al., ICML 2024, rule by rule.
ATTNLRP = RuleSet(
    "attnlrp by rules",
    _PASSED
    | {
        Operation.LINEAR: linear.epsilon,
        Operation.CONV1D: linear.epsilon,
        Operation.MATMUL: products.uniform_product,
        Operation.ADD: sums.epsilon_add,
        Operation.TOTAL: sums.epsilon_total,
        Operation.SHIFT: elements.epsilon_shifted,
        Operation.SOFTMAX: elements.softmax_taylor,
        Operation.NORM: elements.norm_linear,
    },
    starts_at_value=True,
)

# Ali et al., ICML 2022 ("conservative propagation"), rule by rule.
CP_LRP = RuleSet(
    "cp_lrp by rules",
    {
        **ATTNLRP.rules,
        Operation.MATMUL: products.second_only_product,
        Operation.SOFTMAX: elements.passed,
    },
    starts_at_value=True,
)

# The same two by rewritten gradients: equal to the rules in the limit of no epsilon.
ATTNLRP_GRADIENT = RuleSet(
    "attnlrp",
    {Operation.ACTIVATION: gradients.activation_slope, Operation.NORM: gradients.norm_slope},
    rewrites_gradients=True,
    splits={
        Operation.MATMUL: gradients.equal_parts,
        Operation.GATE: gradients.equal_parts,
        Operation.QUOTIENT: gradients.first_alone,
        Operation.ATTENTION: gradients.attention_parts,
    },
)
CP_LRP_GRADIENT = RuleSet(
    "cp_lrp",
    ATTNLRP_GRADIENT.rules,
    rewrites_gradients=True,
    splits={
        **ATTNLRP_GRADIENT.splits,
        Operation.MATMUL: gradients.last_alone,
        Operation.ATTENTION: gradients.last_alone,
    },
)

# Attention maps are constants, all else is the model's own gradient.
ATTENTION_CONSTANT = RuleSet(
    "attention_constant",
    {},
    rewrites_gradients=True,
    splits={
        Operation.MATMUL: gradients.last_alone,
        Operation.ATTENTION: gradients.last_alone,
    },
)

# The official Mask-LRP code on GPT-2: loses relevance in every Conv1D.
MASK_LRP_GPT2 = RuleSet(
    "mask_lrp_gpt2",
    {**CHEFER.rules, Operation.CONV1D: linear.gpt2_official},
    divides_clones=True,
)
