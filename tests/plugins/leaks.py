"""A pytest plug-in: what a test leaves open or changed fails that test's module, and no later one."""

import gc
import os
import sys
import warnings

import pytest

from tests.helpers.garbage import collect_garbage

COARSE = ("tf32", "bf16")
OWN_VARIABLE = "PYTEST_CURRENT_TEST"
REPORTED = set()  # changes of settings that have failed a test


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Exempt libraries, test modules and test items from later collections.

    They live as long as the process. A collection after each module, of which each worker runs nearly all,
    would walk through a million of their objects and free none.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        collect_garbage()
        gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_open(request):
    """Collect garbage after the module and its own fixtures have ended."""
    settings = read_process_settings()
    yield
    # What a single test changed has failed that test already; fixtures of the module are left.
    changes = [change for change in find_changed_settings(settings) if change not in REPORTED]
    leaks = collect_leaks() + find_twice_imported_modules() + changes
    if leaks:
        listed = "\n".join(f"- {leak}" for leak in leaks)
        pytest.fail(
            f"{request.node.nodeid} leaves this open or changed; close it where it is opened "
            f"(-X tracemalloc=20 shows where that is):\n{listed}",
            pytrace=False,
        )


@pytest.fixture(autouse=True)
def settings_are_restored():
    """Fail a test that changes a setting of the process, which every later test would run under."""
    before = read_process_settings()
    yield
    changes = find_changed_settings(before)
    REPORTED.update(changes)
    if changes:
        pytest.fail("This test leaves settings changed: " + "; ".join(changes), pytrace=False)


def find_changed_settings(before):
    """Return the settings that differ from those in ``before``, each with both values.

    Names that are new do not count: a library sets variables of its own when it is first imported.
    """
    after = read_process_settings()
    return [
        f"{name}: {value!r} → {after.get(name)!r}"
        for name, value in before.items()
        if value != after.get(name)
    ]


def read_process_settings():
    """Return what Python and torch keep for the whole process and a test might set."""
    settings = {"folder": os.getcwd()}
    settings |= {f"variable {name}": value for name, value in os.environ.items()}
    settings.pop(f"variable {OWN_VARIABLE}", None)
    torch = sys.modules.get("torch")
    if torch is not None:
        settings |= {
            "default dtype": torch.get_default_dtype(),
            "threads": torch.get_num_threads(),
            "gradients": torch.is_grad_enabled(),
            "inference mode": torch.is_inference_mode_enabled(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            # A test of arithmetic may leave "ieee", which is how "none" computes.
            "coarse products on the CPU": torch.backends.mkldnn.matmul.fp32_precision in COARSE,
            "coarse products on a GPU": torch.backends.cuda.matmul.fp32_precision in COARSE,
        }
    return settings


def collect_leaks():
    """What objects complain of while they are collected: a file that is open, or any other error."""
    leaks = []

    def note(unraisable):
        # Words alone: the objects themselves would come to life again.
        name = unraisable.exc_type.__name__
        leaks.append(f"{name}: {unraisable.exc_value} ({unraisable.object!r})")

    hook = sys.unraisablehook
    sys.unraisablehook = note
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            collect_garbage()
    finally:
        sys.unraisablehook = hook
    return leaks


def find_twice_imported_modules():
    """Submodules that their package no longer knows, because a test has imported one of the two again.

    Later tests would patch or compare one module while the code uses the other.
    """
    leaks = []
    for name, module in list(sys.modules.items()):
        package_name, _, attribute = name.rpartition(".")
        if not name.startswith("tokenlight.") or module is None:
            continue
        package = sys.modules.get(package_name)
        # A function may bear the name of its module in the package: ``from .record import record``.
        current_value = getattr(package, attribute, None)
        if current_value is None or (
            isinstance(current_value, type(sys)) and current_value is not module
        ):
            leaks.append(f"{name} is not the module that {package_name} knows: imported twice")
    return leaks
