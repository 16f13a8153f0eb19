"""The wheel: everything a user needs, nothing else, and it works installed alone."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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


def find_requirements(
    metadata: importlib.metadata.PackageMetadata, extra: str
) -> Iterator[Requirement]:
    """Yield what a distribution requires here, with one of its extras or, if that is empty, with none."""
    for line in metadata.get_all("Requires-Dist") or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def link_requirements(requirements: list[Requirement], site: Path) -> set[str]:
    """Link the installed distributions of ``requirements``, and what they require, into a folder."""
    linked: set[str] = set()
    waiting = [
        (requirement, extra) for requirement in requirements for extra in ("", *requirement.extras)
    ]
    done: set[tuple[str, str]] = set()
    while waiting:
        requirement, extra = waiting.pop()
        name = requirement.name.lower().replace("_", "-")
        if (name, extra) in done:
            continue
        done.add((name, extra))
        distribution = importlib.metadata.distribution(name)
        for dependency in find_requirements(distribution.metadata, extra):
            waiting += [(dependency, its_extra) for its_extra in ("", *dependency.extras)]
        linked.add(name)
        # The top of each path: a package, a module or the folder of metadata. Scripts lie outside.
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
    return linked


def test_a_fresh_environment_has_the_command(wheel, tmp_path):
    """A new environment with the wheel and what its extra "cli" declares, and nothing else."""
    venv.create(tmp_path / "fresh", with_pip=False, symlinks=True)
    scripts = tmp_path / "fresh" / "bin"
    (site,) = (tmp_path / "fresh" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = importlib.metadata.PathDistribution(zipfile.Path(wheel, name).parent).metadata
    linked = link_requirements(list(find_requirements(metadata, "cli")), site)
    assert {"torch", "transformers", "typer"} <= linked
    assert not linked & {"matplotlib", "pandas", "fastapi", "captum", "pytest", "scikit-learn"}
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(scripts / "python"), "install", "--quiet",
         "--no-deps", "--no-index", str(wheel)],
        check=True, capture_output=True,
    )  # fmt: skip
    # Nothing of the environment that runs the tests may be found.
    environment = {"PATH": os.defpath, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [str(scripts / "tokenlight"), "explain", "A lovely film."],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("prediction  positive")
    assert "lovely" in result.stdout
