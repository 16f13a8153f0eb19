"""What does it cost to know where an answer came from? Whole explain() calls over the bare generation.

A random Llama (4 layers, width 256) writes 32 tokens after ten documents and a question, 1,000 tokens
together: greedily, with its cache, as generate() does. Then the answer is explained: as a whole, by token
(a row each), and by taking documents away. Every row is a ratio of medians measured in one process.

    python benchmarks/answer_cost.py [--device cuda] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from machine import facts
from model_speed import llama, timed
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from tokenlight import Context, Continuation, Explainer

WRITTEN = 32
DOCUMENTS = 10
CONTEXT = 1000
VOCABULARY = 1000
ROWS = [
    ("attnlrp, the whole answer by document", "attnlrp", True),
    ("attnlrp, a row for each written token", "attnlrp", False),
    ("context_cite, 32 subsets of documents", ("context_cite", {"samples": 32, "units": "document"}), True),
    ("occlusion, document by document", ("occlusion", {"units": "document"}), True),
]  # fmt: skip


def tokenizer() -> Any:
    words = {"<pad>": 0, "<unk>": 1} | {f"w{i}": i for i in range(2, VOCABULARY)}
    inner = Tokenizer(WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>")


def asked() -> tuple[Context, int]:
    """Ten documents and a question, CONTEXT tokens together."""
    draw = torch.randint(2, VOCABULARY, (CONTEXT,), generator=torch.Generator().manual_seed(0))
    words = [f"w{int(i)}" for i in draw]
    each = (CONTEXT - 20) // DOCUMENTS
    documents = [" ".join(words[i * each : (i + 1) * each]) for i in range(DOCUMENTS)]
    question = " ".join(words[DOCUMENTS * each :])
    return Context(documents, question, template="{documents} {question}"), CONTEXT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    model = llama("Llama tiny", given.device, torch.float32)
    explainer = Explainer(model, tokenizer(), name="Llama tiny")
    context, tokens = asked()
    text = context.build_layout().text
    ids = torch.tensor([explainer.tokenizer(text)["input_ids"]], device=given.device)
    assert ids.shape[1] == tokens
    write = partial(
        model.generate, ids, attention_mask=torch.ones_like(ids), max_new_tokens=WRITTEN,
        min_new_tokens=WRITTEN, do_sample=False, pad_token_id=0,
    )  # fmt: skip
    with torch.no_grad():
        answer = " " + explainer.tokenizer.decode(write()[0, tokens:])
        bare, _ = timed(write, given.device)
    print(f"bare generation: {bare:.2f} s")
    rows = []
    for name, method, together in ROWS:
        target = Continuation(answer, joint=together)
        call = partial(explainer.explain, context, method, target, progress=False)
        seconds, _ = timed(call, given.device)
        rows.append({"row": name, "seconds": round(seconds, 3), "ratio": round(seconds / bare, 2)})
        print(f"{name:42} {seconds:8.2f} s  {seconds / bare:6.1f} × the generation")
    found = {"facts": facts(given.device), "generation_seconds": round(bare, 3), "rows": rows}
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
