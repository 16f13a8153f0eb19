"""Other libraries asked which word decided, each with its own defaults, on the same prompts.

Every scorer takes a prompt and the token that the model predicts, and returns a score per word, as
``benchmarks/counterfactual_pairs.py`` sums them. The libraries are not dependencies of tokenlight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from counterfactual_pairs import Scorer, sum_by_word
from pair_data import Prompt

from tokenlight import Explainer


def build_peer(name: str, explainer: Explainer) -> dict[str, Scorer]:
    """Return the scorers of a library by their label."""
    builders = {"captum": _captum, "inseq": _inseq, "shap": _shap, "gim": _gim}
    return builders[name](explainer.model, explainer.tokenizer)


def _spans(tokenizer: Any, prompt: Prompt) -> list[tuple[int, int]]:
    """Return the character span of every token; special tokens have an empty one."""
    return list(tokenizer(prompt.text, return_offsets_mapping=True).offset_mapping)


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

    def score_with(attributor: Any, **options: Any) -> Scorer:
        def score(prompt: Prompt, token: int) -> np.ndarray:
            inputs = TextTokenInput(prompt.text, tokenizer, skip_tokens=special)
            result = attributor.attribute(inputs, target=torch.tensor([token]), **options)
            scores = result.seq_attr.detach().cpu().numpy()
            spans = [span for span in _spans(tokenizer, prompt) if span[0] < span[1]]
            return sum_by_word(prompt.text, spans, scores)

        return score

    return {
        "captum LLMAttribution (FeatureAblation)": score_with(ablation),
        "captum LLMGradientAttribution (LayerIntegratedGradients)": score_with(gradients),
    }


def _inseq(model: Any, tokenizer: Any) -> dict[str, Scorer]:
    """Saliency: the norm of the gradient of the predicted token's probability."""
    import inseq

    attributor = inseq.load_model(model, "saliency", tokenizer=tokenizer)

    def score(prompt: Prompt, token: int) -> np.ndarray:
        answer = prompt.text + tokenizer.decode([token])
        result = attributor.attribute(prompt.text, answer, show_progress=False)
        attributions = result.sequence_attributions[0].aggregate().target_attributions
        spans = _spans(tokenizer, prompt)
        scores = attributions.cpu().numpy()[: len(spans), 0]
        return sum_by_word(prompt.text, spans, np.nan_to_num(scores))

    return {"inseq saliency": score}


def _shap(model: Any, tokenizer: Any) -> dict[str, Scorer]:
    """The partition explainer for text, on the log-odds of the predicted token."""
    import shap

    masker = shap.maskers.Text(tokenizer, mask_token="...", collapse_mask_token=True)

    def score(prompt: Prompt, token: int) -> np.ndarray:
        def log_odds(texts: Any) -> np.ndarray:
            values = []
            with torch.inference_mode():
                for text in texts:
                    ids = tokenizer(str(text), return_tensors="pt").input_ids
                    log_p = model(ids.to(model.device)).logits[0, -1].double().log_softmax(-1)
                    rest = torch.log1p(-log_p[token].exp())
                    values.append(float(log_p[token] - rest))
            return np.array(values)

        values = shap.Explainer(log_odds, masker)([prompt.text], silent=True)
        spans, position = [], 0
        for piece in values.data[0]:
            start = prompt.text.find(str(piece).strip(), position)
            position = start + len(str(piece).strip())
            spans.append((start, position))
        return sum_by_word(prompt.text, spans, np.asarray(values.values[0], dtype=float))

    return {"shap Partition (text masker)": score}


def _gim(model: Any, tokenizer: Any) -> dict[str, Scorer]:
    """Gradient interaction modifications, contrasted with its own default baseline."""
    import gim

    def score(prompt: Prompt, token: int) -> np.ndarray:
        ids = tokenizer(prompt.text, return_tensors="pt").input_ids.to(model.device)
        model.requires_grad_(requires_grad=True)
        try:
            scores = gim.explain(model, ids, target_token_id=token, tokenizer=tokenizer)
        finally:
            model.zero_grad(set_to_none=True)
            model.requires_grad_(requires_grad=False)
        flat = scores.detach().float().cpu().numpy().reshape(-1)
        return sum_by_word(prompt.text, _spans(tokenizer, prompt), flat)

    return {"gim": score}
