"""Check that the options of ``tokenlight explain`` fit together, before a model is loaded."""

import os
from collections.abc import Mapping
from typing import Any

from tokenlight.errors import BadInput, truncate_text

# Options whose flag is not the name of their parameter. Some values of an option count as options here.
FLAG_NAMES = {
    "text": "TEXT",
    "column": "--text",
    "continuation": "--continue",
    "output": "-o",
    "all": "--target all",
    "entities": "--target entities",
    "logit": "--target logit",
}
# Option → options that it cannot be combined with, since only one input, or one target, can be meant.
EXCLUSIVE_OPTIONS: dict[str, tuple[str, ...]] = {
    "file": ("text", "pair", "question", "context", "document", "image", "chat", "png"),
    "image": ("pair", "question", "context", "document"),
    "chat": ("text", "pair", "question", "context", "document"),
    "document": ("text", "pair", "context"),
    "question": ("text", "pair"),
    "generate": ("continuation", "target", "token"),
    "continuation": ("target", "token"),
    "all": ("rather_than", "token"),
    "entities": ("token",),
    "above": ("rather_than", "token"),
    "against": ("rather_than", "all", "entities", "above", "logit", "question"),
    "context": ("token", "continuation", "generate"),
    "stream": ("file", "rather_than", "by", "trust", "words", "layers", "reference"),
    "words": ("tokens",),
    "effort": ("method", "reference"),
    "stable": ("method", "reference"),
    "output": (
        "label",
        "split",
        "by",
        "trust",
        "words",
        "layers",
        "reference",
        "html",
        "json",
        "csv",
        "parquet",
        "png",
        "fill",
        "chat_template",
        "continuation",
        "generate",
        "above",
        "batch_tokens",
        "batch_size",
    ),
}
# Options that cannot be combined → what a person who gives both should write.
WAYS_OUT = {
    ("file", "pair"): "To explain two columns as a pair, give --text FIRST+SECOND.",
    ("file", "question"): "Give a file with the columns question and context.",
    ("file", "context"): "Give a file with the columns question and context.",
    ("output", "label"): (
        "For a report of the errors, give --html FILE instead of -o; otherwise leave out --label."
    ),
}
# Options → the option that they need, and how to give it.
REQUIRED_OPTIONS: dict[tuple[str, ...], tuple[str, str]] = {
    ("column", "label", "limit", "split", "output"): ("file", "--file DATA"),
    ("engine", "workers", "keep", "part_size"): ("output", "--file DATA -o FOLDER"),
    ("address", "gpus_per_worker"): ("ray", "--engine ray"),
    ("stream",): ("generate", "--generate N"),
    ("fill",): ("image", "--image FILE"),
    ("chat_template",): ("chat", "--chat FILE"),
    ("chat_prompt",): ("document", "--document FILE"),
    ("context",): ("question", "--question"),
    ("image",): (
        "model",
        "--model with an image classifier or a vision-language model such as LLaVA",
    ),
    ("chat",): ("model", "--model with a language model whose tokenizer has a chat template"),
    ("document",): ("model", "--model with a language model, or a model such as T5"),
    ("token",): ("model", "--model with a model that labels each token, or tokenlight/masked_lm"),
    ("continuation", "generate"): (
        "model",
        "--model with a model that generates text, such as GPT-2 or Llama",
    ),
}


def check_option_combinations(arguments: Mapping[str, Any]) -> None:
    """Check that the options of ``tokenlight explain`` fit together.

    Args:
        arguments: The value of each option by the name of its parameter.

    Raises:
        BadInput: Two options exclude each other, or one needs another that is missing.
    """
    given_options = _find_given_options(arguments)
    _check_exclusive_options(given_options)
    _check_required_options(given_options, arguments)
    if "question" in given_options and not given_options & {"context", "document"}:
        raise BadInput(
            "--question needs --context (or --document). Give both.",
            code="question-without-context",
        )
    # Folders, globs and URLs are read by workers only, which write to a folder.
    source = str(arguments["file"])
    may_be_several_files = "://" in source or "*" in source or os.path.isdir(source)
    if may_be_several_files and "output" not in given_options:
        raise BadInput(
            f"--file {source} can match several files. Give a folder for the results with -o FOLDER.",
            code="several-files-without-folder",
        )


def _find_given_options(arguments: Mapping[str, Any]) -> set[str]:
    """Return the names of options that differ from their default, and values that count as options."""
    given_options = set()
    for name, value in arguments.items():
        is_empty = value is None or value is False or value == []
        if not is_empty:
            given_options.add(name)
    # Every text has a predicted target, so the default does not count as given.
    if arguments["target"] == "predicted":
        given_options.remove("target")
    special_values = {"all", "entities", "logit", "ray"}
    return given_options | ({arguments["target"], arguments["engine"]} & special_values)


def _check_exclusive_options(given_options: set[str]) -> None:
    for option, excluded_options in EXCLUSIVE_OPTIONS.items():
        for excluded in excluded_options:
            if option in given_options and excluded in given_options:
                way_out = WAYS_OUT.get((option, excluded), "Leave one of them out.")
                raise BadInput(
                    f"{_format_flag(option)} cannot be combined with {_format_flag(excluded)}. {way_out}",
                    code="options-exclusive",
                )


def _check_required_options(given_options: set[str], arguments: Mapping[str, Any]) -> None:
    for options, (required, how_to_give) in REQUIRED_OPTIONS.items():
        if required in given_options:
            continue
        for option in sorted(given_options.intersection(options)):
            value = arguments[option]
            if isinstance(value, list):
                value = value[0]
            raise BadInput(
                f"{_format_flag(option)} {truncate_text(str(value), 60)} needs {how_to_give}. "
                "Give that too.",
                code="option-needs-another",
            )


def _format_flag(option: str) -> str:
    return FLAG_NAMES.get(option, f"--{option.replace('_', '-')}")
