"""Explain many texts, with processes of this machine or on a Ray cluster; see docs/scale.md."""

from tokenlight.scale.engine import Engine
from tokenlight.scale.file_job import explain_files
from tokenlight.scale.mapper import explain_dataset

__all__ = ["Engine", "explain_dataset", "explain_files"]
