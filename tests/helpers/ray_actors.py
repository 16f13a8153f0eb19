"""Which processes of Ray's actors this test run has started."""

from __future__ import annotations

import os
from pathlib import Path


def list_actor_processes() -> list[int]:
    """Return the ids of the actors' processes that this process started."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command_line = path.read_bytes()
        except OSError:
            continue  # it ended meanwhile
        process = int(path.parent.name)
        if command_line.startswith(b"ray::MapWorker") and is_descendant(process):
            processes.append(process)
    return processes


def is_descendant(process: int) -> bool:
    """Return whether a process was started by this one, or by one that this one started.

    Another run on this machine has actors of the same name.
    """
    while process > 1:
        if process == os.getpid():
            return True
        try:
            status = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return False  # it ended meanwhile
        # The name in parentheses may hold anything; state and parent follow it.
        process = int(status.rpartition(")")[2].split()[1])
    return False
