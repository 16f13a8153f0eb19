"""The HTTP server: who may ask, how much they may send, and how connections are limited and closed."""

import asyncio
import json
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import h11
import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tokenlight.web.api_errors import (
    TOO_MANY_REQUESTS,
    ApiError,
    make_shutting_down_error,
    to_api_error,
)
from tokenlight.web.limits import ServerLimits

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
OPEN_PATH = "/api/open"
REQUEST_TIMEOUT_STATUS = 408
BACKLOG = 64  # connections accepted in one go, before any of them can be refused
LINGER_SECONDS = 1.0  # time that a refused connection has to finish sending its request
# Longer than any response takes, so that no client finds its connection closed under it.
KEEP_ALIVE_SECONDS = 120
UNLIMITED_FILES = 1 << 20


class RequestGuard:
    """An ASGI layer that checks requests before the application sees them.

    A page of another site can neither send requests (Origin, and JSON only) nor pretend to be this site
    through a domain name that points at this machine (Host).

    Args:
        app: The ASGI application.
        host: Address that the server listens on.
        limits: How large a body may be.
        stop: Ends the service behind the application; returns whether its work has ended.
        reads_pictures: Whether a body may hold a picture.
    """

    def __init__(
        self,
        app: Any,
        host: str,
        limits: ServerLimits,
        stop: Callable[[], bool],
        *,
        reads_pictures: bool = False,
    ) -> None:
        self._app = app
        self._max_body_bytes = limits.body_bytes
        if reads_pictures:
            # Base64 writes three bytes as four characters.
            self._max_body_bytes += math.ceil(limits.picture_bytes / 3) * 4
        self._max_opened_bytes = limits.open_bytes
        self._stop = stop
        self.is_stopped = False  # whether all work of the service has ended
        host = host.strip("[]").lower()
        self._host_names = {"localhost", host}
        self._is_bound_to_all = False
        with suppress(ValueError):  # a host name, not an address
            self._is_bound_to_all = ip_address(host).is_unspecified
        if self._is_bound_to_all:
            # Clients reach it by any address of this machine or by its name, but not by a domain name
            # that another site controls.
            self._host_names.add(socket.gethostname().lower())

    def close(self) -> None:
        """Stop the service; requests that wait get an error."""
        self.is_stopped = self._stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _GuardedResponse(scope["path"], send)
        try:
            self._check_headers(scope)
            max_bytes = self._max_body_bytes
            if scope["path"] == OPEN_PATH:
                max_bytes = self._max_opened_bytes
            body = await _read_body(receive, max_bytes)
            if body is not None:
                await self._call_app(scope, body, receive, response)
            return
        except asyncio.CancelledError:  # the server does not wait any longer
            error = make_shutting_down_error()
        except Exception as exception:  # noqa: BLE001 - every client gets a response
            error = to_api_error(exception)
        if not response.is_started:
            headers = {**error.headers, "connection": "close"}
            error_response = JSONResponse(error.to_dict(), error.status, headers)
            await error_response(scope, receive, response.send)

    async def _call_app(
        self, scope: Scope, body: bytes, receive: Receive, response: "_GuardedResponse"
    ) -> None:
        """Run the application; cancel it if the client disconnects before the response starts."""
        disconnect = asyncio.ensure_future(receive())
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            if messages:
                return messages.pop()
            return await asyncio.shield(disconnect)

        app_task = asyncio.create_task(self._app(scope, receive_body, response.send))
        try:
            await asyncio.wait({app_task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if disconnect.done() and not response.is_started:
                app_task.cancel()
            with suppress(asyncio.CancelledError):
                await app_task
        finally:
            app_task.cancel()
            disconnect.cancel()

    def _check_headers(self, scope: Scope) -> None:
        """Refuse requests from other sites, for other hosts, and with bodies that are not JSON."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self.accepts_host(host):
            raise ApiError(
                "The Host header does not name this server.",
                code="forbidden",
                hint="Open the address that tokenlight serve printed.",
                status=403,
            )
        method = scope["method"]
        origin = headers.get("origin", "").lower()
        allowed_origins = ("", f"http://{host}".lower(), f"https://{host}".lower())
        if method not in ("GET", "HEAD") and origin not in allowed_origins:
            raise ApiError(
                "Pages of other sites cannot send requests to this server.",
                code="forbidden",
                status=403,
            )
        # A form of another site can send other media types without asking first.
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and media_type != "application/json":
            raise ApiError(
                "The body must be JSON.",
                code="unsupported_media_type",
                hint="Send the header Content-Type: application/json.",
                status=415,
            )

    def accepts_host(self, host: str) -> bool:
        """Return whether a Host header names this server."""
        try:
            parts = urlsplit(f"//{host}")
            name = parts.hostname or ""
            if parts.path or "@" in host:
                name = ""
            if name in self._host_names:
                return True
            # An address, not a name: this machine's own, or any if the server listens on all.
            return ip_address(name).is_loopback or self._is_bound_to_all
        except ValueError:  # neither a name of this server nor an address
            return False


class _GuardedResponse:
    """Sends a response, adds the security headers, and remembers whether it has started."""

    def __init__(self, path: str, send: Send) -> None:
        self._path = path
        self._send = send
        self.is_started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_started = True
            headers = MutableHeaders(raw=list(message.get("headers", ())))
            # The page may be edited, so browsers check it each time; API responses are never cached.
            cache_control = "no-store" if self._path.startswith("/api/") else "no-cache"
            for name, value in {**SECURITY_HEADERS, "cache-control": cache_control}.items():
                headers.setdefault(name, value)  # a response may bring a stricter one
            message["headers"] = headers.raw
        await self._send(message)


async def _read_body(receive: Receive, max_bytes: int) -> bytes | None:
    """Return the whole body; None if the client disconnected.

    Raises:
        ApiError: The body is larger than ``max_bytes``.
    """
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise ApiError(
                f"The body of the request is larger than {max_bytes:,} bytes.",
                code="too_large",
                hint="Send less.",
                status=413,
            )
        if not message.get("more_body"):
            return bytes(body)


class Server(uvicorn.Server):
    """Serves the application. At shutdown it tells waiting requests before it waits for them to end.

    Args:
        app: The application.
        limits: Limits of connections and times.
        **settings: Keywords of ``uvicorn.Config``.
    """

    def __init__(self, app: RequestGuard, limits: ServerLimits, **settings: Any) -> None:
        self._app = app
        # uvicorn creates the connections itself, so their limits are attributes of a class.
        connection_limits = {
            "max_connections": min(limits.connections, _max_open_files() // 2),
            "request_timeout": limits.receive_seconds,
        }
        super().__init__(
            uvicorn.Config(
                app,
                http=type("Connection", (_Connection,), connection_limits),
                ws="none",
                backlog=BACKLOG,
                server_header=False,
                timeout_graceful_shutdown=max(1, round(limits.stop_seconds)),
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                **settings,
            )
        )

    async def shutdown(self, sockets: Any = None) -> None:
        """Stop the service, then the server."""
        await asyncio.to_thread(self._app.close)
        await super().shutdown(sockets)
        if self.force_exit:
            # After a second Ctrl-C uvicorn skips this, and asyncio would print a traceback.
            await self.lifespan.shutdown()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End the server on a signal, without raising the signal again as uvicorn does.

        Raised again, it would kill a process that has ended in order.
        """
        with super().capture_signals():
            try:
                yield
            finally:
                self._captured_signals.clear()


class _Connection(H11Protocol):
    """A connection with limits.

    Each request must arrive within ``request_timeout`` seconds. When ``max_connections`` are open, the one
    that was idle longest is closed for a new one; when all are busy, the new one is refused.
    """

    max_connections: int
    request_timeout: float
    idle_since = 0.0  # when it became idle
    _timeout_handle: asyncio.TimerHandle | None = None
    _is_refused = False  # it got its response before its request was read

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self._start_timeout()
        if len(self.connections) > self.max_connections:
            self._make_room()

    def _make_room(self) -> None:
        """Close the connection that was idle longest; if none is idle, refuse this one."""
        idle_connections: list[_Connection] = []
        for connection in self.connections:
            assert isinstance(connection, _Connection)
            if connection is not self and connection.is_idle and not connection._is_refused:
                idle_connections.append(connection)
        if idle_connections:
            min(idle_connections, key=lambda connection: connection.idle_since).transport.close()
        else:
            self._send_error_and_close(
                TOO_MANY_REQUESTS, "busy", "Too many connections are open.", is_unread=True
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timeout()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self.transport.close()
            return
        if self._timeout_handle is None and self.is_idle:  # the next request begins
            self._start_timeout()
        super().data_received(data)
        has_arrived = self.conn.their_state is not h11.SEND_BODY
        if has_arrived and not self.is_idle:
            self._cancel_timeout()

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def shutdown(self) -> None:
        if self._timeout_handle is not None:  # a request that has not arrived is not waited for
            self.transport.close()
        else:
            super().shutdown()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _start_timeout(self) -> None:
        message = f"The request did not arrive within {self.request_timeout:g} seconds."
        self._timeout_handle = self.loop.call_later(
            self.request_timeout,
            self._send_error_and_close,
            REQUEST_TIMEOUT_STATUS,
            "timeout",
            message,
        )

    def _cancel_timeout(self) -> None:
        if self._timeout_handle is not None:
            self._timeout_handle.cancel()
            self._timeout_handle = None

    def _send_error_and_close(
        self, status: int, code: str, message: str, *, is_unread: bool = False
    ) -> None:
        """Send an error without the application.

        Args:
            status: HTTP status.
            code: Code of the error.
            message: Its message.
            is_unread: Whether the client may still be sending its request.
        """
        error = ApiError(message, code=code, hint="Try again.", status=status)
        body = json.dumps(error.to_dict())
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
        )
        self.transport.write((head + body).encode("ascii"))
        # Closing a connection with unread data resets it, and the response may be lost on the way. So it
        # stays open for a moment, unless too many do already.
        max_lingering = self.max_connections + BACKLOG // 2
        self._is_refused = is_unread and len(self.connections) <= max_lingering
        if not self._is_refused:
            self.transport.close()
            return
        self._cancel_timeout()
        self._timeout_handle = self.loop.call_later(LINGER_SECONDS, self.transport.close)


def _max_open_files() -> int:
    """Return how many files and connections this process may have open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return UNLIMITED_FILES
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit <= 0:
        return UNLIMITED_FILES
    return soft_limit
