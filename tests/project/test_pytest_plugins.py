"""The suite's own plug-ins: a leak fails its module, a seed repeats an order, a group stays on one worker."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from tests.helpers.garbage import collect_garbage

ROOT = Path(__file__).parents[2]
LEAKING = """
def test_leaves_a_file_open_in_a_circle(tmp_path):
    (tmp_path / "a.csv").write_text("text")
    circle = [(tmp_path / "a.csv").open()]
    circle.append(circle)

def test_is_innocent():
    pass
"""
INNOCENT = (
    "import pytest\n\n@pytest.mark.parametrize('n', range(20))\ndef test_passes(n):\n    pass\n"
)


def run_pytest(folder, *options):
    """A run of its own in ``folder``, away from the settings of this suite."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    plugins = [
        "-p",
        "tests.plugins.leaks",
        "-p",
        "tests.plugins.random_order",
        "-p",
        "tests.plugins.worker_groups",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *plugins, *options, "."],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    return result.stdout


def read_order(output):
    return re.findall(r"^(test_\w+\.py::\S+) PASSED", output, re.MULTILINE)


def read_seed(output):
    return re.search(r"^order: random; repeat it with: make test SEED=(\d+)", output, re.M)[1]


@pytest.fixture
def two_modules(tmp_path):
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(INNOCENT)
    return tmp_path


@pytest.mark.parametrize("seed", ["1", "2", "off"])
def test_a_leak_fails_the_module_that_made_it(tmp_path, seed):
    (tmp_path / "test_a.py").write_text(INNOCENT)
    (tmp_path / "test_leak.py").write_text(LEAKING)
    (tmp_path / "test_z.py").write_text(INNOCENT)
    output = run_pytest(tmp_path, f"--order-seed={seed}")
    assert "42 passed, 1 error" in output
    assert re.findall(r"^ERROR (test_\w+\.py)", output, re.MULTILINE) == ["test_leak.py"]
    assert "test_leak.py leaves this open or changed; close it where it is opened" in output
    assert "ResourceWarning: unclosed file" in output
    assert "a.csv" in output


def test_a_changed_setting_fails_the_test_that_changed_it(tmp_path):
    (tmp_path / "test_a.py").write_text(
        "import os\n\ndef test_sets_a_variable():\n    os.environ['PATH'] = '/'\n\n"
        "def test_is_innocent(monkeypatch):\n    monkeypatch.setenv('HOME', '/')\n"
    )
    output = run_pytest(tmp_path)
    assert "1 error" in output
    assert "ERROR test_a.py::test_sets_a_variable - Failed: This test leaves settings" in output


def test_a_seed_repeats_the_order_and_another_changes_it(two_modules):
    first = run_pytest(two_modules)
    second = run_pytest(two_modules, f"--order-seed={read_seed(first)}")
    assert read_order(first) == read_order(second)
    other = run_pytest(two_modules, f"--order-seed={int(read_seed(first)) + 1}")
    assert read_order(other) != read_order(first)
    assert sorted(read_order(other)) == sorted(read_order(first))
    modules = [name.partition("::")[0] for name in read_order(first)]
    assert modules in (sorted(modules), sorted(modules, reverse=True))  # one behind the other


def test_the_order_of_the_files_can_be_kept(two_modules):
    output = run_pytest(two_modules, "--order-seed=off")
    expected = [f"{name}.py::test_passes[{n}]" for name in ("test_a", "test_b") for n in range(20)]
    assert read_order(output) == expected
    assert "order: as in the files" in output


def test_all_workers_share_the_seed(two_modules):
    output = run_pytest(two_modules, "-p", "xdist", "-n", "2", "--dist", "loadgroup")
    assert "40 passed" in output  # workers that collect in different orders run nothing
    assert read_seed(output)


@pytest.mark.parametrize("seed", ["1", "2", "off"])
def test_a_group_runs_on_one_worker(tmp_path, seed):
    grouped = INNOCENT.replace("\n\n", "\n\npytestmark = pytest.mark.xdist_group('g')\n\n", 1)
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(grouped)
    (tmp_path / "test_c.py").write_text(INNOCENT)
    options = ["-p", "xdist", "-n", "2", "--dist", "loadgroup", f"--order-seed={seed}"]
    output = run_pytest(tmp_path, *options)
    assert "60 passed" in output
    workers = re.findall(r"^\[(gw\d)\] .* PASSED test_[ab]\.py::\S+@g *$", output, re.MULTILINE)
    assert len(workers) == 40
    assert len(set(workers)) == 1


def test_the_seed_is_printed_below_failures(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_fails():\n    assert False\n")
    output = run_pytest(tmp_path, "--order-seed=7")
    assert (
        output.count("order: random; repeat it with: make test SEED=7, or pytest --order-seed=7")
        == 2
    )


def test_a_seed_that_is_no_number_is_refused(tmp_path):
    (tmp_path / "test_a.py").write_text(INNOCENT)
    assert "PASSED" not in run_pytest(tmp_path, "--order-seed=x")


def test_garbage_is_collected_while_another_thread_is_collecting():
    has_started = threading.Event()
    go_on = threading.Event()

    class Circle:
        def __init__(self):
            self.circle = self

    class Slow(Circle):
        """Its finalizer holds up the collection of the other thread."""

        def __del__(self):
            has_started.set()
            go_on.wait()

    def collect_slowly():
        Slow()
        gc.collect()

    thread = threading.Thread(target=collect_slowly)
    thread.start()
    has_started.wait()
    circle = weakref.ref(Circle())
    gc.collect()
    was_collected = circle() is None
    threading.Timer(0.05, go_on.set).start()
    collect_garbage()
    assert not was_collected  # else nothing would be tested
    assert circle() is None
    thread.join()


def test_children_receive_ctrl_c_where_the_shell_ignores_it():
    """A shell without job control starts the suite with Ctrl-C ignored when it puts it in the background."""
    child = "import signal; print(signal.getsignal(signal.SIGINT).__name__)"
    script = (
        "import subprocess, sys, tests.conftest\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
    )
    assert (result.stdout, result.stderr) == ("default_int_handler\n", "")
