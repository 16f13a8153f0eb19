"""The service behind the addresses: a worker for each model, what was made so far, and time limits."""

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from operator import lt
from typing import Any

from tokenlight import registry
from tokenlight.data.attribution import Attribution
from tokenlight.errors import TokenlightError
from tokenlight.web import measure, requests
from tokenlight.web.explain import Explained, Wanted, explain_alone, explain_batch
from tokenlight.web.games import Play, labels_of, own_order
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import AllowList, Served
from tokenlight.web.preloaded import Shelf
from tokenlight.web.refusals import Refusal, caught, closing, not_found
from tokenlight.web.responses import agreement, shown
from tokenlight.web.store import Entry, Kept
from tokenlight.web.worker import Lane, ModelWorker, QueuedJob


class Service:
    """Everything the addresses need; made once, started and stopped with the server."""

    def __init__(self, models: AllowList, shelf: Shelf, limits: ServerLimits) -> None:
        self.models, self.shelf, self.limits = models, shelf, limits
        self.kept = Kept(limits)
        self._workers: dict[str, ModelWorker] = {}
        self._shelved: dict[str, list[Entry]] = {}

    def warm(self) -> None:
        """The first pass of each kind builds what later ones use: nobody shall wait for it."""
        for served in self.models:
            usual = served.explainer.live.head.usual
            asked = requests.ExplainAsked.model_validate(
                {**served.brief, "long": "truncate", "target": usual}
            )
            (made,) = explain_batch(served, [Wanted.of(asked, served)], self.limits.passes)
            if isinstance(made, Exception):
                raise made
            measure.play_own(served, Play.of(made.attributions[0], None), 0, 0)

    def start(self, *, trials: bool) -> None:
        """Start the workers; ``trials``: find out which methods work, when nobody asks for anything."""
        for served in self.models:
            batch = partial(explain_batch, served, passes=self.limits.passes)
            self._workers[served.name] = ModelWorker(served.name, batch, self.limits)
        for name, attributions in self.shelf.files.items():
            self._shelved[name] = [self._keep(a, pinned=True) for a in attributions]
        for name in registry.usable("methods") if trials else ():
            for served in self.models:
                trial = partial(measure.try_method, served, name)
                self._workers[served.name].work(Lane.BACKGROUND, trial)

    def stop(self) -> bool:
        """Who waits is told, and the pass in hand may finish; whether all of them did."""
        workers = list(self._workers.values())
        self._workers.clear()
        with ThreadPoolExecutor(len(workers) or 1) as pool:
            return all(pool.map(lambda one: one.stop(self.limits.stop_seconds), workers))

    async def explain(self, asked: requests.ExplainAsked) -> tuple[list[Entry], Explained]:
        """Explain one text, together with whatever else waits for the same model."""
        served = self.models.taking(asked.model, asked.fields)
        worker, wanted = self._worker(served), Wanted.of(asked, served)
        size = sum(len(getattr(asked, field)) for field in asked.fields) * len(wanted.methods)
        if wanted.lengthy or size > self.limits.quick_characters:
            alone = partial(explain_alone, served, wanted, self.limits.passes)
            job = worker.work(Lane.LONG, alone)
        else:
            job = worker.quick(wanted, size)
        made: Explained = await self._answer(job)
        entries = await asyncio.to_thread(
            lambda: [self.kept.put(a, served.name) for a in made.attributions]
        )
        untested: dict[str, Refusal] = {}
        for entry in entries if asked.trust else ():
            try:
                await self._trust(entry, served)
            except (TokenlightError, Refusal) as why:  # what is explained is not lost for it
                untested[entry.id] = caught(why)
        return entries, replace(made, untested=untested)

    async def trust(self, identity: str) -> Any:
        """The trust in one explanation, measured once."""
        entry = self.kept.get(identity)
        if "trust" not in entry.attribution.extras:
            await self._trust(entry, self._made_by(entry))
        return entry.attribution.extras["trust"]

    async def _trust(self, entry: Entry, served: Served) -> None:
        work = partial(measure.measured_trust, served, entry.attribution, self.limits)
        entry.attribution = await self._done(served, work, len(entry.attribution))
        self.kept.weigh([entry])

    async def perturb(self, asked: requests.PerturbAsked) -> dict[str, Any]:
        """Games of explanations (kept beside them), or of an order that a person chose."""
        if asked.order is not None:
            return await self._own_game(asked)
        identities = dict.fromkeys(asked.ids or [str(asked.id)])
        entries = [self.kept.get(identity) for identity in identities]
        if len({entry.model for entry in entries}) > 1:
            raise Refusal(422, "bad_input", "these explanations are of different models.")
        served, how = self._made_by(entries[0]), (asked.random_orders, asked.seed)
        games = measure.played(entries, *how)
        if games is None:
            tokens = sum(len(entry.attribution) for entry in entries)
            try:
                await self._done(served, partial(measure.play, served, entries, *how), tokens)
            finally:  # some of them may have been played before it was given up
                self.kept.weigh(entries)
            games = measure.played(entries, *how)
        return {"model": served.name, "labels": labels_of(served), "games": games}

    async def _own_game(self, asked: requests.PerturbAsked) -> dict[str, Any]:
        served = self.models.taking(asked.model, asked.fields)
        text = asked.model_dump(include=set(asked.fields))
        explain = requests.ExplainAsked(**text, method="random", target=asked.target)
        if requests.target_of(asked.target) == "all":
            raise Refusal(422, "bad_target", "a game watches one target, not all.")
        job = self._worker(served).quick(Wanted.of(explain, served))
        made: Explained = await self._answer(job)
        attribution = made.attributions[0]
        order = own_order(attribution.row, asked.order or ())
        one = Play(attribution.row, order, attribution.target, "your order")
        work = partial(measure.play_own, served, one, asked.random_orders, asked.seed)
        games = await self._done(served, work, len(attribution))
        return {"model": served.name, "labels": labels_of(served), "games": games}

    async def evaluate(self, asked: requests.EvaluateAsked) -> Any:
        """Methods measured on a few texts."""
        fields = {text.fields for text in asked.asked}
        if len(fields) > 1:
            raise Refusal(
                422, "bad_input", "give texts of one kind: all texts, pairs or questions."
            )
        served = self.models.taking(asked.model, fields.pop())
        return await self._done(served, partial(measure.evaluate, served, asked, self.limits))

    async def attention(self, asked: requests.AttentionAsked) -> Any:
        """What one head looks at in a text."""
        served = self.models.taking(asked.model, asked.fields)
        work = partial(measure.attention_map, served, asked, self.limits)
        return await self._done(served, work, tokens=0)

    async def _done(self, served: Served, work: Callable[[], Any], tokens: float = math.inf) -> Any:
        """What ``work`` on so many tokens comes to, in its turn."""
        lane = Lane.SHORT if tokens <= self.limits.short_tokens else Lane.LONG
        return await self._answer(self._worker(served).work(lane, work))

    def head_map(self, model: str) -> dict[str, Any]:
        """The head map that the server was started with."""
        served = self.models.named(model)
        if served.heads is None:
            raise not_found(
                f"no head map of {served.name} was given.",
                "Start the server with --heads MODEL=heads.json.",
            )
        mask = served.heads["mask"]
        return {
            "model": served.name,
            "layers": len(mask["syntactic"]),
            "heads": len(mask["syntactic"][0]),
            "syntactic": mask["syntactic"],
            "positional": mask["positional"],
            "relations": served.heads.get("relations", {}),
            "positions": served.heads.get("positions", []),
            "thresholds": served.heads.get("thresholds", {}),
            "sentences": served.heads.get("sentences", 0),
        }

    def shown(self, attributions: Sequence[Attribution]) -> dict[str, Any]:
        """Opened attributions as the page reads them."""
        entries = [self._keep(a, pinned=False) for a in attributions]
        return {
            "attributions": [shown(entry) for entry in entries],
            "agreement": agreement(attributions),
            "served": all(entry.model is not None for entry in entries),
        }

    def shelved(self) -> dict[str, Any]:
        """What --open gave."""
        return {
            "attributions": [
                {
                    "file": name,
                    "served": all(entry.model is not None for entry in entries),
                    "entries": [shown(entry) for entry in entries],
                }
                for name, entries in self._shelved.items()
            ],
            "benchmarks": [run.to_dict() for run in self.shelf.runs.values()],
        }

    def _keep(self, attribution: Attribution, *, pinned: bool) -> Entry:
        served = self.models.get(attribution.model)
        fits = served is not None and _fits(attribution, served)
        return self.kept.put(attribution, attribution.model if fits else None, pinned=pinned)

    def _made_by(self, entry: Entry) -> Served:
        if entry.model is None:
            raise Refusal(
                422,
                "unsupported",
                "the model of this explanation is not served here, so it cannot be asked again.",
                "Start the server with --model and the model that made it.",
            )
        return self.models.named(entry.model)

    def _worker(self, served: Served) -> ModelWorker:
        worker = self._workers.get(served.name)
        if worker is None:
            raise closing()
        return worker

    async def _answer(self, job: QueuedJob) -> Any:
        seconds = self.limits.answer_seconds
        try:
            return await asyncio.wait_for(asyncio.wrap_future(job.future), seconds)
        except TimeoutError:
            raise Refusal(
                504,
                "timeout",
                f"this took longer than {seconds:.0f} seconds and was given up.",
                "Give a shorter text or fewer methods, or try when fewer people ask.",
            ) from None
        finally:
            job.future.cancel()  # nobody waits any more: it is dropped where it stands


def _fits(attribution: Attribution, served: Served) -> bool:
    """Whether the served model can read this row: a name alone proves nothing."""
    explainer, row = served.explainer, attribution.row
    limit = explainer.max_tokens
    known = max(row.ids) < explainer.live.vocabulary and (limit is None or len(row) <= limit)
    config = explainer.live.model.config.get_text_config()
    kinds = getattr(config, "type_vocab_size", None) or explainer.live.vocabulary
    known = known and all(0 <= kind < kinds for kind in row.token_types or ())
    # No head that is served reads one token's output, compares with a vector, or sees a picture.
    known = known and row.at is None and not row.asked and row.anchor is None and row.image is None
    same = served.task != "classification" or list(attribution.prediction.labels) == served.labels
    span = served.task == "span"
    fits = attribution.target.kind in (("span",) if span else ("class", "contrast"))
    outputs = (len(row), 2) if span else (len(explainer.live.head.labels),)
    places = [place for place, _ in attribution.target.terms]
    inside = all(len(place) == len(outputs) and all(map(lt, place, outputs)) for place in places)
    return known and same and fits and inside
