"""The benchmark of explained generation, on a tiny model."""

from __future__ import annotations

import json

import pytest
import stream_cost as bench
import torch

from tokenlight import Explainer


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    return bench.build_random_llama("tiny", "cpu", torch.float32)


def test_a_stream_is_measured_against_both_generations(explainer):
    (result,) = bench.measure(explainer, bench.PROMPT, "grad_x_input", num_tokens=3, repeats=1)
    assert result["new_tokens"] == 3
    assert result["prompt_tokens"] == len(bench.PROMPT.encode())
    per_token = result["ms_per_token"]
    stream = per_token["explained stream"]
    assert result["over_cached"] == pytest.approx(stream / per_token["cached generation"])
    forced = per_token["teacher-forced generation"]
    assert result["over_teacher_forced"] == pytest.approx(stream / forced)


def test_what_a_device_is_given_is_counted(explainer):
    routes = ["shared forward", "shared forward, batched gradients"]
    single, batched = bench.measure(explainer, bench.PROMPT, "attnlrp", 7, 1, routes)
    prompt = single["prompt_tokens"]
    work = single["work_per_token"]
    assert work["cached generation"]["forward tokens"] == pytest.approx((prompt + 6) / 7)
    lengths = range(prompt, prompt + 7)
    assert work["teacher-forced generation"]["forward tokens"] == pytest.approx(sum(lengths) / 7)
    # Chunks of 1, 2 and 4 tokens, each with a forward pass over the text before its last token.
    explained = prompt + (prompt + 2) + (prompt + 6)
    backward = prompt + 2 * (prompt + 2) + 4 * (prompt + 6)
    stream = work["explained stream"]
    assert stream["forward tokens"] == pytest.approx((prompt + 6 + explained) / 7)
    assert stream["backward tokens"] == pytest.approx(backward / 7)
    assert stream["backward passes"] == 1
    # The batch computes as much, in a pass per chunk and with fewer operations.
    batched_stream = batched["work_per_token"]["explained stream"]
    assert batched_stream["backward tokens"] == pytest.approx(backward / 7)
    assert batched_stream["backward passes"] == pytest.approx(3 / 7)
    assert batched_stream["operations"] < stream["operations"]


def test_a_prompt_is_repeated_up_to_its_length(explainer):
    prompt = bench.build_prompt(explainer, 300)
    assert len(explainer.tokenizer(prompt).input_ids) == 300
    assert prompt.startswith(bench.PROMPT)


def test_a_stopped_run_leaves_what_it_measured(tmp_path, monkeypatch):
    path = tmp_path / "stream.json"
    arguments = [
        "--random-llama",
        "tiny",
        "--method",
        "grad_x_input",
        "--tokens",
        "2",
        "--repeats",
        "1",
    ]
    arguments += ["--prompt-tokens", "8", "16", "--seconds", "1e-9", "-o", str(path)]
    monkeypatch.setattr("sys.argv", ["stream_cost.py", *arguments])
    bench.main()
    assert not path.exists()
    monkeypatch.setattr("sys.argv", ["stream_cost.py", *arguments, "--seconds", "1000"])
    bench.main()
    results = json.loads(path.read_text("utf-8"))["results"]
    assert [result["prompt_tokens"] for result in results] == [8, 16]
