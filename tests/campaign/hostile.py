"""Hostile model folders and fuzzed calls, in child processes that may hang, die or eat memory.

    python -m tests.campaign.hostile folders FOLDER NUMBER
    python -m tests.campaign.hostile calls FOLDER COUNT SEED FIRST

A child prints one line of JSON for each case before it and one after it, so that its parent knows which case
a child did not come back from.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.campaign.harness import Campaign, Running
from tests.fuzz.outcomes import WAITING_SECONDS, run_call

MEMORY = 6 << 30  # bytes of address space beyond what a child holds at its beginning
# Without a word of a child, for its start or one case: longer than a case that hangs may take.
SILENT_SECONDS = WAITING_SECONDS + 300


def make_bombs() -> dict[str, dict[str, Any]]:
    """What is written over a good folder's files: fields for JSON files, by file."""
    doubling = [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40
    forever = "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}"
    endless = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+$"},
        "behavior": "Isolated",
        "invert": False,
    }
    # New tokens are numbered behind the vocabulary: the last, which is in the text, has no embedding.
    far_words = [*(f"unseen{number}" for number in range(150)), "slow plot"]
    return {
        "a kernel of a hub, nested": {"config.json": {"attn_implementation": {"": "evil/kernel"}}},
        "a paged kernel": {"config.json": {"attn_implementation": "paged|evil/kernel"}},
        "flash attention": {"config.json": {"attn_implementation": "flash_attention_2"}},
        "wide layers": {"config.json": {"num_hidden_layers": 60, "intermediate_size": 1 << 22}},
        "a million labels": {"config.json": {"num_labels": 1 << 20}},
        "a huge vocabulary": {"config.json": {"vocab_size": 1 << 24}},
        "a template without end": {"tokenizer_config.json": {"chat_template": forever}},
        "a template of a long text": {"tokenizer_config.json": {"chat_template": "{{ 'a' * 10**10 }}"}},
        "doubling normalizers": {
            "tokenizer.json": {"normalizer": {"type": "Sequence", "normalizers": doubling}}
        },
        "a regex without end": {"tokenizer.json": {"pre_tokenizer": endless}},
        "an architecture of transformers": {"config.json": {"architectures": ["AutoModel"]}},
        "ids beyond the embeddings": {
            "tokenizer.json": {"added_tokens": [make_added_token(word) for word in far_words]}
        },
    }  # fmt: skip


def make_added_token(content: str) -> dict[str, Any]:
    """Return an entry of tokenizer.json for a token that the vocabulary does not have."""
    switches = ("special", "single_word", "lstrip", "rstrip", "normalized")
    return {"id": 10**6, "content": content, **dict.fromkeys(switches, False)}


def folder_cases(
    good: Path, writer: Path, hostile_folder: Path
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every hostile folder by its name, to be explained with."""
    import shutil

    from tests.fuzz.bad_folders import make_bad_folders
    from tokenlight import Chat, Explainer

    text = "good film , slow plot " + "a" * 30

    def load(files: dict[str, Any]) -> None:
        is_chat = "chat_template" in str(files.get("tokenizer_config.json", ""))
        shutil.rmtree(hostile_folder, ignore_errors=True)
        shutil.copytree(writer if is_chat else good, hostile_folder)
        for name, content in files.items():
            path = hostile_folder / name
            file_content = content
            if isinstance(content, dict):
                file_content = json.dumps({**json.loads(path.read_text()), **content})
            path.write_bytes(
                file_content if isinstance(file_content, bytes) else file_content.encode()
            )
        explainer = Explainer.from_pretrained(hostile_folder)
        messages = [{"role": "user", "content": "good film"}]
        explainer.explain(Chat(messages) if is_chat else text)

    for name, files in {**make_bombs(), **make_bad_folders(good)}.items():
        yield name, lambda files=files: load(files)


def call_cases(folder: Path, count: int, seed: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    from tests.fuzz.public_calls import Fixtures, calls, fuzz_calls

    return fuzz_calls(calls(Fixtures.built(folder)), count, seed)


def work(cases: Iterator[tuple[str, Callable[[], Any]]], first: int, max_cases: int) -> None:
    """Try the cases from ``first`` on, and tell of each."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a case prints does not mix with what is told
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for number, (name, act) in enumerate(cases):
        if number >= max_cases:
            break
        if number < first:
            continue
        print(json.dumps({"number": number, "name": name[:160]}), file=channel, flush=True)
        resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, resource.RLIM_INFINITY))
        outcome = run_call(act, python=True)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(json.dumps({"number": number, "outcome": outcome[:400]}), file=channel, flush=True)


def try_cases(campaign: Campaign, kind: str, arguments: list[str], max_cases: int) -> None:
    """Children try the cases; where one hangs or dies, the next begins behind that case."""
    first = 0
    while first < max_cases:
        folder = campaign.new_folder()
        command = [sys.executable, "-m", "tests.campaign.hostile", kind, str(folder)]
        running = Running(
            [*command, *arguments, str(max_cases), str(first)], folder, stdout=subprocess.PIPE
        )
        case: dict[str, Any] = {}
        first_of_process = first
        try:
            for message in _read_messages(running, SILENT_SECONDS):
                if "outcome" not in message:
                    case = message
                    continue
                _count(campaign, kind, case["name"], message["outcome"])
                first = message["number"] + 1
                case = {}
        finally:
            running.clean_up()
        if case:  # it did not come back
            is_hung = running.process.returncode == -9
            died = f"the process died ({running.process.returncode})"
            _count(campaign, kind, case["name"], "hang" if is_hung else f"raw: {died}")
            first = case["number"] + 1
        elif first == first_of_process:
            if running.process.returncode:
                errors = running.paths[1].read_text("utf-8", "replace")
                raise RuntimeError(f"the child of {kind} did not begin: {errors[-2000:]}")
            return  # there are no more


def _read_messages(running: Running, seconds: float) -> Iterator[dict[str, Any]]:
    """What a child tells, until it ends or tells nothing for too long."""
    stream = running.process.stdout
    assert stream is not None
    with selectors.DefaultSelector() as waiting, stream:
        waiting.register(stream, selectors.EVENT_READ)
        rest = b""
        last_message_time = time.monotonic()
        while time.monotonic() - last_message_time < seconds:
            if not waiting.select(1.0):
                continue
            content = os.read(stream.fileno(), 1 << 16)
            if not content:
                running.process.wait()
                return
            last_message_time = time.monotonic()
            *lines, rest = (rest + content).split(b"\n")
            yield from map(json.loads, lines)
        running.kill(running.process.pid)
        running.process.wait()


def _count(campaign: Campaign, kind: str, name: str, outcome: str) -> None:
    if outcome in ("right", "refused"):
        campaign.tally.add(kind, "held")
    else:
        campaign.tally.add(kind, "hung" if outcome == "hang" else "raw", f"{name}: {outcome}")


def main() -> None:
    from tests.campaign.jobs import make_model, make_writer

    kind, folder, *rest = sys.argv[1:]
    folder_path = Path(folder)
    os.chdir(folder_path)
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    seed, max_cases, first = map(int, rest)
    if kind == "folders":
        writer = make_writer(folder_path / "writer")
        cases = folder_cases(make_model(folder_path / "good"), writer, folder_path / "bad")
    else:
        cases = call_cases(folder_path, max_cases, seed)
    work(cases, first, max_cases)


if __name__ == "__main__":
    main()
