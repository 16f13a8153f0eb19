"""The ``tokenlight`` application: all commands, and the options that come before a command."""

import typer

from tokenlight.cli.bench import bench
from tokenlight.cli.command import Command
from tokenlight.cli.evaluate import diff, evaluate, idf
from tokenlight.cli.explain import explain
from tokenlight.cli.heads import heads
from tokenlight.cli.methods import doctor, methods, metrics, models
from tokenlight.cli.options import declare_option
from tokenlight.cli.serve import serve
from tokenlight.cli.verify import verify

app = typer.Typer(
    name="tokenlight",
    help="Show which tokens made a Transformer decide, and whether that explanation can be trusted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # unexpected errors keep their plain traceback
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

# `explain` reports words after TEXT itself: most often the quotes around the text are missing.
app.command(cls=Command, context_settings={"allow_extra_args": True})(explain)
for command in (methods, metrics, models, doctor, heads, evaluate, diff, idf, verify):
    app.command(cls=Command)(command)
app.add_typer(bench)
app.command(cls=Command)(serve)


def _print_version(is_requested: bool) -> None:
    if not is_requested:
        return
    import platform

    from tokenlight.version import VERSION, get_version

    torch_version = get_version("torch")
    transformers_version = get_version("transformers")
    typer.echo(
        f"tokenlight {VERSION} (torch {torch_version}, transformers {transformers_version}, "
        f"Python {platform.python_version()})"
    )
    raise typer.Exit


@app.callback()
def _main_callback(
    version: bool = declare_option(
        "Show the versions of tokenlight, torch, transformers and Python.",
        "--version",
        False,
        callback=_print_version,
        is_eager=True,
    ),
) -> None:
    pass
