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

from tests.writers import PROMPT, SOURCE, WRITTEN, small_llama, writer, writing_tokenizer

STEPS = 20
METHODS = {
    "input_x_gradient": {},
    "saliency": {},
    "integrated_gradients": {"n_steps": STEPS, "internal_batch_size": STEPS},
}
original = TensorWrapper.to


def kept(self: Any, device: Any) -> Any:
    """inseq rounds its scores to float32 at the end; here they stay as they were computed."""
    return self if device is torch.float32 else original(self, device)


def scores(model: Any, method: str, tokenizer: Any, source: str, target: str, **how: Any) -> Any:
    """``written token``: summed over the embedding, of saliency its length."""
    attributed = inseq.load_model(model, method, tokenizer=tokenizer, device="cpu").attribute(
        source,
        target,
        attribute_target=True,
        attributed_fn="logit",
        show_progress=False,
        pretty_progress=False,
        **how,
    )
    (found,) = attributed.sequence_attributions
    parts = [found.source_attributions, found.target_attributions]
    whole = torch.cat([part for part in parts if part is not None]).nan_to_num(0.0)
    norm = method == "saliency"
    reduced = torch.linalg.vector_norm(whole, dim=-1) if norm else whole.sum(dim=-1)
    return reduced.T.contiguous().numpy()


def main() -> None:
    TensorWrapper.to = kept
    tokenizer, arrays = writing_tokenizer(), {}
    for method, how in METHODS.items():
        for name in ("t5", "bart", "marian"):
            model = writer(name)
            arrays[f"{name}.{method}"] = scores(model, method, tokenizer, SOURCE, WRITTEN, **how)
        written = f"{PROMPT} {WRITTEN}"
        own = writing_tokenizer(ends=False)
        arrays[f"llama.{method}"] = scores(small_llama(), method, own, PROMPT, written, **how)
    save_file(arrays, Path(__file__).parent / "vectors" / "inseq.safetensors")


if __name__ == "__main__":
    main()
