"""The guard before every request: who asks, how much they send, and what the answer lets a page do."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from tokenlight.web.limits import ServerLimits
from tokenlight.web.refusals import Refusal, caught, closing

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "cache-control": "no-store",
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
        self._names = {"localhost", host.strip("[]").lower()}
        # Bound to every address: reached by number, or by this machine's own name. A name that
        # another site controls is neither.
        address = _address(host.strip("[]"))
        self._everywhere = address is not None and address.is_unspecified
        if self._everywhere:
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
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                message["headers"] = headers.raw
            await send(message)

        try:
            self._check(scope)
            body = await _body(receive, self._most(scope))
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

    def _most(self, scope: Scope) -> int:
        """How many bytes a request may have."""
        return self._limits.open_bytes if scope["path"] == OPEN else self._limits.body_bytes

    def _check(self, scope: Scope) -> None:
        headers, most = Headers(scope=scope), self._most(scope)
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
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > most:
            raise _too_large(most)

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server."""
        name = _without_port(host).lower()
        address = _address(name)
        reached = address is not None and (address.is_loopback or self._everywhere)
        return name in self._names or reached


async def _body(receive: Receive, most: int) -> bytes | None:
    """The whole body, refused where it grows too large; None where the asker went away."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > most:
            raise _too_large(most)
        if not message.get("more_body"):
            return bytes(body)


def _too_large(most: int) -> Refusal:
    return Refusal("too_large", f"the request is larger than {most:,} bytes.", "Send less.", 413)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
