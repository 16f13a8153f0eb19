"""``tokenlight methods``, ``metrics`` and ``models``: what there is, read off the classes; ``doctor``: which
methods work on a model, and why not where not."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any, Literal

import typer

from tokenlight import registry
from tokenlight.cli import options as option
from tokenlight.cli.console import clean, loaded, table
from tokenlight.cli.formulas import without_marks
from tokenlight.errors import in_words

Kind = Literal["methods", "metrics"]


@clean
def methods(name: str | None = option.argument("NAME", "A method to show in full.", None)) -> None:
    """List the methods, or show one in full."""
    _show("methods", name)


@clean
def metrics(name: str | None = option.argument("NAME", "A metric to show in full.", None)) -> None:
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


@clean
def doctor(
    model: str = option.MODEL, device: str | None = option.DEVICE, verbose: bool = option.VERBOSE
) -> None:
    """Try every method on MODEL; say which work, and why the others do not."""
    from rich.text import Text

    from tokenlight.evaluation.preflight import attempt

    explainer = loaded(model, device=device, verbose=verbose)
    live = explainer.live
    config: Any = live.model.config.get_text_config()
    facts = {
        "model": explainer.name,
        "family": f"{config.model_type} ({type(live.model).__name__})",
        "head": live.head.does.partition(":")[0],
        "layers": str(getattr(config, "num_hidden_layers", "unknown")),
        "heads": str(getattr(config, "num_attention_heads", "unknown")),
        "attention": f"{live.route} route",
        "dtype": str(live.dtype).removeprefix("torch."),
        "device": str(live.device),
        "max tokens": str(explainer.max_tokens or "no limit known"),
    }
    table((Text(fact, style="dim"), value) for fact, value in facts.items())
    print()
    attempt(explainer, "random")  # the first run checks the model, which no method should pay for
    rows = []
    for name in registry.names("methods"):
        trouble, seconds = attempt(explainer, name)
        good = Text("ok", style="green") if trouble is None else Text("no", style="bold red")
        rows.append((good, name, in_words(trouble) if trouble else f"{1000 * seconds:.0f} ms"))
    table(rows)
    if all(str(good) == "no" for good, *_ in rows):
        raise typer.Exit(1)


def _show(kind: Kind, name: str | None) -> None:
    from tokenlight.plots.terminal import console_on

    if name is None:
        table(_rows(kind))
    else:
        console_on(sys.stdout).print(_page(kind, name), soft_wrap=True)


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
        meaning = Text(without_marks(inspect.getdoc(cls) or "").partition("\n")[0])
        facts = _facts(kind, name, cls), said or "no options", getattr(cls, "cites", "")
        meaning.append("\n" + " · ".join(filter(None, facts)), "dim")
        yield Text(name, style="bold"), meaning


def _facts(kind: Kind, name: str, cls: Any) -> str:
    """In a few words; passes are F forward, B backward, of n tokens."""
    from tokenlight.explaining.default import measured
    from tokenlight.methods._method import Cost

    if kind == "metrics":
        more = {"needs marked spans": cls.marked, "asks the model about changed texts": cls.asks}
        return " · ".join([f"{cls.better} is better", *(said for said in more if more[said])])
    mean, ranks = measured()["means"].get(name), measured().get("ranks", {}).get(name, ())
    facts = [
        "same for every target" if cls.class_agnostic else "for a target",
        "signed" if cls.signed else "no sign",
        "per-layer terms" if cls.per_layer else "",
        Cost.in_words(registry.build("methods", name)),
        "" if mean is None else f"AOPC {mean:.2f}",
        *(f"mean rank {place:.1f}" for place in ranks[:1]),
    ]
    return " · ".join(filter(None, facts))


def _ordered(kind: Kind) -> list[tuple[str, str]]:
    """The names, each with the heading above it: methods that measured best, then by family."""
    from tokenlight.explaining.default import measured, recommended
    from tokenlight.methods._method import FAMILIES

    names = registry.names(kind)
    if kind == "metrics":
        return [(name, "") for name in names]
    found, texts = [*recommended()], measured()["texts"]
    chance = f"random scores {measured()['means']['random']:.2f}"
    ranked = f"ordered by mean rank in AOPC on {texts:,} texts ({chance})"
    heads = {found[0]: f"recommended: {ranked}; the README's table is another one"}
    usable = registry.usable(kind)
    for family in FAMILIES:
        own = [n for n in usable if n not in found and registry.build(kind, n).family == family]
        heads |= {own[0]: f"{family}: "} if own else {}
        found += own
    return [(name, heads.get(name, "")) for name in [*found, *(n for n in names if n not in found)]]


def _page(kind: Kind, name: str) -> Any:
    from rich.text import Text

    cls: Any = registry.find(kind, name)
    page = Text.assemble((f"{name}\n\n", "bold"), without_marks(inspect.getdoc(cls) or ""), "\n\n")
    page.append(f"{_facts(kind, name, cls)}\npaper: {getattr(cls, 'cites', '') or 'none'}\n")
    options = registry.options_of(kind, name)
    page.append("\noptions\n" if options else "\nno options\n", "bold")
    for setting, (takes, default) in options.items():
        page.append(f"  {setting}={default!r}   {takes}\n")
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
