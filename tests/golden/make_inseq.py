"""Compute what inseq gives for tiny writers, in float64, and keep it beside this file.

Run once where inseq is installed: ``python -m tests.golden.make_inseq``. Every array is ``written
token``: for each token of the continuation the source's tokens, then the decoder's before it
(prompt tokens of a decoder-only model).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import inseq
import torch
from inseq.data.data_utils import TensorWrapper
from safetensors.numpy import save_file

from tests.helpers.encoder_decoder_models import (
    CONTINUATION,
    PROMPT,
    SOURCE,
    make_seq2seq_model,
    make_seq2seq_tokenizer,
    make_small_llama,
)

STEPS = 20
METHODS = {
    "input_x_gradient": {},
    "saliency": {},
    "integrated_gradients": {"n_steps": STEPS, "internal_batch_size": STEPS},
}
original = TensorWrapper.to


def keep_precision(self: Any, device: Any) -> Any:
    """inseq rounds its scores to float32 at the end; here they stay as they were computed."""
    return self if device is torch.float32 else original(self, device)


def scores(
    model: Any, method: str, tokenizer: Any, source: str, target: str, **options: Any
) -> Any:
    """``written token``: summed over the embedding, of saliency its length."""
    attributed = inseq.load_model(model, method, tokenizer=tokenizer, device="cpu").attribute(
        source,
        target,
        attribute_target=True,
        attributed_fn="logit",
        show_progress=False,
        pretty_progress=False,
        **options,
    )
    (attribution,) = attributed.sequence_attributions
    parts = [attribution.source_attributions, attribution.target_attributions]
    all_scores = torch.cat([part for part in parts if part is not None]).nan_to_num(0.0)
    if method == "saliency":
        return torch.linalg.vector_norm(all_scores, dim=-1).T.contiguous().numpy()
    return all_scores.sum(dim=-1).T.contiguous().numpy()


def main() -> None:
    """Compute the vectors with Inseq and store them."""
    TensorWrapper.to = keep_precision
    tokenizer = make_seq2seq_tokenizer()
    arrays = {}
    for method, options in METHODS.items():
        for name in ("t5", "bart", "marian"):
            model = make_seq2seq_model(name)
            arrays[f"{name}.{method}"] = scores(
                model, method, tokenizer, SOURCE, CONTINUATION, **options
            )
        continued_prompt = f"{PROMPT} {CONTINUATION}"
        endless_tokenizer = make_seq2seq_tokenizer(ends=False)
        arrays[f"llama.{method}"] = scores(
            make_small_llama(), method, endless_tokenizer, PROMPT, continued_prompt, **options
        )
    save_file(arrays, Path(__file__).parent / "vectors" / "inseq.safetensors")


if __name__ == "__main__":
    main()
