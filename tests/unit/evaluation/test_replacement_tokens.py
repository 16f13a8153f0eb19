"""What stands in for a [MASK] or [PAD] that a tokenizer does not have: said, and not compared with itself."""

from __future__ import annotations

import pytest

from tests.helpers.image_models import build_model
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.evaluation.evaluate import build_metrics
from tokenlight.evaluation.ranking_stability import check_ranking_stability
from tokenlight.evaluation.replacement_tokens import list_replacement_warnings
from tokenlight.perturb.variants import ReplacementIds

TEXTS = ["we love this dull old movie", "the film was good , we love it"]
METHODS = ["attcat", "grad_x_input", "random"]
PAD_AND_MASK = [("aopc", {"perturb": "pad"}), ("aopc", {"perturb": "mask"})]
KEYS = "aopc(perturb=pad) and aopc(perturb=mask)"


def make_explainer_without(*missing: str) -> Explainer:
    """An explainer whose tokenizer and model name none of these tokens."""
    tokenizer = tiny_tokenizer()
    model = tiny_bert()
    for name in missing:
        setattr(tokenizer, f"{name}_token", None)
        setattr(model.config, f"{name}_token_id", None)
    return Explainer(model, tokenizer, name="bare")


def test_a_missing_mask_token_is_named_and_not_compared_with_its_replacement():
    explainer = make_explainer_without("mask")
    evaluation = explainer.evaluate(explainer.explain(TEXTS, METHODS), PAD_AND_MASK)
    means = [
        [part.summary[key]["mean"] for key in evaluation.metrics]
        for part in evaluation.by_method.values()
    ]
    assert all(pad == mask for pad, mask in means)
    assert evaluation.warnings == (
        "aopc(perturb=mask): the tokenizer has no [MASK] token; its [PAD] token replaces removed "
        "tokens instead.",
        f"{KEYS} remove tokens in the same way here, so they are not compared.",
    )
    assert evaluation.to_dict()["warnings"] == list(evaluation.warnings)


def test_a_model_with_all_tokens_gets_no_warning():
    explainer = make_explainer_without()
    evaluation = explainer.evaluate(
        explainer.explain(TEXTS, METHODS), [*PAD_AND_MASK, "deletion", "lodds"]
    )
    assert not [
        warning for warning in evaluation.warnings if "token" in warning and "instead" in warning
    ]
    assert not [warning for warning in evaluation.warnings if "same way" in warning]


def test_the_same_removal_is_not_compared_and_others_still_are():
    metrics = build_metrics(["aopc", *PAD_AND_MASK])
    means = {key: {"a": 3.0, "b": 2.0, "c": 1.0} for key in metrics}
    apart = ReplacementIds(0, 4)
    same = ReplacementIds(0, 0, "eos", "eos")
    ((_, sentence),) = check_ranking_stability(metrics, means, apart)
    assert "however tokens are removed" in sentence
    ((_, sentence),) = check_ranking_stability(metrics, means, same)
    assert "between tokens deleted and replaced by the end-of-text token" in sentence
    one_token_of_two_names = ReplacementIds(0, 0)
    for replacement_ids in (same, one_token_of_two_names):
        assert not list(
            check_ranking_stability(
                build_metrics(PAD_AND_MASK),
                {key: means["aopc"] for key in metrics},
                replacement_ids,
            )
        )


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (("pad",), ("unk", "mask")),
        (("pad", "mask"), ("unk", "unk")),
        (("mask",), ("pad", "pad")),
        ((), ("pad", "mask")),
    ],
)
def test_replacement_ids_have_names(missing, expected):
    explainer = make_explainer_without(*missing)
    replacement_ids = ReplacementIds.from_model(explainer.runner, explainer.tokenizer)
    assert (replacement_ids.pad_name, replacement_ids.mask_name) == expected
    assert (replacement_ids.describe_stand_in("pad") is None) == ("pad" not in missing)
    assert (replacement_ids.describe_stand_in("mask") is None) == ("mask" not in missing)


def test_a_metric_that_masks_its_replacement_token_gets_no_warning():
    """What has attention 0 is read by no token, whatever it is."""
    metrics = build_metrics(
        ["hiding_game", ("aopc", {"perturb": "mask", "mask_pad_attention": True})]
    )
    assert not list(list_replacement_warnings(metrics, ReplacementIds(0, 0, "pad", "pad")))


def test_a_method_without_its_baseline_token_gets_a_note():
    sentence = "the tokenizer has no [PAD] token; its unknown token replaces removed tokens instead"
    for method in ("occlusion", "deeplift_shap"):
        assert sentence in make_explainer_without("pad").explain(TEXTS[0], method).notes
        assert sentence not in make_explainer_without().explain(TEXTS[0], method).notes


def test_patches_are_occluded_by_every_removal():
    replacement_ids = ReplacementIds.from_model(Explainer(build_model("vit")).runner)
    assert (
        len({replacement_ids.find_replacement(perturb) for perturb in ("delete", "pad", "mask")})
        == 1
    )
    (sentence,) = list_replacement_warnings(build_metrics(["aopc", *PAD_AND_MASK]), replacement_ids)
    assert sentence.startswith("aopc and aopc(perturb=pad) and aopc(perturb=mask) remove")
