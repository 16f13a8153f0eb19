"""Commands that list what is available.

``tokenlight methods``, ``metrics`` and ``models`` are read from the classes themselves; ``doctor`` tries
which methods work on a model.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import typer

from tokenlight import registry
from tokenlight.cli import options as option
from tokenlight.cli.console import handle_errors, load_explainer, print_table
from tokenlight.cli.flag_hints import format_for_command_line
from tokenlight.cli.formulas import strip_markup
from tokenlight.errors import TokenlightError, describe_error

Kind = Literal["methods", "metrics"]


@handle_errors
def methods(
    name: str | None = option.declare_argument("NAME", "Method to show in full.", None),
) -> None:
    """List the methods, or show one in full."""
    _print_components("methods", name)


@handle_errors
def metrics(
    name: str | None = option.declare_argument("NAME", "Metric to show in full.", None),
) -> None:
    """List the metrics, or show one in full."""
    _print_components("metrics", name)


@handle_errors
def models() -> None:
    """List the embedded models, which work offline under these names."""
    from tokenlight.models import list_models

    rows = []
    for model in list_models():
        size = f"{model.size / 1e6:.1f} MB"
        rows.append((model.name, model.task, size, f"{model.quality} on {model.split}"))
    print_table(rows, ("model", "task", "size", "measured"))


@handle_errors
def doctor(
    model: str = option.MODEL, device: str | None = option.DEVICE, verbose: bool = option.VERBOSE
) -> None:
    """Try every method on MODEL; say which work, and why the others do not."""
    from rich.text import Text

    from tokenlight.evaluation.preflight import try_explaining

    explainer = load_explainer(model, device=device, verbose=verbose)
    # First what the model is, then what works on it.
    facts = _describe_model(explainer)
    print_table((Text(fact, style="dim"), value) for fact, value in facts.items())
    print()
    # The first run also checks the model; that time should not count for the first method.
    try_explaining(explainer, "random")
    rows = []
    num_working = 0
    for name in registry.list_names("methods"):
        error, seconds = try_explaining(explainer, name)
        if error is None:
            num_working += 1
            rows.append((Text("ok", style="green"), name, f"{1000 * seconds:.0f} ms"))
        else:
            rows.append((Text("no", style="bold red"), name, _describe_failure(error)))
    print_table(rows)
    if num_working == 0:
        raise typer.Exit(1)


def _describe_failure(error: Exception) -> str:
    if isinstance(error, TokenlightError):
        return format_for_command_line(error)
    return describe_error(error)


def _describe_model(explainer: Any) -> dict[str, str]:
    """Collect the facts about a model that explain which methods work on it."""
    runner = explainer.runner
    config: Any = runner.model.config.get_text_config()
    return {
        "model": explainer.name,
        "family": f"{config.model_type} ({type(runner.model).__name__})",
        "head": runner.head.usage.partition(":")[0],
        "layers": str(getattr(config, "num_hidden_layers", "unknown")),
        "heads": str(getattr(config, "num_attention_heads", "unknown")),
        "attention": f"{runner.attention_route} route",
        "dtype": str(runner.dtype).removeprefix("torch."),
        "device": str(runner.device),
        "max tokens": str(explainer.max_tokens or "no limit known"),
    }


def _print_components(kind: Kind, name: str | None) -> None:
    from tokenlight.plots.terminal import make_console

    if name is None:
        print_table(_build_rows(kind))
    else:
        make_console(sys.stdout).print(_render_page(kind, name), soft_wrap=True)


def _build_rows(kind: Kind) -> Iterator[tuple[Any, Any]]:
    """Yield each name with its first sentence, and below that its properties, options and paper."""
    from rich.text import Text

    from tokenlight.plots.characters import to_single_line

    for name, heading in _order_names(kind):
        if heading:
            title, _, explanation = heading.partition(": ")
            yield Text(f"\n{title}".upper(), style="bold"), Text(f"\n{explanation}", style="dim")
        # A plug-in that cannot be imported is listed with its reason, not hidden.
        loading_error = registry.get_loading_error(kind, name)
        if loading_error is None:
            yield Text(name, style="bold"), _summarize_component(kind, name)
        else:
            reason = f"not usable: {to_single_line(loading_error)}"
            yield Text(name, style="bold"), Text(reason, style="red")


def _summarize_component(kind: Kind, name: str) -> Any:
    from rich.text import Text

    cls: Any = registry.load_class(kind, name)
    defaults = {
        option: default for option, (_, default) in registry.describe_options(kind, name).items()
    }
    facts = [
        _describe_component(kind, name, cls),
        _format_settings(defaults) or "no options",
        getattr(cls, "cites", ""),
    ]
    first_sentence = strip_markup(inspect.getdoc(cls) or "").partition("\n")[0]
    summary = Text(first_sentence)
    summary.append("\n" + " · ".join(filter(None, facts)), "dim")
    return summary


def _format_settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{option}={value!r}" for option, value in settings.items())


def _describe_component(kind: Kind, name: str, cls: Any) -> str:
    """Describe the properties of a method or metric in a few words."""
    return _describe_metric(cls) if kind == "metrics" else _describe_method(name, cls)


def _describe_metric(cls: Any) -> str:
    facts = [f"{cls.better} is better"]
    if cls.needs_spans:
        facts.append("needs marked spans")
    if cls.needs_model:
        facts.append("runs the model on perturbed texts")
    return " · ".join(facts)


def _describe_method(name: str, cls: Any) -> str:
    """Describe a method; the cost is in forward (F) and backward (B) passes for n tokens."""
    from tokenlight.explaining.default_method import load_leaderboard
    from tokenlight.methods.base import describe_cost

    leaderboard = load_leaderboard()
    facts = [
        "same for every target" if cls.class_agnostic else "per target",
        "signed" if cls.signed else "unsigned",
    ]
    if cls.per_layer:
        facts.append("per-layer terms")
    facts.append(describe_cost(registry.build("methods", name)))
    # Methods of other packages are not on the leaderboard.
    mean_aopc = leaderboard["means"].get(name)
    if mean_aopc is not None:
        facts.append(f"AOPC {mean_aopc:.2f}")
    ranks = leaderboard.get("ranks", {}).get(name)
    if ranks:
        facts.append(f"mean rank {ranks[0]:.1f}")
    return " · ".join(filter(None, facts))


def _order_names(kind: Kind) -> list[tuple[str, str]]:
    """Return each name with the heading above it: recommended methods first, then by family.

    Most headings are empty, since a heading stands above the first method of its group only.
    """
    from tokenlight.explaining.default_method import load_leaderboard, recommend_methods

    all_names = registry.list_names(kind)
    if kind == "metrics":
        return [(name, "") for name in all_names]
    leaderboard = load_leaderboard()
    ordered_names = list(recommend_methods())
    headings = {
        ordered_names[
            0
        ]: f"recommended: ordered by mean rank in AOPC on {leaderboard['texts']:,} texts "
        f"(random scores {leaderboard['means']['random']:.2f})"
    }
    for family, names in _group_by_family(set(ordered_names)).items():
        headings[names[0]] = f"{family}: "
        ordered_names += names
    # What is left cannot be loaded, or belongs to no known family.
    ordered_names += [name for name in all_names if name not in ordered_names]
    return [(name, headings.get(name, "")) for name in ordered_names]


def _group_by_family(excluded_names: set[str]) -> dict[str, list[str]]:
    """Group the methods that can be loaded by family, in the order of ``FAMILIES``."""
    from tokenlight.methods.base import FAMILIES

    names_by_family: dict[str, list[str]] = {}
    families = {
        name: registry.build("methods", name).family for name in registry.list_loadable("methods")
    }
    for family in FAMILIES:
        names = [name for name in families if families[name] == family]
        names = [name for name in names if name not in excluded_names]
        if names:
            names_by_family[family] = names
    return names_by_family


def _render_page(kind: Kind, name: str) -> Any:
    """Render the documentation of one method or metric, with its options and a command to copy."""
    from rich.text import Text

    cls: Any = registry.load_class(kind, name)
    options = registry.describe_options(kind, name)
    page = Text.assemble((f"{name}\n\n", "bold"), strip_markup(inspect.getdoc(cls) or ""), "\n\n")
    paper = getattr(cls, "cites", "") or "none"
    page.append(f"{_describe_component(kind, name, cls)}\npaper: {paper}\n")
    page.append("\noptions\n" if options else "\nno options\n", "bold")
    for option_name, (accepted_values, default) in options.items():
        page.append(f"  {option_name}={default!r}   {accepted_values}\n")
    for line in _describe_presets(kind, name, options):
        page.append(line)
    # The last line is a command to copy, with one option to show the syntax.
    spec = name
    if options:
        first_option, (_, default) = next(iter(options.items()))
        spec = f"{name}:{first_option}={default}"
    command = "explain TEXT --method" if kind == "methods" else "evaluate FILE --metric"
    page.append(f"\ntokenlight {command} {spec}")
    return page


def _describe_presets(kind: Kind, name: str, options: Mapping[str, tuple[str, Any]]) -> list[str]:
    """Return one line per preset, with the options that it changes; none if no preset changes any."""
    changes_by_preset = {}
    for preset, settings in registry.get_presets(kind, name).items():
        changed = {
            option: value for option, value in settings.items() if options[option][1] != value
        }
        changes_by_preset[preset] = _format_settings(changed)
    if not any(changes_by_preset.values()):
        return []
    return [
        f"  preset={preset}   {changes or 'the defaults'}\n"
        for preset, changes in changes_by_preset.items()
    ]
