"""The guard before every request: who asks, how much they send, and what the answer lets a page do."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tokenlight.web.limits import Limits
from tokenlight.web.refusals import Refusal
from tokenlight.web.worker import caught

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

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
    it points at this machine, pretend to be this one (Host)."""

    def __init__(self, app: Any, host: str, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._names = {"localhost", host.strip("[]").lower()}
        # Bound to every address: reached by number, or by this machine's own name. A name that
        # another site controls is neither.
        self._everywhere = _is_unspecified(host)
        if self._everywhere:
            self._names.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sender = _sealed(send)
        try:
            self._check(scope)
        except Refusal as refused:
            await _refuse(refused, sender)
            return
        most = self._limits.open_bytes if scope["path"] == OPEN else self._limits.body_bytes
        counted = _Counted(receive, sender, most)
        try:
            await self._app(scope, counted.receive, counted.send)
        except Exception as broken:  # noqa: BLE001 - whatever it is, the asker gets an answer
            if not counted.answered:  # else it was logged where it was answered
                await _refuse(caught(broken), sender)

    def _check(self, scope: Scope) -> None:
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        host = headers.get("host", b"").decode("latin-1")
        if not self.knows(host):
            raise Refusal(
                403,
                "forbidden",
                "this server does not go by the name in the Host header.",
                "Open the address that tokenlight serve printed.",
            )
        origin = headers.get("origin", b"").decode("latin-1")
        if origin and scope["method"] not in ("GET", "HEAD"):
            own = {f"{scheme}://{host}".lower() for scheme in ("http", "https")}
            if origin.lower() not in own:
                raise Refusal(403, "forbidden", "pages of other sites cannot ask this server.")
        if scope["method"] == "POST":
            kind = headers.get("content-type", b"").decode("latin-1")
            if kind.partition(";")[0].strip().lower() != "application/json":
                raise Refusal(
                    415,
                    "unsupported_media_type",
                    "the body must be JSON.",
                    "Send the header Content-Type: application/json.",
                )
        most = self._limits.open_bytes if scope["path"] == OPEN else self._limits.body_bytes
        length = headers.get("content-length", b"0")
        if length.isdigit() and int(length) > most:
            raise _too_large(most)

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server."""
        name = _without_port(host).lower()
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._everywhere


class _Counted:
    """A body that is cut off, with a 413, where it grows too large."""

    def __init__(self, receive: Receive, send: Send, most: int) -> None:
        self._receive, self._send, self._most = receive, send, most
        self._seen, self._refused = 0, False
        self.answered = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            if self._seen > self._most and not self._refused:
                self._refused = self.answered = True
                await _refuse(_too_large(self._most), self._send)
            if self._refused:
                return {"type": "http.request", "body": b"", "more_body": False}
        return message

    async def send(self, message: Message) -> None:
        if not self._refused:  # else the answer has been given
            self.answered = True
            await self._send(message)


def _too_large(most: int) -> Refusal:
    return Refusal(413, "too_large", f"the request is larger than {most:,} bytes.", "Send less.")


def _sealed(send: Send) -> Send:
    """Every answer carries the headers, unless it brings a stricter one of the same name."""

    async def sealed(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message.get("headers", ())}
            added = [
                (name.encode("latin-1"), value.encode("latin-1"))
                for name, value in HEADERS.items()
                if name.encode("latin-1") not in there
            ]
            message["headers"] = [*message.get("headers", ()), *added]
        await send(message)

    return sealed


async def _refuse(refused: Refusal, send: Send) -> None:
    body = json.dumps(refused.to_dict()).encode("utf-8")
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode("ascii")),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False
