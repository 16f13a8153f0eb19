"""``tokenlight methods``, ``metrics`` and ``models``: what there is, read off the classes."""

import inspect
import sys
from typing import Annotated, Any, Literal

import typer

from tokenlight import registry
from tokenlight.cli.failures import clean
from tokenlight.cli.formulas import without_marks

Kind = Literal["methods", "metrics"]


@clean
def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A method to show in full.")
    ] = None,
) -> None:
    """List the methods, or show one in full."""
    _show("methods", name)


@clean
def metrics(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A metric to show in full.")
    ] = None,
) -> None:
    """List the metrics, or show one in full."""
    _show("metrics", name)


@clean
def models() -> None:
    """List the embedded models, which work offline under these names."""
    from rich.table import Table
    from rich.text import Text

    from tokenlight.models import catalogue
    from tokenlight.plots.terminal import console_on

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("model", "task", "size", "measured"):
        table.add_column(head, overflow="fold", no_wrap=head == "model")
    for entry in catalogue():
        size = f"{entry.size / 1e6:.1f} MB"
        cells = (entry.name, entry.task, size, f"{entry.figure} on {entry.split}")
        table.add_row(*(Text(cell) for cell in cells))
    console_on(sys.stdout).print(table)


def _show(kind: Kind, name: str | None) -> None:
    from tokenlight.plots.terminal import console_on

    console = console_on(sys.stdout)
    if name is None:
        console.print(_table(kind))
    else:
        console.print(_page(kind, name), soft_wrap=True)


def _cost(name: str) -> str:
    """Passes through the model with default options: F forward, B backward, n tokens."""
    from tokenlight.methods._method import Cost

    return Cost.in_words(registry.build("methods", name))


def _details(kind: Kind, name: str, cls: Any) -> list[str]:
    """The facts of a name in a few words."""
    from tokenlight.explaining.default import measured

    if kind == "methods":
        mean = measured()["means"].get(name)
        rank = measured().get("ranks", {}).get(name, ())[:1]
        return [
            "same for every target" if cls.class_agnostic else "for a target",
            "signed" if cls.signed else "no sign",
            _cost(name),
            "" if mean is None else f"AOPC {mean:.2f}",
            *(f"mean rank {place:.1f}" for place in rank),
        ]
    return [f"{cls.better} is better", *(["needs marked spans"] if cls.marked else [])]


def _table(kind: Kind) -> Any:
    """Each name with its meaning, and below what it depends on, its options and its paper."""
    from rich.table import Table
    from rich.text import Text

    from tokenlight.plots.characters import in_line

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, heading in _ordered(kind):
        if heading:
            title, _, told = heading.partition(": ")
            table.add_row(Text(f"\n{title}".upper(), style="bold"), Text(f"\n{told}", style="dim"))
        if (why := registry.trouble(kind, name)) is not None:
            table.add_row(
                Text(name, style="bold"), Text(f"not usable: {in_line(why)}", style="red")
            )
            continue
        cls: Any = registry.find(kind, name)
        options = ", ".join(
            f"{option}={default!r}"
            for option, (_, default) in registry.options_of(kind, name).items()
        )
        details = [*_details(kind, name, cls), options or "no options", getattr(cls, "cites", "")]
        meaning = Text(without_marks(inspect.getdoc(cls) or "").partition("\n")[0])
        meaning.append("\n" + " · ".join(filter(None, details)), "dim")
        table.add_row(Text(name, style="bold"), meaning)
    return table


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


def _presets(kind: Kind, name: str) -> dict[str, str]:
    """Preset to the options that it changes; none at all where all are the defaults."""
    defaults = {option: default for option, (_, default) in registry.options_of(kind, name).items()}
    found = {
        preset: ", ".join(
            f"{option}={value!r}" for option, value in settings.items() if defaults[option] != value
        )
        for preset, settings in registry.presets_of(kind, name).items()
    }
    return found if any(found.values()) else {}


def _page(kind: Kind, name: str) -> Any:
    from rich.text import Text

    cls: Any = registry.find(kind, name)
    page = Text()
    page.append(f"{name}\n\n", "bold")
    page.append(f"{without_marks(inspect.getdoc(cls) or '')}\n\n")
    for fact, value in _facts(kind, name, cls).items():
        page.append(f"{fact}: {value}\n")
    page.append(f"paper: {getattr(cls, 'cites', '') or 'none'}\n")
    options = registry.options_of(kind, name)
    page.append("\noptions\n" if options else "\nno options\n", "bold")
    for option, (takes, default) in options.items():
        page.append(f"  {option}={default!r}   {takes}\n")
    for preset, chosen in _presets(kind, name).items():
        page.append(f"  preset={preset}   {chosen or 'the defaults'}\n")
    example = next(iter(options), None)
    given = f"{name}:{example}={options[example][1]}" if example else name
    command = "explain TEXT --method" if kind == "methods" else "evaluate FILE --metric"
    page.append(f"\ntokenlight {command} {given}")
    return page
