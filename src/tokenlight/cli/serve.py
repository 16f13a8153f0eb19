"""``tokenlight serve``: the page and its API, on this machine."""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenlight.cli.failures import clean
from tokenlight.cli.loading import DEVICE, hushed
from tokenlight.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from tokenlight.web.guard import Guard
    from tokenlight.web.limits import Limits
    from tokenlight.web.models import AllowList


@clean
def serve(
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="Embedded model, folder or hub id to serve; repeat it for several.",
            show_default="the embedded models; none with --open",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="Address of this machine to listen on; 0.0.0.0 lets other machines in."),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, metavar="N", help="Port to listen on; 0 takes a free one."),
    ] = 8000,
    heads: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=FILE", help="Heads file of a model, by tokenlight heads; repeat it."
        ),
    ] = None,
    open: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Show saved attributions (a .json file or a folder) or a run of tokenlight bench; "
            "repeat it.",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help=DEVICE, show_default="cpu")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Log every request; show tracebacks.")
    ] = False,
) -> None:
    """Serve a page that explains texts and compares methods.

    Open the address that it prints in a browser. Press Ctrl-C to stop it.
    """
    # Busy-waiting threads of one model would slow the others; torch reads this when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    maps = dict(_named(entry) for entry in heads or ())
    _check_host(host)
    _check_libraries()
    from tokenlight.web.app import application
    from tokenlight.web.limits import Limits
    from tokenlight.web.preloaded import shelf

    limits = Limits()
    shelved = shelf(open or (), limits)
    models = _loaded(model, maps, device, verbose=verbose, nothing=bool(open) and not model)
    app = application(models, shelved, host=host, limits=limits)
    _listen(app, limits, host, port, verbose=verbose)


def _check_libraries() -> None:
    for library in ("fastapi", "uvicorn"):
        try:
            __import__(library)
        except ModuleNotFoundError as missing:
            if (missing.name or "").partition(".")[0] != library:
                raise
            raise MissingExtra.naming(library, "web", "tokenlight serve") from missing


def _check_host(host: str) -> None:
    """Whether ``host`` is this machine, asked before a model is loaded."""
    why = "it is empty"
    if host.strip("[] "):
        try:
            family, kind, number, _, address = socket.getaddrinfo(
                host.strip("[]"), 0, type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind, number) as trial:
                trial.bind(address)
            return
        except (socket.gaierror, UnicodeError):
            why = "no machine of this name is known here"
        except OSError as refused:
            away = refused.errno == errno.EADDRNOTAVAIL
            why = "it is not an address of this machine" if away else str(refused.strerror)
    raise BadInput(
        f"cannot listen on --host {host!r}: {why}. Give 127.0.0.1 for this machine alone, 0.0.0.0 "
        "for every network it is on, or one of its own addresses."
    )


def _named(entry: str) -> tuple[str, str]:
    name, equals, file = entry.partition("=")
    if not (name and equals and file):
        raise BadInput(f"--heads {entry}: write it as MODEL=FILE, MODEL being one of --model.")
    return name, file


def _loaded(
    names: list[str] | None,
    heads: dict[str, str],
    device: str | None,
    *,
    verbose: bool,
    nothing: bool,
) -> AllowList:
    from tokenlight.web.models import DEFAULT, AllowList, load

    if nothing:
        return AllowList([])
    wanted = names or list(DEFAULT)
    print(f"loading {', '.join(wanted)} …", file=sys.stderr, flush=True)
    hushed(verbose=verbose)
    return load(wanted, heads, device=device)


def _listen(app: Guard, limits: Limits, host: str, port: int, *, verbose: bool) -> None:
    """Serve until Ctrl-C; the address is printed when it can be opened."""
    from tokenlight.web.server import Server

    class Announcing(Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if not self.started:
                return
            bound = self.servers[0].sockets[0].getsockname()
            shown = f"[{host.strip('[]')}]" if ":" in host else host
            print(f"tokenlight serves http://{shown}:{bound[1]}", flush=True)
            print("Press Ctrl-C to stop.", file=sys.stderr, flush=True)

    level = "info" if verbose else "error"  # a crowd of broken requests must not fill a disk
    settings = {"log_level": level, "access_log": verbose, "host": host.strip("[]"), "port": port}
    server, refused = Announcing(app, limits, **settings), _Refused()
    logger = logging.getLogger("uvicorn.error")
    logger.addFilter(refused)
    try:
        server.run()
    except SystemExit:
        raise BadInput(
            f"cannot listen on --host {host} --port {port}{refused.why}. Give another --port, for "
            "example --port 0 for any free one."
        ) from None
    finally:
        logger.removeFilter(refused)
    print("stopped", file=sys.stderr, flush=True)
    if not app.ended:  # a thread inside a pass cannot be ended, and Python would abort around it
        sys.stdout.flush()
        os._exit(0)


class _Refused(logging.Filter):
    """Why the system let nobody listen: kept for our own message, not logged beside it."""

    why = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if not isinstance(record.msg, OSError):
            return True
        number = record.msg.errno or 0
        # asyncio repeats the address; an unknown name has a negative number and words of its own.
        said = os.strerror(number) if number > 0 else record.msg.strerror
        self.why = {
            errno.EADDRINUSE: ": another program may hold the port",
            errno.EACCES: ": ports below 1024 are for the administrator",
        }.get(number, f": {said}")
        return False
