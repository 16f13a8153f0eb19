"""``tokenlight serve``: the page and its API, on this machine."""

import os
import socket
import sys

from tokenlight.cli import options as option
from tokenlight.cli.console import clean, hushed
from tokenlight.cli.options import flag
from tokenlight.errors import BadInput, MissingExtra

USUAL = "the embedded models; none with --open"


@clean
def serve(
    *,
    model: list[str] | None = flag(
        f"{option.A_MODEL} Repeatable.", "--model -m", show_default=USUAL
    ),
    host: str = flag("Where to listen; 0.0.0.0 lets other machines in.", default="127.0.0.1"),
    port: int = flag("Port; 0 takes a free one.", default=8000, min=0, max=65535, metavar="N"),
    heads: list[str] | None = flag("Heads file for a model; repeatable.", metavar="MODEL=FILE"),
    open: list[str] | None = flag(
        "Show saved attributions (.json file or folder) or a bench run; repeatable.", metavar="PATH"
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
    with _listening(host, port, BACKLOG) as listening:
        shelved, models = shelf(open or (), limits), AllowList([])
        if model or not open:
            wanted = model or list(DEFAULT)
            print(f"loading {', '.join(wanted)} …", file=sys.stderr, flush=True)
            hushed(verbose=verbose)
            models = load(wanted, maps, device=device, dtype=dtype, quantize=quantize)
        app = application(models, shelved, host=host, limits=limits)
        shown = f"[{host.strip('[]')}]" if ":" in host else host
        print(f"tokenlight serves http://{shown}:{listening.getsockname()[1]}", flush=True)
        print("Press Ctrl-C to stop.", file=sys.stderr, flush=True)
        level = "info" if verbose else "error"  # a crowd of broken requests must not fill a disk
        Server(app, limits, log_level=level, access_log=verbose).run([listening])
        print("stopped", file=sys.stderr, flush=True)
        if not app.ended:  # Python would abort around a thread inside a pass, which cannot be ended
            sys.stdout.flush()
            os._exit(0)


def _listening(host: str, port: int, backlog: int) -> socket.socket:
    """A socket at this address, before any model is loaded."""
    try:
        (family, *_, place), *_ = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM
        )
        return socket.create_server(place[:2], family=family, backlog=backlog)
    except (OSError, UnicodeError) as trouble:
        why = getattr(trouble, "strerror", None) or trouble
        ways = "127.0.0.1 for this machine alone, 0.0.0.0 for all its networks; --port 0 for a free one"
        said = f"cannot listen on --host {host!r} --port {port}: {why}. Give {ways}."
        raise BadInput(said) from None
