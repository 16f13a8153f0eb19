"""The server itself: how many connections it holds, how long a request may take to arrive, its end."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tokenlight.web.guard import Guard
from tokenlight.web.limits import ServerLimits
from tokenlight.web.refusals import BUSY, Refusal

BACKLOG = 64  # connections that are taken up in one go, before any of them can be dismissed


class Server(uvicorn.Server):
    """Serves the application; ``settings`` as uvicorn.Config takes them. Before it waits for requests
    to end, those are told that the server closes."""

    def __init__(self, app: Guard, limits: ServerLimits, **settings: Any) -> None:
        self._app = app
        bounds = {
            "most": min(limits.connections, _files() // 2),
            "patience": limits.receive_seconds,
        }
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
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 1 << 20
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft > 0 else 1 << 20
