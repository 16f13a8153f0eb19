"""Explainer: the object users meet. Texts in, Attributions out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import torch

from tokenlight import registry
from tokenlight.capture.head import TAKEN
from tokenlight.data.attribution import Attribution, Attributions
from tokenlight.data.target import Continuation, TargetLike
from tokenlight.data.tokenizer import one_reading
from tokenlight.data.tokens import ExplainMask, Long, TokenRow, real_tokens
from tokenlight.errors import BadInput, TokenlightError, UnsupportedModel, one_of
from tokenlight.explaining import options, passes
from tokenlight.explaining.batch import explain_packed, making, method_by_method
from tokenlight.explaining.default import AUTO, candidates, is_auto, kind_of, reason, sample
from tokenlight.explaining.jobs import jobs, together
from tokenlight.explaining.options import How, Job, Keywords, OneText, whole_number
from tokenlight.explaining.session import Session
from tokenlight.explaining.stream import answered
from tokenlight.explaining.token_labels import ENTITIES
from tokenlight.explaining.windows import explain_long, is_long
from tokenlight.files.tables import Example
from tokenlight.methods._method import Method

if TYPE_CHECKING:
    from tokenlight.evaluation.results import Evaluation  # what evaluate() hands back
    from tokenlight.scale.mapper import Mapper  # what mapper() hands back

MethodLike = str | tuple[str, dict[str, Any]] | Method
Methods = MethodLike | Sequence[MethodLike]
Targets = TargetLike | Sequence[TargetLike]
Made = Attribution | Sequence[Attribution] | Iterator[Attribution]
Several = Literal["all", "entities"] | Continuation  # targets that one text has more than one of


class Explainer(Session):
    """Explains one model. Thread-safe: the model is rewired only while it runs, under a lock.

    ``model`` and ``tokenizer`` are the objects of transformers. While the model runs, its weights take
    no gradient and it is in evaluation mode: train it between explanations, or explain a copy.
    """

    loading: dict[str, Any] | None = None  # how from_pretrained() was called, for other processes

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        dtype: torch.dtype | str | None = None,
        device: str | torch.device | None = None,
        **hub: Any,
    ) -> Explainer:
        """Load an embedded model (``tokenlight/sentiment``), a folder, or a hub id."""
        from tokenlight.models.carriers import vectors
        from tokenlight.models.loading import load

        model, tokenizer = load(str(name), dtype=dtype, device=device, **hub)
        made_of: dict[str, Any] = {}
        if not type(model).__name__.endswith(TAKEN):
            made_of["pooling"], made_of["similarity"], limit = vectors(str(name), **hub)
            tokenizer.model_max_length = min(limit or 1 << 30, tokenizer.model_max_length)
        made = cls(model, tokenizer, name=str(name), **made_of)
        made.loading = {"name": str(name), "dtype": dtype, "device": device, **hub}
        return made

    def __repr__(self) -> str:
        return f"<Explainer {self.name}: {type(self.live.model).__name__}>"

    @property
    def labels(self) -> Sequence[str]:
        """The labels of a classifier, in the order of its logits; a language model's are tokens."""
        return self.live.head.labels

    # What comes back follows from what is given; of arrays, columns and Tokens only running tells.
    # The methods of one text are list[Any]: a str is a Sequence, and a list[str] no list of a union.
    @overload
    def explain(
        self,
        inputs: Iterator[Any],
        method: Methods = ...,
        target: TargetLike = ...,
        **how: Unpack[Keywords],
    ) -> Iterator[Attribution]: ...
    @overload
    def explain(  # type: ignore[overload-overlap]  # "all" is a str, and the one that gives a list
        self, inputs: OneText, method: MethodLike = ..., *, target: Several, **how: Unpack[Keywords]
    ) -> list[Attribution]: ...
    @overload
    def explain(  # type: ignore[overload-overlap]
        self, inputs: OneText, method: MethodLike, target: Several, **how: Unpack[Keywords]
    ) -> list[Attribution]: ...
    @overload
    def explain(
        self,
        inputs: OneText,
        method: MethodLike = ...,
        target: TargetLike = ...,
        **how: Unpack[Keywords],
    ) -> Attribution: ...
    @overload
    def explain(
        self, inputs: OneText, method: list[Any], target: TargetLike = ..., **how: Unpack[Keywords]
    ) -> list[Attribution]: ...
    @overload
    def explain(
        self,
        inputs: list[Any],
        method: Methods = ...,
        target: Targets = ...,
        **how: Unpack[Keywords],
    ) -> list[Attribution]: ...
    @overload
    def explain(
        self, inputs: Any, method: Methods = ..., target: Targets = ..., **how: Unpack[Keywords]
    ) -> Attribution | list[Attribution]: ...

    def explain(  # noqa: PLR0913 - the keywords users set, each by name
        self,
        inputs: Any,
        method: Methods = AUTO,
        target: Targets = "predicted",
        *,
        explain_mask: ExplainMask = "none",
        token_types: Literal["tokenizer", "zeros"] = "tokenizer",
        long: Long = "error",
        seed: int = 0,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        text: str | None = None,
        progress: bool | None = None,
    ) -> Any:
        """Score the tokens of each text.

        ``inputs``: a text, a (text, text) pair, a :class:`Question`, a :class:`Chat`, a
        :class:`Context`, a :class:`Picture` (or a PIL image, or an array height × width × 3),
        :class:`Tokens` or what a tokenizer returned; a list of these, an iterator, or a table (a data
        frame, a Dataset), whose column ``text`` holds them, found by its name as in files. One
        text and one method give one Attribution; anything else a list, text by text, then method by
        method, then class by class for ``target="all"`` (of a model that labels tokens, word by word; name
        by name for ``"entities"``); an iterator gives an iterator, in constant memory. ``target`` may be
        a list with one target per text. At most ``batch_tokens`` tokens and ``batch_size`` texts go through
        the model at once.
        ``method="auto"`` takes one of the most faithful methods measured for this input (the
        Attribution notes which, and why); ``"best"`` measures on a sample of these very texts.
        """
        if batch_tokens is None:
            batch_tokens = self.live.batch_tokens or self.live.budget
        how = How(
            methods=(),
            seed=whole_number("seed", seed, 0),
            explain_mask=one_of("explain_mask", explain_mask, ("none", "cls_sep", "sep")),
            token_types=one_of("token_types", token_types, ("tokenizer", "zeros")),
            long=one_of("long", long, ("error", "truncate", "stride")),
            batch_tokens=whole_number("batch_tokens", batch_tokens, 1),
            batch_size=None if batch_size is None else whole_number("batch_size", batch_size, 1),
            progress=progress,
        )
        inputs = options.tabled(inputs, text)
        if isinstance(method, str) and method == "best":
            from tokenlight.evaluation.choose import explain_best

            decided = set(Keywords.__annotations__) - {"text"}  # which is read by now
            keywords = {name: getattr(how, name) for name in decided}
            return explain_best(self, inputs, target, **keywords)
        if any(map(is_auto, method if isinstance(method, list) else [method])):
            return self._explain_by_default(inputs, method, target, how)
        return self._explain_by(inputs, method, target, how)

    __call__ = explain

    def attribute(
        self, inputs: Any, target: Any = "predicted", *, attention_mask: Any = None, **how: Any
    ) -> torch.Tensor:
        """As Captum's ``attribute``: token ids, ``batch token``, to scores of that shape, 0 at padding.

        ``inputs`` may be what a tokenizer returned; ``target`` one target, or a list or array with one per
        text; ``how``: ``method`` and the other keywords of :meth:`explain`.
        """
        given = inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}
        tokens = options.tabled({"attention_mask": attention_mask, **given}, None)
        targets = target.tolist() if hasattr(target, "tolist") else target
        found = self.explain(list(tokens.rows), target=targets, **how)
        scores = torch.zeros(len(tokens.rows), len(tokens.rows[0]), dtype=torch.float64)
        for place, (row, one) in enumerate(zip(tokens.rows, found, strict=True)):
            inside = real_tokens(row, self.pad_id)
            scores[place, inside.start : inside.stop] = torch.from_numpy(one.scores.copy())
        return scores

    def default_method(self, given: Any = "") -> str:
        """The method that ``explain(given)`` takes by itself, tried on a short text."""
        kind = kind_of(self, given)
        if kind not in self._defaults:
            text, target = sample(self)
            with suppress(TokenlightError):  # then the first is named, and says why it cannot
                self.explain(text, AUTO, target, long="truncate", progress=False)
        own = self._defaults.get(kind) or self._defaults.get("text", ())
        names = candidates(kind, self)
        return names[-1] if own[:1] == names[-1:] else names[0]

    def _explain_by_default(self, inputs: Any, method: Any, target: Any, how: How) -> Any:
        """By the first method of the table that this model supports; the same for all inputs."""
        if isinstance(inputs, Iterator):  # it is read once: its first text decides
            first = next(inputs, None)
            inputs = iter(()) if first is None else chain((first,), inputs)
            kind = kind_of(self, first)
            if first is not None and kind not in self._defaults:
                with suppress(TokenlightError):  # told in its turn, with the text's number
                    self._explain_by_default([first], AUTO, target, replace(how, progress=False))
            names = self._defaults.get(kind, candidates(kind, self)[:1])
        else:
            kind = kind_of(self, options.listed(inputs)[0][0])
            names = self._defaults.get(kind, candidates(kind, self))
        several, found = isinstance(method, list), None
        for name in names:
            methods = [name if is_auto(m) else m for m in method] if several else name
            why = name, reason(kind, name, name != candidates(kind)[0])
            try:
                found = self._explain_by(inputs, methods, target, replace(how, why=why))
            except UnsupportedModel:
                if name == names[-1]:
                    raise
                continue
            self._defaults[kind] = (name,)
            break
        return found

    def _explain_by(self, inputs: Any, method: Any, target: Any, how: How) -> Any:
        how = replace(how, methods=self._methods(method, how.seed))
        for one in target if isinstance(target, list) else [target]:
            options.refuse_arrays(one)
        if isinstance(inputs, Iterator):
            if isinstance(target, list):
                raise BadInput("a list of targets needs a list of texts, not an iterator.")
            quiet = replace(how, progress=False)

            def explain(window: list[Any], first: int) -> list[list[Attribution]]:
                with making(len(window) * len(how.methods)):
                    return self._explain(window, [target] * len(window), quiet, first=first)

            return answered(options.unrolled(inputs), explain, how.batch_tokens)
        texts, single_text = options.listed(inputs)
        targets = target if isinstance(target, list) else [target] * len(texts)
        if len(targets) != len(texts):
            raise BadInput(f"{len(targets)} targets were given for {len(texts)} texts.")
        with making(len(texts) * len(how.methods)):
            found = Attributions(chain.from_iterable(self._explain(texts, targets, how)))
        single = single_text and not isinstance(method, list) and len(found) == 1
        several = target in ("all", ENTITIES) or isinstance(target, Continuation)
        return found[0] if single and not several else found

    def evaluate(
        self, xs: Made, metrics: Any, labels: Any = None, spans: Any = None, **how: Any
    ) -> Evaluation:
        """Measure explanations of this model: an Evaluation, rows and a summary with intervals.

        ``metrics``: names or (name, options) pairs. ``labels``: the true label of each text; ``spans``:
        what a person marked in it. ``how``: ``seed``, ``batch_tokens``, ``progress``.
        """
        from tokenlight.evaluation.results import evaluate

        return evaluate(self, xs, metrics, labels=labels, spans=spans, **how)

    def mapper(
        self,
        column: str | None = None,
        method: MethodLike = AUTO,
        target: TargetLike = "predicted",
        **how: Unpack[Keywords],
    ) -> Mapper:
        """A function for ``datasets.map(…, batched=True)``, Ray Data and Spark: it adds the columns of
        docs/format.md to batches whose column ``column`` (two joined by ``+``) holds the texts."""
        from tokenlight.scale.mapper import Mapper

        return Mapper(column, {"method": method, "target": target, **how}, self.loading, self)

    @one_reading()
    def _explain(
        self, texts: Sequence[Any], targets: Sequence[Any], how: How, *, first: int | None = None
    ) -> list[list[Attribution]]:
        """The Attributions of each text, in order; ``first``: number of the first in a stream."""
        results: list[list[Attribution]] = [[] for _ in texts]
        work: dict[int, list[Job]] = {}  # by text
        bare = [text.text if isinstance(text, Example) else text for text in texts]
        alone, whole = first is None and len(texts) == 1, self.live.head.reads == "text"
        label = str | int
        asked_of = zip(bare, targets, together(self, bare, how), strict=True)
        for number, (text, target, row) in enumerate(asked_of):
            if whole and row is not None and isinstance(target, label):
                work[number] = [(row, target)]
                continue
            with options.naming(None if alone else (first or 0) + number):
                work[number], results[number] = self._asked(text, target, how, row)
        rows = [job for asked in work.values() for job in asked]
        if rows:
            self.verify(rows[0][0], how)
        done = iter(explain_packed(self, rows, how))
        for number, asked in work.items():
            if len(asked) == 1:
                results[number] = next(done)
            elif asked:
                found = list(islice(done, len(asked)))
                results[number] = method_by_method(found, len(how.methods))
        pairs = zip(texts, results, strict=True)
        return [_known(text, own) if isinstance(text, Example) else own for text, own in pairs]

    def _asked(
        self, text: Any, target: Any, how: How, row: TokenRow | None
    ) -> tuple[list[Job], list[Attribution]]:
        """What is to go through the model; or the Attributions of what several passes read, each a row of
        its own."""
        if sides := passes.two_passes(self, text, target):
            both = self._explain(*sides, replace(how, progress=False))
            return [], [passes.difference(*pair) for pair in zip(*both, strict=True)]
        if how.long == "stride" and is_long(self, text):
            return [], explain_long(self, text, target, how)
        if self.live.head.reads == "pair":
            return [], passes.explain_likeness(self, text, target, how)
        asked = jobs(self, text, target, how, row)
        if passes.share_a_forward(self, asked, how):
            return [], passes.explain_written(self, asked, how)
        return asked, []

    def _methods(self, method: Any, seed: int) -> tuple[Method, ...]:
        given = method if isinstance(method, list) else [method]
        if not given:
            raise BadInput(f"no method was given; known: {', '.join(registry.names('methods'))}.")
        asked = (m if isinstance(m, Method) else registry.asked("methods", m) for m in given)
        return tuple(
            one if isinstance(one, Method) else Method.asked(*one, seed=seed, model=self.live.model)
            for one in asked
        )


def _known(text: Example, made: list[Attribution]) -> list[Attribution]:
    """With what a table says beside the text."""
    return [replace(one, extras={**one.extras, **text.known}) for one in made]
