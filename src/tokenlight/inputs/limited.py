"""Tokenizer rules and chat templates of a model folder, run under limits of time and memory.

Both are small programs: a regular expression may take years for a text of thirty characters, and a template
of one line may fill any memory. Neither can be stopped inside this process, so a separate process runs them;
it is started when it is first needed, and ends with the object that holds it. The text of a template comes
from that process. Tokenizer rules are tried out there, and only then run here, where the tokens are needed.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenlight.data.tokenizer import RUNNER
from tokenlight.errors import BadInput, DamagedFile, truncate_text

PROCESS_SCRIPT = Path(__file__).with_name("limited_process.py")
BASE_CPU_SECONDS = 10  # of CPU time per request, besides those for its characters
CHARACTERS_PER_SECOND = 100_000  # a tenth of the usual speed of a tokenizer
# Of memory, including that of the libraries.
BASE_BYTES = 2 << 30
BYTES_PER_CHARACTER = 1 << 10
MAX_CHARACTERS = 1 << 26  # of a rendered chat
# Other processes use the CPU, too, so an answer may take longer than its CPU time.
WALL_SECONDS_PER_CPU_SECOND = 10


class LimitedRunner:
    """Runs the rules and templates of one model folder.

    Args:
        name: The model, as the user named it.
        rules: Normalizer and pre-tokenizer as in tokenizer.json, if they must be tried out first; None if
            they are known to be harmless.
    """

    def __init__(self, name: str, rules: dict[str, Any] | None) -> None:
        self.name = name
        self.rules = rules
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return LimitedRunner, (self.name, self.rules)

    def try_under_limits(self, texts: Sequence[str]) -> None:
        """Refuse texts for which the tokenizer's rules take too much time or memory."""
        if self.rules is None or not texts:
            return
        answer = self._request({"texts": list(texts)}, sum(map(len, texts)), "tokenizer")
        if "error" in answer:
            raise DamagedFile(
                f"The tokenizer of {self.name} fails for this text: "
                f"{truncate_text(answer['error'], 240)}. Its rules (tokenizer.json) are damaged. Save them "
                "again, or use another tokenizer.",
                code="tokenizer-rules-fail",
            )

    def render(
        self, template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> str:
        """Return the text that a chat template makes of messages.

        Args:
            template: A chat template in Jinja, as the model folder holds it. It is a program of unknown
                origin, so it runs in a process of its own, with little time and memory.
            messages: Role and content of each message.
            variables: Other variables of the template, such as special tokens.
        """
        request: dict[str, Any] = {
            "template": template,
            "messages": messages,
            "variables": variables,
            "characters": MAX_CHARACTERS,
        }
        num_characters = sum(len(str(message)) for message in messages)
        answer = self._request(request, num_characters, "chat template")
        if "error" in answer:
            error = truncate_text(answer["error"], 400)
            raise BadInput(
                f"The model's chat template rejects this chat: {error}. Change its roles or their order.",
                code="chat-template-refused",
            )
        return str(answer["text"])

    def _request(self, request: dict[str, Any], num_characters: int, part: str) -> dict[str, Any]:
        """Return the process's answer, or raise if it went beyond its limits."""
        seconds = BASE_CPU_SECONDS + num_characters // CHARACTERS_PER_SECOND
        num_bytes = BASE_BYTES + num_characters * BYTES_PER_CHARACTER
        request = {**request, "seconds": seconds, "bytes": num_bytes}
        line = json.dumps(request, default=_convert_to_json).encode() + b"\n"
        answer: dict[str, Any] = {}
        exit_status: int | None = None
        with self._lock:
            process = self._get_process()
            # Windows has no limit of CPU time, so there the time on the clock counts.
            is_limited = sys.platform != "win32"
            wall_seconds = seconds
            if is_limited:
                wall_seconds *= WALL_SECONDS_PER_CPU_SECOND
            watch = threading.Timer(wall_seconds, process.kill)
            watch.start()
            try:
                answer = _send_and_receive(process, line)
            finally:
                watch.cancel()
                if not answer:
                    _stop(process, self._owner)
                    exit_status = process.returncode
                    self._process = None
        # The libraries abort where they get no memory; the system kills a process out of time.
        if not answer and exit_status != -signal.SIGABRT:
            raise DamagedFile(
                f"The {part} of {self.name} did not finish within {seconds} s of CPU time, and was "
                "stopped. It is damaged or malicious. Use another one.",
                code="limited-time",
            )
        if not answer or "memory" in answer:
            raise DamagedFile(
                f"The {part} of {self.name} asked for more than {num_bytes >> 20:,} MB of memory, and was "
                "stopped. It is damaged or malicious. Use another one.",
                code="limited-memory",
            )
        return answer

    def _get_process(self) -> subprocess.Popen[bytes]:
        """Return the process; a new one if it has ended, or after a fork, where it belongs to the parent."""
        process = self._process
        if process is not None:
            if self._owner == os.getpid() and process.poll() is None:
                return process
            _stop(process, self._owner)
        process = subprocess.Popen(
            [sys.executable, "-I", str(PROCESS_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        )
        self._process = process
        self._owner = os.getpid()
        weakref.finalize(self, _stop, process, self._owner)
        _write(process, json.dumps({"path": sys.path, "rules": self.rules}).encode() + b"\n")
        return process


def find_limited_runner(holder: Any) -> LimitedRunner | None:
    """Return the runner of a tokenizer or processor from a folder; None for one that a user made."""
    tokenizer = getattr(holder, "tokenizer", None)  # a processor holds its tokenizer
    return getattr(holder, RUNNER, None) or getattr(tokenizer, RUNNER, None)


def _send_and_receive(process: subprocess.Popen[bytes], line: bytes) -> dict[str, Any]:
    """Send a request and wait for its answer; empty if the process ended."""
    _write(process, line)
    if process.stdout is None:
        return {}
    reply = process.stdout.readline()
    return dict(json.loads(reply)) if reply.endswith(b"\n") else {}


def _write(process: subprocess.Popen[bytes], line: bytes) -> None:
    if process.stdin is None:
        return
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        return  # it ended, and the missing answer will show it


def _stop(process: subprocess.Popen[bytes], owner: int) -> None:
    """End our process and close its pipes; after a fork, only close the copies of its pipes."""
    for stream in _iter_streams(process):
        try:
            stream.close()
        except BrokenPipeError:
            continue
    if owner == os.getpid() and process.poll() is None:
        _wait_or_kill(process)


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process after closing its input; kill it if it is still computing."""
    try:
        process.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _iter_streams(process: subprocess.Popen[bytes]) -> Iterator[Any]:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            yield stream


def _convert_to_json(value: Any) -> Any:
    """Convert a value that JSON cannot hold: a mapping to a dict, anything else to the name of its type."""
    if isinstance(value, Mapping):
        return dict(value)
    return f"<{type(value).__name__}>"
