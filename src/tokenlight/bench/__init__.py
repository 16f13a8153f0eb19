"""The benchmark: suites say what is measured, a run measures it in parts, engines share them out."""

from tokenlight.errors import MissingExtra

MissingExtra.check(["pydantic"], "bench", "tokenlight bench")
