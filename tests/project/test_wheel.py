"""The wheel: everything a user needs, nothing else, and it works installed alone."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_WHEEL_BYTES = 35_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", str(folder), str(ROOT)],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = folder.glob("tokenlight-*.whl")
    return wheel


def test_the_wheel_holds_models_templates_and_types(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (
        "tokenlight/py.typed",
        "tokenlight/models/encoder.safetensors",
        "tokenlight/models/sentiment/config.json",
        "tokenlight/plots/templates/page.html.j2",
        "tokenlight/plots/templates/report_words.js",
        "tokenlight/plots/templates/report_swarm.js",
        "tokenlight/plots/templates/comparison.html.j2",
    ):
        assert needed in names
    assert not [name for name in names if name.startswith(("tests/", "training/", "docs/"))]
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pkl"))]
    # The suites bring a few sentences of our own and of the papers' figures; no data set.
    lines = [name for name in names if name.endswith(".jsonl")]
    assert {name.rpartition("/")[0] for name in lines} == {"tokenlight/bench/suites"}
    sizes = {name: zipfile.ZipFile(wheel).getinfo(name).file_size for name in lines}
    # Prompts made from templates of our own.
    assert sizes.pop("tokenlight/bench/suites/counterfactual_pairs.jsonl") < 400_000
    assert sum(sizes.values()) < 20_000


def test_the_wheel_stays_below_the_size_limit(wheel):
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES


def test_the_installed_wheel_explains_a_text(wheel, tmp_path):
    """Unpacked by itself, outside the checkout: no file of the source tree is needed."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import tokenlight\n"
        "assert tokenlight.__file__.startswith(sys.argv[1]), tokenlight.__file__\n"
        "a = tokenlight.Explainer.from_pretrained('tokenlight/sentiment').explain('A lovely film.')\n"
        "print(a.prediction.label, a.top(1)[0][0])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "site")],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert result.stdout.split() == ["positive", "lovely"]
