"""The web application: which method of the service answers which address."""

import asyncio
import mimetypes
from collections.abc import AsyncIterator, Iterable
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
from tokenlight.web.api_errors import ERROR_RESPONSES, ApiError, to_api_error
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import AllowList
from tokenlight.web.responses import MEDIA_TYPES
from tokenlight.web.saved_files import OpenedFiles
from tokenlight.web.server import RequestGuard
from tokenlight.web.service import Service

PAGE_FOLDER = Path(__file__).parent / "page"
# Method of the service → address, and the fields of the JSON response or the media types of a file. The
# docstring of the method describes the response in the schema.
GET_ROUTES: dict[str, tuple[str, str | Iterable[str]]] = {
    "get_health": ("/healthz", "status version models"),
    "list_models": ("/api/models", "models limits opened"),
    "list_methods": ("/api/methods", "methods metrics groups"),
    "get_head_map": ("/api/heads/{model:path}", "model layers heads syntactic positional"),
    "download_attribution": ("/api/attribution/{id}", MEDIA_TYPES.values()),
    "list_opened": ("/api/opened", "attributions benchmarks"),
    "get_text_report": ("/api/texts/{id}/{name}", ["text/html"]),
    "get_opened_report": ("/api/opened/{name}/report", ["text/html"]),
}
POST_ROUTES: dict[str, tuple[str, str | Iterable[str]]] = {
    "explain": ("/api/explain", "model prediction attributions agreement untested refused seconds"),
    "explain_texts": ("/api/texts", "address texts explained"),
    "assess_trust": ("/api/trust", "id trust"),
    "compute_game": ("/api/perturb", "model labels games"),
    "evaluate": ("/api/evaluate", "model methods curves agreement metrics rows refused table"),
    "get_attention_map": ("/api/attention", "model layer head tokens special weights"),
    "open_saved": ("/api/open", "attributions agreement served"),
}
# POST /api/open reads its body itself, within its own limits, so the schema has to be told about it.
JSON_OBJECT_CONTENT = {"application/json": {"schema": {"type": "object"}}}
OPEN_REQUEST_BODY = {"requestBody": {"required": True, "content": JSON_OBJECT_CONTENT}}
mimetypes.add_type("text/javascript", ".js")  # some systems register another type


def create_app(
    models: AllowList,
    opened_files: OpenedFiles | None = None,
    *,
    host: str = "127.0.0.1",
    limits: ServerLimits | None = None,
    try_methods: bool = True,
) -> RequestGuard:
    """Build the ASGI application.

    Args:
        models: The models to serve.
        opened_files: Saved explanations and benchmark runs to show.
        host: Address that the server listens on; requests with another Host header are refused.
        limits: How much a request may ask for.
        try_methods: Whether to find out in the background which methods work on which model.
    """
    limits = limits or ServerLimits()
    service = Service(models, opened_files or OpenedFiles(), limits)
    service.warm_up()

    @asynccontextmanager
    async def run_service(_: FastAPI) -> AsyncIterator[None]:
        service.start(try_methods=try_methods)
        yield
        await asyncio.to_thread(service.stop)

    app = FastAPI(
        title="tokenlight",
        version=VERSION,
        summary="Which tokens made a Transformer decide, and can that be trusted?",
        openapi_url="/api/openapi.json",
        # The interactive documentation loads scripts from other sites.
        docs_url=None,
        redoc_url=None,
        lifespan=run_service,
        responses=ERROR_RESPONSES,
        redirect_slashes=False,
    )
    error_classes = (ApiError, TokenlightError, RequestValidationError, HTTPException, Exception)
    for error_class in error_classes:
        app.add_exception_handler(error_class, _handle_error)
    _add_routes(app, service, "GET", GET_ROUTES)
    _add_routes(app, service, "POST", POST_ROUTES)
    _add_page(app)
    reads_pictures = any(served_model.reads_pictures for served_model in models.values())
    return RequestGuard(app, host, limits, service.stop, reads_pictures=reads_pictures)


def _add_routes(
    app: FastAPI,
    service: Service,
    http_method: str,
    routes: dict[str, tuple[str, str | Iterable[str]]],
) -> None:
    """Connect addresses to methods of the service."""
    for name, (address, content) in routes.items():
        handler = getattr(service, name)
        description = {"description": handler.__doc__, "content": _describe_content(content)}
        app.add_api_route(
            address,
            handler,
            methods=[http_method],
            responses={200: description},
            openapi_extra=OPEN_REQUEST_BODY if name == "open_saved" else None,
        )


def _add_page(app: FastAPI) -> None:
    """Serve the files of the page."""
    files = StaticFiles(directory=PAGE_FOLDER)
    app.mount("/page", files)

    async def serve_page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    app.add_route("/", serve_page)
    app.add_route("/favicon.ico", lambda _: Response(status_code=204))


async def _handle_error(_: Request, error: Exception) -> Response:
    api_error = to_api_error(error)
    return JSONResponse(api_error.to_dict(), api_error.status, api_error.headers)


def _describe_content(content: str | Iterable[str]) -> dict[str, Any]:
    """Describe a response in the schema.

    Args:
        content: Names of the fields that a JSON object has at least, or media types of a file.
    """
    if isinstance(content, str):
        schema = {"type": "object", "required": content.split()}
        return {"application/json": {"schema": schema}}
    return {media_type.partition(";")[0]: {} for media_type in content}
