"""``tokenlight methods``: what can be asked, read off the methods themselves."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Annotated, Any

import typer

from tokenlight.cli.failing import clean


@clean
def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One method to tell all about.")
    ] = None,
) -> None:
    """List the methods, or tell all about one."""
    from tokenlight.plots.terminal import console_on

    console = console_on(sys.stdout)
    if name is None:
        console.print(_table())
    else:
        console.print(_page(name), soft_wrap=True)


def plain(documentation: str) -> str:
    """A docstring for a terminal: its words without the marks of the documentation language."""
    return re.sub(r":math:`([^`]*)`", r"\1", documentation).replace("``", "")


def options_in_words(name: str) -> str:
    """Options with their defaults: ``hidden='input', attn_reduce='received'``."""
    from tokenlight import registry

    options = registry.options_of("methods", name)
    return ", ".join(f"{option}={default!r}" for option, (_, default) in options.items())


def cost_in_words(name: str) -> str:
    """Passes through the model with default options: F forward, B backward, n tokens."""
    from tokenlight import registry
    from tokenlight.methods._method import Cost

    return Cost.in_words(registry.build("methods", name))


def _table() -> Any:
    """Each method with its meaning, and below what it depends on, its options and its paper."""
    from rich.table import Table
    from rich.text import Text

    from tokenlight import registry

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name in registry.names("methods"):
        cls: Any = registry.find("methods", name)
        agnostic = getattr(cls, "class_agnostic", False)
        details = [
            "same for every target" if agnostic else "for a target",
            "signed" if getattr(cls, "signed", True) else "no sign",
            cost_in_words(name),
            options_in_words(name) or "no options",
            getattr(cls, "cites", ""),
        ]
        meaning = Text(plain(inspect.getdoc(cls) or "").partition("\n")[0])
        meaning.append("\n" + " · ".join(filter(None, details)), "dim")
        table.add_row(Text(name, style="bold"), meaning)
    return table


def _page(name: str) -> Any:
    from rich.text import Text

    from tokenlight import registry

    cls: Any = registry.find("methods", name)
    page = Text()
    page.append(f"{name}\n\n", "bold")
    page.append(f"{plain(inspect.getdoc(cls) or '')}\n\n")
    facts = {
        "depends on the target": not getattr(cls, "class_agnostic", False),
        "scores have a sign": getattr(cls, "signed", True),
        "per-layer terms": getattr(cls, "per_layer", False),
    }
    for fact, holds in facts.items():
        page.append(f"{fact}: {'yes' if holds else 'no'}\n")
    page.append(f"passes (F forward, B backward, n tokens): {cost_in_words(name)}\n")
    page.append(f"paper: {getattr(cls, 'cites', '') or 'none'}\n")
    options = registry.options_of("methods", name)
    page.append("\noptions\n" if options else "\nno options\n", "bold")
    for option, (kind, default) in options.items():
        page.append(f"  {option}={default!r}   {kind}\n")
    presets = getattr(cls, "presets", {})
    for preset, settings in presets.items():
        chosen = ", ".join(f"{option}={value!r}" for option, value in settings.items())
        page.append(f"  preset={preset}   {chosen or 'the defaults'}\n")
    example = next(iter(options), None)
    given = f"{name}:{example}={options[example][1]}" if example else name
    page.append(f"\ntokenlight explain TEXT --method {given}")
    return page
