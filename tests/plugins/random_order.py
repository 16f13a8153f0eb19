"""A pytest plug-in: test modules run in random order, and so do the tests within each.

The seed stands at the top of the run, and again below its failures. All workers of a run share it.
"""

import random
import secrets

import pytest

FILE_ORDER = "off"
SEED = pytest.StashKey[str]()


def pytest_addoption(parser):
    parser.addoption(
        "--order-seed",
        metavar="N",
        help="repeat the random order of an earlier run; 'off' keeps the order of the files",
    )


def pytest_configure(config):
    seed = config.getoption("order_seed")
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist: the controller has chosen
        seed = config.workerinput["order_seed"]
    elif seed is None:
        seed = str(secrets.randbelow(10**6))
    elif seed != FILE_ORDER and not seed.isdecimal():
        raise pytest.UsageError(f"--order-seed {seed!r} is neither a whole number nor 'off'.")
    config.stash[SEED] = seed


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["order_seed"] = node.config.stash[SEED]


def pytest_report_header(config):
    return describe_order(config)


def pytest_terminal_summary(terminalreporter, config):
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(describe_order(config))


# First, so that pytest's own hook then brings together tests that share a parametrised fixture.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    refuse_unstable_ids(items)
    seed = config.stash[SEED]
    if seed != FILE_ORDER:
        items[:] = shuffle_tree(items, seed)


def refuse_unstable_ids(items):
    """A test id that holds an address differs between workers, and pytest-xdist then runs nothing at all."""
    unstable_ids = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if unstable_ids:
        raise pytest.UsageError(
            f"Give this test ids of its own, its parameters show an address: {unstable_ids[0]}"
        )


def describe_order(config):
    seed = config.stash[SEED]
    if seed == FILE_ORDER:
        return "order: as in the files"
    return f"order: random; repeat it with: make test SEED={seed}, or pytest --order-seed={seed}"


def shuffle_tree(items, seed):
    """Shuffle folders, then the modules of each, then their classes and tests.

    What a folder, module or class has set up serves all of its tests before it is taken down.
    """
    generator = random.Random(seed)  # one of its own: the tests' random numbers stay as they are
    return _shuffle(items, 1, generator)


def _shuffle(items, depth, generator):
    """Shuffle ``items``, which share their first ``depth`` nodes of the collection tree."""
    groups = {}
    for item in items:
        groups.setdefault(item.listchain()[depth], []).append(item)
    nodes = list(groups)
    generator.shuffle(nodes)
    shuffled = []
    for node in nodes:
        is_test = groups[node] == [node]
        shuffled += [node] if is_test else _shuffle(groups[node], depth + 1, generator)
    return shuffled
