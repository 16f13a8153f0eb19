"""Other libraries asked which word decided, each with its own defaults, on the same prompts.

    python benchmarks/pair_peers.py --model MODEL --peer captum gim inseq shap [--per-family 4] -o FILE.jsonl

The prompts are those of the suite counterfactual_pairs that the model completes as expected, in a seeded
order; ``--per-family`` limits how many of a family are asked, for held-out templates and others alike. The
default method of tokenlight is asked in the same way. A line is written for each prompt as soon as all have
answered; the same command goes on where it was stopped. The libraries are not dependencies of tokenlight. The
seconds are the processor's; *bare* is one forward and one backward pass of the model.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pair_contrasts import choose_prompts, describe_prompt, mark_words
from pair_records import read_records

from tokenlight import Explainer, NextToken
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import group_by_unit

Span = tuple[int, int]
# What a library says of a prompt whose next token is known: pieces of the text, each with a score.
Scorer = Callable[[str, int], tuple[Sequence[Span | None], np.ndarray]]
DEFAULT_LABEL = "tokenlight, default"


def sum_by_word(
    row: TokenRow, spans: Sequence[Span | None], scores: Sequence[float] | np.ndarray
) -> list[float]:
    """Return one score per word of a row: the sum over the pieces that end in it.

    Args:
        row: The prompt; its words are those that tokenlight's own scores are summed by.
        spans: Where each piece of the text begins and ends; None or an empty span belongs to no word.
        scores: One score per piece.
    """
    word_spans = []
    for word in group_by_unit(row, "word"):
        token_spans = [row.spans[index] for index in word]
        word_spans.append(
            (min(start for start, _ in token_spans), max(end for _, end in token_spans))
        )
    sums = [0.0] * len(word_spans)
    for span, score in zip(spans, scores, strict=True):
        if span is None or span[0] == span[1]:
            continue
        # Of a piece that begins with a blank, the last character is inside its word.
        last = span[1] - 1
        for index, (start, end) in enumerate(word_spans):
            if start <= last < end:
                sums[index] += float(score)
    return sums


def build_peer(name: str, explainer: Explainer) -> dict[str, Scorer]:
    """Return the scorers of a library by their label."""
    builders = {"captum": _captum, "inseq": _inseq, "shap": _shap, "gim": _gim}
    return builders[name](explainer.model, explainer.tokenizer)


def _find_spans(tokenizer: Any, text: str) -> list[Span]:
    """Return the character span of every token; special tokens have an empty one."""
    return list(tokenizer(text, return_offsets_mapping=True).offset_mapping)


def _captum(model: Any, tokenizer: Any) -> dict[str, Scorer]:
    """LLMAttribution by ablation of tokens, and LLMGradientAttribution by integrated gradients."""
    from captum.attr import (
        FeatureAblation,
        LayerIntegratedGradients,
        LLMAttribution,
        LLMGradientAttribution,
        TextTokenInput,
    )

    ablation = LLMAttribution(FeatureAblation(model), tokenizer)
    gradients = LLMGradientAttribution(
        LayerIntegratedGradients(model, model.get_input_embeddings()), tokenizer
    )
    special = list(tokenizer.all_special_ids)

    def score_with(attributor: Any) -> Scorer:
        def score(text: str, token: int) -> tuple[Sequence[Span | None], np.ndarray]:
            inputs = TextTokenInput(text, tokenizer, skip_tokens=special)
            result = attributor.attribute(inputs, target=torch.tensor([token]))
            spans = [span for span in _find_spans(tokenizer, text) if span[0] < span[1]]
            return spans, result.seq_attr.detach().cpu().numpy()

        return score

    return {
        "captum LLMAttribution (FeatureAblation)": score_with(ablation),
        "captum LLMGradientAttribution (LayerIntegratedGradients)": score_with(gradients),
    }


def _inseq(model: Any, tokenizer: Any) -> dict[str, Scorer]:
    """Saliency: the norm of the gradient of the predicted token's probability."""
    import inseq

    attributor = inseq.load_model(model, "saliency", tokenizer=tokenizer)

    def score(text: str, token: int) -> tuple[Sequence[Span | None], np.ndarray]:
        answer = text + tokenizer.decode([token])
        result = attributor.attribute(text, answer, show_progress=False)
        attributions = result.sequence_attributions[0].aggregate().target_attributions
        spans = _find_spans(tokenizer, text)
        return spans, np.nan_to_num(attributions.cpu().numpy()[: len(spans), 0])

    return {"inseq saliency": score}


def _shap(model: Any, tokenizer: Any) -> dict[str, Scorer]:
    """The partition explainer for text, on the log-odds of the predicted token."""
    import shap

    masker = shap.maskers.Text(tokenizer, mask_token="...", collapse_mask_token=True)

    def score(text: str, token: int) -> tuple[Sequence[Span | None], np.ndarray]:
        def log_odds(texts: Any) -> np.ndarray:
            values = []
            with torch.inference_mode():
                for masked_text in texts:
                    ids = tokenizer(str(masked_text), return_tensors="pt").input_ids
                    log_p = model(ids.to(model.device)).logits[0, -1].double().log_softmax(-1)
                    rest = torch.log1p(-log_p[token].exp())
                    values.append(float(log_p[token] - rest))
            return np.array(values)

        values = shap.Explainer(log_odds, masker)([text], silent=True)
        spans = []
        position = 0
        for piece in values.data[0]:
            start = text.find(str(piece).strip(), position)
            position = start + len(str(piece).strip())
            spans.append((start, position))
        return spans, np.asarray(values.values[0], dtype=float)

    return {"shap Partition (text masker)": score}


def _gim(model: Any, tokenizer: Any) -> dict[str, Scorer]:
    """Gradient interaction modifications, contrasted with its own default baseline."""
    import gim

    def score(text: str, token: int) -> tuple[Sequence[Span | None], np.ndarray]:
        ids = tokenizer(text, return_tensors="pt").input_ids.to(model.device)
        model.requires_grad_(requires_grad=True)
        try:
            scores = gim.explain(model, ids, target_token_id=token, tokenizer=tokenizer)
        finally:
            model.zero_grad(set_to_none=True)
            model.requires_grad_(requires_grad=False)
        return _find_spans(tokenizer, text), scores.detach().float().cpu().numpy().reshape(-1)

    return {"gim-explain": score}


def build_default(explainer: Explainer) -> Scorer:
    """Return tokenlight's default method and question."""

    def score(text: str, token: int) -> tuple[Sequence[Span | None], np.ndarray]:
        attribution = explainer.explain(text, target=NextToken(token), progress=False)
        return attribution.row.spans, attribution.scores

    return score


def run_bare(explainer: Explainer, text: str, token: int) -> None:
    """Run one forward pass, and one backward pass to the embeddings."""
    ids = explainer.tokenizer(text, return_tensors="pt").input_ids.to(explainer.model.device)
    embeddings = explainer.model.get_input_embeddings()(ids).detach().requires_grad_()
    logits = explainer.model(inputs_embeds=embeddings).logits
    torch.autograd.grad(logits[0, -1, token], embeddings)


def score_prompt(
    explainer: Explainer, scorers: dict[str, Scorer], record: dict[str, Any], row: TokenRow
) -> None:
    """Add the word scores and the seconds of every scorer to a record."""
    text = record["text"]
    ids = torch.tensor([row.ids], device=explainer.model.device)
    with torch.inference_mode():
        token = int(explainer.model(ids).logits[0, -1].argmax())
    seconds = {}
    start = time.process_time()
    run_bare(explainer, text, token)
    seconds["bare"] = time.process_time() - start
    for label, score in scorers.items():
        start = time.process_time()
        spans, scores = score(text, token)
        seconds[label] = time.process_time() - start
        record[label] = sum_by_word(row, spans, scores)
    record["seconds"] = seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer", nargs="*", default=[], choices=("captum", "gim", "inseq", "shap"))
    parser.add_argument("--per-family", type=int, help="at most so many prompts of a family")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    explainer = Explainer.from_pretrained(arguments.model, dtype="float32")
    explainer.model.requires_grad_(requires_grad=False)
    scorers = {DEFAULT_LABEL: build_default(explainer)}
    for name in arguments.peer:
        scorers |= build_peer(name, explainer)
    measured_texts = {record["text"] for record in read_records(arguments.output)}
    prompts = choose_prompts(explainer, arguments.per_family)
    with arguments.output.open("a", encoding="utf-8") as file:
        for index, (example, foils) in enumerate(prompts):
            if example.text in measured_texts:
                continue
            record = describe_prompt(example, foils)
            row = explainer.explain(example.text, "random", progress=False).row
            mark_words(record, row, example)
            if index == 0:  # the first call also verifies or compiles
                score_prompt(explainer, scorers, dict(record), row)
            score_prompt(explainer, scorers, record, row)
            print(json.dumps(record), file=file, flush=True)


if __name__ == "__main__":
    main()
