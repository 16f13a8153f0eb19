"""Methods of a user's own, given as instances: their names, what they declare, and mistakes."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer, registry
from tokenlight.errors import BadInput, UnknownName
from tokenlight.evaluation.run import Experiment, evaluate_file
from tokenlight.files.tables import Example
from tokenlight.methods.base import Method
from tokenlight.metrics.base import Measurement, Metric
from tokenlight.trace.sites import Site

TEXT = "we love this dull old movie"


class TopOne(Method):
    """The gradient's length."""

    times: float = 1.0
    cites = "none"
    needs = frozenset({Site.HIDDEN_STATES, Site.HIDDEN_GRADIENT})

    def __call__(self, tape):
        return self.times * torch.linalg.vector_norm(tape.hidden_gradients[0], dim=-1)


class LowestLast(TopOne):
    """The other way round."""

    def __call__(self, tape):
        return -super().__call__(tape)


def make_method_of_the_same_name():
    """Another class that is called the same."""

    class TopOne(LowestLast):
        pass

    return TopOne()


class Rollout(TopOne):
    """Not the registered method of that name."""


class Undeclared(Method):
    cites = "none"

    def __call__(self, tape):
        return tape.token_mask.double()


class WrongSites(TopOne):
    needs = ("hidden",)


class Share(Metric):
    cites = "none"
    asks = False

    def measure(self, case, answers):  # noqa: ARG002
        return Measurement(0.5)


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(), tokenizer, name="tiny")


class TestNames:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("TopOne", "top_one"),
            ("LRPPlus", "lrp_plus"),
            ("GradientXInput", "gradient_x_input"),
            ("top_one", "top_one"),
            ("Top1", "top1"),
            ("_Hidden", "hidden"),
            ("Größe", "größe"),
        ],
    )
    def test_a_class_name_becomes_snake_case(self, name, expected):
        assert registry.to_snake_case(name) == expected

    def test_a_method_is_named_by_its_class(self, explainer):
        attributions = explainer.explain(TEXT, [TopOne(), LowestLast()])
        assert [attribution.method for attribution in attributions] == ["top_one", "lowest_last"]
        assert Share().name == "share"

    def test_each_user_defined_method_has_a_row(self, explainer):
        evaluation = explainer.evaluate(
            explainer.explain([TEXT, TEXT], [TopOne(), LowestLast()]), "aopc"
        )
        assert evaluation.methods == ("top_one", "lowest_last")
        first, second = (part.summary["aopc"] for part in evaluation.by_method.values())
        assert first["count"] == second["count"] == 2
        assert first["mean"] != second["mean"]

    def test_variants_of_one_class_are_named_by_their_options(self, explainer):
        attributions = explainer.explain([TEXT], [TopOne(), TopOne(times=-1.0)])
        assert explainer.evaluate(attributions, "aopc").methods == (
            "top_one",
            "top_one(times=-1.0)",
        )

    def test_registered_methods_keep_their_names(self):
        for name in registry.list_names("methods"):
            cls = registry.load_class("methods", name)
            assert registry.find_registered_name(cls) == name


class TestOneNameTwice:
    def test_two_methods_of_one_name_are_refused_in_one_call(self, explainer):
        with expect_error(BadInput, "duplicate-method-name", mentions="'top_one'"):
            explainer.explain(TEXT, [TopOne(), make_method_of_the_same_name()])

    def test_two_methods_of_one_name_are_refused_in_one_file(self, explainer, tmp_path):
        with expect_error(BadInput, "duplicate-method-name", mentions="'top_one'"):
            evaluate_file(
                explainer,
                [Example(TEXT)],
                Experiment([TopOne(), make_method_of_the_same_name()], ["aopc"]),
                tmp_path,
            )

    def test_two_methods_of_one_name_are_refused_in_one_evaluation(self, explainer):
        attributions = [
            explainer.explain(TEXT, TopOne()),
            explainer.explain(TEXT, make_method_of_the_same_name()),
        ]
        with pytest.raises(
            BadInput,
            match=r"test_base_user_defined\.TopOne and by .*have the same name, 'top_one'",
        ):
            explainer.evaluate(attributions, "aopc")

    @pytest.mark.parametrize(("name", "taken"), [("AttCat", "attcat"), ("Shap", "shapley")])
    def test_another_spelling_or_an_alias_is_refused(self, explainer, name, taken):
        method = type(name, (TopOne,), {"__module__": __name__})()
        with expect_error(BadInput, "method-name-like-another", mentions=f"'{taken}'"):
            explainer.explain(TEXT, method)

    def test_a_name_of_a_registered_method_is_refused(self, explainer):
        with expect_error(BadInput, "duplicate-method-name") as caught:
            explainer.explain(TEXT, Rollout())
        for path in ("test_base_user_defined.Rollout", "tokenlight.methods.rollout."):
            assert path in str(caught.value)


class TestMistakes:
    def test_a_class_instead_of_an_instance_is_refused(self, explainer):
        with pytest.raises(
            BadInput, match=r"TopOne is a method class, not a method instance. Give TopOne\(\)"
        ):
            explainer.explain(TEXT, TopOne)
        with pytest.raises(
            BadInput, match=r"Share is a metric class, not a metric instance. Give Share\(\)"
        ):
            explainer.evaluate(explainer.explain(TEXT, "attcat"), Share)

    def test_reading_an_undeclared_site_is_refused(self, explainer):
        with expect_error(BadInput, "needs-missing", mentions="needs = frozenset({Site.HIDDEN"):
            explainer.explain(TEXT, Undeclared())
        with expect_error(BadInput, "needs-not-sites", mentions="needs = frozenset"):
            explainer.explain(TEXT, WrongSites())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("input_x_gradient", r"'grad_x_input' \(captum's InputXGradient\)"),
        ("InputXGradient", r"'grad_x_input' \(captum's InputXGradient\)"),
        ("layer_integrated_gradients", r"'integrated_gradients' \(captum's LayerIntegrated"),
        ("IntegratedGradients", "'integrated_gradients'"),
        ("AttnLRP", "'attnlrp'"),
        ("kernel_shap", r"'shapley' \(Shapley values, which KernelSHAP estimates\)"),
        ("SmoothGrad", r"'smooth' \(SmoothGrad\)"),
        ("attention_rollout", r"'rollout' \(attention rollout\)"),
        ("deeplift", r"'deeplift_shap' \(DeepLIFT, averaged over baselines\)"),
        ("feature_ablation", r"'occlusion' \(captum's FeatureAblation\)"),
        ("LayerConductance", r"'integrated_gradients' \(captum's LayerConductance"),
        ("partition_shap", r"'shapley' \(Shapley values, which shap's Partition estimates\)"),
        ("erasure", r"'occlusion' \(leave-one-out\)"),
    ],
)
def test_names_of_other_libraries_are_known(name, expected):
    with pytest.raises(UnknownName, match=f"Did you mean {expected}"):
        registry.build("methods", name)


def test_every_name_offered_is_a_method():
    offered = {name for name, _ in registry.NAMES_IN_OTHER_LIBRARIES.values()}
    assert offered <= set(registry.list_names("methods"))
    names = {name.replace("_", "") for name in registry.list_names("methods")}
    assert not names & set(registry.NAMES_IN_OTHER_LIBRARIES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SHAP", "'shap', another name of 'shapley'"),
        ("IG", "'ig', another name of 'integrated_gradients'"),
        ("deep_lift", "'deeplift_shap'"),
        ("GuidedBackprop", "'saliency'"),
        ("PartitionExplainer", "'shapley'"),
        ("lrp_epsilon", "'lrp'"),
        ("lxt", "'attnlrp'"),
        ("vanilla_gradients", "'saliency'"),
        ("transformer_attribution", "'transatt'"),
        ("attentions", "'raw_att'"),
    ],
)
def test_an_unknown_name_suggests_the_method_that_is_meant(name, expected):
    with pytest.raises(UnknownName, match=f"Did you mean {expected}"):
        registry.build("methods", name)


def define_version(sign: float) -> Method:
    """Define a class as a cell of a notebook does that is edited and run again."""

    class Edited(Method):
        """Without cites and without options."""

        needs = frozenset({Site.HIDDEN_STATES, Site.HIDDEN_GRADIENT})

        if sign > 0:

            def __call__(self, tape):
                return tape.hidden_gradients[0].norm(dim=-1)

        else:

            def __call__(self, tape):
                return -tape.hidden_gradients[0].norm(dim=-1)

    return Edited()


def test_two_versions_of_one_class_are_not_pooled(explainer):
    first = explainer.explain(TEXT, define_version(1))
    again = explainer.explain(TEXT, define_version(1))
    assert explainer.evaluate([first, again], "aopc").rows
    edited = explainer.explain(TEXT, define_version(-1))
    with expect_error(BadInput, "two-versions-of-method", mentions="two versions of"):
        explainer.evaluate([first, edited], "aopc")


@pytest.mark.parametrize("result", [None, 3.0, [1.0, 2.0]])
def test_a_method_that_returns_no_tensor_is_refused(explainer, result):
    class NoTensor(TopOne):
        def __call__(self, tape):  # noqa: ARG002
            return result

    with expect_error(BadInput, "method-scores-type", mentions="must return a torch tensor"):
        explainer.explain(TEXT, NoTensor())
