"""``tokenlight doctor``: which methods work on a model, and why not where not."""

from typing import Any

import typer

from tokenlight import registry
from tokenlight.cli import options as option
from tokenlight.cli.console import clean, table
from tokenlight.errors import in_words


@clean
def doctor(
    model: str = option.MODEL, device: str | None = option.DEVICE, verbose: bool = option.VERBOSE
) -> None:
    """Try every method on MODEL; say which work, and why the others do not."""
    from rich.text import Text

    from tokenlight.cli.loading import loaded
    from tokenlight.evaluation.preflight import attempt

    explainer = loaded(model, device=device, verbose=verbose)
    live, head = explainer.live, explainer.live.head
    config: Any = live.model.config.get_text_config()
    many = len(head.labels)
    more = f" … and {many - 12} more" if many > 12 else ""
    labels = f"{many:,} tokens" if head.writes else ", ".join(head.labels[:12]) + more
    routes = {"seam": "seam (its attention runs through tokenlight)", "eager": "its own eager path"}
    facts = {
        "model": explainer.name,
        "family": f"{config.model_type} ({type(live.model).__name__})",
        "head": _head(live),
        "labels": labels or "none",
        "layers": str(getattr(config, "num_hidden_layers", "unknown")),
        "heads": str(getattr(config, "num_attention_heads", "unknown")),
        "attention": routes[live.route],
        "dtype": str(live.dtype).removeprefix("torch."),
        "device": str(live.device),
        "max tokens": str(explainer.max_tokens or "no limit known"),
    }
    table((Text(fact, style="dim"), value) for fact, value in facts.items())
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


def _head(live: Any) -> str:
    """What a model's head is, in words."""
    head, many = live.head, len(live.head.labels)
    if head.kind == "span":
        return "span: start and end of an answer"
    if head.reads == "text":
        names = {"single": "one of", "multi": "any of", "regression": "a number,"}[head.problem]
        return f"classification: {names} {many} label{'s' * (many != 1)}"
    return {
        "next": "language model: the next token",
        "mask": "masked language model: a masked token",
        "token": f"token classification: one of {many} labels per token",
        "pair": f"none: sentence vectors ({live.pooling} of the tokens), by {head.labels[0]}",
        "image": f"image classification: one of {many} labels",
    }.get(head.reads, str(head.reads))
