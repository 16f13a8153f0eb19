"""Shared models: small, random, made here; nothing is fetched."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# A shell without job control starts background jobs with Ctrl-C ignored, and a process hands that on to its
# children: commands under test would then wait for ever for the Ctrl-C that a test sends them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# What one test found out about a model must not spare another its probes.
os.environ["TOKENLIGHT_CACHE"] = "off"
# Some virtual machines announce AMX, on which oneDNN's bfloat16 products then die of an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Ray runs its workers at low priority: beside any other load their start would take minutes.
os.environ.setdefault("RAY_worker_niceness", "0")

import pytest
import torch
import transformers
from hypothesis import HealthCheck, settings

from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tests.helpers.tolerance import EverythingInFloat64

pytest_plugins = [
    "tests.plugins.leaks",
    "tests.plugins.random_order",
    "tests.plugins.worker_groups",
]
SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"
if SHARED_DATA.is_dir():
    os.environ.setdefault("TOKENLIGHT_DATA", str(SHARED_DATA))
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
settings.register_profile(
    "house", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("house")


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture
def bert():
    return tiny_bert()


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory, tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    tiny_bert(dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def in_float64():
    """No family computes in float32 inside while the test runs."""
    with EverythingInFloat64():
        yield


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of public data sets; tests that need it skip where there is none."""
    folder = os.environ.get("TOKENLIGHT_DATA")
    if not folder:
        pytest.skip("no folder shared/data beside the checkout, and TOKENLIGHT_DATA names none")
    return Path(folder)
