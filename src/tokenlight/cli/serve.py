"""``tokenlight serve``: the page and its API, on this machine."""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tokenlight.cli import options as option
from tokenlight.cli.console import clean
from tokenlight.cli.loading import hushed
from tokenlight.cli.options import flag
from tokenlight.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from tokenlight.web.guard import Guard
    from tokenlight.web.limits import ServerLimits


@clean
def serve(
    *,
    model: list[str] | None = flag(
        "Embedded model, folder or hub id to serve; repeat for several.",
        "--model -m",
        metavar="MODEL",
        show_default="the embedded models; none with --open",
    ),
    host: str = flag(
        "Address of this machine to listen on; 0.0.0.0 lets other machines in.", default="127.0.0.1"
    ),
    port: int = flag(
        "Port to listen on; 0 takes a free one.", default=8000, min=0, max=65535, metavar="N"
    ),
    heads: list[str] | None = flag(
        "Heads file for a model, from tokenlight heads; repeatable.", metavar="MODEL=FILE"
    ),
    open: list[str] | None = flag(
        "Show saved attributions (a .json file or a folder) or a run of tokenlight bench; "
        "repeatable.",
        metavar="PATH",
    ),
    device: str | None = option.DEVICE,
    dtype: str | None = option.DTYPE,
    quantize: option.Quantized | None = option.QUANTIZE,
    verbose: bool = flag("Log every request; show tracebacks.", "--verbose", False),
) -> None:
    """Serve a page that explains texts and compares methods.

    Open the address that it prints in a browser. Press Ctrl-C to stop it.
    """
    # Busy-waiting threads of one model would slow the others; torch reads this when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    maps = option.pairs("--heads", heads, bare=False)
    MissingExtra.check(["fastapi", "uvicorn"], "web", "tokenlight serve")
    from tokenlight.web.app import application
    from tokenlight.web.limits import ServerLimits
    from tokenlight.web.models import DEFAULT, AllowList, load
    from tokenlight.web.preloaded import shelf

    limits = ServerLimits()
    with ExitStack() as held:
        sockets = [held.enter_context(one) for one in _bound(host, port)]
        shelved = shelf(open or (), limits)
        how = {"device": device, "dtype": dtype, "quantize": quantize}
        models = AllowList([])
        if model or not open:
            wanted = model or list(DEFAULT)
            print(f"loading {', '.join(wanted)} …", file=sys.stderr, flush=True)
            hushed(verbose=verbose)
            models = load(wanted, maps, **how)
        app = application(models, shelved, host=host, limits=limits)
        _listen(app, limits, host, sockets, verbose=verbose)


def _bound(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of ``host``, all on one port; a client is refused until they listen."""
    bound: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host.strip("[]") or "", None, type=socket.SOCK_STREAM)
        for family, kind, number, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, number)
            bound.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address[0], port, *address[2:]))
            port = port or one.getsockname()[1]
    except (OSError, UnicodeError) as trouble:
        for one in bound:
            one.close()
        raise BadInput(_why(host, port, trouble)) from None
    return bound


def _why(host: str, port: int, trouble: Exception) -> str:
    number = getattr(trouble, "errno", None)
    of_port = {
        errno.EADDRINUSE: "another program may hold the port",
        errno.EACCES: "ports below 1024 are for the administrator",
    }
    if number in of_port:
        return (
            f"cannot listen on --host {host} --port {port}: {of_port[number]}. Give another --port, "
            "for example --port 0 for any free one."
        )
    if not host.strip("[] "):
        why = "it is empty"
    elif number == errno.EADDRNOTAVAIL:
        why = "it is not an address of this machine"
    else:
        why = "no machine of this name is known here"
    return (
        f"cannot listen on --host {host!r}: {why}. Give 127.0.0.1 for this machine alone, 0.0.0.0 "
        "for every network it is on, or one of its own addresses."
    )


def _listen(
    app: Guard, limits: ServerLimits, host: str, sockets: list[socket.socket], *, verbose: bool
) -> None:
    """Serve until Ctrl-C; the address is printed when it can be opened."""
    from tokenlight.web.server import BACKLOG, Server

    port = sockets[0].getsockname()[1]
    try:
        for one in sockets:
            one.listen(BACKLOG)  # who comes before the server has started waits a moment
    except OSError as trouble:  # another program was faster
        raise BadInput(_why(host, port, trouble)) from None
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    print(f"tokenlight serves http://{shown}:{port}", flush=True)
    print("Press Ctrl-C to stop.", file=sys.stderr, flush=True)
    level = "info" if verbose else "error"  # a crowd of broken requests must not fill a disk
    Server(app, limits, log_level=level, access_log=verbose).run(sockets)
    print("stopped", file=sys.stderr, flush=True)
    if not app.ended:  # a thread inside a pass cannot be ended, and Python would abort around it
        sys.stdout.flush()
        os._exit(0)
