"""What ``tokenlight explain`` is asked: about a text, pair, question, image, chat or file, and of it which
target. What contradicts itself is refused here, before a model is loaded."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tokenlight.cli.console import reading, refuse, tell
from tokenlight.cli.options import SENTIMENT
from tokenlight.data.answers import SpanTarget
from tokenlight.data.target import Above, Continuation, Contrast, TokenTarget
from tokenlight.data.tokens import Question
from tokenlight.errors import BadInput, short
from tokenlight.files.columns import Columns, taken
from tokenlight.files.documents import json_in, text_of
from tokenlight.files.tables import ENDINGS, Example, ending_of, example, placed_rows
from tokenlight.inputs.context import Context
from tokenlight.inputs.picture import Picture
from tokenlight.inputs.prompt import Chat

NAMES = {"text": "TEXT", "column": "--text", "continuation": "--continue", "out": "-o"}
# What can be read, and what may stand beside it.
BESIDE: dict[str, tuple[str, ...]] = {
    "file": (), "image": ("text", "chat"), "document": ("question",), "chat": ("image",),
    "question": ("context", "document"), "text": ("pair", "image"),
}  # fmt: skip
INPUTS = (*BESIDE, "pair", "context")
# What an option belongs to, in words, and how that is given.
BELONGS = {
    **dict.fromkeys(
        ("column", "limit", "split", "out"), ("file", "a file of texts", "--file DATA")
    ),
    **dict.fromkeys(
        ("engine", "workers", "keep", "block"), ("out", "many texts", "--file DATA -o FOLDER")
    ),
    **dict.fromkeys(("address", "gpus_per_worker"), ("ray", "a Ray cluster", "--engine ray")),
    "fill": ("image", "a hidden patch of an image", "--image FILE"),
    "chat_template": ("chat", "a chat", "--chat FILE"),
    "context": ("question", "a question", "--question"),
}
NOT_IN_A_FOLDER = (
    *INPUTS[1:], "split", "by", "trust", "words", "layers", "reference", "html", "json", "csv", "parquet",
    "png", "fill", "chat_template", "continuation", "generate", "above", "batch_tokens", "batch_size",
)  # fmt: skip
# What the model of no name cannot do, and which can.
MODELS = {
    "image": "a ViT, DeiT, DINOv2 or BEiT image classifier, or a model of LLaVA's kind",
    "chat": "a language model whose tokenizer has a chat template",
    "document": "a language model, or one that writes after a source such as T5",
    "token": "a model that labels each token, or tokenlight/masked_lm to fill a [MASK]",
    **dict.fromkeys(("continuation", "generate"), "a model that writes on, such as GPT-2 or Llama"),
}


def check(given: Mapping[str, Any]) -> None:
    """Refuse options of the command that do not go together."""
    there = {
        name for name, value in given.items() if value not in ([], None) and value is not False
    }
    there |= {"ray"} if given["engine"] == "ray" else set()
    for name in NOT_IN_A_FOLDER if "out" in there else ():
        parquet = "has no place beside -o FOLDER, which holds rows of Parquet."
        refuse(name in there, f"{_flag(name)} {parquet}")
    for source, beside in BESIDE.items():
        others = [_flag(one) for one in INPUTS if one in there - {source, *beside}]
        said = f"{_flag(source)} replaces {' and '.join(others)}; give one of the two."
        if (source, others) == ("file", ["--pair"]):
            said += " In a file, --text FIRST+SECOND names the columns of a pair."
        refuse(source in there and others, said)
    for name, (other, what, how) in BELONGS.items():
        said = f"{_said(name, given)} belongs to {what}; give {how} with it."
        refuse(name in there and other not in there, said)
    for name, which in MODELS.items():
        refuse(
            name in there and "model" not in there,
            f"{_said(name, given)} needs --model: the default one, {SENTIMENT}, judges a text as a "
            f"whole. Give {which}.",
        )
    if "file" in there and "out" not in there:
        file, png = given["file"], given["png"]
        many = "://" in file or "*" in file or os.path.isdir(file)
        refuse(many, f"--file {file} may be many files; say where to, with -o FOLDER.")
        refuse(png, f"--png {png} draws one text or image; for a file of them write --html.")


def _flag(name: str) -> str:
    return NAMES.get(name, f"--{name.replace('_', '-')}")


def _said(name: str, given: Mapping[str, Any]) -> str:
    value = given[name][0] if isinstance(given[name], list) else given[name]
    return f"{_flag(name)} {short(str(value), 60)}"


def asked_about(given: Mapping[str, Any]) -> Any:
    """What the text is read from, or what stands in its place, by the options of the command."""
    if given["file"] is not None:
        return TextFile(*(given[one] for one in ("file", "column", "limit", "split")))
    if given["image"] is not None:
        beside = given["text"] if given["chat"] is None else _chat(given)
        return Picture(given["image"], fill=given["fill"] or "mean", text=beside)
    if not given["document"]:
        return _texts(given) if given["chat"] is None else _chat(given)
    texts: dict[str, str] = {}
    for number, file in enumerate(given["document"]):
        twice = f"--document {file} is given twice; leave one out."
        refuse(file in given["document"][:number], twice)
        with reading("--document", file, "text"):
            texts[file.name if file.name not in texts else str(file)] = text_of(file).strip()
    return Context(texts, given["question"])


def _texts(given: Mapping[str, Any]) -> Any:
    """One text, two, or a question with the text that answers it."""
    text, pair, question, context = (given[n] for n in ("text", "pair", "question", "context"))
    if question is not None:
        refuse(context is None, "--question and --context belong together; give both.")
        return Question(question=question, context=_read(context))
    refuse(
        text is None,
        "there is no text; give TEXT, - for standard input, --file DATA for many texts, --question "
        "with --context, --image or --chat.",
    )
    both = "standard input holds one text; TEXT and --pair cannot both be -."
    refuse(text == pair == "-", both)
    return _read(text) if pair is None else (_read(text), _read(pair))


def _read(text: str) -> str:
    if text == "-":
        try:
            content = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as broken:
            raise BadInput(f"standard input is not UTF-8 text: {broken}.") from broken
        return content.removesuffix("\n").removesuffix("\r")
    # A file's name is a text like any other, but its content was more likely meant.
    if os.path.isfile(text):  # which, unlike Path, takes a text too long or too odd for a name
        many = f"tokenlight explain --file {shlex.quote(text)}; as one text: "
        tell(
            f"note: {text!r} is a file here, and its name is explained. For what is in it: "
            f"{many if ending_of(Path(text)) in ENDINGS else ''}tokenlight explain - < FILE",
            "yellow",
        )
    return text


def _chat(given: Mapping[str, Any]) -> Chat:
    with reading("--chat", given["chat"], "a JSON list of messages with a role and a content"):
        messages = json_in(given["chat"])
    layout = given["chat_template"]
    if layout is not None:
        with reading("--chat-template", layout, "a Jinja template"):
            layout = text_of(layout)
    return Chat(messages, template=layout)


class TextFile:
    """The texts of a file, read anew each time they are gone through; ``questions``: whether there are
    any among them."""

    def __init__(
        self, source: str, column: str | None, limit: int | None, split: str | None
    ) -> None:
        """Gone through once, before a model is loaded: what is wrong with the file is told then."""
        self.source, self.column, self.limit, self.split = source, column, limit, split
        self.count, self.questions = 0, False
        kinds: dict[Columns, None] = {}
        for where, row in islice(placed_rows(source, split), 1):
            Columns.of(row, column, None, where, marks=False)
        for _, text in self.read():
            self.count += 1
            if not isinstance(text, BadInput):
                self.questions |= isinstance(text.text, Question)
                kinds[text.columns] = None
        name = Path(source).name
        refuse(not self.count, f"{name} holds no text; give a file with at least one row.")
        if ending_of(Path(source)) != ".txt" and kinds:  # lines have no columns
            tell(f"{name}: {taken(kinds, passed_on=True)}")

    def read(self) -> Iterator[tuple[str, Example | BadInput]]:
        """Where each text stands, and the text or why there is none."""
        for where, row in islice(placed_rows(self.source, self.split), self.limit):
            try:
                yield where, example(row, where, text=self.column, marks=False)
            except BadInput as refused:
                said = str(refused).removeprefix(f"{where}: ").replace(f"{where} has", "it has", 1)
                yield where, BadInput(said)


def target_of(given: Mapping[str, Any], *, answers: bool) -> Any:
    """The target that --target and the options beside it say together; ``answers``: of a question."""
    target, rival, times = (given[one] for one in ("target", "rather_than", "occurrence"))
    written, tokens, token = (given[one] for one in ("continuation", "generate", "token"))
    if answers:
        _check_answer(given, named=target != "predicted")
        answer = None if target == "predicted" else target
        span = SpanTarget(answer=answer, occurrence=times, no_answer=given["no_answer"])
        return span if rival is None else Contrast(span, rival)
    _check_target(given)
    this: Any = target
    if written is not None or tokens is not None:
        as_a_whole = rival is None and bool(given["by"])
        this = Continuation(written, 20 if tokens is None else tokens, together=as_a_whole)
        rival = rival and Continuation(rival)
    elif given["above"] is not None:
        this = Above(given["above"], target)
    this = this if rival is None else Contrast(this, rival)
    if token is None:
        return this
    return TokenTarget(int(token) if token.isdigit() else token, this, times)


def _check_answer(given: Mapping[str, Any], *, named: bool) -> None:
    """The answer to a question is the model's own, given words of the context, or none."""
    for name in ("token", "continuation", "generate"):
        refuse(
            given[name] is not None,
            f"{_said(name, given)} does not go with a question, which is answered with a part of the "
            "context. Leave it out; to explain an answer of your own give --target WORDS.",
        )
    refuse(
        given["target"] == "all",
        "--target all explains every class, but a question is answered with a part of the context. "
        "Leave --target out to explain the model's own answer, or give the words of an answer as they "
        "appear in the context: --target WORDS.",
    )
    both = f"give either --target {given['target']!r} or --no-answer, not both."
    refuse(given["no_answer"] and named, both)
    counts = "--occurrence counts places of an answer; give its words with --target."
    refuse(given["occurrence"] is not None and not named, counts)


def _check_target(given: Mapping[str, Any]) -> None:
    """The target of a text, an image or a chat."""
    target, token, times = given["target"], given["token"], given["occurrence"]
    written, rival = (given["continuation"], given["generate"]), given["rather_than"]
    refuse(
        given["no_answer"],
        "--no-answer explains a question's; give --question and --context with it.",
    )
    refuse(
        times is not None and token is None,
        f"--occurrence {times} counts places of a word or of an answer; give --token WORD, or "
        "--question and --context with the words of the answer as --target.",
    )
    refuse(
        None not in written, "give either --continue (what was written) or --generate N, not both."
    )
    refuse(
        written != (None, None) and (target != "predicted" or token is not None),
        "--continue and --generate explain the written tokens themselves; leave out --target and "
        "--token.",
    )
    refuse(
        given["above"] is not None and (rival is not None or token is not None),
        "--above compares two passages; leave out --rather-than and --token.",
    )
    refuse(
        rival is not None and target == "all",
        f"--rather-than {rival} compares with one label: give --target LABEL, or leave --target out "
        "for the predicted one.",
    )
    refuse(
        token is not None and target in ("all", "entities"),
        f"--token {token} goes with one label: leave out --target {target}, or give --target LABEL.",
    )
    refuse(
        times is not None and token.isdigit(),
        f"--occurrence {times} counts equal words, but --token {token} is the number of one token; "
        "leave --occurrence out.",
    )
