"""The tables of README and CONTRIBUTING, made from the registry, the architecture matrix and the house.

python -m tests.readme_tables        # write them into both
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.families import CAUSAL, FAMILIES, NO_WRITERS, SOME
from tests.sights import FAMILIES as SIGHTED
from tests.sights import REFUSED as SIGHTLESS
from tests.twins.test_relevance_every_family import FOLLOWED
from tests.unit.test_house import ROWS
from tests.unit.test_relevance_models import REFUSED as WITHOUT_RELEVANCE
from tests.vision import FAMILIES as PICTURED
from tests.vision import REFUSED as NOT_PICTURED
from tests.writers import WRITERS
from tokenlight import registry

PAGES = [Path(__file__).parents[1] / name for name in ("README.md", "CONTRIBUTING.md")]


def methods() -> str:
    rows = ["| method | what it shows | sign | target |", "|---|---|---|---|"]
    for name in registry.names("methods"):
        cls = registry.find("methods", name)
        meaning = (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")
        meaning = re.sub(r":math:`([^`]*)`", r"*\1*", meaning).replace("``", "`")
        sign = "±" if cls.signed else "+"
        target = "no class" if cls.class_agnostic else "class"
        rows.append(f"| `{name}` | {meaning} | {sign} | {target} |")
    return "\n".join(rows)


def families() -> str:
    rows = []
    every = {**FAMILIES, **SOME}
    for fate in ("seam", "eager", "embeddings", "tokens", "refused"):
        names = [name for name, (_, _, found) in every.items() if found == fate]
        rows.append(f"| {fate} | {len(names)} | {', '.join(sorted(names))} |")
    working = [name for name, (_, _, fate) in FAMILIES.items() if fate != "refused"]
    without = sorted(set(working) & set(WITHOUT_RELEVANCE))
    writing = sorted(set(CAUSAL) - NO_WRITERS)
    rows.append(f"| writing on from a prompt | {len(writing)} | {', '.join(writing)} |")
    fates = {name: fate for name, (_, _, fate) in WRITERS.items()}
    after = sorted(name for name, fate in fates.items() if fate != "refused")
    rows.append(f"| writing after a source | {len(after)} | {', '.join(after)} |")
    none = sorted(set(fates) - set(after)) + sorted(NO_WRITERS & set(CAUSAL))
    rows.append(f"| writing, refused | {len(none)} | {', '.join(none)} |")
    plain = [name for name in PICTURED if " with " not in name]
    rows.append(f"| images | {len(plain)} | {', '.join(sorted(plain))} |")
    merging = sorted(NOT_PICTURED)
    rows.append(f"| images, refused | {len(merging)} | {', '.join(merging)} |")
    sighted = sorted(name for name in SIGHTED if " " not in name and SIGHTED[name][2] == "all")
    rows.append(f"| a picture and a text | {len(sighted)} | {', '.join(sighted)} |")
    partly = sorted(name for name, (_, _, fate) in SIGHTED.items() if fate == "some")
    rows.append(
        f"| a picture and a text, by attention and changed patches alone | {len(partly)} | "
        f"{', '.join(partly)} |"
    )
    rows.append(
        f"| a picture and a text, refused | {len(SIGHTLESS)} | {', '.join(sorted(SIGHTLESS))} |"
    )
    rows.append(
        f"| with relevance by rules: lrp, partial_lrp, transatt | "
        f"{len(working) - len(without)} | all that work but {', '.join(without)} |"
    )
    followed, missing = set(FOLLOWED), sorted(set(working) - set(FOLLOWED))
    further = ", ".join(sorted(followed - set(working)))
    rows.append(
        f"| with relevance by gradients: attnlrp, cp_lrp | {len(followed)} | all that work but "
        f"{', '.join(missing)}; and {further} |"
    )
    return "\n".join(["| route | families | |", "|---|---|---|", *rows])


def rows() -> str:
    lines = ["| row | parts of tokenlight |", "|---|---|"]
    lines += [f"| {what} | {', '.join(f'`{name}`' for name in names)} |" for what, *names in ROWS]
    return "\n".join(lines)


TABLES = {"methods": methods, "families": families, "rows": rows}


def filled(text: str) -> str:
    for name, table in TABLES.items():
        block = f"<!-- {name}:begin -->\n{table()}\n<!-- {name}:end -->"
        text = re.sub(
            f"<!-- {name}:begin -->.*?<!-- {name}:end -->", lambda _, b=block: b, text, flags=re.S
        )
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
