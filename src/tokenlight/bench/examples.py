"""The examples of a suite's data set: found under the data folder, filtered, drawn, limited."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tokenlight.bench.entries import DataSet
from tokenlight.bench.suite import Suite
from tokenlight.data.tokens import Question
from tokenlight.errors import BadInput, few
from tokenlight.files.tables import ENDINGS, Example, read

FORMS = tuple(ending + zipped for ending in ENDINGS for zipped in ("", ".gz"))


def locate(local: str, folders: Sequence[Path]) -> Path | None:
    """The file that ``sst2/dev`` means in the first folder that has one: as named, or with one of
    the known endings."""
    places = (folder / f"{local}{form}" for folder in folders for form in ("", *FORMS))
    return next((place for place in places if place.is_file()), None)


def source(data: DataSet, suite: Suite, folder: Path | None, *, offline: bool) -> str:
    """The file, or the hub's name, that a data set is read from; BadInput where there is none."""
    folders = [Path(suite.folder), *([folder] if folder else [])]
    found = locate(data.local, folders)
    if found is None and folder is None and data.otherwise:
        found = locate(data.otherwise, folders[:1])
    if found is not None:
        return str(found.resolve())
    if folder is None and data.hub and not offline:
        return data.hub
    looked = ", nor ".join(f"in {place}, which has {_has(place, data.local)}" for place in folders)
    wanted = " or ".join(filter(None, (data.local, data.otherwise)))
    hub = ", and --offline asks no hub" if data.hub and folder is None else ""
    raise BadInput(
        f"data set {data.name}: {wanted} is not {looked}{hub}; give --data DIR with {data.local} in it"
    )


def _has(folder: Path, local: str) -> str:
    """What stands where the file was looked for."""
    inner = (folder / local).parent
    place = inner if inner.is_dir() else folder
    names = sorted(entry.name for entry in place.iterdir()) if place.is_dir() else []
    return few(names, 12) or "nothing"


def examples_of(data: DataSet, where: str, *, seed: int, limit: int | None) -> list[Example]:
    """The chosen examples in their order; the same on every worker."""
    found = read(where, text=data.text or None, label=data.label or None, split=data.hub_split)
    if data.classes:
        found = [example for example in found if str(example.label) in data.classes]
        if not found:
            raise BadInput(f"data set {data.name}: no example has a label of {data.classes}")
    most = min(given for given in (data.size, limit, len(found)) if given is not None)
    if most == len(found) or data.sample == "first":
        return found[:most]
    drawn = np.random.default_rng(seed).choice(len(found), most, replace=False)
    return [found[i] for i in sorted(int(i) for i in drawn)]


def relabelled(examples: Sequence[Example], labels: Sequence[str], data: DataSet) -> list[Example]:
    """``labels``: for each label of the data set the model's own; empty where they are the same."""
    found = list(examples)
    for i, one in enumerate(found if labels else ()):
        if one.label is None:
            continue
        if not isinstance(one.label, int) or not 0 <= one.label < len(labels):
            raise BadInput(
                f"data set {data.name}: the model names labels for 0 to {len(labels) - 1}, but an "
                f"example has {one.label!r}"
            )
        name = labels[one.label]
        found[i] = replace(one, label=int(name) if name.isdigit() else name)
    return found


def task_of(example: Example) -> str:
    """classification, pair or qa, as the example shows it."""
    if isinstance(example.text, Question):
        return "qa"
    return "classification" if isinstance(example.text, str) else "pair"
