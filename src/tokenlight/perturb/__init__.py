"""Perturbed inputs (``variants.py``) and the logits that the model gives for them (``logits_stream.py``)."""
