"""``tokenlight methods``, ``metrics`` and ``models``: what there is, read off the classes."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any, Literal

from tokenlight import registry
from tokenlight.cli.console import clean, table
from tokenlight.cli.formulas import without_marks
from tokenlight.cli.options import argument

Kind = Literal["methods", "metrics"]


@clean
def methods(name: str | None = argument("NAME", "A method to show in full.", None)) -> None:
    """List the methods, or show one in full."""
    _show("methods", name)


@clean
def metrics(name: str | None = argument("NAME", "A metric to show in full.", None)) -> None:
    """List the metrics, or show one in full."""
    _show("metrics", name)


@clean
def models() -> None:
    """List the embedded models, which work offline under these names."""
    from tokenlight.models import catalogue

    rows = (
        (one.name, one.task, f"{one.size / 1e6:.1f} MB", f"{one.figure} on {one.split}")
        for one in catalogue()
    )
    table(rows, ("model", "task", "size", "measured"))


def _show(kind: Kind, name: str | None) -> None:
    from tokenlight.plots.terminal import console_on

    if name is None:
        table(_rows(kind))
    else:
        console_on(sys.stdout).print(_page(kind, name), soft_wrap=True)


def _cost(name: str) -> str:
    """Passes through the model with default options: F forward, B backward, n tokens."""
    from tokenlight.methods._method import Cost

    return Cost.in_words(registry.build("methods", name))


def _rows(kind: Kind) -> Iterator[tuple[Any, Any]]:
    """Each name with its meaning, and below what it depends on, its options and its paper."""
    from rich.text import Text

    from tokenlight.plots.characters import in_line

    for name, heading in _ordered(kind):
        if heading:
            title, _, told = heading.partition(": ")
            yield Text(f"\n{title}".upper(), style="bold"), Text(f"\n{told}", style="dim")
        if (why := registry.trouble(kind, name)) is not None:
            yield Text(name, style="bold"), Text(f"not usable: {in_line(why)}", style="red")
            continue
        cls: Any = registry.find(kind, name)
        options = registry.options_of(kind, name).items()
        said = ", ".join(f"{option}={default!r}" for option, (_, default) in options)
        details = [*_details(kind, name, cls), said or "no options", getattr(cls, "cites", "")]
        meaning = Text(without_marks(inspect.getdoc(cls) or "").partition("\n")[0])
        meaning.append("\n" + " · ".join(filter(None, details)), "dim")
        yield Text(name, style="bold"), meaning


def _details(kind: Kind, name: str, cls: Any) -> list[str]:
    """The facts of a name in a few words."""
    from tokenlight.explaining.default import measured

    if kind == "metrics":
        return [f"{cls.better} is better", *(["needs marked spans"] if cls.marked else [])]
    mean = measured()["means"].get(name)
    return [
        "same for every target" if cls.class_agnostic else "for a target",
        "signed" if cls.signed else "no sign",
        _cost(name),
        "" if mean is None else f"AOPC {mean:.2f}",
        *(f"mean rank {place:.1f}" for place in measured().get("ranks", {}).get(name, ())[:1]),
    ]


def _ordered(kind: Kind) -> list[tuple[str, str]]:
    """The names in the order they are listed, each with the heading that stands above it: methods that
    measured best, then by family; metrics as they are."""
    from tokenlight.explaining.default import measured, recommended
    from tokenlight.methods._method import FAMILIES

    names = registry.names(kind)
    if kind == "metrics":
        return [(name, "") for name in names]
    found, texts = [*recommended()], measured()["texts"]
    heads = {
        found[0]: f"recommended: most faithful on {texts:,} texts (AOPC; random scores "
        f"{measured()['means']['random']:.2f})"
    }
    usable = registry.usable(kind)
    for family in FAMILIES:
        own = [n for n in usable if n not in found and registry.build(kind, n).family == family]
        heads |= {own[0]: f"{family}: "} if own else {}
        found += own
    return [(name, heads.get(name, "")) for name in [*found, *(n for n in names if n not in found)]]


def _facts(kind: Kind, name: str, cls: Any) -> dict[str, str]:
    word = {True: "yes", False: "no"}
    if kind == "methods":
        return {
            "depends on the target": word[not cls.class_agnostic],
            "scores have a sign": word[cls.signed],
            "per-layer terms": word[cls.per_layer],
            "passes (F forward, B backward, n tokens)": _cost(name),
        }
    return {
        "better": cls.better,
        "asks the model about changed texts": word[cls.asks],
        "needs marked spans": word[cls.marked],
        "needs further explanations": {"none": "no"}.get(cls.further, cls.further),
    }


def _page(kind: Kind, name: str) -> Any:
    from rich.text import Text

    cls: Any = registry.find(kind, name)
    page = Text.assemble((f"{name}\n\n", "bold"), without_marks(inspect.getdoc(cls) or ""), "\n\n")
    for fact, value in _facts(kind, name, cls).items():
        page.append(f"{fact}: {value}\n")
    page.append(f"paper: {getattr(cls, 'cites', '') or 'none'}\n")
    options = registry.options_of(kind, name)
    page.append("\noptions\n" if options else "\nno options\n", "bold")
    for option, (takes, default) in options.items():
        page.append(f"  {option}={default!r}   {takes}\n")
    presets = {
        preset: ", ".join(f"{o}={v!r}" for o, v in settings.items() if options[o][1] != v)
        for preset, settings in registry.presets_of(kind, name).items()
    }
    for preset, changed in presets.items() if any(presets.values()) else ():
        page.append(f"  preset={preset}   {changed or 'the defaults'}\n")
    example = next(iter(options), None)
    given = f"{name}:{example}={options[example][1]}" if example else name
    command = "explain TEXT --method" if kind == "methods" else "evaluate FILE --metric"
    page.append(f"\ntokenlight {command} {given}")
    return page
