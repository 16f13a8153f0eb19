"""The benchmark: a suite says what is measured, a run measures it in parts, an engine distributes these."""

from tokenlight.errors import MissingExtra

MissingExtra.check_installed(["pydantic"], "bench", "tokenlight bench")
