"""The embedded models, and loading a model by name or folder. Importing this does not import torch."""

from tokenlight.models.embedded import EmbeddedModel, catalogue, masked_lm, resolve, verify

__all__ = ["EmbeddedModel", "catalogue", "masked_lm", "resolve", "verify"]
