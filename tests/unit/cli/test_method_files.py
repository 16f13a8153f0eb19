"""``--method FILE.py:CLASS``: a method of one's own on the command line."""

import json

import pytest

METHOD = '''
import torch

from tokenlight.plugin import Method, Site


class GradientSize(Method):
    """Length of the gradient."""

    signed = False
    needs = frozenset({Site.HIDDEN_STATES, Site.HIDDEN_GRADIENT})
    power: float = 1.0

    def __call__(self, tape):
        return torch.linalg.vector_norm(tape.hidden_gradients[0], dim=-1) ** self.power
'''


@pytest.fixture
def method_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(METHOD)
    return path


def explain(tokenlight, model, spec, *arguments):
    return tokenlight(
        "explain", "a charming film", "-m", str(model), "--method", str(spec), *arguments
    )


@pytest.mark.parametrize("class_name", ["", ":GradientSize"])
def test_a_class_in_a_file_is_a_method(tokenlight, bert_folder, method_file, class_name):
    code, output, errors = explain(
        tokenlight, bert_folder, f"{method_file}{class_name}", "--json", "-"
    )
    assert (code, errors) == (0, "")
    assert json.loads(output)["method"] == "gradient_size"


def test_its_options_are_checked_and_converted(tokenlight, bert_folder, method_file):
    spec = f"{method_file}:GradientSize"
    _, once, _ = explain(tokenlight, bert_folder, spec, "--json", "-")
    _, squared, _ = explain(tokenlight, bert_folder, f"{spec}:power=2", "--json", "-")
    scores = json.loads(once)["scores"]
    assert json.loads(squared)["scores"] == pytest.approx([score**2 for score in scores])
    code, _, errors = explain(tokenlight, bert_folder, f"{spec}:size=2")
    assert code == 2
    assert "'size'" in errors
    assert "power" in errors


def test_it_is_compared_with_registered_methods(tokenlight, bert_folder, method_file, tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("a charming film\nnever good\n")
    arguments = ("--method", str(method_file), "--method", "random", "--metric", "aopc")
    code, output, _ = tokenlight(
        "evaluate", data, "-m", str(bert_folder), *arguments, "-o", tmp_path / "out"
    )
    assert code == 0
    assert output.splitlines()[1].startswith("gradient_size")


def test_a_file_that_is_missing_broken_or_without_the_class_is_refused(
    tokenlight, bert_folder, method_file, tmp_path
):
    broken = tmp_path / "broken.py"
    broken.write_text("import not_a_library\n")
    empty = tmp_path / "empty.py"
    empty.write_text("")
    messages = {
        tmp_path / "none.py": "none.py does not exist",
        f"{method_file}:Gradient": "Did you mean 'GradientSize'?",
        broken: "broken.py cannot be run: ModuleNotFoundError",
        empty: "empty.py holds 0 methods",
    }
    for spec, message in messages.items():
        code, _, errors = explain(tokenlight, bert_folder, spec)
        assert code == 2
        assert message in errors


def test_workers_of_a_folder_are_not_given_a_file(tokenlight, method_file, tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("a charming film\n")
    code, _, errors = tokenlight(
        "explain", "--file", data, "--method", f"{method_file}", "-o", tmp_path / "out"
    )
    assert code == 2
    assert "whose workers know registered methods only" in errors
