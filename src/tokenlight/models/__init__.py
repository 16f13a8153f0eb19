"""The embedded models, and loading a model by name or folder. Importing this does not import torch."""

from tokenlight.models.embedded import (
    EmbeddedModel,
    list_models,
    load_masked_lm,
    resolve_path,
    verify_files,
)

__all__ = ["EmbeddedModel", "list_models", "load_masked_lm", "resolve_path", "verify_files"]
