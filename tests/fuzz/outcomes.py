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

# Of the processor, for one input, of which most take milliseconds: what is longer would never end. Seconds
# of a clock would count what other processes take of a busy machine.
CPU_SECONDS = 20
WAITING_SECONDS = 600  # of the clock, for what waits without computing
BAD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 7, 10**9, 10**400, -(10**18), 0.5, 1e308, "", "x", "0", "é\u202e", "\x00",
    "9" * 5000, "x" * 5000, [], [None], [[]], [0, 1], ["x"], [[[[1]]]], {}, {"a": 1}, {"": None}, {"0": []},
)  # fmt: skip
# Words of Python and of other libraries that no message of ours needs.
RAW = re.compile(r"Traceback|panicked| File \"")
# Who calls from Python knows these.
PYTHON = re.compile(r"<class '|object at 0x|<function|NoneType")


class CallTimeout(BaseException):
    """No except of the code under test takes this for one of its own."""


def count_outcomes(inputs: dict[str, Callable[[], Any]], *, python: bool = False) -> Counter[str]:
    """Try every input; what is neither right nor refused in words is reported by name.

    ``python``: objects of Python are given, so that a message may name them.
    """
    counts: Counter[str] = Counter()
    faults = []
    for name, call in inputs.items():
        outcome = run_call(call, python)
        counts[outcome.partition(":")[0]] += 1
        if outcome not in ("right", "refused"):
            faults.append(f"{name[:120]}: {outcome}")
    assert not faults, f"{len(faults)} of {len(inputs)}\n" + "\n".join(faults)
    return counts


def run_call(call: Callable[[], Any], python: bool) -> str:
    def interrupt(*_: Any) -> None:
        raise CallTimeout

    handlers = {
        number: signal.signal(number, interrupt) for number in (signal.SIGPROF, signal.SIGALRM)
    }
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.alarm(WAITING_SECONDS)
    # For what no signal interrupts.
    faulthandler.dump_traceback_later(WAITING_SECONDS + 60, exit=True)
    try:
        call()
    except TokenlightError as refused:
        return _words(str(refused), python)
    except CallTimeout:
        return "hang"
    except BaseException as raw:
        if isinstance(raw, KeyboardInterrupt):
            raise
        return f"raw: {type(raw).__name__}: {str(raw)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        faulthandler.cancel_dump_traceback_later()
    return "right"


def signature_refused(error: TypeError, file: str) -> bool:
    """Whether Python itself refused the arguments of the very function that ``file`` called.

    Its message names the keyword, and the traceback ends at the call: nothing ran yet.
    """
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    at_the_call = innermost is not None and innermost.tb_frame.f_code.co_filename == file
    signature_message = re.search(
        "unexpected keyword|multiple values|required (positional|keyword)", str(error)
    )
    return at_the_call and signature_message is not None


def _words(message: str, python: bool) -> str:
    """A message is a sentence, or several: nothing raw in it, and no flood of what was given."""
    raw_words = RAW.search(message) or (None if python else PYTHON.search(message))
    if raw_words:
        return f"not plain: {raw_words[0]} in {message[:200]}"
    if not message or len(message) > 4000:
        return f"not plain: {len(message)} characters: {message[:200]}"
    return "refused"


def iter_paths(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value in a tree of dicts and lists; of a list its first and last."""
    yield path
    if isinstance(content, dict):
        for key, value in content.items():
            yield from iter_paths(value, (*path, key))
    elif isinstance(content, list) and content:
        for number in dict.fromkeys((0, len(content) - 1)):
            yield from iter_paths(content[number], (*path, number))


def with_value(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Copy ``content`` with ``value`` at ``path``; ``...`` deletes what stands there."""
    if not path:
        return value
    copied = copy.deepcopy(content)
    inner = copied
    for step in path[:-1]:
        inner = inner[step]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copied


def mutate(content: Any, count: int, seed: int) -> dict[str, Any]:
    """``count`` changed copies of a tree: a value put in another's place, or left out."""
    chance = random.Random(seed)
    paths = list(iter_paths(content))
    mutated: dict[str, Any] = {}
    while len(mutated) < count:
        path = chance.choice(paths)
        value = chance.choice((*BAD, ...)) if path else chance.choice(BAD)
        mutated[f"{'.'.join(map(str, path)) or 'all'}={str(value)[:30]!r}"] = with_value(
            content, path, value
        )
    return mutated
