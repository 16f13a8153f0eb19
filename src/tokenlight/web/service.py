"""The service behind the addresses of the API: a worker per model, stored explanations, and time limits."""

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any

from fastapi import Path, Query, Request
from fastapi.responses import JSONResponse, Response

from tokenlight import registry
from tokenlight.data.attribution import Attribution
from tokenlight.data.trust import is_outdated
from tokenlight.errors import BadInput, TokenlightError
from tokenlight.methods.base import FAMILIES
from tokenlight.version import VERSION
from tokenlight.web import options, requests, responses, tasks, text_reports
from tokenlight.web.api_errors import (
    ApiError,
    make_not_found_error,
    make_shutting_down_error,
    to_api_error,
)
from tokenlight.web.attribution_store import AttributionStore, StoredAttribution
from tokenlight.web.compatibility import can_read
from tokenlight.web.games import compute_games, describe_game, get_column_labels, has_game
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import AllowList, ServedModel
from tokenlight.web.saved_files import OpenedFiles, load_attributions, parse_json_bytes
from tokenlight.web.worker import ModelWorker, Priority, QueuedJob

DOWNLOAD_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox allow-downloads"
)
PUBLIC_LIMITS = (  # limits that the page needs to know
    "characters", "methods", "evaluated_methods", "texts", "report_texts", "metrics", "open_bytes",
    "random_orders", "picture_bytes",
)  # fmt: skip
UNTRIED_RESULT = {"is_supported": None, "reason": None, "milliseconds": None}
WARM_UP_WORDS = 4  # words of an example that are explained before the server starts


class Service:
    """Answers every address. It is created once, and started and stopped with the server.

    The public methods are the handlers of the routes in ``app.py``; their docstrings stand in the schema.
    """

    def __init__(self, models: AllowList, opened_files: OpenedFiles, limits: ServerLimits) -> None:
        self.models = models
        self.opened_files = opened_files
        self.limits = limits
        self.attribution_store = AttributionStore(limits)
        self._workers: dict[str, ModelWorker] = {}
        self._text_reports: dict[str, dict[str, bytes]] = {}
        self._opened_entries: dict[str, list[StoredAttribution]] = {}
        for file_name, attributions in opened_files.files.items():
            entries = [self._store_attribution(item, pinned=True) for item in attributions]
            self._opened_entries[file_name] = entries
        # An opened file or a download may take a hundred megabytes.
        self._file_semaphore = asyncio.Semaphore(limits.concurrent_files)

    def warm_up(self) -> None:
        """Run each kind of pass once, so that no user waits for what the first one builds."""
        for served_model in self.models.values():
            fields: dict[str, Any] = {}
            for name, text in served_model.examples[0].items():
                fields[name] = " ".join(text.split()[:WARM_UP_WORDS])  # a picture is one word
            fields["long"] = "truncate"
            fields["target"] = served_model.explainer.runner.head.default_target
            body = requests.ExplainBody.model_validate(fields)
            request = tasks.ExplainRequest.from_body(body, served_model)
            (result,) = tasks.explain_batch(
                served_model, [request], self.limits.explain_token_passes
            )
            if isinstance(result, Exception):
                raise result
            entry = StoredAttribution("", result.attributions[0], served_model.name)
            compute_games(served_model, [entry], 0, 0)

    def start(self, *, try_methods: bool) -> None:
        """Start the workers.

        Args:
            try_methods: Whether to find out in the background which methods work.
        """
        for served_model in self.models.values():
            run_batch = partial(
                tasks.explain_batch, served_model, max_cost=self.limits.explain_token_passes
            )
            worker = ModelWorker(served_model.name, run_batch, self.limits)
            self._workers[served_model.name] = worker
        if not try_methods:
            return
        for method in registry.list_loadable("methods"):
            for served_model in self.models.values():
                trial = partial(tasks.try_method, served_model, method)
                self._workers[served_model.name].submit(Priority.BACKGROUND, trial)

    def stop(self) -> bool:
        """Reject waiting requests; return whether the running ones have ended."""
        workers = list(self._workers.values())
        self._workers.clear()
        stop_worker = partial(ModelWorker.stop, timeout=self.limits.stop_seconds)
        with ThreadPoolExecutor(len(workers) or 1) as pool:
            return all(pool.map(stop_worker, workers))

    async def get_health(self) -> Response:
        """Report that the server is running."""
        return JSONResponse({"status": "ok", "version": VERSION, "models": len(self.models)})

    async def list_models(self) -> Response:
        """List the models of this server, and its limits."""
        opened = {
            "attributions": len(self.opened_files.files),
            "benchmarks": len(self.opened_files.runs),
        }
        return JSONResponse(
            {
                "models": [served_model.describe() for served_model in self.models.values()],
                "limits": {name: getattr(self.limits, name) for name in PUBLIC_LIMITS},
                "opened": opened,
            }
        )

    async def list_methods(self) -> Response:
        """List methods and metrics with their options, and say which methods support which model."""
        served_models = list(self.models.values())
        with_heads = any(served_model.head_map is not None for served_model in served_models)
        methods: list[dict[str, Any]] = []
        for name in registry.list_loadable("methods"):
            info = options.build_method_info(name, with_heads=with_heads)
            info["models"] = {
                served_model.name: served_model.trial_results.get(name, UNTRIED_RESULT)
                for served_model in served_models
            }
            methods.append(info)
        metrics = [options.build_metric_info(name) for name in registry.list_loadable("metrics")]
        return JSONResponse({"methods": methods, "metrics": metrics, "groups": list(FAMILIES)})

    async def get_head_map(self, model: Annotated[str, Path(max_length=200)]) -> Response:
        """Say which attention heads of a model are syntactic or positional."""
        served_model = self.models.get_model(model)
        head_map = served_model.head_map
        if head_map is None:
            raise make_not_found_error(
                f"The server has no head map for {served_model.name}.",
                "Start the server with --heads MODEL=heads.json.",
            )
        mask = head_map["mask"]
        return JSONResponse(
            {
                "model": served_model.name,
                "layers": len(mask["syntactic"]),
                "heads": len(mask["syntactic"][0]),
                "syntactic": mask["syntactic"],
                "positional": mask["positional"],
                "relations": head_map.get("relations", {}),
                "positions": head_map.get("positions", []),
                "thresholds": head_map.get("thresholds", {}),
                "sentences": head_map.get("sentences", 0),
            }
        )

    async def explain(self, body: requests.ExplainBody) -> Response:
        """Score the tokens of a text by one or several methods."""
        start = time.perf_counter()
        served_model, result = await self._explain_body(body)
        entries = await asyncio.to_thread(
            self._store_attributions, result.attributions, served_model.name
        )
        untested: list[dict[str, Any]] = []
        if body.trust:
            for entry in entries:
                try:
                    await self._assess_trust(entry, served_model)
                except (TokenlightError, ApiError) as error:  # the explanation is not lost for it
                    untested.append({"id": entry.id, **to_api_error(error).to_dict()})

        def build_body() -> dict[str, Any]:
            first = entries[0].attribution
            serialize = partial(responses.serialize_entry, words=body.words, layers=body.layers)
            refused = [{"method": name, **error.to_dict()} for name, error in result.failures]
            return {
                "model": first.model,
                "prediction": first.to_dict()["prediction"],
                "attributions": [serialize(entry) for entry in entries],
                "agreement": responses.compute_agreement([entry.attribution for entry in entries]),
                "untested": untested,
                "refused": refused,
                "seconds": round(time.perf_counter() - start, 4),
            }

        return await _build_response(build_body)

    async def assess_trust(self, body: requests.TrustBody) -> Response:
        """Measure how much removing the top words changes the output, compared with chance."""
        entry = self.attribution_store.get(body.id)
        if "trust" not in entry.attribution.extras or is_outdated(entry.attribution):
            await self._assess_trust(entry, self._get_model_of(entry))
        return JSONResponse({"id": body.id, "trust": entry.attribution.extras["trust"]})

    async def compute_game(self, body: requests.GameBody) -> Response:
        """Return the whole curve of the masking game, for explanations or for an order that a user chose."""
        if body.order is None:
            served_model, entries = self._get_game_entries(body)
        else:
            served_model, entries = await self._explain_game_text(body)
        random_orders = (body.random_orders, body.seed)
        if not all(has_game(entry, *random_orders) for entry in entries):
            num_tokens = sum(len(entry.attribution) for entry in entries)
            try:
                await self._run_job(
                    num_tokens, compute_games, served_model, entries, *random_orders
                )
            finally:  # some parts may have been computed before the work was given up
                self.attribution_store.update_sizes(entries)
        games = [describe_game(entry, *random_orders) for entry in entries]
        labels = get_column_labels(served_model)
        return JSONResponse({"model": served_model.name, "labels": labels, "games": games})

    async def evaluate(self, body: requests.EvaluateBody) -> Response:
        """Measure the faithfulness of methods on a few texts."""
        served_model = self.models.find_model(body.model, body.present_fields)
        # An evaluation is long work whatever its texts.
        result = await self._run_job(math.inf, tasks.evaluate, served_model, body, self.limits)
        return JSONResponse(result)

    async def explain_texts(self, body: requests.TextsBody) -> Response:
        """Explain a list of texts; the response names the address of the report."""
        served_model = self.models.find_model(body.model, self._get_text_fields(body.model))
        pages, num_explained = await self._run_job(
            math.inf, text_reports.write_report, served_model, body, self.limits
        )
        report_id = secrets.token_urlsafe(12)
        while len(self._text_reports) >= self.limits.stored_reports:
            self._text_reports.pop(next(iter(self._text_reports)))
        self._text_reports[report_id] = pages
        address = f"/api/texts/{report_id}/{text_reports.FIRST_PAGE}"
        return JSONResponse(
            {"address": address, "texts": len(body.texts), "explained": num_explained}
        )

    def _get_text_fields(self, model: str | None) -> tuple[str, ...]:
        """Return the name of the field that holds each text of a list: the text, or a prompt."""
        if model is not None and self.models.get_model(model).accepted_inputs[0] == ("prompt",):
            return ("prompt",)
        return ("text",)

    async def get_text_report(
        self,
        id: requests.AttributionId,
        name: Annotated[str, Path(pattern=r"^report(-\d{1,4})?\.html$")],
    ) -> Response:
        """Return a page of the report on a list of texts."""
        pages = self._text_reports.get(id, {})
        if name not in pages:
            raise make_not_found_error(
                "There is no such report, or the server has dropped it.", "Explain the list again."
            )
        headers = {"content-security-policy": text_reports.REPORT_POLICY}
        return Response(pages[name], headers=headers, media_type=responses.MEDIA_TYPES["html"])

    async def get_attention_map(self, body: requests.AttentionBody) -> Response:
        """Return the attention map of one head for a text."""
        served_model = self.models.find_model(body.model, body.present_fields)
        result = await self._run_job(
            0, tasks.compute_attention_map, served_model, body, self.limits
        )
        return JSONResponse(result)

    async def download_attribution(
        self,
        id: requests.AttributionId,
        format: responses.DownloadFormat = "json",
        figure: responses.FigureKind = "bars",
        also: Annotated[list[requests.AttributionId] | None, Query(max_length=64)] = None,
        words: bool = False,
    ) -> Response:
        """Return one or several explanations as a file."""
        unique_ids = dict.fromkeys((id, *(also or ())))
        attributions = [self.attribution_store.get(each).attribution for each in unique_ids]
        async with self._file_semaphore:
            content = await asyncio.to_thread(
                responses.render_download, attributions, format, figure, words
            )
        headers = {"content-disposition": f'attachment; filename="attribution.{format}"'}
        if format == "html":
            headers["content-security-policy"] = DOWNLOAD_POLICY
        return Response(content, headers=headers, media_type=responses.MEDIA_TYPES[format])

    async def open_saved(self, request: Request) -> Response:
        """Read a saved explanation, or a list of them; no model is needed."""
        content = await request.body()

        def build_body() -> dict[str, Any]:
            attributions = load_attributions(parse_json_bytes(content), self.limits)
            entries = [self._store_attribution(attribution) for attribution in attributions]
            agreement = responses.compute_agreement(attributions)
            return {**_serialize_entries(entries, "attributions"), "agreement": agreement}

        async with self._file_semaphore:
            return await _build_response(build_body)

    async def list_opened(self) -> Response:
        """Saved explanations and benchmark runs that the server was started with."""

        def build_body() -> dict[str, Any]:
            files: list[dict[str, Any]] = []
            for file_name, entries in self._opened_entries.items():
                files.append({"file": file_name, **_serialize_entries(entries, "entries")})
            return {"attributions": files, "benchmarks": list(self.opened_files.runs.values())}

        return await _build_response(build_body)

    async def get_opened_report(self, name: Annotated[str, Path(max_length=300)]) -> Response:
        """The report of a benchmark run."""
        if name not in self.opened_files.reports:
            raise make_not_found_error("There is no report with this name.")
        return Response(
            self.opened_files.reports[name],
            headers={"content-security-policy": DOWNLOAD_POLICY},
            media_type=responses.MEDIA_TYPES["html"],
        )

    async def _explain_body(
        self, body: requests.ExplainBody
    ) -> tuple[ServedModel, tasks.ExplainResult]:
        """Explain a text; raise the first error if no method could."""
        served_model = self.models.find_model(body.model, body.present_fields)
        worker = self._get_worker(served_model)
        request = tasks.ExplainRequest.from_body(body, served_model)
        num_characters = sum(len(getattr(body, name)) for name in body.present_fields)
        size = num_characters * len(request.methods)
        if request.is_lengthy or size > self.limits.quick_characters:
            explain = partial(
                tasks.explain_alone, served_model, request, self.limits.explain_token_passes
            )
            job = worker.submit(Priority.LONG, explain)
        else:  # in one batch with whatever else waits for this model
            job = worker.submit(Priority.QUICK, request, size)
        result: tasks.ExplainResult = await self._await_result(job)
        if not result.attributions:
            _, first_error = result.failures[0]
            raise first_error
        return served_model, result

    def _get_game_entries(
        self, body: requests.GameBody
    ) -> tuple[ServedModel, list[StoredAttribution]]:
        """Return the stored explanations that a game is asked for."""
        entries = [self.attribution_store.get(each) for each in body.attribution_ids]
        if len({entry.model for entry in entries}) > 1:
            raise BadInput(
                "These explanations are from different models. Play them one after the other.",
                code="game-of-several-models",
            )
        return self._get_model_of(entries[0]), entries

    async def _explain_game_text(
        self, body: requests.GameBody
    ) -> tuple[ServedModel, list[StoredAttribution]]:
        """Encode the text of a game with a user's order; the explanation's scores are not used."""
        fields = body.model_dump(include={*body.present_fields, "model"})
        explain_body = requests.ExplainBody(**fields, method="random", target=body.target)
        served_model, result = await self._explain_body(explain_body)
        entry = StoredAttribution("", result.attributions[0], served_model.name, order=body.order)
        return served_model, [entry]

    async def _assess_trust(self, entry: StoredAttribution, served_model: ServedModel) -> None:
        """Add the result of the trust test to an explanation."""
        entry.attribution = await self._run_job(
            len(entry.attribution),
            tasks.compute_trust,
            served_model,
            entry.attribution,
            self.limits,
        )
        self.attribution_store.update_sizes([entry])

    def _store_attributions(
        self, attributions: Sequence[Attribution], model: str
    ) -> list[StoredAttribution]:
        return [self.attribution_store.add(attribution, model) for attribution in attributions]

    def _store_attribution(
        self, attribution: Attribution, *, pinned: bool = False
    ) -> StoredAttribution:
        """Store an explanation from a file, with its model if this server can run it."""
        model: str | None = None
        served_model = self.models.get(attribution.model)
        if served_model is not None and can_read(attribution, served_model):
            model = served_model.name
        return self.attribution_store.add(attribution, model, pinned=pinned)

    def _get_model_of(self, entry: StoredAttribution) -> ServedModel:
        if entry.model is None:
            raise ApiError(
                "The model of this explanation is not served here, so it cannot be run again.",
                code="unsupported",
                hint="Start the server with --model and that model.",
            )
        return self.models.get_model(entry.model)

    def _get_worker(self, served_model: ServedModel) -> ModelWorker:
        worker = self._workers.get(served_model.name)
        if worker is None:
            raise make_shutting_down_error()
        return worker

    async def _run_job(
        self, num_tokens: float, work: Callable[..., Any], served_model: ServedModel, *args: Any
    ) -> Any:
        """Queue ``work(served_model, *args)`` in the priority for its size, and return its result."""
        priority = Priority.SHORT if num_tokens <= self.limits.short_tokens else Priority.LONG
        job = self._get_worker(served_model).submit(priority, partial(work, served_model, *args))
        return await self._await_result(job)

    async def _await_result(self, job: QueuedJob) -> Any:
        seconds = self.limits.answer_seconds
        try:
            return await asyncio.wait_for(asyncio.wrap_future(job.future), seconds)
        except TimeoutError:
            raise ApiError(
                f"The request took longer than {seconds:.0f} seconds and was cancelled.",
                code="timeout",
                hint="Give a shorter text or fewer methods, or try again when the server is less busy.",
                status=504,
            ) from None
        finally:
            job.future.cancel()  # abandoned, so the worker drops it


def _serialize_entries(entries: Sequence[StoredAttribution], key: str) -> dict[str, Any]:
    is_served = all(entry.model is not None for entry in entries)
    return {key: [responses.serialize_entry(entry) for entry in entries], "served": is_served}


async def _build_response(build_body: Callable[[], dict[str, Any]]) -> Response:
    """Build a JSON response in a thread: long tables would block the event loop."""
    return await asyncio.to_thread(lambda: JSONResponse(build_body()))
