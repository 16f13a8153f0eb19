"""The public calls of the library with one argument exchanged for what does not belong there.

A call is a public function with good arguments. A fuzzed call replaces one parameter of its signature, or
adds a keyword that the function does not have. The campaign and the tests draw from the same calls.
"""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tokenlight
from tests.fuzz.outcomes import signature_refused
from tests.helpers.families import build_model
from tests.helpers.scale_runs import InProcessEngine
from tests.helpers.tiny import tiny_bert, tiny_bert_lm, tiny_bert_qa, tiny_tokenizer
from tokenlight import (
    Attribution,
    Chat,
    Context,
    Continuation,
    Contrast,
    Explainer,
    NextToken,
    Picture,
    Question,
    RankedAbove,
    SpanTarget,
    Tokens,
    TokenTarget,
    datafiles,
    models,
    postprocess,
    registry,
    trust,
)
from tokenlight.evaluation.choose import choose_best
from tokenlight.evaluation.compare import ComparedModel, compare
from tokenlight.evaluation.external import import_scores
from tokenlight.plugin import Measurement
from tokenlight.scale import Engine, explain_files

TEXT = "good film , slow plot"
QUESTION = Question("who ?", "we love the film")
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 3, 10**9, 10**30, -(10**18), 0.5, -0.0, float("nan"), float("inf"), 1e308, 1j,
    "", "x", " ", "é\u202e", "\ud800", "\x00", "x" * 5000, "../x", b"x", bytearray(b"x"), [], [None], ["x"],
    [[1]], [0.5], (), (1, 2), ("x", {}), {}, {"a": 1}, {1: 2}, {1, 2}, object(), int, repr, range(3),
    Path("."), Path("missing/file.json"), np.array([]), np.array([1.5]), np.array("x"), np.float64("nan"),
    np.int64(2), torch.zeros(2, 2), torch.tensor(1), iter([1]), Exception("x"),
)  # fmt: skip
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
HUB_OPTIONS = (
    "revision", "cache_dir", "subfolder", "token", "device_map", "variant", "quantize", "attn_implementation",
    "local_files_only", "force_download", "proxies", "trust_remote_code", "use_safetensors", "max_memory",
    "low_cpu_mem_usage", "torch_dtype", "config", "state_dict", "num_labels", "output_attentions", "code_revision",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A public function, good arguments for it, and what a person does next with its result."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    then: Callable[[Any], Any] = lambda result: result
    options: tuple[str, ...] = ()  # keywords that it takes besides those of its signature

    @property
    def parameters(self) -> list[str]:
        """Names that can be given by keyword."""
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        signature = inspect.signature(self.function)
        names = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.kind not in variable
        ]
        return [*names, *self.options]

    def with_changes(self, changes: Mapping[str, Any]) -> Callable[[], Any]:
        """The call with other arguments, to be made later."""
        arguments = {**self.arguments, **changes}

        def act() -> Any:
            try:
                result = self.function(**arguments)
            except TypeError as error:
                if signature_refused(error, __file__):
                    return None
                raise
            return self.then(result)

        return act


@dataclass(frozen=True)
class Fixtures:
    """The models and results that calls are made on, and a folder to write into."""

    plain: Explainer
    answers: Explainer
    masked: Explainer
    writer: Explainer
    tagger: Explainer
    folder: Path
    model_folder: Path

    @classmethod
    def built(cls, folder: Path) -> Fixtures:
        tokenizer = tiny_tokenizer()
        writer = build_model("gpt2", "LMHeadModel")
        writer.resize_token_embeddings(len(tokenizer))
        model_folder = folder / "model"
        tiny_bert(dtype=torch.float32).save_pretrained(model_folder)
        tokenizer.save_pretrained(model_folder)
        (folder / "texts.csv").write_text("text,label\ngood film,1\nbad film,0\n")
        return cls(
            Explainer(tiny_bert(), tokenizer),
            Explainer(tiny_bert_qa(), tokenizer),
            Explainer(tiny_bert_lm(), tokenizer),
            Explainer(writer, tokenizer),
            Explainer(build_model("bert", "ForTokenClassification"), tokenizer),
            folder,
            model_folder,
        )


def _list_result_calls(fixtures: Fixtures) -> dict[str, Call]:
    """What is done with explanations and evaluations."""
    attributions = fixtures.plain.explain([TEXT, "bad film"], "attcat")
    attribution = attributions[0]
    evaluation = fixtures.plain.evaluate(attributions, ["aopc"])
    fields = {
        attribute.name: getattr(attribution, attribute.name)
        for attribute in dataclasses.fields(attribution)
    }
    arrays = {"scores": [0.1, 0.2, 0.3], "ids": [2, 5, 3], "logits": [0.1, 0.9]}
    optional_keywords = (
        "target",
        "labels",
        "attention_mask",
        "token_type_ids",
        "special",
        "pieces",
        "method",
        "model",
    )
    file = fixtures.folder / "saved.json"
    attribution.save(file)
    return {
        "load": Call(tokenlight.load, {"path": file}),
        "save": Call(tokenlight.save, {"attributions": attributions, "path": fixtures.folder / "a.csv"}),
        "Attribution": Call(Attribution, fields, repr),
        "Attribution.top": Call(attribution.top, {"k": 2}),
        "Attribution.words": Call(attribution.words),
        "Attribution.group_by": Call(attribution.group_by, {"unit": "word"}),
        "Attribution.save": Call(attribution.save, {"path": fixtures.folder / "b.html"}),
        "AttributionList.save": Call(attributions.save, {"path": fixtures.folder / "c.json"}),
        "Attribution.load": Call(Attribution.load, {"path": file}),
        "Attribution.from_dict": Call(Attribution.from_dict, {"values": attribution.to_dict()}),
        "Attribution.from_arrays": Call(Attribution.from_arrays, arrays, repr, optional_keywords),
        "Evaluation.save": Call(evaluation.save, {"folder": fixtures.folder / "evaluation"}),
        "evaluate": Call(
            fixtures.plain.evaluate,
            {"attributions": attributions, "metrics": ["aopc"]},
            repr,
            ("seed", "batch_tokens", "progress"),
        ),
        "assess_trust": Call(
            trust.assess_trust,
            {"explainer": fixtures.plain, "attribution": attribution, "num_orders": 5, "num_choices": 5},
        ),
        "assess_trust_of_all": Call(
            trust.assess_trust_of_all, {"explainer": fixtures.plain, "attributions": [attribution]}
        ),
        "merge_words": Call(postprocess.merge_words, {"attribution": attribution}),
        "absolute": Call(postprocess.absolute, {"attribution": attribution}),
        "l1_normalise": Call(postprocess.l1_normalise, {"attribution": attribution}),
        "max_normalise": Call(postprocess.max_normalise, {"attribution": attribution}),
        "without_special": Call(postprocess.without_special, {"attribution": attribution}),
        "difference": Call(postprocess.difference, {"attribution": attribution, "reference": attribution}),
        "import_scores": Call(
            import_scores,
            {"explainer": fixtures.plain, "text": "good film", "scores": [0.1, 0.2, 0.3, 0.4]},
        ),
    }  # fmt: skip


def _list_explain_calls(fixtures: Fixtures) -> dict[str, Call]:
    """What is asked of an Explainer."""
    plain = fixtures.plain
    keywords = (
        "method",
        "explain_mask",
        "token_types",
        "long",
        "seed",
        "batch_tokens",
        "batch_size",
    )
    ids = torch.tensor([[2, 5, 3]])
    batch = {"text": ["good film", "bad film"]}
    return {
        "Explainer": Call(Explainer, {"model": plain.model, "tokenizer": plain.tokenizer}, _explain_once),
        "from_pretrained": Call(
            Explainer.from_pretrained, {"name": fixtures.model_folder}, _explain_once, HUB_OPTIONS
        ),
        "explain": Call(plain.explain, {"inputs": TEXT}, _drain),
        "explain several": Call(plain.explain, {"inputs": [TEXT, "bad film"], "method": ["attcat"]}, _drain),
        "attribute": Call(plain.attribute, {"inputs": ids}, options=keywords),
        "get_default_method": Call(plain.get_default_method),
        "make_mapper": Call(plain.make_mapper, {"column": "text"}, lambda mapper: mapper(batch), keywords),
        "a mapper's batch": Call(plain.make_mapper("text").__call__, {"batch": batch}),
        "choose_best": Call(choose_best, {"explainer": plain, "texts": [TEXT], "candidates": ["cat"]}),
        "compare": Call(compare, {"before": ComparedModel(plain), "after": ComparedModel(plain), "examples": [datafiles.Example(TEXT)]}),
    }  # fmt: skip


def _list_input_calls(fixtures: Fixtures) -> dict[str, Call]:
    """Kinds of input and of target, each explained by a model that reads it."""
    plain = fixtures.plain
    writer = fixtures.writer
    pixels = {"values": np.zeros((3, 4, 4)), "mean": 0.5, "std": 0.5}
    prompt = "the film was"
    messages = [{"role": "user", "content": "good film"}]

    def make_call(explainer: Explainer, text: Any) -> Callable[[Any], Any]:
        return lambda target: _drain(explainer.explain(text, target=target))

    return {
        "Tokens": Call(Tokens, {"rows": Tokens.from_ids([[2, 5, 3]]).rows}, plain.explain),
        "Tokens.from_ids": Call(Tokens.from_ids, {"ids": [[2, 5, 3]]}, plain.explain),
        "Question": Call(
            Question, {"question": "who ?", "context": "we"}, fixtures.answers.explain
        ),
        "Chat": Call(Chat, {"messages": messages, "template": TEMPLATE}, writer.explain),
        "Context": Call(Context, {"documents": ["a film"]}, writer.explain),
        "Picture": Call(Picture, {"source": "missing.png"}, plain.explain),
        "Picture.from_pixels": Call(
            Picture.from_pixels, pixels, options=("fill", "name", "text", "processor")
        ),
        "Contrast": Call(
            Contrast, {"this": "positive", "that": "negative"}, make_call(plain, TEXT)
        ),
        "RankedAbove": Call(
            RankedAbove,
            {"alternative": "bad film", "label": "positive"},
            make_call(plain, ("a", "good film")),
        ),
        "NextToken": Call(NextToken, {"token": "good"}, make_call(writer, prompt)),
        "Continuation": Call(Continuation, {"text": "good film"}, make_call(writer, prompt)),
        "a free Continuation": Call(Continuation, {"max_new_tokens": 2}, make_call(writer, prompt)),
        "TokenTarget": Call(TokenTarget, {"token": "film"}, make_call(fixtures.tagger, "the film")),
        "SpanTarget": Call(SpanTarget, {}, make_call(fixtures.answers, QUESTION)),
        "a masked word": Call(fixtures.masked.explain, {"inputs": "the [MASK] was good"}, _drain),
    }


def _list_other_calls(fixtures: Fixtures) -> dict[str, Call]:
    """Files, embedded models, the registry, engines, and what authors of plug-ins use."""
    table = fixtures.folder / "texts.csv"
    files = {
        "source": table,
        "folder": fixtures.folder / "out",
        "model": str(fixtures.model_folder),
        "engine": InProcessEngine(),
    }
    attcat = registry.load_class("methods", "attcat")
    aopc = registry.load_class("metrics", "aopc")
    attributions = fixtures.plain.explain([TEXT], "attcat")
    return {
        "datafiles.read_examples": Call(datafiles.read_examples, {"source": table}),
        "explain_files": Call(explain_files, files, options=("seed", "long", "target")),
        "Engine": Call(Engine),
        "resolve_path": Call(models.resolve_path, {"name_or_path": "tokenlight/sentiment"}),
        "registry.build": Call(registry.build, {"kind": "methods", "name": "attcat"}),
        "registry.list_names": Call(registry.list_names, {"kind": "methods"}),
        "registry.describe_options": Call(
            registry.describe_options, {"kind": "methods", "name": "attcat"}
        ),
        "a method": Call(attcat, {}, lambda method: fixtures.plain.explain("good film", method)),
        "a metric": Call(aopc, {}, lambda metric: fixtures.plain.evaluate(attributions, [metric])),
        "Measurement": Call(Measurement, {"value": 0.5}),
    }


def _explain_once(explainer: Explainer) -> Any:
    return explainer.explain("good film", "attcat")


def _drain(result: Any) -> Any:
    """Iterators work when they are read."""
    return list(result) if isinstance(result, Iterator) else result


def calls(fixtures: Fixtures) -> dict[str, Call]:
    """Every public call by its name."""
    return {
        **_list_result_calls(fixtures),
        **_list_explain_calls(fixtures),
        **_list_input_calls(fixtures),
        **_list_other_calls(fixtures),
    }


def misspell(name: str, rng: random.Random) -> str:
    """A name with two neighboring letters exchanged, or one doubled."""
    at = rng.randrange(max(1, len(name) - 1))
    pair = name[at : at + 2]
    exchanged = pair[::-1] if len(set(pair)) == 2 else pair + pair[:1]
    return name[:at] + exchanged + name[at + 2 :]


def fuzz_calls(
    public_calls: Mapping[str, Call], count: int, seed: int
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """``count`` different calls by what was changed in them; every call comes up in turn."""
    rng = random.Random(seed)
    titles = set[str]()
    names = list(public_calls)
    attempt = 0
    while len(titles) < count and attempt < 20 * count:
        name = names[attempt % len(names)]
        attempt += 1
        call = public_calls[name]
        parameters = call.parameters
        if not parameters or rng.random() < 0.08:
            wrong = rng.choice([misspell(rng.choice(parameters or ["x"]), rng), "banana"])
            changes = {wrong: rng.choice(VALUES)}
        else:
            changes = {rng.choice(parameters): rng.choice(VALUES)}
        ((parameter, value),) = changes.items()
        title = f"{name}({parameter}={value!r:.40})"
        if title not in titles:
            titles.add(title)
            yield title, call.with_changes(changes)
