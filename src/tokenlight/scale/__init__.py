"""Many texts: explained where the data are, by processes of this machine or on a Ray cluster."""

from tokenlight.scale.engine import Engine
from tokenlight.scale.mapper import explain_dataset
from tokenlight.scale.run import explain_files

__all__ = ["Engine", "explain_dataset", "explain_files"]
