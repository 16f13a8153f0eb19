"""``tokenlight serve``: the page and its API, on this machine."""

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tokenlight.cli import options as option
from tokenlight.cli.console import clean
from tokenlight.cli.loading import hushed
from tokenlight.cli.options import flag
from tokenlight.errors import BadInput, MissingExtra

OF_PORT: dict[int | None, str] = {
    errno.EADDRINUSE: "another program may hold the port",
    errno.EACCES: "ports below 1024 are for the administrator",
}
OF_HOST: dict[int | None, str] = {errno.EADDRNOTAVAIL: "it is not an address of this machine"}


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
    from tokenlight.web.opened import shelf
    from tokenlight.web.server import BACKLOG, Server

    limits = ServerLimits()
    with ExitStack() as held:
        with _named(host, port):
            sockets = [held.enter_context(one) for one in _bound(host, port)]
        shelved, models = shelf(open or (), limits), AllowList([])
        if model or not open:
            wanted = model or list(DEFAULT)
            print(f"loading {', '.join(wanted)} …", file=sys.stderr, flush=True)
            hushed(verbose=verbose)
            models = load(wanted, maps, device=device, dtype=dtype, quantize=quantize)
        app = application(models, shelved, host=host, limits=limits)
        port = sockets[0].getsockname()[1]
        with _named(host, port):  # another program may have been faster
            for one in sockets:
                one.listen(BACKLOG)  # who comes before the server has started waits a moment
        shown = f"[{host.strip('[]')}]" if ":" in host else host
        print(f"tokenlight serves http://{shown}:{port}", flush=True)
        print("Press Ctrl-C to stop.", file=sys.stderr, flush=True)
        level = "info" if verbose else "error"  # a crowd of broken requests must not fill a disk
        Server(app, limits, log_level=level, access_log=verbose).run(sockets)
        print("stopped", file=sys.stderr, flush=True)
        if (
            not app.ended
        ):  # a thread inside a pass cannot be ended, and Python would abort around it
            sys.stdout.flush()
            os._exit(0)


def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket for each address of ``host``, all on one port; a client is refused until they listen."""
    found = socket.getaddrinfo(host.strip("[]") or "", None, type=socket.SOCK_STREAM)
    for family, kind, number, _, address in dict.fromkeys(found):
        one = socket.socket(family, kind, number)
        yield one  # before anything can go wrong: who takes it closes it
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind((address[0], port, *address[2:]))
        port = port or one.getsockname()[1]


@contextmanager
def _named(host: str, port: int) -> Iterator[None]:
    """What is wrong with an address is refused in words."""
    try:
        yield
    except (OSError, UnicodeError) as trouble:
        number = getattr(trouble, "errno", None)
        if number in OF_PORT:
            raise BadInput(
                f"cannot listen on --host {host} --port {port}: {OF_PORT[number]}. Give another --port, "
                "for example --port 0 for any free one."
            ) from None
        unknown = "no machine of this name is known here" if host.strip("[] ") else "it is empty"
        why = OF_HOST.get(number, unknown)
        raise BadInput(
            f"cannot listen on --host {host!r}: {why}. Give 127.0.0.1 for this machine alone, 0.0.0.0 "
            "for every network it is on, or one of its own addresses."
        ) from None
