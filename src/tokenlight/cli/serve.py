"""``tokenlight serve``: serve the web page and its API on this machine."""

import os
import socket
import sys

from tokenlight.cli import options as option
from tokenlight.cli.console import handle_errors, silence_libraries
from tokenlight.cli.options import declare_option
from tokenlight.errors import BadInput, MissingExtra

DEFAULT_MODELS_HELP = "the embedded models; none with --open"


@handle_errors
def serve(
    *,
    model: list[str] | None = declare_option(
        f"{option.MODEL_HELP}; repeatable.", "--model -m", show_default=DEFAULT_MODELS_HELP
    ),
    host: str = declare_option(
        "Address to listen on; 0.0.0.0 accepts other machines.", default="127.0.0.1"
    ),
    port: int = declare_option(
        "Port; 0 takes a free one.", default=8000, min=0, max=65535, metavar="N"
    ),
    heads: list[str] | None = declare_option(
        "Heads file for a model; repeatable.", metavar="MODEL=FILE"
    ),
    open: list[str] | None = declare_option(
        "Show saved explanations (.json file or folder) or a bench run; repeatable.", metavar="PATH"
    ),
    device: str | None = option.DEVICE,
    dtype: str | None = option.DTYPE,
    quantize: option.Quantization | None = option.QUANTIZE,
    verbose: bool = declare_option("Log every request; show tracebacks.", "--verbose", False),
) -> None:
    """Serve a page that explains texts and compares methods.

    Open the address that it prints in a browser. Press Ctrl-C to stop it.
    """
    heads_files = option.parse_pairs("--heads", heads, allow_bare=False)
    MissingExtra.check_installed(["fastapi", "uvicorn"], "web", "tokenlight serve")
    from tokenlight.web.app import create_app
    from tokenlight.web.limits import ServerLimits
    from tokenlight.web.models import DEFAULT_MODELS, AllowList, load_models
    from tokenlight.web.saved_files import open_paths
    from tokenlight.web.server import BACKLOG, Server

    # The address is reserved first: loading models takes long, and a port may be in use.
    limits = ServerLimits()
    with _open_socket(host, port, BACKLOG) as listening_socket:
        saved_files = open_paths(open or (), limits)
        models = AllowList([])
        if model or not open:
            model_names = model or list(DEFAULT_MODELS)
            print(f"loading {', '.join(model_names)} …", file=sys.stderr, flush=True)
            silence_libraries(verbose=verbose)
            models = load_models(
                model_names, heads_files, device=device, dtype=dtype, quantize=quantize
            )
        app = create_app(models, saved_files, host=host, limits=limits)
        actual_port = listening_socket.getsockname()[1]
        print(f"tokenlight serves http://{_format_host(host)}:{actual_port}", flush=True)
        print("Press Ctrl-C to stop.", file=sys.stderr, flush=True)
        # Many broken requests must not fill a disk with log lines.
        log_level = "info" if verbose else "error"
        Server(app, limits, log_level=log_level, access_log=verbose).run([listening_socket])
        print("stopped", file=sys.stderr, flush=True)
        if not app.is_stopped:
            # A thread is still inside a forward pass, which cannot be ended; Python would abort around it.
            sys.stdout.flush()
            os._exit(0)


def _format_host(host: str) -> str:
    """Put an IPv6 address in brackets, as URLs need it."""
    is_ipv6 = ":" in host
    return f"[{host.strip('[]')}]" if is_ipv6 else host


def _open_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Open the listening socket before any model is loaded, so that a bad address costs no time.

    Raises:
        BadInput: The address cannot be listened on.
    """
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        family, _, _, _, address = addresses[0]
        return socket.create_server(address[:2], family=family, backlog=backlog)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(
            f"Cannot listen on --host {host!r} --port {port}: {reason}. Give --host 127.0.0.1 for this "
            "machine only or 0.0.0.0 for all its networks, and --port 0 for a free port.",
            code="address-not-available",
        ) from None
