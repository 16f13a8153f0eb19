"""What users of transformers and Captum expect: errors of Python, a callable, attribute(), batch limits."""

from __future__ import annotations

import ast
import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

import tokenlight
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, errors, registry
from tokenlight.cli.methods import _order_names
from tokenlight.explaining import default_method
from tokenlight.explaining.calls import resolve_methods
from tokenlight.explaining.default_method import load_leaderboard, recommend_methods
from tokenlight.files.tables import read_examples
from tokenlight.methods.base import FAMILIES

TOKENIZER = tiny_tokenizer()
TEXTS = ["a good film", "a bad and dull film"]


@pytest.fixture(scope="module")
def explainer():
    return Explainer(tiny_bert(), TOKENIZER)


@pytest.mark.parametrize(
    ("class_name", "builtin_class"),
    [
        ("UnknownName", ValueError),
        ("BadInput", ValueError),
        ("TextTooLong", ValueError),
        ("BadTarget", ValueError),
        ("NotFinite", ValueError),
        ("UnsupportedModel", TypeError),
        ("UnsupportedTokenizer", TypeError),
        ("DamagedFile", OSError),
        ("BrokenPlugin", ImportError),
        ("MissingExtra", ImportError),
    ],
)
def test_every_error_is_also_the_one_of_python_that_people_catch(class_name, builtin_class):
    error = getattr(errors, class_name)("it is so.")
    assert isinstance(error, builtin_class)
    assert isinstance(error, errors.TokenlightError)
    assert str(error) == "it is so."


def test_an_error_about_a_file_is_not_wrapped_in_another_about_it(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("{nonsense\n")
    with pytest.raises(OSError, match=r"^Line 1 of a.jsonl is not valid JSON"):
        read_examples(path)
    path = tmp_path / "a.csv"
    path.write_text('text\n"never closed\n')
    with pytest.raises(OSError, match=r"^The row of a.csv that begins in line 2"):
        read_examples(path)


def test_an_explainer_is_called_as_a_function(explainer):
    np.testing.assert_array_equal(
        explainer(TEXTS[0], "grads").scores, explainer.explain(TEXTS[0], "grads").scores
    )


@pytest.mark.parametrize("side", ["right", "left"])
def test_attribute_gives_scores_of_the_shape_of_the_ids(explainer, side):
    batch = TOKENIZER(TEXTS, padding=True, return_tensors="pt", padding_side=side)
    results = explainer.attribute(
        batch["input_ids"],
        target=torch.tensor([0, 1]),
        attention_mask=batch["attention_mask"],
        method="grad_x_input",
    )
    assert results.shape == batch["input_ids"].shape
    for number, text in enumerate(TEXTS):
        alone = explainer.explain(text, "grad_x_input", target=number).scores
        inside = results[number][batch["attention_mask"][number].bool()].numpy()
        np.testing.assert_allclose(inside, alone, rtol=0, atol=1e-9 * np.abs(alone).max())
    assert (results[batch["attention_mask"] == 0] == 0).all()
    same = explainer.attribute(batch, [0, 1], method="grad_x_input")
    torch.testing.assert_close(same, results, rtol=0, atol=0)


def test_batch_limits_of_a_model_hold_for_explaining_and_measuring():
    explainer = Explainer(tiny_bert(), TOKENIZER)
    sizes = []
    explainer.runner.batch_tokens = 1000
    explainer.runner.batch_size = 2
    explainer.model.register_forward_pre_hook(
        lambda _, __, inputs: sizes.append(len(inputs["input_ids"])), with_kwargs=True
    )
    explainer.evaluate(explainer.explain(TEXTS * 3, "grads"), "aopc")
    assert max(sizes) == 2


def test_a_label_is_found_whatever_its_case_where_only_one_can_be_meant(explainer):
    assert explainer.explain("a good film", "grads", target="POSITIVE").target.name == "positive"
    twins = Explainer(tiny_bert(id2label={0: "Good", 1: "good"}), TOKENIZER)
    assert twins.explain("a good film", "grads", target="good").target.index == 1
    with pytest.raises(errors.BadTarget, match="2 labels of this model are named 'GOOD'"):
        twins.explain("a good film", "grads", target="GOOD")


def test_a_gpu_is_used_if_available_with_a_one_line_note(monkeypatch, caplog, tmp_path):
    from tokenlight.models import loading

    tiny_bert().save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    put = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a fine GPU")
    monkeypatch.setattr(loading, "move_to_device", lambda _, device: put.append(device))
    with caplog.at_level(logging.INFO, logger="tokenlight"):
        loading.load_model(str(tmp_path), dtype=None, device=None)
        loading.load_model(str(tmp_path), dtype=None, device="cpu")
    assert put == ["cuda", "cpu"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path} computes on a fine GPU"
    ]


def test_the_library_itself_prints_nothing():
    """Only the command line and what is asked to show itself may."""
    source = Path(tokenlight.__file__).parent
    for path in source.rglob("*.py"):
        if path.relative_to(source).parts[0] == "cli":
            continue
        calls = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        ]
        function_calls = [node for node in calls if isinstance(node.func, ast.Name)]
        assert not [node for node in function_calls if node.func.id == "print"], path


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ig", "integrated_gradients"),
        ("leave_one_out", "occlusion"),
        ("gradient_x_input", "grad_x_input"),
        ("lrp_eps", "lrp"),
        ("shap", "shapley"),
        ("attention", "raw_att"),
    ],
)
def test_common_aliases_resolve_to_methods(explainer, typed, meant):
    assert registry.parse_spec(typed) == (meant, {})
    assert registry.parse_spec(f"{typed}:a=b") == (meant, {"a": "b"})
    assert resolve_methods(explainer, [typed], 0) == resolve_methods(explainer, [(meant, {})], 0)
    assert typed not in registry.list_names("methods")


def test_methods_are_listed_with_the_five_most_faithful_first_and_then_by_family():
    names = [name for name, _ in _order_names("methods")]
    assert sorted(names) == registry.list_names("methods")
    assert names[:5] == [*recommend_methods()]
    families = [registry.build("methods", name).family for name in names[5:]]
    assert families == sorted(families, key=FAMILIES.index)
    heads = [head for _, head in _order_names("methods") if head]
    assert [head.partition(":")[0] for head in heads] == ["recommended", *dict.fromkeys(families)]
    assert f"ordered by mean rank in AOPC on {load_leaderboard()['texts']} texts" in heads[0]


def test_the_page_lists_recommended_methods():
    pytest.importorskip("fastapi")
    from tokenlight.web.options import build_method_info

    for name in ("attnlrp", "raw_att", *recommend_methods()):
        assert build_method_info(name, with_heads=False)["recommended"] == recommend_methods().get(
            name
        )


def test_recommended_methods_come_from_the_leaderboard(monkeypatch, tmp_path):
    monkeypatch.setattr(default_method, "__file__", str(tmp_path / "default_method.py"))
    means = {"c": 0.2, "b": 0.4, "random": 0.1}
    ranks = {"b": [2.0, 1, 3], "c": [1.5, 1, 2], "random": [3, 3, 3]}
    board = {"texts": 9, "means": means, "ranks": ranks}
    (tmp_path / "leaderboard.json").write_text(json.dumps(board))
    try:
        default_method.load_measured_results.cache_clear()
        assert [*recommend_methods().items()] == [("c", 0.2), ("b", 0.4)]  # by mean rank
        assert default_method.load_leaderboard()["texts"] == 9
    finally:
        default_method.load_measured_results.cache_clear()
