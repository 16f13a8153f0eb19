"""Perturbed inputs (``variants.py``) and the passes that read the model's logits for them (``engine.py``)."""
