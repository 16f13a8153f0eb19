"""Time explanations of a generated answer as multiples of the bare generation.

A random Llama (4 layers, width 256) generates 32 tokens after ten documents and a question, 1,000 tokens
together: greedily, with its cache, as generate() does. Then the answer is explained: as a whole, by token
(a row each), and by removing documents. Every row is a ratio of medians measured in one process.

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
from model_speed import build_llama, measure_call
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from tokenlight import Context, Continuation, Explainer

NUM_GENERATED = 32
NUM_DOCUMENTS = 10
NUM_CONTEXT_TOKENS = 1000
NUM_QUESTION_TOKENS = 20
VOCABULARY_SIZE = 1000
ROWS = [
    ("attnlrp, the whole answer by document", "attnlrp", True),
    ("attnlrp, a row for each written token", "attnlrp", False),
    ("context_cite, 32 subsets of documents",
     ("context_cite", {"num_samples": 32, "units": "document"}), True),
    ("occlusion, document by document", ("occlusion", {"units": "document"}), True),
]  # fmt: skip


def build_tokenizer() -> Any:
    """Build a tokenizer of the words w2, w3, …, whose ids are their numbers."""
    vocabulary = {"<pad>": 0, "<unk>": 1}
    for index in range(2, VOCABULARY_SIZE):
        vocabulary[f"w{index}"] = index
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")


def draw_context() -> Context:
    """Draw ten documents and a question, 1,000 tokens together."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, VOCABULARY_SIZE, (NUM_CONTEXT_TOKENS,), generator=generator)
    words = [f"w{int(index)}" for index in ids]
    document_length = (NUM_CONTEXT_TOKENS - NUM_QUESTION_TOKENS) // NUM_DOCUMENTS
    documents = []
    for number in range(NUM_DOCUMENTS):
        start = number * document_length
        documents.append(" ".join(words[start : start + document_length]))
    question = " ".join(words[NUM_DOCUMENTS * document_length :])
    return Context(documents, question, template="{documents} {question}")


def main() -> None:
    """Generate an answer, explain it in several ways and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    model = build_llama("Llama tiny", arguments.device, torch.float32)
    explainer = Explainer(model, build_tokenizer(), name="Llama tiny")
    context = draw_context()
    text = context.build_layout().text
    ids = torch.tensor([explainer.tokenizer(text)["input_ids"]], device=arguments.device)
    assert ids.shape[1] == NUM_CONTEXT_TOKENS
    generate = partial(
        model.generate, ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_GENERATED,
        min_new_tokens=NUM_GENERATED, do_sample=False, pad_token_id=0,
    )  # fmt: skip
    with torch.no_grad():
        answer = " " + explainer.tokenizer.decode(generate()[0, NUM_CONTEXT_TOKENS:])
        bare_seconds = measure_call(generate, arguments.device).seconds
    print(f"bare generation: {bare_seconds:.2f} s")
    rows = []
    for name, method, is_joint in ROWS:
        target = Continuation(answer, joint=is_joint)
        call = partial(explainer.explain, context, method, target, progress=False)
        seconds = measure_call(call, arguments.device).seconds
        ratio = seconds / bare_seconds
        rows.append({"row": name, "seconds": round(seconds, 3), "ratio": round(ratio, 2)})
        print(f"{name:42} {seconds:8.2f} s  {ratio:6.1f} × the generation")
    if arguments.json is not None:
        content = {
            "facts": facts(arguments.device),
            "generation_seconds": round(bare_seconds, 3),
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
