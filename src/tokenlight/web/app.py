"""The application: each address, what it takes, and who answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from tokenlight import registry
from tokenlight.errors import TokenlightError
from tokenlight.version import VERSION
from tokenlight.web import downloads, options, pages, responses
from tokenlight.web.guard import Guard
from tokenlight.web.limits import Limits
from tokenlight.web.models import AllowList
from tokenlight.web.preloaded import Shelf
from tokenlight.web.refusals import Refusal, invalid, not_found, refusal
from tokenlight.web.requests import (
    AttentionAsked,
    EvaluateAsked,
    ExplainAsked,
    Identity,
    PerturbAsked,
    TrustAsked,
)
from tokenlight.web.schema import ERRORS, answers
from tokenlight.web.service import Service
from tokenlight.web.uploads import opened, parsed
from tokenlight.web.worker import caught

SANDBOX = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox allow-downloads"
CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
}
TOLD = (  # limits that a page needs to know
    "characters", "methods", "evaluated_methods", "texts", "metrics", "open_bytes", "random_orders",
)  # fmt: skip

Also = Annotated[list[Identity] | None, Query(max_length=12)]


def said(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON with the characters as they are, and never a NaN."""
    body = json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8")
    headers = {"cache-control": "no-store", **(headers or {})}
    return Response(body, status, headers, media_type="application/json")


def application(
    models: AllowList,
    shelf: Shelf | None = None,
    *,
    host: str = "127.0.0.1",
    limits: Limits | None = None,
    trials: bool = True,
) -> Guard:
    """The ASGI application over these models. ``trials``: find out which methods work on which
    model, in the background."""
    limits = limits or Limits()
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
    _errors(app)
    _listing(app, service)
    _asking(app, service)
    _files(app, service)
    _static(app)
    return Guard(app, host, limits, service.stop)


def _errors(app: FastAPI) -> None:
    def refuse(refused: Refusal) -> Response:
        return said(refused.to_dict(), refused.status, refused.headers)

    @app.exception_handler(Refusal)
    async def _refused(_: Request, refused: Refusal) -> Response:
        return refuse(refused)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, wrong: RequestValidationError) -> Response:
        return refuse(invalid(wrong.errors()))

    @app.exception_handler(HTTPException)
    async def _http(_: Request, wrong: HTTPException) -> Response:
        code = CODES.get(wrong.status_code, "bad_request")
        refused = Refusal(wrong.status_code, code, f"{code.replace('_', ' ')}.")
        return said(refused.to_dict(), wrong.status_code, dict(wrong.headers or {}))

    @app.exception_handler(Exception)
    async def _broken(_: Request, broken: Exception) -> Response:
        return refuse(caught(broken))

    @app.exception_handler(TokenlightError)
    async def _known(_: Request, known: TokenlightError) -> Response:
        return refuse(refusal(known))


def _listing(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", responses=answers("health"))
    async def health() -> Response:
        return said({"status": "ok", "version": VERSION, "models": len(service.models)})

    @app.get("/api/models", responses=answers("models"))
    async def list_models() -> Response:
        """The models this server serves, and how much may be asked."""
        return said(
            {
                "models": [one.facts() for one in service.models],
                "limits": {name: getattr(service.limits, name) for name in TOLD},
                "opened": {
                    "attributions": len(service.shelf.files),
                    "benchmarks": len(service.shelf.runs),
                },
            }
        )

    @app.get("/api/methods", responses=answers("methods"))
    async def list_methods() -> Response:
        """Methods and metrics with their options, and what works on which model."""
        heads = any(one.heads is not None for one in service.models)
        untried = {"works": None, "why": None, "ms": None}
        found = []
        for name in registry.usable("methods"):
            tried = {one.name: one.works.get(name, untried) for one in service.models}
            found.append({**options.method_facts(name, with_heads=heads), "models": tried})
        metrics = [options.metric_facts(name) for name in registry.usable("metrics")]
        return said({"methods": found, "metrics": metrics, "groups": list(options.GROUPS)})

    @app.get("/api/heads/{model:path}", responses=answers("heads"))
    async def head_map(model: Annotated[str, Path(max_length=200)]) -> Response:
        """Which attention heads of a model are syntactic or positional."""
        return said(service.head_map(model))


def _asking(app: FastAPI, service: Service) -> None:
    @app.post("/api/explain", responses=answers("explanation"))
    async def explain(asked: ExplainAsked) -> Response:
        """Score the tokens of a text by one method or several."""
        started = time.perf_counter()
        entries, made = await service.explain(asked)
        return await _built(
            lambda: responses.explanation(
                entries,
                made,
                words=asked.words,
                layers=asked.layers,
                seconds=time.perf_counter() - started,
            )
        )

    @app.post("/api/trust", responses=answers("trust"))
    async def trust(asked: TrustAsked) -> Response:
        """Remove the top words of an explanation, ask the model again, compare with chance."""
        return said({"id": asked.id, "trust": await service.trust(asked.id)})

    @app.post("/api/perturb", responses=answers("games"))
    async def perturb(asked: PerturbAsked) -> Response:
        """The hiding and revealing game, the whole curve at once."""
        return said(await service.perturb(asked))

    @app.post("/api/evaluate", responses=answers("evaluation"))
    async def evaluate(asked: EvaluateAsked) -> Response:
        """Measure methods on a few texts."""
        return said(await service.evaluate(asked))

    @app.post("/api/attention", responses=answers("attention"))
    async def attention(asked: AttentionAsked) -> Response:
        """What one attention head looks at in a text."""
        return said(await service.attention(asked))


def _files(app: FastAPI, service: Service) -> None:
    turns = asyncio.Semaphore(
        service.limits.beside
    )  # each may take a hundred megabytes for a while

    async def in_turn(make: Callable[[], Any]) -> Any:
        async with turns:
            return await asyncio.to_thread(make)

    @app.get("/api/attribution/{id}", responses=answers("attribution"))
    async def attribution(
        id: Identity,
        format: downloads.Format = "json",
        figure: downloads.Figure = "bars",
        also: Also = None,
        words: bool = False,
    ) -> Response:
        """One or several explanations as a file."""
        given = [service.kept.get(one).attribution for one in dict.fromkeys((id, *(also or ())))]
        made = await in_turn(lambda: downloads.download(given, format, figure, words=words))
        headers = {
            "content-disposition": f'attachment; filename="{made.name}"',
            "cache-control": "no-store",
        }
        if format == "html":
            headers["content-security-policy"] = SANDBOX
        return Response(made.content, headers=headers, media_type=made.kind)

    @app.post("/api/open", responses=answers("opened"), openapi_extra=_body())
    async def open_saved(request: Request) -> Response:
        """Open a saved attribution, or a list of them; no model is needed."""
        body = await request.body()
        answer: Response = await in_turn(
            lambda: said(service.shown(opened(parsed(body), service.limits)))
        )
        return answer

    @app.get("/api/opened", responses=answers("shelf"))
    async def list_opened() -> Response:
        """What the server was started with: saved attributions and benchmark runs."""
        return await _built(service.shelved)

    @app.get("/api/opened/{name}/report", responses=answers("report"))
    async def report(name: Annotated[str, Path(max_length=300)]) -> Response:
        """The report of a benchmark run."""
        run = service.shelf.runs.get(name)
        if run is None or run.report is None:
            raise not_found("there is no report of this name.")
        return Response(
            run.report,
            headers={"content-security-policy": SANDBOX},
            media_type="text/html; charset=utf-8",
        )


def _static(app: FastAPI) -> None:
    def answer(request: Request, file: pages.PageFile | None) -> Response:
        if file is None:
            raise not_found("there is no such file.")
        headers = {"etag": file.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.kind)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return answer(request, pages.page_file("index.html"))

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)

    @app.get("/page/{name:path}", include_in_schema=False)
    async def page_file(request: Request, name: str) -> Response:
        return answer(request, pages.page_file(name))


async def _built(make: Callable[[], dict[str, Any]]) -> Response:
    """Long tables are written beside the loop that answers everybody."""
    return await asyncio.to_thread(lambda: said(make()))


def _body() -> dict[str, Any]:
    """The body of POST /api/open for the schema; it is read by hand, with its own limits."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    }
