"""The benchmark of explained generation, on a tiny model."""

from __future__ import annotations

import stream_cost as bench
import torch


def test_a_stream_is_measured_against_both_generations():
    explainer = bench.build_random_llama("tiny", "cpu", torch.float32)
    result = bench.measure(explainer, "grad_x_input", num_tokens=3, repeats=1)
    assert result["new_tokens"] == 3
    assert result["prompt_tokens"] == len(bench.PROMPT.encode())
    per_token = result["ms_per_token"]
    stream = per_token["explained stream"]
    assert result["over_cached"] == stream / per_token["cached generation"]
    assert result["over_teacher_forced"] == stream / per_token["teacher-forced generation"]
