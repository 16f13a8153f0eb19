"""What becomes of a bad input: a right answer, a refusal in plain words, or a fault."""

from __future__ import annotations

import copy
import faulthandler
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tokenlight.errors import TokenlightError

SECONDS = 20  # for one input, of which most take milliseconds: what is longer would never end
BAD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 7, 10**9, 10**400, -(10**18), 0.5, 1e308, "", "x", "0", "é\u202e", "\x00",
    "9" * 5000, "x" * 5000, [], [None], [[]], [0, 1], ["x"], [[[[1]]]], {}, {"a": 1}, {"": None}, {"0": []},
)  # fmt: skip
# Words of Python and of other libraries that no message of ours needs.
RAW = re.compile(r"Traceback|panicked| File \"")
PYTHON = re.compile(
    r"<class '|object at 0x|<function|NoneType"
)  # but who calls from Python knows it


class Hanging(BaseException):
    """No except of the code under test takes this for one of its own."""


def judge(inputs: dict[str, Callable[[], Any]], *, python: bool = False) -> Counter[str]:
    """Try every input; what is neither right nor refused in words is reported by name.

    ``python``: objects of Python are given, so that a message may name them.
    """
    found: Counter[str] = Counter()
    faults = []
    for name, act in inputs.items():
        outcome = _outcome(act, python)
        found[outcome.partition(":")[0]] += 1
        if outcome not in ("right", "refused"):
            faults.append(f"{name[:120]}: {outcome}")
    assert not faults, f"{len(faults)} of {len(inputs)}\n" + "\n".join(faults)
    return found


def _outcome(act: Callable[[], Any], python: bool) -> str:
    def ring(*_: Any) -> None:
        raise Hanging

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    faulthandler.dump_traceback_later(3 * SECONDS, exit=True)  # for what no signal interrupts
    try:
        act()
    except TokenlightError as refused:
        return _words(str(refused), python)
    except Hanging:
        return "hang"
    except BaseException as raw:
        if isinstance(raw, KeyboardInterrupt):
            raise
        return f"raw: {type(raw).__name__}: {str(raw)[:200]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()
    return "right"


def _words(message: str, python: bool) -> str:
    """A message is a sentence, or several: nothing raw in it, and no flood of what was given."""
    found = RAW.search(message) or (None if python else PYTHON.search(message))
    if found:
        return f"not plain: {found[0]} in {message[:200]}"
    if not message or len(message) > 4000:
        return f"not plain: {len(message)} characters: {message[:200]}"
    return "refused"


def places(content: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in a tree of dicts and lists; of a list its first and last."""
    yield way
    if isinstance(content, dict):
        for key, value in content.items():
            yield from places(value, (*way, key))
    elif isinstance(content, list) and content:
        for number in dict.fromkeys((0, len(content) - 1)):
            yield from places(content[number], (*way, number))


def changed(content: Any, way: tuple[Any, ...], value: Any) -> Any:
    """``content`` with ``value`` at ``way``; ``...`` takes out what stands there."""
    if not way:
        return value
    made = copy.deepcopy(content)
    inner = made
    for step in way[:-1]:
        inner = inner[step]
    if value is ...:
        del inner[way[-1]]
    else:
        inner[way[-1]] = value
    return made


def mutations(content: Any, count: int, seed: int) -> dict[str, Any]:
    """``count`` changed copies of a tree: a value put in another's place, or left out."""
    chance = random.Random(seed)
    ways = list(places(content))
    made: dict[str, Any] = {}
    while len(made) < count:
        way = chance.choice(ways)
        value = chance.choice((*BAD, ...)) if way else chance.choice(BAD)
        made[f"{'.'.join(map(str, way)) or 'all'}={str(value)[:30]!r}"] = changed(
            content, way, value
        )
    return made
