"""The commands of ``tokenlight``, and what holds for all of them."""

import typer

from tokenlight.cli.bench import bench
from tokenlight.cli.evaluate import diff, evaluate, idf
from tokenlight.cli.explain import explain
from tokenlight.cli.heads import heads
from tokenlight.cli.methods import doctor, methods, metrics, models
from tokenlight.cli.options import flag
from tokenlight.cli.serve import serve

app = typer.Typer(
    name="tokenlight",
    help="Which tokens made a Transformer decide, for or against, and can that be trusted?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # what is unexpected keeps its plain traceback
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for command in (explain, methods, metrics, models, doctor, heads, evaluate, diff, idf):
    # Words behind the text are refused by the command, which says what to do.
    app.command(context_settings={"allow_extra_args": command is explain})(command)
app.add_typer(bench)
app.command()(serve)


def _version(wanted: bool) -> None:
    if not wanted:
        return
    import platform

    from tokenlight.version import VERSION, version_of

    found = ", ".join(f"{library} {version_of(library)}" for library in ("torch", "transformers"))
    typer.echo(f"tokenlight {VERSION} ({found}, Python {platform.python_version()})")
    raise typer.Exit


@app.callback()
def _start(
    version: bool = flag("Show versions.", "--version", False, callback=_version, is_eager=True),
) -> None:
    pass
