"""The service behind the addresses: a worker for each model, what was made so far, and time limits."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import lt
from typing import Annotated, Any

from fastapi import Path, Query, Request
from fastapi.responses import JSONResponse, Response

from tokenlight import registry
from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput, BadTarget, TokenlightError
from tokenlight.methods._method import FAMILIES
from tokenlight.version import VERSION
from tokenlight.web import options, requests, responses, tasks
from tokenlight.web.games import labels_of, play, told
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import AllowList, Served
from tokenlight.web.opened import Shelf, opened, parsed
from tokenlight.web.refusals import Refusal, caught, closing, not_found
from tokenlight.web.store import Entry, Kept
from tokenlight.web.worker import Lane, ModelWorker, QueuedJob

SANDBOX = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox allow-downloads"
TOLD = (  # limits that a page needs to know
    "characters", "methods", "evaluated_methods", "texts", "metrics", "open_bytes", "random_orders",
)  # fmt: skip
UNTRIED = {"works": None, "why": None, "ms": None}


class Service:
    """Answers every address; made once, started and stopped with the server."""

    def __init__(self, models: AllowList, shelf: Shelf, limits: ServerLimits) -> None:
        self.models, self.shelf, self.limits = models, shelf, limits
        self.kept = Kept(limits)
        self._workers: dict[str, ModelWorker] = {}
        self._shelved = {
            name: [self._keep(one, pinned=True) for one in found]
            for name, found in shelf.files.items()
        }
        self._beside = asyncio.Semaphore(limits.beside)  # each may take a hundred megabytes

    def warm(self) -> None:
        """The first pass of each kind builds what later ones use: nobody shall wait for it."""
        for served in self.models.values():
            usual = {"long": "truncate", "target": served.explainer.live.head.usual}
            brief = {name: " ".join(text.split()[:4]) for name, text in served.examples[0].items()}
            asked = requests.ExplainAsked.model_validate({**brief, **usual})
            wanted = [tasks.Wanted.of(asked, served)]
            (made,) = tasks.explain_batch(served, wanted, self.limits.passes)
            if isinstance(made, Exception):
                raise made
            play(served, [Entry("", made.attributions[0], served.name)], 0, 0)

    def start(self, *, trials: bool) -> None:
        """Start the workers; ``trials``: find out which methods work, when nobody asks for anything."""
        for served in self.models.values():
            batch = partial(tasks.explain_batch, served, passes=self.limits.passes)
            self._workers[served.name] = ModelWorker(served.name, batch, self.limits)
        for name in registry.usable("methods") if trials else ():
            for served in self.models.values():
                trial = partial(tasks.try_method, served, name)
                self._workers[served.name].work(Lane.BACKGROUND, trial)

    def stop(self) -> bool:
        """Who waits is told, and the pass in hand may finish; whether all of them did."""
        workers = list(self._workers.values())
        self._workers.clear()
        with ThreadPoolExecutor(len(workers) or 1) as pool:
            return all(pool.map(lambda one: one.stop(self.limits.stop_seconds), workers))

    async def health(self) -> Response:
        """That it is alive."""
        return JSONResponse({"status": "ok", "version": VERSION, "models": len(self.models)})

    async def list_models(self) -> Response:
        """The models this server serves, and how much may be asked."""
        models = [one.facts() for one in self.models.values()]
        limits = {name: getattr(self.limits, name) for name in TOLD}
        there = {"attributions": len(self.shelf.files), "benchmarks": len(self.shelf.runs)}
        return JSONResponse({"models": models, "limits": limits, "opened": there})

    async def list_methods(self) -> Response:
        """Methods and metrics with their options, and what works on which model."""
        heads = any(one.heads is not None for one in self.models.values())
        found = []
        for name in registry.usable("methods"):
            tried = {one.name: one.works.get(name, UNTRIED) for one in self.models.values()}
            found.append({**options.method_facts(name, with_heads=heads), "models": tried})
        metrics = [options.metric_facts(name) for name in registry.usable("metrics")]
        return JSONResponse({"methods": found, "metrics": metrics, "groups": list(FAMILIES)})

    async def head_map(self, model: Annotated[str, Path(max_length=200)]) -> Response:
        """Which attention heads of a model are syntactic or positional."""
        served = self.models.named(model)
        if served.heads is None:
            none = f"no head map of {served.name} was given."
            raise not_found(none, "Start the server with --heads MODEL=heads.json.")
        mask = served.heads["mask"]
        size = {"layers": len(mask["syntactic"]), "heads": len(mask["syntactic"][0])}
        own = {kind: mask[kind] for kind in ("syntactic", "positional")}
        usual = {"relations": {}, "positions": [], "thresholds": {}, "sentences": 0}
        more = {name: served.heads.get(name, none) for name, none in usual.items()}
        return JSONResponse({"model": served.name, **size, **own, **more})

    async def explain(self, asked: requests.ExplainAsked) -> Response:
        """Score the tokens of a text by one method or several."""
        started = time.perf_counter()
        served, made = await self._explained(asked)
        keep = partial(self.kept.put, model=served.name)
        entries = await asyncio.to_thread(lambda: [*map(keep, made.attributions)])
        untested = []
        for entry in entries if asked.trust else ():
            try:
                await self._trust(entry, served)
            except (TokenlightError, Refusal) as why:  # what is explained is not lost for it
                untested.append({"id": entry.id, **caught(why).to_dict()})
        shown = partial(responses.shown, words=asked.words, layers=asked.layers)

        def answer() -> dict[str, Any]:
            first = entries[0].attribution
            return {
                "model": first.model,
                "prediction": first.to_dict()["prediction"],
                "attributions": [shown(entry) for entry in entries],
                "agreement": responses.agreement([entry.attribution for entry in entries]),
                "untested": untested,
                "refused": [{"method": name, **why.to_dict()} for name, why in made.refused],
                "seconds": round(time.perf_counter() - started, 4),
            }

        return await _built(answer)

    async def trust(self, asked: requests.TrustAsked) -> Response:
        """Remove the top words of an explanation, ask the model again, compare with chance."""
        entry = self.kept.get(asked.id)
        if "trust" not in entry.attribution.extras:
            await self._trust(entry, self._made_by(entry))
        return JSONResponse({"id": asked.id, "trust": entry.attribution.extras["trust"]})

    async def perturb(self, asked: requests.PerturbAsked) -> Response:
        """The hiding and revealing game, the whole curve at once: of explanations, which it is kept
        beside, or of an order that a person chose."""
        if asked.order is None:
            entries = [self.kept.get(one) for one in dict.fromkeys(asked.ids or [str(asked.id)])]
            if len({entry.model for entry in entries}) > 1:
                raise BadInput("these explanations are of different models.")
            served = self._made_by(entries[0])
        else:
            if asked.target == "all":
                raise BadTarget("a game watches one target, not all.")
            text = asked.model_dump(include={*asked.fields, "model"})
            explain = requests.ExplainAsked(**text, method="random", target=asked.target)
            served, made = await self._explained(explain)
            entries = [Entry("", made.attributions[0], served.name, order=asked.order)]
        how = asked.random_orders, asked.seed
        if None in [told(entry, *how) for entry in entries]:
            tokens = sum(len(entry.attribution) for entry in entries)
            try:
                await self._done(tokens, play, served, entries, *how)
            finally:  # some of them may have been played before it was given up
                self.kept.weigh(entries)
        games = [told(entry, *how) for entry in entries]
        return JSONResponse({"model": served.name, "labels": labels_of(served), "games": games})

    async def evaluate(self, asked: requests.EvaluateAsked) -> Response:
        """Measure methods on a few texts."""
        fields = {text.fields for text in asked.asked}
        if len(fields) > 1:
            raise BadInput("give texts of one kind: all texts, pairs or questions.")
        served = self.models.taking(asked.model, fields.pop())
        work = self._done(math.inf, tasks.evaluate, served, asked, self.limits)
        return JSONResponse(await work)

    async def attention(self, asked: requests.AttentionAsked) -> Response:
        """What one attention head looks at in a text."""
        served = self.models.taking(asked.model, asked.fields)
        return JSONResponse(await self._done(0, tasks.attention_map, served, asked, self.limits))

    async def attribution(
        self,
        id: requests.Identity,
        format: responses.Format = "json",
        figure: responses.Figure = "bars",
        also: Annotated[list[requests.Identity] | None, Query(max_length=12)] = None,
        words: bool = False,
    ) -> Response:
        """One or several explanations as a file."""
        given = [self.kept.get(one).attribution for one in dict.fromkeys((id, *(also or ())))]
        async with self._beside:
            content = await asyncio.to_thread(responses.download, given, format, figure, words)
        headers = {"content-disposition": f'attachment; filename="attribution.{format}"'}
        if format == "html":
            headers["content-security-policy"] = SANDBOX
        return Response(content, headers=headers, media_type=responses.KINDS[format])

    async def open_saved(self, request: Request) -> Response:
        """Open a saved attribution, or a list of them; no model is needed."""
        body = await request.body()

        def answer() -> dict[str, Any]:
            attributions = opened(parsed(body), self.limits)
            shown = _shown([self._keep(a) for a in attributions], "attributions")
            return {**shown, "agreement": responses.agreement(attributions)}

        async with self._beside:
            return await _built(answer)

    async def list_opened(self) -> Response:
        """What the server was started with: saved attributions and benchmark runs."""

        def answer() -> dict[str, Any]:
            files = [{"file": n, **_shown(e, "entries")} for n, e in self._shelved.items()]
            return {"attributions": files, "benchmarks": [*self.shelf.runs.values()]}

        return await _built(answer)

    async def report(self, name: Annotated[str, Path(max_length=300)]) -> Response:
        """The report of a benchmark run."""
        if name not in self.shelf.reports:
            raise not_found("there is no report of this name.")
        kind, headers = responses.KINDS["html"], {"content-security-policy": SANDBOX}
        return Response(self.shelf.reports[name], headers=headers, media_type=kind)

    async def _trust(self, entry: Entry, served: Served) -> None:
        a = entry.attribution
        entry.attribution = await self._done(len(a), tasks.measured_trust, served, a, self.limits)
        self.kept.weigh([entry])

    async def _explained(self, asked: requests.ExplainAsked) -> tuple[Served, tasks.Explained]:
        served = self.models.taking(asked.model, asked.fields)
        worker, wanted = self._worker(served), tasks.Wanted.of(asked, served)
        size = sum(len(getattr(asked, field)) for field in asked.fields) * len(wanted.methods)
        if wanted.lengthy or size > self.limits.quick_characters:
            alone = partial(tasks.explain_alone, served, wanted, self.limits.passes)
            job = worker.work(Lane.LONG, alone)
        else:  # together with whatever else waits for the same model
            job = worker.work(Lane.QUICK, wanted, size)
        made: tasks.Explained = await self._answer(job)
        if not made.attributions:
            raise made.refused[0][1]
        return served, made

    def _keep(self, attribution: Attribution, *, pinned: bool = False) -> Entry:
        served = self.models.get(attribution.model)
        fits = served is not None and _fits(attribution, served)
        return self.kept.put(attribution, attribution.model if fits else None, pinned=pinned)

    def _made_by(self, entry: Entry) -> Served:
        if entry.model is None:
            said = "the model of this explanation is not served here, so it cannot be asked again."
            raise Refusal("unsupported", said, "Start the server with --model and that model.")
        return self.models.named(entry.model)

    def _worker(self, served: Served) -> ModelWorker:
        worker = self._workers.get(served.name)
        if worker is None:
            raise closing()
        return worker

    async def _done(self, size: float, work: Callable[..., Any], served: Served, *more: Any) -> Any:
        """What ``work`` on ``size`` tokens comes to, in its turn."""
        lane = Lane.SHORT if size <= self.limits.short_tokens else Lane.LONG
        return await self._answer(self._worker(served).work(lane, partial(work, served, *more)))

    async def _answer(self, job: QueuedJob) -> Any:
        seconds = self.limits.answer_seconds
        try:
            return await asyncio.wait_for(asyncio.wrap_future(job.future), seconds)
        except TimeoutError:
            said = f"this took longer than {seconds:.0f} seconds and was given up."
            hint = "Give a shorter text or fewer methods, or try when fewer people ask."
            raise Refusal("timeout", said, hint, 504) from None
        finally:
            job.future.cancel()  # nobody waits any more: it is dropped where it stands


def _shown(entries: Sequence[Entry], name: str) -> dict[str, Any]:
    served = all(entry.model is not None for entry in entries)
    return {name: [responses.shown(entry) for entry in entries], "served": served}


async def _built(make: Callable[[], dict[str, Any]]) -> Response:
    """Long tables are written beside the loop that answers everybody."""
    return await asyncio.to_thread(lambda: JSONResponse(make()))


def _fits(attribution: Attribution, served: Served) -> bool:
    """Whether the served model can read this row: a name alone proves nothing."""
    live, row, target = served.explainer.live, attribution.row, attribution.target
    config, span = live.model.config.get_text_config(), served.task == "span"
    kinds = getattr(config, "type_vocab_size", None) or live.vocabulary
    outputs = (len(row), 2) if span else (len(live.head.labels),)
    return (
        max(row.ids) < live.vocabulary
        and len(row) <= (served.explainer.max_tokens or len(row))
        and all(0 <= kind < kinds for kind in row.token_types or ())
        # No head that is served reads one token's output, compares with a vector, or sees a picture.
        and (row.at, row.anchor, row.image, *row.asked) == (None, None, None)
        and (served.task != "classification" or [*attribution.prediction.labels] == served.labels)
        and target.kind in (("span",) if span else ("class", "contrast"))
        and all(len(at) == len(outputs) and all(map(lt, at, outputs)) for at, _ in target.terms)
    )
