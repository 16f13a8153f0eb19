"""The server itself: who may ask, how much they send and what the answer lets a page do; how many
connections it holds, how long a request may take to arrive, its end."""

import asyncio
import json
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

from tokenlight.web.limits import ServerLimits
from tokenlight.web.refusals import BUSY, Refusal, caught, closing

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
OPEN = "/api/open"


class Guard:
    """An ASGI layer. A page of another site can neither ask (Origin, JSON only) nor, by a name that
    it points at this machine, pretend to be this one (Host). ``stop`` ends the service behind it."""

    def __init__(self, app: Any, host: str, limits: ServerLimits, stop: Callable[[], bool]) -> None:
        self._app, self._limits, self._stop = app, limits, stop
        self.ended = False  # whether nothing is at work any more
        self._names, self._everywhere = {"localhost", host.strip("[]").lower()}, False
        with suppress(ValueError):  # a name
            self._everywhere = ip_address(host.strip("[]")).is_unspecified
        if self._everywhere:
            # Bound to every address: reached by number, or by this machine's own name. A name that
            # another site controls is neither.
            self._names.add(socket.gethostname().lower())

    def close(self) -> None:
        """Tell everybody who waits that the server closes."""
        self.ended = self._stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def sealed(message: Message) -> None:
            """With the headers, unless an answer brings a stricter one of the same name."""
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                # An edited page shows; an answer is nobody's to keep.
                kept = "no-store" if scope["path"].startswith("/api/") else "no-cache"
                for name, value in {**HEADERS, "cache-control": kept}.items():
                    headers.setdefault(name, value)
                message["headers"] = headers.raw
            await send(message)

        try:
            self._check(scope)
            opens = scope["path"] == OPEN
            most = self._limits.open_bytes if opens else self._limits.body_bytes
            body = await _body(receive, most)
            if body is not None:
                await self._answered(scope, body, receive, sealed, lambda: begun)
            return
        except asyncio.CancelledError:  # the server does not wait any longer
            refused = closing()
        except Exception as broken:  # noqa: BLE001 - whatever it is, the asker gets an answer
            refused = caught(broken)
        if not begun:
            bare = {**refused.headers, "connection": "close"}
            await JSONResponse(refused.to_dict(), refused.status, bare)(scope, receive, sealed)

    async def _answered(
        self, scope: Scope, body: bytes, receive: Receive, send: Send, begun: Callable[[], bool]
    ) -> None:
        """The application's answer, unless who asked goes away before it is begun: then it is given up."""
        gone = asyncio.ensure_future(receive())
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def once() -> Message:
            return given.pop() if given else await asyncio.shield(gone)

        answer = asyncio.create_task(self._app(scope, once, send))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not begun():
                answer.cancel()
            with suppress(asyncio.CancelledError):
                await answer
        finally:
            for task in (answer, gone):
                task.cancel()

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin", "").lower()
        if not self.knows(host):
            said = "this server does not go by the name in the Host header."
            raise Refusal("forbidden", said, "Open the address that tokenlight serve printed.", 403)
        asks = scope["method"] not in ("GET", "HEAD")
        if asks and origin and origin not in (f"http://{host}".lower(), f"https://{host}".lower()):
            raise Refusal("forbidden", "pages of other sites cannot ask this server.", status=403)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            hint = "Send the header Content-Type: application/json."
            raise Refusal("unsupported_media_type", "the body must be JSON.", hint, 415)

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server."""
        with suppress(ValueError):  # neither a name of this server nor an address
            parts = urlsplit(f"//{host}")
            name = "" if parts.path or "@" in host else parts.hostname or ""
            return name in self._names or ip_address(name).is_loopback or self._everywhere
        return False


async def _body(receive: Receive, most: int) -> bytes | None:
    """The whole body, refused where it grows too large; None where the asker went away."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > most:
            said = f"the request is larger than {most:,} bytes."
            raise Refusal("too_large", said, "Send less.", 413)
        if not message.get("more_body"):
            return bytes(body)


BACKLOG = 64  # connections that are taken up in one go, before any of them can be dismissed


class Server(uvicorn.Server):
    """Serves the application; ``settings`` as uvicorn.Config takes them. Before it waits for requests
    to end, those are told that the server closes."""

    def __init__(self, app: Guard, limits: ServerLimits, **settings: Any) -> None:
        self._app = app
        most = min(limits.connections, _files() // 2)
        bounds = {"most": most, "patience": limits.receive_seconds}
        super().__init__(
            uvicorn.Config(
                app,
                http=type("Connection", (_Connection,), bounds),
                ws="none",
                backlog=BACKLOG,
                server_header=False,
                timeout_graceful_shutdown=max(1, round(limits.stop_seconds)),
                # Longer than any answer takes: no client shall find its connection closed under it.
                timeout_keep_alive=120,
                **settings,
            )
        )

    async def shutdown(self, sockets: Any = None) -> None:
        """Told first, waited for then."""
        await asyncio.to_thread(self._app.close)
        await super().shutdown(sockets)
        if self.force_exit:  # by a second Ctrl-C, which need not leave a traceback behind
            await self.lifespan.shutdown()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal ends the server and is then forgotten: raised once more, as uvicorn does, it would
        kill a process that has done all it had to."""
        with super().capture_signals():
            try:
                yield
            finally:
                self._captured_signals.clear()


LINGER = 1.0  # seconds in which a refused connection may still send its request


class _Connection(H11Protocol):
    """A connection that must send each request within ``patience`` seconds. Where ``most`` are open,
    the one that was idle longest makes room; where all are at work, the new one is refused."""

    most: int
    patience: float
    since = 0.0  # when it became idle
    _late: asyncio.TimerHandle | None = None
    _refused = False  # answered before its request was read

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.since = self.loop.time()
        self._expect()
        if len(self.connections) > self.most:
            others = self.connections - {self}
            idle = [one for one in others if one.idle and not one._refused]  # type: ignore[union-attr]
            if idle:
                min(idle, key=lambda one: one.since).transport.close()  # type: ignore[union-attr]
            else:
                self._dismiss(BUSY, "busy", "too many connections are open.", unread=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self.transport.close()
            return
        if self._late is None and self.idle:
            self._expect()
        super().data_received(data)
        if not self.idle and self.conn.their_state is not h11.SEND_BODY:
            self._arrived()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def shutdown(self) -> None:
        if self._late is not None:  # what has not arrived by now is not waited for
            self.transport.close()
        else:
            super().shutdown()

    @property
    def idle(self) -> bool:
        """Whether no request is at work."""
        return self.cycle is None or self.cycle.response_complete

    def _expect(self) -> None:
        said = f"the request did not arrive within {self.patience:g} seconds."
        self._late = self.loop.call_later(self.patience, self._dismiss, 408, "timeout", said)

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _dismiss(self, status: int, code: str, message: str, *, unread: bool = False) -> None:
        body = json.dumps(Refusal(code, message, "Try again.", status).to_dict())
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
        )
        self.transport.write((head + body).encode("ascii"))
        self._refused = unread and len(self.connections) <= self.most + BACKLOG // 2
        if not self._refused:
            self.transport.close()
            return
        # Closed with its request unread, a connection is reset and the answer may be lost on the way.
        self._arrived()
        self._late = self.loop.call_later(LINGER, self.transport.close)


def _files() -> int:
    """How many files and connections this process may have open."""
    soft = 0
    with suppress(ImportError):  # Windows has no such limit
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft > 0 else 1 << 20
