"""``tokenlight doctor``: which methods work on a model, and why not where not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tokenlight import registry
from tokenlight.cli import options as option
from tokenlight.cli.console import clean, table
from tokenlight.errors import in_words

if TYPE_CHECKING:
    from tokenlight.explainer import Explainer


@clean
def doctor(
    model: str = option.MODEL, device: str | None = option.DEVICE, verbose: bool = option.VERBOSE
) -> None:
    """Try every method on MODEL; say which work, and why the others do not."""
    from rich.text import Text

    from tokenlight.cli.loading import loaded
    from tokenlight.evaluation.preflight import attempt

    explainer = loaded(model, device=device, verbose=verbose)
    table((Text(fact, style="dim"), value) for fact, value in facts(explainer).items())
    print()
    attempt(explainer, "random")  # the first run checks the model, which no method should pay for
    rows: list[tuple[Text, str, Text | str]] = []
    for name in registry.names("methods"):
        trouble, seconds = attempt(explainer, name)
        if trouble is None:
            told = Text(f"{1000 * seconds:.0f} ms", style="dim")
            rows.append((Text("ok", style="green"), name, told))
        else:
            rows.append((Text("no", style="bold red"), name, in_words(trouble)))
    table(rows)
    if not any(str(good) == "ok" for good, _, _ in rows):
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
    more = f" … and {len(head.labels) - 12} more" if len(head.labels) > 12 else ""
    labels = ", ".join(head.labels[:12]) + more or "none"
    return {
        "model": explainer.name,
        "family": f"{config.model_type} ({type(live.model).__name__})",
        "head": kind,
        "labels": f"{len(head.labels):,} tokens" if head.writes else labels,
        "layers": str(getattr(config, "num_hidden_layers", "unknown")),
        "heads": str(getattr(config, "num_attention_heads", "unknown")),
        "attention": routes[live.route],
        "dtype": str(live.dtype).removeprefix("torch."),
        "device": str(live.device),
        "max tokens": str(explainer.max_tokens or "no limit known"),
    }
