"""Explainer: the object users meet. Texts in, Attributions out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack, overload

import torch

from tokenlight.data.alternatives import DEFAULT_ALTERNATIVES
from tokenlight.data.attribution import Attribution, AttributionList
from tokenlight.data.target import Continuation, TargetLike
from tokenlight.data.tokens import (
    ExplainMask,
    LongPromptPolicy,
    LongTextPolicy,
    TokenTypes,
    find_unpadded_range,
)
from tokenlight.errors import BadInput, short_repr
from tokenlight.errors.arguments import UNCHECKED, Range, checked
from tokenlight.explaining.calls import (
    build_options,
    explain_iterator,
    explain_list,
)
from tokenlight.explaining.default_method import (
    AUTO_METHOD,
    choose_default_method,
    detect_input_kind,
    make_sample_input,
)
from tokenlight.explaining.explain_options import (
    AttributeKeywords,
    CommonKeywords,
    Effort,
    EvaluateKeywords,
    ExplainKeywords,
    SingleInput,
    list_texts,
    normalize_inputs,
)
from tokenlight.explaining.generation import GeneratedToken, generate_explained
from tokenlight.explaining.refinement import refine_explanation
from tokenlight.explaining.session import UNLIMITED_TOKENS, Session, find_pad_id
from tokenlight.explaining.text_result import TextResult, iter_attributions
from tokenlight.explaining.token_targets import expands_to_several
from tokenlight.methods.base import Method
from tokenlight.model.head_detection import SUPPORTED_SUFFIXES

if TYPE_CHECKING:
    from tokenlight.evaluation.results import Evaluation  # returned by evaluate()
    from tokenlight.scale.mapper import Mapper  # returned by make_mapper()

MethodLike = str | tuple[str, dict[str, Any]] | Method
Methods = MethodLike | Sequence[MethodLike]
Targets = TargetLike | Sequence[TargetLike]
AttributionsLike = Attribution | Sequence[Attribution] | Iterator[Attribution]
# Targets that stand for several in one text.
MultipleTargets = Literal["all", "entities"] | Continuation


class Explainer(Session):
    """Explains the decisions of one model.

    The model is changed only while it runs, under a lock, so that several threads may share an Explainer.
    While it runs, its weights take no gradient and it is in evaluation mode: train it between
    explanations, or explain a copy.

    Args:
        model: A model of transformers; an object that holds one (a pipeline, a CrossEncoder, a
            SentenceTransformer); or a torch module that classifies token ids.
        tokenizer: Its tokenizer; the image processor of an image model, the processor of a model that
            reads images and text. None: inputs are token ids.
        name: The name that results carry; by default that of the model's config.
        pooling: How a model without head makes one embedding of a text.
        similarity: How two such embeddings are compared.
        labels: The names of the classes of a torch module.
        cuda_graph_bytes: GPU memory that captured passes may take, with which small batches of a shape that
            returns are launched at once; 0 captures none. By default 5 % of the device or 1 GiB, whichever is
            larger, or the number in the environment variable ``TOKENLIGHT_CUDA_GRAPH_BYTES``.

    Attributes:
        model: The model that is explained.
        tokenizer: Its tokenizer or image processor; None if inputs are token ids.
        name: The name that results carry.
        runner: Runs the model for the packages of tokenlight; its methods may change in any version.
        facts: What they know of the model besides; may change in any version, too.

    Raises:
        UnsupportedModel: The model has a head or a structure that cannot be explained correctly.

    Example:
        >>> from tokenlight import Explainer
        >>> loaded = Explainer.from_pretrained("tokenlight/sentiment")
        >>> explainer = Explainer(loaded.model, loaded.tokenizer, name="my model")
        >>> explainer.explain("Never dull.", "attcat").model
        'my model'
    """

    # The arguments of from_pretrained(), with which another process loads the same model.
    _loading: dict[str, Any] | None = None

    @classmethod
    @checked
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        *,
        dtype: torch.dtype | str | None = None,
        device: str | torch.device | None = None,
        **hub_options: Any,
    ) -> Explainer:
        """Load a model and its tokenizer.

        Args:
            name: An embedded model (``tokenlight/sentiment``), a folder, an id of the Hugging Face hub, or
                a GGUF file (with the extra ``gguf``).
            dtype: The dtype of the weights; by default that of the file.
            device: The device to load to; by default the first GPU, if there is one.
            **hub_options: Options of the hub, such as ``revision``.

        Returns:
            The Explainer of the model.

        Raises:
            MissingFile: No such model is found.
            UnsupportedModel: The model cannot be explained correctly.

        Example:
            >>> Explainer.from_pretrained("tokenlight/sentiment").labels
            ('negative', 'positive')
        """
        from tokenlight.models.gguf_loading import describe_gguf, find_gguf_file
        from tokenlight.models.loading import check_hub_options, load_model
        from tokenlight.models.wrappers import read_embedding_config

        check_hub_options(hub_options)
        model, tokenizer = load_model(str(name), dtype=dtype, device=device, **hub_options)
        embedding_options: dict[str, Any] = {}
        if not type(model).__name__.endswith(SUPPORTED_SUFFIXES):
            # A model without head compares texts, as sentence-transformers configured it.
            pooling, similarity, max_tokens = read_embedding_config(str(name), **hub_options)
            embedding_options = {"pooling": pooling, "similarity": similarity}
            tokenizer.model_max_length = min(
                max_tokens or UNLIMITED_TOKENS, tokenizer.model_max_length
            )
        explainer = cls(model, tokenizer, name=str(name), **embedding_options)
        gguf_file = find_gguf_file(str(name))
        if gguf_file is not None:
            explainer.facts.notes = describe_gguf(gguf_file, model)
        explainer._loading = {"name": str(name), "dtype": dtype, "device": device, **hub_options}
        return explainer

    def __repr__(self) -> str:
        return f"<Explainer {self.name}: {type(self.runner.model).__name__}>"

    def release_memory(self) -> None:
        """Give back the GPU memory that was kept to make the next explanations faster.

        Captured CUDA graphs are dropped and the memory that torch has cached returns to the device. Nothing
        else changes: the next explanation of a shape is only slower. On a CPU there is nothing to give back.

        Example:
            >>> from tokenlight import Explainer
            >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
            >>> explainer.release_memory()
        """
        self.runner.graph_cache.clear()
        if self.runner.device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def labels(self) -> Sequence[str]:
        """The labels of a classifier in the order of its logits; the tokens of a language model."""
        return self.runner.head.labels

    # The type of the result follows from the types of the arguments, except for arrays, columns and Tokens.
    # Several methods are list[Any]: a str is a Sequence, too, and a list[str] is not a list of a union.
    @overload
    def explain(
        self,
        inputs: Iterator[Any],
        method: Methods = ...,
        target: TargetLike = ...,
        **options: Unpack[ExplainKeywords],
    ) -> Iterator[Attribution]: ...
    @overload
    def explain(  # type: ignore[overload-overlap]  # "all" is a str, but gives a list
        self,
        inputs: SingleInput,
        method: MethodLike = ...,
        *,
        target: MultipleTargets,
        **options: Unpack[ExplainKeywords],
    ) -> list[Attribution]: ...
    @overload
    def explain(  # type: ignore[overload-overlap]
        self,
        inputs: SingleInput,
        method: MethodLike,
        target: MultipleTargets,
        **options: Unpack[ExplainKeywords],
    ) -> list[Attribution]: ...
    @overload
    def explain(
        self,
        inputs: SingleInput,
        method: MethodLike = ...,
        target: TargetLike = ...,
        **options: Unpack[ExplainKeywords],
    ) -> Attribution: ...
    @overload
    def explain(
        self,
        inputs: SingleInput,
        method: list[Any],
        target: TargetLike = ...,
        **options: Unpack[ExplainKeywords],
    ) -> list[Attribution]: ...
    @overload
    def explain(
        self,
        inputs: list[Any],
        method: Methods = ...,
        target: Targets = ...,
        **options: Unpack[ExplainKeywords],
    ) -> list[Attribution]: ...
    @overload
    def explain(
        self,
        inputs: Any,
        method: Methods = ...,
        target: Targets = ...,
        **options: Unpack[ExplainKeywords],
    ) -> Attribution | list[Attribution]: ...

    def explain(  # noqa: PLR0913 - the keywords users set, each by name
        self,
        inputs: Any,
        method: Methods = AUTO_METHOD,
        target: Targets = "predicted",
        *,
        explain_mask: ExplainMask = "none",
        token_types: TokenTypes = "tokenizer",
        long: LongTextPolicy = "error",
        seed: int = 0,
        effort: Effort | int | None = None,
        stable: float | None = None,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        text_column: str | None = None,
        progress: bool | None = None,
    ) -> Any:
        """Score the tokens of one or more texts.

        Args:
            inputs: A text, a (text, text) pair, a :class:`Question`, :class:`Chat`, :class:`Context` or
                :class:`Picture` (or a PIL image, or an array height × width × 3), :class:`Tokens`, or
                what a tokenizer returned; a list or an iterator of these; or a table (a data frame, a
                Dataset) with a column of texts.
            method: The name of a method, a (name, options) pair or a Method; or a list of these.
                ``"auto"`` takes one of the most faithful methods measured for this kind of input and
                says in ``notes`` which one and why; ``"best"`` measures on a sample of these texts.
            target: What to explain: ``"predicted"``, a label, its index, ``"all"`` labels, or a target
                object such as :class:`Contrast`; or a list with one target per text.
            explain_mask: Special tokens to mask in the pass that is explained.
            token_types: ``"zeros"`` replaces the tokenizer's token types by zeros.
            long: What to do with a text that is longer than the model reads: raise an error, truncate
                it, or explain overlapping windows (``"stride"``).
            seed: The seed of methods that sample.
            effort: How much compute to spend, instead of naming a method: ``"instant"`` (one pass),
                ``"normal"`` (about ten), ``"thorough"`` (about a hundred) or a number of passes.
                ``notes`` say which method it chose.
            stable: Instead of a method, sample until this share of the top 5 tokens, such as 0.95, would
                be named again by other samples; with ``effort``, which then limits the number of passes.
            batch_tokens: The most tokens that go through the model at once.
            batch_size: The most texts that go through the model at once.
            text_column: The column of the texts in a table; by default it is found by its name.
            progress: Whether to show a progress bar; by default on a terminal.

        Returns:
            One Attribution for one text and one method. A list for anything else: text by text, then
            method by method, then target by target. An iterator, in constant memory, for an iterator.

        Raises:
            BadInput: A text or an option is not valid.
            BadTarget: The model does not have such a target.
            UnknownName: There is no such method, option or label.
            UnsupportedModel: The method would give wrong numbers for this model.
            NotFinite: The model or the method gives NaN or infinity.

        Example:
            >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
            >>> attribution = explainer.explain("Never dull.", "attcat", target="positive")
            >>> attribution.target.name, len(attribution.scores) == len(attribution.tokens)
            ('positive', True)
        """
        options = build_options(
            self,
            method,
            explain_mask=explain_mask,
            token_types=token_types,
            long=long,
            seed=seed,
            effort=effort,
            stable=stable,
            batch_tokens=batch_tokens,
            batch_size=batch_size,
            progress=progress,
        )
        inputs = normalize_inputs(inputs, text_column)
        if isinstance(method, str) and method == "best":
            from tokenlight.evaluation.choose import explain_best

            # The column of the texts is read by now.
            names = CommonKeywords.__annotations__
            keywords = {name: getattr(options, name) for name in names}
            return explain_best(self, inputs, target, **keywords)
        if isinstance(inputs, Iterator):
            return iter_attributions(explain_iterator(self, inputs, method, target, options))
        texts, is_single_text = list_texts(inputs)
        results = explain_list(self, texts, method, target, options)
        attributions = AttributionList()
        for result in results:
            attributions += result.attributions
        returns_single = is_single_text and not isinstance(method, list)
        # A target that stands for several gives a list even where it happens to stand for one.
        if returns_single and not expands_to_several(target) and len(attributions) == 1:
            return attributions[0]
        return attributions

    __call__ = explain

    @checked
    def explain_texts(
        self,
        inputs: Any,
        method: Any = AUTO_METHOD,
        target: Any = "predicted",
        *,
        keep_errors: bool = False,
        **options: Unpack[ExplainKeywords],
    ) -> list[TextResult]:
        """Score the tokens of several texts and keep the results of each text together.

        Args:
            inputs: One or more inputs, as for :meth:`explain`, but not an iterator.
            method: One or more methods, as for :meth:`explain`, but not ``"best"``.
            target: A target, or a list with one per text.
            keep_errors: Return the error of a text that is refused in its result rather than raise it.
            **options: The other keywords of :meth:`explain`.

        Returns:
            One result per text, in order.

        Raises:
            TokenlightError: An option is not valid; or a text is refused and ``keep_errors`` is false.

        Example:
            >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
            >>> results = explainer.explain_texts(["Never dull.", ""], "attcat", keep_errors=True)
            >>> len(results[0].attributions), type(results[1].error).__name__
            (1, 'BadInput')
        """
        text_column = options.pop("text_column", None)
        texts, _ = list_texts(normalize_inputs(inputs, text_column))
        checked_options = build_options(self, method, **options)  # type: ignore[misc]  # no text_column
        return explain_list(self, texts, method, target, checked_options, keep_errors=keep_errors)

    @checked
    def refine(
        self,
        inputs: Any,
        target: Any = "predicted",
        *,
        effort: Annotated[Effort | int, UNCHECKED] = "thorough",
        long: LongTextPolicy = "error",
        seed: int = 0,
    ) -> Iterator[Attribution]:
        """Explain one text quickly first, then again with more passes, up to ``effort``.

        Each explanation equals that of ``explain(inputs, effort=…)`` at its effort. An input for which no
        more passes are worth their price, such as a pair, is explained once.

        Args:
            inputs: One input, as for :meth:`explain`.
            target: One target.
            effort: The highest effort to spend, as for :meth:`explain`.
            long: What to do with a text that is longer than the model reads.
            seed: The seed of the samples.

        Returns:
            An iterator over Attributions, the cheapest first. Nothing is computed before it is read.

        Raises:
            BadInput: There are several inputs or targets, or an option is not valid.

        Example:
            >>> from tokenlight import Explainer
            >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
            >>> for attribution in explainer.refine("Never dull.", effort="normal"):
            ...     print(attribution.method, attribution.standard_errors is not None)
            attnlrp False
            subset_relevance True
        """
        return refine_explanation(self, inputs, target, effort=effort, long=long, seed=seed)

    @checked
    def generate(
        self,
        prompt: Any,
        method: Any = AUTO_METHOD,
        *,
        max_new_tokens: Annotated[int, Range(1, inf)] = 20,
        against: int | Literal["all"] | None = DEFAULT_ALTERNATIVES,
        long: LongPromptPolicy = "error",
        seed: int = 0,
    ) -> Iterator[GeneratedToken]:
        """Let a causal language model continue a prompt, and explain each token as it comes.

        Decoding is greedy, and ends where the model ends the text. Tokens come in chunks of 1, 2, 4 and then
        8, which share one forward pass; ``explain(prompt, target=Continuation(…))`` gives the same scores.

        Args:
            prompt: A text, a :class:`Chat`, a :class:`Context` or a :class:`Picture` with a text.
            method: One method, as for :meth:`explain`.
            max_new_tokens: The most tokens to generate.
            against: What each token is contrasted with, as for :class:`Continuation`.
            long: What to do with a prompt that is longer than the model reads.
            seed: The seed of methods that sample.

        Returns:
            An iterator over pairs of a token and its Attribution. Nothing is computed before it is read.

        Raises:
            BadInput: The prompt or an option is not valid, or the model generates nothing.
            UnsupportedModel: The model is no causal language model, or its cache changes its predictions.

        Example:
            >>> from tokenlight import Explainer
            >>> explainer = Explainer.from_pretrained("gpt2")  # doctest: +SKIP
            >>> for token, attribution in explainer.generate("Once upon a"):  # doctest: +SKIP
            ...     print(token, attribution.top(1))
        """
        return generate_explained(
            self,
            prompt,
            method,
            max_new_tokens=max_new_tokens,
            against=against,
            long=long,
            seed=seed,
        )

    @checked
    def attribute(
        self,
        inputs: Any,
        target: Any = "predicted",
        *,
        attention_mask: Any = None,
        **options: Unpack[AttributeKeywords],
    ) -> torch.Tensor:
        """Score token ids, with the signature of Captum's ``attribute``.

        Args:
            inputs: Token ids, ``batch token``, or what a tokenizer returned.
            target: A target, or a list or array with one per text.
            attention_mask: ``batch token``, 0 at padding.
            **options: ``method`` and the other keywords of :meth:`explain`.

        Returns:
            The scores, ``batch token``, in float64; 0 at padding.

        Raises:
            BadInput: ``inputs`` has no token ids.

        Example:
            >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
            >>> encoded = explainer.tokenizer(["Never dull.", "A mess."], padding=True)
            >>> scores = explainer.attribute(encoded, target=[1, 0], method="attcat")
            >>> tuple(scores.shape) == (2, len(encoded["input_ids"][0]))
            True
        """
        encoded = inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}
        if "input_ids" not in encoded:
            raise BadInput(
                f"{short_repr(inputs)} has no input_ids. Give token ids, or what a tokenizer returned.",
                code="no-input-ids",
            )
        tokens = normalize_inputs({"attention_mask": attention_mask, **encoded}, None)
        rows = list(tokens.rows)
        targets = target.tolist() if hasattr(target, "tolist") else target
        attributions = self.explain(rows, target=targets, **options)
        scores = torch.zeros(len(rows), len(rows[0]), dtype=torch.float64)
        for index, (row, attribution) in enumerate(zip(rows, attributions, strict=True)):
            unpadded = find_unpadded_range(row, find_pad_id(self))
            row_scores = torch.from_numpy(attribution.scores.copy())
            scores[index, unpadded.start : unpadded.stop] = row_scores
        return scores

    def get_default_method(self, example: Any = "") -> str:
        """Return the method that ``explain(example)`` takes by default.

        Args:
            example: An input of the kind to explain; a plain text and a pair may have other defaults.

        Returns:
            The name of the method.

        Example:
            >>> Explainer.from_pretrained("tokenlight/sentiment").get_default_method()
            'attnlrp'
        """
        kind = detect_input_kind(self, example)
        sample, _ = make_sample_input(self)
        return choose_default_method(self, kind, sample)

    @checked
    def evaluate(
        self,
        attributions: Annotated[AttributionsLike, UNCHECKED],
        metrics: Any,
        labels: Any = None,
        spans: Any = None,
        **options: Unpack[EvaluateKeywords],
    ) -> Evaluation:
        """Measure explanations of this model.

        Args:
            attributions: The output of :meth:`explain`.
            metrics: Names of metrics, or (name, options) pairs.
            labels: The true label of each text, for metrics that need it.
            spans: Annotated spans of each text, for metrics that need them.
            **options: ``seed``, ``batch_tokens`` and ``progress``.

        Returns:
            An Evaluation: one row per explanation and metric, and a summary with confidence intervals.

        Raises:
            BadInput: The explanations, labels or spans do not fit together.
            UnknownName: There is no such metric or option.

        Example:
            >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
            >>> attributions = explainer.explain(["Never dull.", "A mess."], ["attcat"])
            >>> len(explainer.evaluate(attributions, ["aopc"]).records)
            2
        """
        from tokenlight.evaluation.evaluate import evaluate_attributions

        return evaluate_attributions(
            self, attributions, metrics, labels=labels, spans=spans, **options
        )

    @checked
    def make_mapper(
        self,
        text_column: str | None = None,
        method: MethodLike = AUTO_METHOD,
        target: TargetLike = "predicted",
        **options: Unpack[CommonKeywords],
    ) -> Mapper:
        """Return a function for ``datasets.map(…, batched=True)``, Ray Data and Spark.

        Args:
            text_column: The column of the texts; two names joined by ``+`` are a pair. By default it is found
                by its name.
            method: One method.
            target: One target.
            **options: The other keywords of :meth:`explain`.

        Returns:
            A function that adds the columns of docs/format.md to a batch of rows.

        Example:
            >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
            >>> batch = explainer.make_mapper("review", "attcat")({"review": ["Never dull."]})
            >>> batch["prediction"]
            ['positive']
        """
        from tokenlight.scale.mapper import Mapper

        keywords = {"method": method, "target": target, **options}
        return Mapper(
            text_column=text_column,
            options=keywords,
            load_arguments=self._loading,
            loaded_explainer=self,
        )
