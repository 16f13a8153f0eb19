"""Served models: the allow-list given at start, each with its name, its facts and its examples."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenlight.errors import BadInput, UnknownName, UnsupportedModel, short
from tokenlight.explainer import Explainer
from tokenlight.explaining.default import AUTO
from tokenlight.heads.mask import HeadMask, read_heads
from tokenlight.models import embedded as models
from tokenlight.web.refusals import Refusal, keep_secret, not_found
from tokenlight.web.requests import ABOUT_DOCUMENTS

DEFAULT = ("tokenlight/sentiment", "tokenlight/topics", "tokenlight/qa")
EXAMPLES: dict[str, list[dict[str, str]]] = json.loads(
    Path(__file__).with_name("examples.json").read_text(encoding="utf-8")
)
ALIKE = {"classification": "tokenlight/sentiment", "span": "tokenlight/qa"}  # in what they read
READS: dict[str, tuple[tuple[str, ...], ...]] = {
    "span": (("question", "context"),),
    "next token": (("prompt",), ("text",), *ABOUT_DOCUMENTS),
}
TARGETS = {
    "span": ["predicted", "answer", "contrast"],
    "next token": ["predicted", "token", "contrast"],
}
MANY_LABELS = 200  # a vocabulary is not listed


@dataclass(eq=False)
class Served:
    """One model on the allow-list. ``works``: method to what came of trying it on an example."""

    name: str
    explainer: Explainer
    about: str = ""
    heads: Mapping[str, Any] | None = None
    works: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """What it does: classification, span, or next token."""
        head = self.explainer.live.head
        return "next token" if head.reads == "next" else str(head.kind)

    @property
    def inputs(self) -> tuple[tuple[str, ...], ...]:
        """Which fields of a request it reads, the usual ones first."""
        return READS.get(self.task, (("text",), ("text", "pair")))

    @property
    def examples(self) -> list[dict[str, str]]:
        """Texts to click."""
        return EXAMPLES.get(self.name) or EXAMPLES[ALIKE.get(self.task, self.task)]

    @property
    def labels(self) -> list[str]:
        """Names of the classes, where they can be listed."""
        head = self.explainer.live.head
        return [] if head.writes or len(head.labels) > MANY_LABELS else list(head.labels)

    def facts(self) -> dict[str, Any]:
        """What the page tells of it."""
        config = self.explainer.live.model.config.get_text_config()
        usual = ["predicted"] if self.explainer.live.head.usual == "predicted" else []
        return {
            "name": self.name,
            "task": self.task,
            "about": self.about,
            "inputs": [list(fields) for fields in self.inputs],
            "labels": self.labels,
            "problem": str(self.explainer.live.head.problem),
            "max_tokens": self.explainer.max_tokens,
            "layers": getattr(config, "num_hidden_layers", None),
            "heads": getattr(config, "num_attention_heads", None),
            "head_map": self.heads is not None,
            "targets": TARGETS.get(self.task, [*usual, "all", "label", "contrast"]),
            "method": self.explainer.default_method(),
            "examples": [{"title": short(next(iter(e.values())), 60), **e} for e in self.examples],
        }

    def methods(self, given: str | list[str], inputs: Any = "") -> tuple[str, ...]:
        """The methods asked for, once each; ``auto`` by the name it has for this model."""
        asked = given if isinstance(given, list) else [given]
        own = self.explainer.default_method(inputs) if AUTO in asked else AUTO
        return tuple(dict.fromkeys(own if one == AUTO else one for one in asked))


class AllowList(dict[str, Served]):
    """The served models by name; nothing else can be reached."""

    def __init__(self, served: Sequence[Served]) -> None:
        super().__init__({one.name: one for one in served})
        if len(self) != len(served):
            names = ", ".join(one.name for one in served)
            raise BadInput(f"two of the models {names} have one name; rename a folder.")

    def named(self, name: str) -> Served:
        """The model of this name, or a refusal that lists the names there are."""
        if name not in self:
            known = UnknownName.among("model", name[:200], self)
            raise not_found(str(known), "GET /api/models lists what this server serves.")
        return self[name]

    def taking(self, name: str | None, fields: tuple[str, ...]) -> Served:
        """The model asked for, or the first that reads these fields; it must read them."""
        asked = self.values() if name is None else [self.named(name)]
        for one in asked:
            if fields in one.inputs:
                return one
        read = dict.fromkeys(" and ".join(way) for one in asked for way in one.inputs)
        said = f"{name or 'no model here'} reads {'' if name is None else 'no '}{' and '.join(fields)}."
        raise Refusal("bad_input", said, f"Give {', or '.join(read)}." if read else "")


def load(
    names: Sequence[str] = DEFAULT, heads: Mapping[str, str] | None = None, **how: Any
) -> AllowList:
    """Load the models, ``how`` as from_pretrained takes it; no answer shows the path of a folder."""
    catalogue = {entry.name: entry.task for entry in models.catalogue()}
    maps = {shown_name(model): read_heads(file) for model, file in (heads or {}).items()}
    served = []
    for given in names:
        explainer = Explainer.from_pretrained(given, **how)
        name = shown_name(given)
        if explainer.live.head.reads not in ("text", "next"):
            served_are = "classifiers of texts, models that answer questions, and language models"
            why = f"the page is for {served_are}; explain it in Python"
            raise UnsupportedModel(f"{name} cannot be served: {why}.")
        explainer.name = name
        # Where the model was found, in every form an error might name it.
        places = {given, str(getattr(explainer.live.model.config, "_name_or_path", ""))}
        places |= {str(Path(place).resolve()) for place in places if place}
        places |= {str(models.FOLDER), str(Path.home()), str(Path.cwd())}
        keep_secret(p for p in places if "/" in p and not p.startswith(models.PREFIX))
        mask = maps.pop(name, None)
        if mask is not None:
            HeadMask.from_dict(mask)  # a broken file is found at start
        served.append(Served(name, explainer, catalogue.get(given, ""), mask))
    if maps:
        raise UnknownName.among("model of --heads", next(iter(maps)), [one.name for one in served])
    return AllowList(served)


def shown_name(given: str) -> str:
    """An embedded model or hub id as it is; a folder by its last part."""
    if given.startswith(models.PREFIX):
        return given
    folder = Path(given)
    return folder.resolve().name if folder.exists() or folder.is_absolute() else given
