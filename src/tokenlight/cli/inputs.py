"""What ``tokenlight explain`` is asked: about a text, pair, question, image, chat or file, and of it which
target. What contradicts itself is refused here, before a model is loaded."""

import os
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tokenlight.cli.console import reading, refuse, tell
from tokenlight.data.answers import SpanTarget
from tokenlight.data.target import Above, Continuation, Contrast, TokenTarget
from tokenlight.data.tokens import Question
from tokenlight.errors import BadInput, short
from tokenlight.files.columns import Columns, taken
from tokenlight.files.documents import json_in, text_of
from tokenlight.files.tables import Example, ending_of, example, placed_rows
from tokenlight.inputs.picture import Picture
from tokenlight.inputs.prompt import Chat, Context

NAMES = {"text": "TEXT", "column": "--text", "continuation": "--continue", "out": "-o"}
NAMES |= {"all": "--target all", "entities": "--target entities"}
# What has no place beside an option; of two texts to read, or two targets, one is meant.
APART = {
    "file": "text pair question context document image chat png",
    "image": "pair question context document",
    "chat": "text pair question context document",
    "document": "text pair context",
    "question": "text pair",
    "generate": "continuation target token",
    "continuation": "target token",
    "all": "rather_than token",
    "entities": "token",
    "above": "rather_than token",
    "context": "token continuation generate",
    "words": "tokens",
    "out": "split by trust words layers reference html json csv parquet png fill chat_template "
    "continuation generate above batch_tokens batch_size",
}
# What an option cannot do without, and how that is given.
WRITER = "--model with a model that writes on, such as GPT-2 or Llama"
NEEDS = {
    "column limit split out": ("file", "--file DATA"),
    "engine workers keep block": ("out", "--file DATA -o FOLDER"),
    "address gpus_per_worker": ("ray", "--engine ray"),
    "fill": ("image", "--image FILE"),
    "chat_template": ("chat", "--chat FILE"),
    "context": ("question", "--question"),
    "image": ("model", "--model with an image classifier, or a model of LLaVA's kind"),
    "chat": ("model", "--model with a language model whose tokenizer has a chat template"),
    "document": ("model", "--model with a language model, or one such as T5"),
    "token": ("model", "--model with one that labels each token, or tokenlight/masked_lm"),
    "continuation generate": ("model", WRITER),
}


def check(given: Mapping[str, Any]) -> None:
    """Refuse options of the command that do not go together."""
    there = {name for name in given if given[name] not in ([], None) and given[name] is not False}
    there -= {"target"} if given["target"] == "predicted" else set()
    there |= {given["target"], given["engine"]} & {"all", "entities", "ray"}
    for name, others in APART.items():
        for other in others.split():
            said = f"{_flag(name)} does not go with {_flag(other)}; leave out one of the two."
            refuse({name, other} <= there, said)
    for names, (other, how) in NEEDS.items():
        for name in sorted(there.intersection(names.split())) if other not in there else ():
            value = given[name][0] if isinstance(given[name], list) else given[name]
            raise BadInput(f"{_flag(name)} {short(str(value), 60)} needs {how}; give that too.")
    alone = "question" in there and not there & {"context", "document"}
    refuse(alone, "--question and --context (or --document) belong together; give both.")
    file = str(given["file"])
    many = "out" not in there and ("://" in file or "*" in file or os.path.isdir(file))
    refuse(many, f"--file {file} may be many files; say where to, with -o FOLDER.")


def _flag(name: str) -> str:
    return NAMES.get(name, f"--{name.replace('_', '-')}")


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
    for file in given["document"]:
        twice = f"--document {file} is given twice; leave one out."
        refuse(given["document"].count(file) > 1, twice)
        with reading("--document", file, "text"):
            texts[file.name if file.name not in texts else str(file)] = text_of(file).strip()
    return Context(texts, given["question"])


def _texts(given: Mapping[str, Any]) -> Any:
    """One text, two, or a question with the text that answers it."""
    text, pair, question, context = (given[n] for n in ("text", "pair", "question", "context"))
    if question is not None:
        return Question(question=question, context=_read(context))
    many = "- for standard input, --file DATA for many texts, --question with --context, --image or"
    refuse(text is None, f"there is no text; give TEXT, {many} --chat.")
    refuse(text == pair == "-", "standard input holds one text; TEXT and --pair cannot both be -.")
    return _read(text) if pair is None else (_read(text), _read(pair))


def _read(text: str) -> str:
    if text != "-":
        # A file's name is a text like any other, but its content was more likely meant.
        if os.path.isfile(text):  # which, unlike Path, takes a text too long or too odd for a name
            many = "--file FILE for its texts, or - < FILE for one."
            tell(f"note: {text!r} is a file here, and its name is explained; give {many}", "yellow")
        return text
    with BadInput.telling("standard input is not UTF-8 text: ", UnicodeDecodeError):
        content = sys.stdin.buffer.read().decode("utf-8")
    return content.removesuffix("\n").removesuffix("\r")


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
    this, rival, times = (given[one] for one in ("target", "rather_than", "occurrence"))
    written, tokens, token = (given[one] for one in ("continuation", "generate", "token"))
    named, writes = this != "predicted", (written, tokens) != (None, None)
    counted = not (token or "1").isdigit() or (answers and named)
    words = "give --token WORD, or the words of a question's answer as --target"
    refuse(times is not None and not counted, f"--occurrence counts places of words; {words}.")
    if answers and token is None and not writes:
        refuse(given["no_answer"] and named, f"give --target {this!r} or --no-answer, not both.")
        answer = this if named else None
        this = SpanTarget(answer=answer, occurrence=times, no_answer=given["no_answer"])
        return this if rival is None else Contrast(this, rival)
    refuse(given["no_answer"], "--no-answer is of a question; give --question and --context too.")
    if writes:
        together = rival is None and bool(given["by"])
        this = Continuation(written, 20 if tokens is None else tokens, together=together)
        rival = rival and Continuation(rival)
    elif given["above"] is not None:
        this = Above(given["above"], this)
    this = this if rival is None else Contrast(this, rival)
    if token is None:
        return this
    return TokenTarget(int(token) if token.isdigit() else token, this, times)
