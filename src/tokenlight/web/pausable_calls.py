"""Turn a long call of the library into a generator that yields between its passes through the model.

The loops of the library run :func:`tokenlight.hooks.locks.call_between_passes` between two passes. Here the
call has a thread of its own, and each pause hands control back to whoever iterates. So other work never runs
on the stack of the call, and does not inherit its gradient mode, its patches or its thread-local state. Only
one of the two threads runs at a time.
"""

import threading
from collections.abc import Callable, Generator
from typing import Any

from tokenlight.hooks.locks import callback_between_passes


class JobAbandoned(BaseException):
    """Ends abandoned work. Not an Exception subclass, so that no method or metric catches it."""


def run_in_steps(function: Callable[[], Any]) -> Generator[None, None, Any]:
    """Call ``function``, and yield whenever it pauses.

    Closing the generator raises :class:`JobAbandoned` inside the call at its pause, and waits until it has
    unwound.

    Args:
        function: The work. It may pause only where it holds no lock that other work needs.

    Returns:
        The result of the function, as the value of the generator.

    Raises:
        BaseException: Whatever the function raises.
    """
    call = _PausableCall(function)
    error: BaseException | None = None
    try:
        while call.run_until_pause():
            yield
    finally:
        call.abandon()
        # The traceback of the error holds frames that refer to the call: without this, the tensors of a
        # failed job would stay in memory until the cyclic garbage collector runs.
        error, call.error = call.error, None
    if error is not None:
        try:
            raise error
        finally:
            del error
    return call.result


class _PausableCall:
    """A function call in a thread of its own, which runs only between ``run_until_pause()`` and a pause."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._function = function
        self._is_finished = False
        self._is_abandoned = False
        # Each semaphore is one side's permission to run; exactly one of the two threads has it.
        self._call_may_run = threading.Semaphore(0)
        self._caller_may_run = threading.Semaphore(0)
        name = f"{threading.current_thread().name}: steps"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run_until_pause(self) -> bool:
        """Let the call run; return whether it has paused, and not ended."""
        self._call_may_run.release()
        self._caller_may_run.acquire()
        return not self._is_finished

    def abandon(self) -> None:
        """End a call that has paused, and wait until its thread has ended."""
        self._is_abandoned = True
        self._call_may_run.release()
        self._thread.join()

    def _run(self) -> None:
        self._call_may_run.acquire()
        try:
            if not self._is_abandoned:
                with callback_between_passes(self._pause):
                    self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised again where the call is iterated
            self.error = error
        finally:
            self._is_finished = True
            self._caller_may_run.release()

    def _pause(self) -> None:
        """Hand control to the caller, and wait until the call may go on."""
        if not self._is_abandoned:
            self._caller_may_run.release()
            self._call_may_run.acquire()
        if self._is_abandoned:
            raise JobAbandoned
