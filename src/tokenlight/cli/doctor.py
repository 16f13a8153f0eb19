"""``tokenlight doctor``: which methods work on a model, and why not where not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from tokenlight import registry
from tokenlight.cli.failures import clean
from tokenlight.cli.options import Device, ModelArgument, Verbose
from tokenlight.errors import in_words

if TYPE_CHECKING:
    from tokenlight.explainer import Explainer


@clean
def doctor(
    model: ModelArgument,
    device: Device = None,
    verbose: Verbose = False,
) -> None:
    """Try every method on MODEL; say which work, and why the others do not."""
    from rich.table import Table
    from rich.text import Text

    from tokenlight.cli.loading import loaded
    from tokenlight.evaluation.preflight import attempt
    from tokenlight.plots.characters import in_line
    from tokenlight.plots.terminal import console_on

    console = console_on(sys.stdout)
    explainer = loaded(model, device=device, verbose=verbose)
    about = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for fact, value in facts(explainer).items():
        about.add_row(Text(fact, style="dim"), Text(in_line(value)))
    console.print(about)
    console.print()
    report = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    attempt(explainer, "random")  # the first run checks the model, which no method should pay for
    worked = 0
    for name in registry.names("methods"):
        trouble, seconds = attempt(explainer, name)
        worked += trouble is None
        good = Text("ok", style="green") if trouble is None else Text("no", style="bold red")
        said = f"{1000 * seconds:.0f} ms" if trouble is None else in_line(in_words(trouble))
        report.add_row(good, Text(name), Text(said, style="dim" if trouble is None else ""))
    console.print(report)
    if not worked:
        raise typer.Exit(1)


def facts(explainer: Explainer) -> dict[str, str]:
    """What tokenlight knows of a model."""
    live = explainer.live
    config: Any = live.model.config.get_text_config()
    head = live.head
    if head.kind == "span":
        kind = "span: start and end of an answer"
    elif head.reads != "text":
        kind = {
            "next": "language model: the next token",
            "mask": "masked language model: a masked token",
            "token": f"token classification: one of {len(head.labels)} labels per token",
            "pair": f"none: sentence vectors ({live.pooling} of the tokens), by {live.head.labels[0]}",
            "image": f"image classification: one of {len(head.labels)} labels",
        }.get(head.reads, head.reads)
    else:
        names = {"single": "one of", "multi": "any of", "regression": "a number,"}[head.problem]
        kind = f"classification: {names} {len(head.labels)} label{'s' * (len(head.labels) != 1)}"
    routes = {"seam": "seam (its attention runs through tokenlight)", "eager": "its own eager path"}
    return {
        "model": explainer.name,
        "family": f"{config.model_type} ({type(live.model).__name__})",
        "head": kind,
        "labels": f"{len(head.labels):,} tokens" if head.writes else _few(head.labels),
        "layers": str(getattr(config, "num_hidden_layers", "unknown")),
        "heads": str(getattr(config, "num_attention_heads", "unknown")),
        "attention": routes[live.route],
        "dtype": str(live.dtype).removeprefix("torch."),
        "device": str(live.device),
        "max tokens": str(explainer.max_tokens or "no limit known"),
    }


def _few(labels: Sequence[str], most: int = 12) -> str:
    more = f" … and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(labels[:most]) + more or "none"
