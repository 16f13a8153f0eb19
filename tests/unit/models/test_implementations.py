"""A model folder names no code that is fetched and run: with a package ``kernels`` that notes each call."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.helpers.deadlines import DEADLINE_SECONDS
from tests.helpers.expect import expect_error
from tokenlight import Explainer
from tokenlight.errors import UnsupportedModel

# All that transformers imports of the package; get_kernel would fetch code and run it.
KERNELS = """
import os
class _Anything:
    def __init__(self, *given, **named): ...
    def __call__(self, cls=None, *given, **named): return cls
    def __getattr__(self, name): return self
def get_kernel(name, *given, **named):
    with open(os.environ["FETCHED"], "a") as file: file.write(name + chr(10))
    raise ValueError("there is no such kernel")
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return _Anything
"""
LOAD = """
import sys
from tokenlight import Explainer
from tokenlight.errors import TokenlightError
for folder in sys.argv[1:]:
    try:
        Explainer.from_pretrained(folder).explain("good film")
        print("explained")
    except TokenlightError as refused:
        print(type(refused).__name__, refused)
"""
NAMED = [
    {"attn_implementation": {"": "evil/kernel"}},
    {"attn_implementation": {"text_config": {"": "evil/kernel"}}},
    {"attn_implementation": "paged|evil/kernel"},
    {"attn_implementation": "evil/kernel@main:forward"},
    {"attn_implementation": ["evil/kernel"]},
    {"attn_implementation": "flash_attention_2"},
    {"_attn_implementation": "flash_attention_3"},
    {"_attn_implementation_internal": "evil/kernel"},
    {"experts_implementation": "sonicmoe"},
    {"text_config": {"attn_implementation": "evil/kernel"}},
    {"text_config": {"vision_config": [{"_attn_implementation": {"": "evil/kernel"}}]}},
    {"attribute_map": {"harmless": "_attn_implementation"}, "harmless": "evil/kernel"},
    {"use_kernels": True},
    {"text_config": {"kernel_config": {"RMSNorm": "evil/kernel"}}},
]


@pytest.fixture
def changed(bert_folder, tmp_path):
    """Makes a copy of a good folder with further fields in its config."""

    def change(number: int, **fields):
        folder = tmp_path / f"model{number}"
        shutil.copytree(bert_folder, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **fields}))
        return folder

    return change


@pytest.mark.parametrize("fields", NAMED, ids=str)
def test_a_config_that_names_code_is_refused(changed, fields):
    with pytest.raises(UnsupportedModel, match="names code to download|changes which code runs"):
        Explainer.from_pretrained(changed(0, **fields))


@pytest.mark.parametrize("fields", NAMED[:6], ids=str)
def test_a_keyword_that_names_code_is_refused(bert_folder, fields):
    with expect_error(UnsupportedModel, "config-downloads-code"):
        Explainer.from_pretrained(bert_folder, **fields)


@pytest.mark.parametrize("name", ["eager", "sdpa", None, {"": "eager"}])
def test_code_of_torch_and_transformers_is_let_through(changed, name):
    explainer = Explainer.from_pretrained(changed(0, attn_implementation=name))
    assert explainer.explain("good film").scores.any()


def test_with_kernels_installed_nothing_is_fetched(changed, tmp_path):
    library = tmp_path / "library"
    (library / "kernels" / "layer").mkdir(parents=True)
    for file in ("__init__.py", "layer/__init__.py", "layer/mode.py"):
        (library / "kernels" / file).write_text(KERNELS)
    about = library / "kernels-0.17.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.17.2\n")
    quantized = {"quantization_config": {"quant_method": "eetq", "weights": "int8"}}
    folders = [str(changed(i, **fields)) for i, fields in enumerate([*NAMED, quantized, {}])]
    fetched = tmp_path / "fetched"
    path = os.pathsep.join([str(library), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, "-c", LOAD, *folders],
        env={**os.environ, "PYTHONPATH": path, "FETCHED": str(fetched)},
        capture_output=True, text=True, timeout=DEADLINE_SECONDS,
    )  # fmt: skip
    message = result.stdout.splitlines()
    assert [line.split()[0] for line in message] == ["UnsupportedModel"] * (len(message) - 1) + [
        "explained"
    ], result.stderr
    assert len(message) == len(folders)
    assert not fetched.exists(), fetched.read_text()
