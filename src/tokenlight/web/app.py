"""The application: each address, and who answers it."""

import asyncio
import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from tokenlight.errors import TokenlightError
from tokenlight.version import VERSION
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import AllowList
from tokenlight.web.opened import Shelf
from tokenlight.web.refusals import ERRORS, Refusal, caught
from tokenlight.web.responses import KINDS
from tokenlight.web.server import Guard
from tokenlight.web.service import Service

PAGE = Path(__file__).parent / "page"
# By method of the service, whose docstring says what it answers: address, and the fields of the answer, or
# its kinds of file.
READ = {
    "health": ("/healthz", "status version models"),
    "list_models": ("/api/models", "models limits opened"),
    "list_methods": ("/api/methods", "methods metrics groups"),
    "head_map": ("/api/heads/{model:path}", "model layers heads syntactic positional"),
    "attribution": ("/api/attribution/{id}", KINDS.values()),
    "list_opened": ("/api/opened", "attributions benchmarks"),
    "report": ("/api/opened/{name}/report", ["text/html"]),
}
ASKED = {
    "explain": ("/api/explain", "model prediction attributions agreement untested refused seconds"),
    "trust": ("/api/trust", "id trust"),
    "perturb": ("/api/perturb", "model labels games"),
    "evaluate": ("/api/evaluate", "model methods curves agreement metrics rows refused table"),
    "attention": ("/api/attention", "model layer head tokens special weights"),
    "open_saved": ("/api/open", "attributions agreement served"),
}
# Of POST /api/open, which is read by hand, with its own limits.
OBJECT = {"application/json": {"schema": {"type": "object"}}}
JSON_BODY = {"requestBody": {"required": True, "content": OBJECT}}
mimetypes.add_type("text/javascript", ".js")  # whatever this machine calls it


def application(
    models: AllowList,
    shelf: Shelf | None = None,
    *,
    host: str = "127.0.0.1",
    limits: ServerLimits | None = None,
    trials: bool = True,
) -> Guard:
    """The ASGI application; ``trials``: find out, in the background, which methods work."""
    limits = limits or ServerLimits()
    service = Service(models, shelf or Shelf(), limits)
    service.warm()

    @asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        service.start(trials=trials)
        yield
        await asyncio.to_thread(service.stop)

    app = FastAPI(
        title="tokenlight",
        version=VERSION,
        summary="Which tokens made a Transformer decide, and can that be trusted?",
        openapi_url="/api/openapi.json",
        docs_url=None,  # they fetch their code from elsewhere
        redoc_url=None,
        lifespan=living,
        responses=ERRORS,
        redirect_slashes=False,
    )
    for kind in (Refusal, TokenlightError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _refuse)
    for verb, addresses in (("GET", READ), ("POST", ASKED)):
        for name, (address, answer) in addresses.items():
            handler = getattr(service, name)
            app.add_api_route(
                address,
                handler,
                methods=[verb],
                responses={200: {"description": handler.__doc__, "content": _content(answer)}},
                openapi_extra=JSON_BODY if name == "open_saved" else None,
            )
    files = StaticFiles(directory=PAGE)
    app.mount("/page", files)

    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    app.add_route("/", page)
    app.add_route("/favicon.ico", lambda _: Response(status_code=204))
    return Guard(app, host, limits, service.stop)


async def _refuse(_: Request, broken: Exception) -> Response:
    refused = caught(broken)
    return JSONResponse(refused.to_dict(), refused.status, refused.headers)


def _content(answer: Any) -> dict[str, Any]:
    """A good answer in the schema: an object with these fields at least, or a file of a kind."""
    if not isinstance(answer, str):
        return {kind.partition(";")[0]: {} for kind in answer}
    return {"application/json": {"schema": {"type": "object", "required": answer.split()}}}
