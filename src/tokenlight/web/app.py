"""The application: each address, what it takes, and who answers."""

import asyncio
import mimetypes
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from tokenlight import registry
from tokenlight.errors import TokenlightError
from tokenlight.methods._method import FAMILIES
from tokenlight.version import VERSION
from tokenlight.web import downloads, options, requests, responses
from tokenlight.web.guard import Guard
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import AllowList
from tokenlight.web.preloaded import Shelf
from tokenlight.web.refusals import ERRORS, Refusal, caught, not_found
from tokenlight.web.service import Service
from tokenlight.web.uploads import opened, parsed

PAGE = Path(__file__).parent / "page"
SANDBOX = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox allow-downloads"
TOLD = (  # limits that a page needs to know
    "characters", "methods", "evaluated_methods", "texts", "metrics", "open_bytes", "random_orders",
)  # fmt: skip
JSON_BODY = {  # of POST /api/open, which is read by hand, with its own limits
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}

Also = Annotated[list[requests.Identity] | None, Query(max_length=12)]
mimetypes.add_type("text/javascript", ".js")  # whatever this machine calls it


def application(
    models: AllowList,
    shelf: Shelf | None = None,
    *,
    host: str = "127.0.0.1",
    limits: ServerLimits | None = None,
    trials: bool = True,
) -> Guard:
    """The ASGI application over these models. ``trials``: find out which methods work on which
    model, in the background."""
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
    app.state.service = service
    for kind in (Refusal, TokenlightError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _refuse)
    _listing(app, service)
    _asking(app, service)
    _files(app, service)
    _static(app)
    return Guard(app, host, limits, service.stop)


async def _refuse(_: Request, broken: Exception) -> Response:
    refused = caught(broken)
    return JSONResponse(refused.to_dict(), refused.status, refused.headers)


def _listing(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", responses=_object("alive", "status", "version", "models"))
    async def health() -> Response:
        return JSONResponse({"status": "ok", "version": VERSION, "models": len(service.models)})

    @app.get("/api/models", responses=_object("the served models", "models", "limits", "opened"))
    async def list_models() -> Response:
        """The models this server serves, and how much may be asked."""
        return JSONResponse(
            {
                "models": [one.facts() for one in service.models],
                "limits": {name: getattr(service.limits, name) for name in TOLD},
                "opened": {
                    "attributions": len(service.shelf.files),
                    "benchmarks": len(service.shelf.runs),
                },
            }
        )

    @app.get(
        "/api/methods", responses=_object("methods and metrics", "methods", "metrics", "groups")
    )
    async def list_methods() -> Response:
        """Methods and metrics with their options, and what works on which model."""
        heads = any(one.heads is not None for one in service.models)
        untried = {"works": None, "why": None, "ms": None}
        found = []
        for name in registry.usable("methods"):
            tried = {one.name: one.works.get(name, untried) for one in service.models}
            found.append({**options.method_facts(name, with_heads=heads), "models": tried})
        metrics = [options.metric_facts(name) for name in registry.usable("metrics")]
        return JSONResponse({"methods": found, "metrics": metrics, "groups": list(FAMILIES)})

    @app.get(
        "/api/heads/{model:path}",
        responses=_object(
            "the head map of a model", "model", "layers", "heads", "syntactic", "positional"
        ),
    )
    async def head_map(model: Annotated[str, InPath(max_length=200)]) -> Response:
        """Which attention heads of a model are syntactic or positional."""
        return JSONResponse(service.head_map(model))


def _asking(app: FastAPI, service: Service) -> None:
    @app.post(
        "/api/explain",
        responses=_object(
            "attributions with ids",
            *("model", "prediction", "attributions", "agreement", "untested", "refused", "seconds"),
        ),
    )
    async def explain(asked: requests.ExplainAsked) -> Response:
        """Score the tokens of a text by one method or several."""
        started = time.perf_counter()
        entries, made = await service.explain(asked)
        return await _built(lambda: responses.explanation(asked, entries, made, started))

    @app.post("/api/trust", responses=_object("verdict, grade and health", "id", "trust"))
    async def trust(asked: requests.TrustAsked) -> Response:
        """Remove the top words of an explanation, ask the model again, compare with chance."""
        return JSONResponse({"id": asked.id, "trust": await service.trust(asked.id)})

    @app.post("/api/perturb", responses=_object("curves of the game", "model", "labels", "games"))
    async def perturb(asked: requests.PerturbAsked) -> Response:
        """The hiding and revealing game, the whole curve at once."""
        return JSONResponse(await service.perturb(asked))

    @app.post(
        "/api/evaluate",
        responses=_object(
            "numbers with 95 % intervals",
            *("model", "methods", "curves", "agreement", "metrics", "rows", "refused", "table"),
        ),
    )
    async def evaluate(asked: requests.EvaluateAsked) -> Response:
        """Measure methods on a few texts."""
        return JSONResponse(await service.evaluate(asked))

    @app.post(
        "/api/attention",
        responses=_object(
            "the map of a head", "model", "layer", "head", "tokens", "special", "weights"
        ),
    )
    async def attention(asked: requests.AttentionAsked) -> Response:
        """What one attention head looks at in a text."""
        return JSONResponse(await service.attention(asked))


def _files(app: FastAPI, service: Service) -> None:
    turns = asyncio.Semaphore(service.limits.beside)  # each may take a hundred megabytes

    @app.get(
        "/api/attribution/{id}",
        responses=_kinds(
            "the file asked for", "application/json", "text/html", "image/svg+xml", "image/png"
        ),
    )
    async def attribution(
        id: requests.Identity,
        format: downloads.Format = "json",
        figure: downloads.Figure = "bars",
        also: Also = None,
        words: bool = False,
    ) -> Response:
        """One or several explanations as a file."""
        given = [service.kept.get(one).attribution for one in dict.fromkeys((id, *(also or ())))]
        async with turns:
            content = await asyncio.to_thread(downloads.download, given, format, figure, words)
        headers = {"content-disposition": f'attachment; filename="attribution.{format}"'}
        if format == "html":
            headers["content-security-policy"] = SANDBOX
        return Response(content, headers=headers, media_type=downloads.KINDS[format])

    @app.post(
        "/api/open",
        responses=_object("the attributions with ids", "attributions", "agreement", "served"),
        openapi_extra=JSON_BODY,
    )
    async def open_saved(request: Request) -> Response:
        """Open a saved attribution, or a list of them; no model is needed."""
        body = await request.body()
        async with turns:
            return await _built(lambda: service.shown(opened(parsed(body), service.limits)))

    @app.get(
        "/api/opened",
        responses=_object("what the server was started with", "attributions", "benchmarks"),
    )
    async def list_opened() -> Response:
        """What the server was started with: saved attributions and benchmark runs."""
        return await _built(service.shelved)

    @app.get("/api/opened/{name}/report", responses=_kinds("the report", "text/html"))
    async def report(name: Annotated[str, InPath(max_length=300)]) -> Response:
        """The report of a benchmark run."""
        run = service.shelf.runs.get(name)
        if run is None or run.report is None:
            raise not_found("there is no report of this name.")
        headers = {"content-security-policy": SANDBOX}
        return Response(run.report, headers=headers, media_type="text/html; charset=utf-8")


def _static(app: FastAPI) -> None:
    files = _PageFiles(directory=PAGE)
    app.mount("/page", files)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)


class _PageFiles(StaticFiles):
    """The page's own files, asked for anew each time, so that an edited page shows."""

    def file_response(self, *given: Any, **more: Any) -> Response:
        response = super().file_response(*given, **more)
        response.headers["cache-control"] = "no-cache"
        return response


async def _built(make: Callable[[], dict[str, Any]]) -> Response:
    """Long tables are written beside the loop that answers everybody."""
    return await asyncio.to_thread(lambda: JSONResponse(make()))


def _object(meaning: str, *required: str) -> dict[int | str, dict[str, Any]]:
    """The good answer of an address for the schema: an object with these fields at least."""
    schema = {"type": "object", "required": list(required)}
    return {200: {"description": meaning, "content": {"application/json": {"schema": schema}}}}


def _kinds(meaning: str, *kinds: str) -> dict[int | str, dict[str, Any]]:
    """The same where the answer is a file of one of these kinds."""
    return {200: {"description": meaning, "content": {kind: {} for kind in kinds}}}
