"""The rows of packages along which imports point one way, and the exceptions."""

from __future__ import annotations

# Lowest row first. A module may import its own folder and the rows below it;
# imports for type checkers and inside functions count. docs/architecture.md draws it, and
# ``python -m tests.tools.generated_tables`` prints it into CONTRIBUTING.md.
ROWS = [
    ("facts", "errors", "version", "progress"),
    ("plain values, and names of methods", "data", "registry"),
    ("what a person gives", "files", "inputs"),
    ("CUDA graphs, kernels, transfers", "accel"),
    ("relevance as a second backward; traces modules while they run", "lrp"),
    ("hooks and patches of a live model, and its locks", "hooks"),
    ("what a model is: layout, head, inputs", "model"),
    ("perturbed inputs, and the passes over them", "perturb"),
    ("what is recorded of a pass: sites, recording, tape", "trace"),
    ("head statistics; embedded models and loading", "heads", "models"),
    ("one file, one idea", "methods", "metrics"),
    ("one call of explain(); pictures; what authors import", "explaining", "plots", "plugin"),
    ("the object users meet", "explainer"),
    (
        "measured: faithfulness, trust, comparison; many texts, by many workers",
        "evaluation",
        "scale",
    ),
    ("the papers' tables", "bench"),
    ("the page", "web"),
    (
        "the command line, and names for users",
        "cli",
        "__init__",
        "trust",
        "postprocess",
        "datafiles",
    ),
]
RANKS = {name: rank for rank, (_, *names) in enumerate(ROWS) for name in names}
# Packages whose methods may import from a higher row when they are called, as
# attribution.show(), attribution.save(), evaluation.save(), explainer.evaluate(), explainer.mapper() do.
IMPORTED_WHEN_CALLED = {
    ("data", "files"), ("data", "plots"), ("data", "evaluation"), ("files", "plots"),
    ("explainer", "evaluation"), ("explainer", "scale"),
}  # fmt: skip
# Packages that may import from a higher row for type checkers, to name what such a method returns: a Protocol
# in a lower row would repeat the class, and users could not annotate with it.
IMPORTED_FOR_TYPES = {("explainer", "evaluation"), ("explainer", "scale")}
