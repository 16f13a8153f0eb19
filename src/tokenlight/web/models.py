"""The models that the server was started with; no other model can be reached."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenlight import registry
from tokenlight.attention_heads.mask import HeadMask, read_heads_file
from tokenlight.errors import BadInput, UnknownName, UnsupportedModel, truncate_text
from tokenlight.explainer import Explainer
from tokenlight.explaining.default_method import AUTO_METHOD
from tokenlight.explaining.effort import list_sampling_specs
from tokenlight.inputs.prompt import CHAT_TEMPLATE, Context
from tokenlight.models import embedded
from tokenlight.registry import format_spec
from tokenlight.web.api_errors import ApiError, hide_paths, make_not_found_error
from tokenlight.web.example_picture import EXAMPLE_PROMPT, EXAMPLE_TITLE, draw_example_picture
from tokenlight.web.requests import DOCUMENT_INPUTS

DEFAULT_MODELS = ("tokenlight/sentiment", "tokenlight/topics", "tokenlight/qa")
EXAMPLES: dict[str, list[dict[str, str]]] = json.loads(
    Path(__file__).with_name("examples.json").read_text(encoding="utf-8")
)
# The tasks that the page serves, as the API names them.
SERVED_TASKS = {
    "text-classification": "classification",
    "question-answering": "span",
    "text-generation": "next token",
    "image-classification": "image",
}
# Models without examples of their own show those of an embedded model for the same task.
EXAMPLE_MODEL_BY_TASK = {"classification": "tokenlight/sentiment", "span": "tokenlight/qa"}
CLASSIFIER_INPUTS: tuple[tuple[str, ...], ...] = (("text",), ("text", "pair"))
INPUTS_BY_TASK: dict[str, tuple[tuple[str, ...], ...]] = {
    "span": (("question", "context"),),
    "next token": (("prompt",), ("text",), *DOCUMENT_INPUTS),
    "image": (("picture",),),
}
TARGETS_BY_TASK = {
    "span": ["predicted", "answer", "contrast"],
    "next token": ["predicted", "token", "contrast"],
}
MAX_LISTED_LABELS = 200  # a vocabulary is too long to list
MAX_TITLE_LENGTH = 60  # characters of an example's title


@dataclass(eq=False)
class ServedModel:
    """One served model.

    Args:
        name: Name in the API.
        explainer: The model.
        description: A short description.
        head_map: Content of a file of attention heads, if the server was started with one.
        trial_results: Method → result of trying it on an example.
    """

    name: str
    explainer: Explainer
    description: str = ""
    head_map: Mapping[str, Any] | None = None
    trial_results: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """The task: "classification", "image", "span" or "next token"."""
        return SERVED_TASKS[self.explainer.runner.head.task]

    @property
    def is_classifier(self) -> bool:
        """Whether it gives every label a probability."""
        return self.task in ("classification", "image")

    @property
    def accepted_inputs(self) -> tuple[tuple[str, ...], ...]:
        """Combinations of request fields that it reads, the usual one first."""
        if self.explainer.runner.vision_inputs is not None:
            return (("picture", "prompt"),)
        return INPUTS_BY_TASK.get(self.task, CLASSIFIER_INPUTS)

    @property
    def reads_pictures(self) -> bool:
        """Whether its input is a picture, alone or with a prompt."""
        return "picture" in self.accepted_inputs[0]

    @property
    def examples(self) -> list[dict[str, str]]:
        """Example inputs for the page."""
        if self.reads_pictures:
            values = {"picture": draw_example_picture(), "prompt": EXAMPLE_PROMPT}
            return [{name: values[name] for name in self.accepted_inputs[0]}]
        if EXAMPLES.get(self.name):
            return EXAMPLES[self.name]
        return EXAMPLES[EXAMPLE_MODEL_BY_TASK.get(self.task, self.task)]

    def format_documents(self, explain_input: Any) -> Any:
        """Return documents as one message of the chat template, where the model has one; else the input.

        A model that was trained on chats often ends the text at once after documents in plain text.
        """
        has_chat_template = bool(getattr(self.explainer.tokenizer, "chat_template", None))
        if isinstance(explain_input, Context) and has_chat_template:
            return replace(explain_input, template=CHAT_TEMPLATE)
        return explain_input

    @property
    def labels(self) -> list[str]:
        """Names of the classes; empty if there are too many to list."""
        head = self.explainer.runner.head
        if head.is_language_model or len(head.labels) > MAX_LISTED_LABELS:
            return []
        return list(head.labels)

    @property
    def sharper_methods(self) -> list[dict[str, str]]:
        """Methods that sharpen the default one for a text, the cheapest first; empty if there are none.

        ``method`` is what a request names, ``name`` what its answer is called.
        """
        if not self.is_classifier or self.reads_pictures:
            return []
        example = next(iter(self.examples[0].values()))
        methods: list[dict[str, str]] = []
        for name, options in list_sampling_specs(self.explainer, example):
            assignments = ",".join(f"{option}={value}" for option, value in options.items())
            # Options that equal the defaults are not part of the name.
            shown_options = registry.build("methods", name, options).options
            methods.append(
                {"method": f"{name}:{assignments}", "name": format_spec(name, shown_options)}
            )
        return methods

    @property
    def targets(self) -> list[str]:
        """Kinds of targets that the page offers."""
        if self.task in TARGETS_BY_TASK:
            return TARGETS_BY_TASK[self.task]
        targets = ["all", "label", "contrast"]
        if self.explainer.runner.head.default_target == "predicted":
            return ["predicted", *targets]
        return targets

    def describe(self) -> dict[str, Any]:
        """Return what the page shows of the model."""
        config = self.explainer.runner.model.config.get_text_config()
        examples: list[dict[str, str]] = []
        for example in self.examples:
            title = EXAMPLE_TITLE
            if not self.reads_pictures:
                title = truncate_text(next(iter(example.values())), MAX_TITLE_LENGTH)
            examples.append({"title": title, **example})
        return {
            "name": self.name,
            "task": self.task,
            "about": self.description,
            "inputs": [list(fields) for fields in self.accepted_inputs],
            "labels": self.labels,
            "problem": str(self.explainer.runner.head.problem_type),
            "max_tokens": self.explainer.max_tokens,
            "layers": getattr(config, "num_hidden_layers", None),
            "heads": getattr(config, "num_attention_heads", None),
            "head_map": self.head_map is not None,
            "targets": self.targets,
            "method": self.explainer.get_default_method(),
            "sharper": self.sharper_methods,
            "examples": examples,
        }

    def resolve_methods(self, requested: str | list[str], inputs: Any = "") -> tuple[str, ...]:
        """Return the requested methods without duplicates, with ``auto`` replaced by its choice.

        Args:
            requested: Names of methods, as a request has them.
            inputs: The input, which decides what ``auto`` stands for.
        """
        names = requested if isinstance(requested, list) else [requested]
        if AUTO_METHOD in names:
            default_method = self.explainer.get_default_method(inputs)
            names = [default_method if name == AUTO_METHOD else name for name in names]
        return tuple(dict.fromkeys(names))


class AllowList(dict[str, ServedModel]):
    """The served models by name; nothing else can be reached."""

    def __init__(self, served_models: Sequence[ServedModel]) -> None:
        super().__init__({model.name: model for model in served_models})
        if len(self) != len(served_models):
            names = ", ".join(model.name for model in served_models)
            raise BadInput(
                f"Two of the models {names} have the same name. Rename a folder.",
                code="model-name-twice",
            )

    def get_model(self, name: str) -> ServedModel:
        """Return the model of this name.

        Raises:
            ApiError: There is none; the message suggests similar names.
        """
        if name not in self:
            unknown_name = UnknownName.from_choices("model", name[:200], self)
            raise make_not_found_error(str(unknown_name), "GET /api/models lists the models.")
        return self[name]

    def find_model(self, name: str | None, fields: tuple[str, ...]) -> ServedModel:
        """Return the model of this name, or the first that reads these fields of a request.

        Args:
            name: The name of a model; None for the first one that fits.
            fields: The fields of the request that hold the input.

        Raises:
            ApiError: There is no such model, or it does not read these fields.
        """
        candidates = list(self.values()) if name is None else [self.get_model(name)]
        for model in candidates:
            if fields in model.accepted_inputs:
                return model
        combinations: dict[str, None] = {}  # an ordered set
        for model in candidates:
            for accepted_fields in model.accepted_inputs:
                combinations[" and ".join(accepted_fields)] = None
        hint = ""
        if combinations:
            hint = f"Give {', or '.join(combinations)}."
        if name is None:
            raise ApiError(
                f"No model of this server reads {' and '.join(fields)}.",
                code="bad_input",
                hint=hint,
            )
        raise ApiError(f"{name} does not read {' and '.join(fields)}.", code="bad_input", hint=hint)


def load_models(
    names: Sequence[str] = DEFAULT_MODELS,
    heads: Mapping[str, str] | None = None,
    **load_options: Any,
) -> AllowList:
    """Load the models to serve.

    Args:
        names: Names or folders of models. A folder is served under its last name, and no response shows
            its path.
        heads: Model → file of its attention heads.
        **load_options: Keywords of ``Explainer.from_pretrained()``.

    Raises:
        UnsupportedModel: The page has no view for this kind of model.
        UnknownName: ``heads`` names a model that is not served.
    """
    descriptions = {entry.name: entry.task for entry in embedded.list_models()}
    head_maps: dict[str, Mapping[str, Any]] = {}
    for model_name, file in (heads or {}).items():
        head_maps[make_public_name(model_name)] = read_heads_file(file)
    served_models: list[ServedModel] = []
    for name_or_path in names:
        explainer = Explainer.from_pretrained(name_or_path, **load_options)
        name = make_public_name(name_or_path)
        if explainer.runner.head.task not in SERVED_TASKS:
            raise UnsupportedModel(
                f"{name} cannot be served. The page serves classifiers of texts and pictures, models that "
                "answer questions, and language models; explain this one in Python.",
                code="model-not-servable",
            )
        explainer.name = name
        hide_paths(_list_model_paths(name_or_path, explainer))
        head_map = head_maps.pop(name, None)
        if head_map is not None:
            HeadMask.from_dict(head_map)  # a damaged file is found at start
        description = descriptions.get(name_or_path, "")
        served_models.append(
            ServedModel(name=name, explainer=explainer, description=description, head_map=head_map)
        )
    if head_maps:
        served_names = [model.name for model in served_models]
        raise UnknownName.from_choices("model of --heads", next(iter(head_maps)), served_names)
    return AllowList(served_models)


def _list_model_paths(name_or_path: str, explainer: Explainer) -> Iterator[str]:
    """Yield every form in which an error message might name the folder of a model."""
    config_path = str(getattr(explainer.runner.model.config, "_name_or_path", ""))
    paths = {name_or_path, config_path}
    paths |= {str(Path(path).resolve()) for path in paths if path}
    paths |= {str(embedded.MODELS_FOLDER), str(Path.home()), str(Path.cwd())}
    for path in paths:
        # Names of embedded models and of the hub are public.
        if "/" in path and not path.startswith(embedded.NAME_PREFIX):
            yield path


def make_public_name(name_or_path: str) -> str:
    """Return an embedded model or hub id as it is, and a folder by its last name."""
    if name_or_path.startswith(embedded.NAME_PREFIX):
        return name_or_path
    folder = Path(name_or_path)
    if folder.exists() or folder.is_absolute():
        return folder.resolve().name
    return name_or_path
