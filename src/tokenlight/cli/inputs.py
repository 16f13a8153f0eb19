"""What ``tokenlight explain`` is asked: about a text, pair, question, image, chat or file, and of it which
target."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from tokenlight.cli.failures import tell
from tokenlight.cli.options import SENTIMENT
from tokenlight.data.answers import SpanTarget
from tokenlight.data.target import Above, Continuation, Contrast, TokenTarget
from tokenlight.data.tokens import Question
from tokenlight.errors import BadInput
from tokenlight.files.columns import Columns, taken
from tokenlight.files.documents import json_in
from tokenlight.files.tables import ENDINGS, Example, ending_of, example, placed_rows
from tokenlight.inputs.context import Context
from tokenlight.inputs.picture import Picture
from tokenlight.inputs.prompt import Chat


def asked_about(given: dict[str, Any]) -> Any:
    """What the text is read from, or what stands in its place, by the options of the command."""
    source, shown, talk, papers = (given[one] for one in ("file", "image", "chat", "document"))
    column, limit, split = given["column"], given["limit"], given["split"]
    if shown is None:
        only_images(given["png"] if source is not None else None, given["fill"])
    if source is None:
        only_files(column, limit, split)
    others = [given[name] for name in ("text", "pair", "question", "context")]
    if source is not None:
        named = dict(zip(("TEXT", "--pair", "--question", "--context"), others, strict=True))
        elsewhere = {"--image": shown, "--chat": talk, "--document": papers}
        return file(source, column, limit, split, {**named, **elsewhere})
    if shown is not None:
        text, *others = others
        if talk is not None:
            text = chat(talk, given["model"], (text, *others))
        return image(shown, given["fill"] or "mean", given["model"], text, (*others, papers))
    if papers:
        others.pop(2)
        return documents(papers, given["question"], given["model"], (*others, talk))
    lays_out = given["chat_template"]
    if talk is None:
        if lays_out is not None:
            raise BadInput(f"--chat-template {lays_out} lays out a chat; give --chat FILE with it.")
        return texts(*others)
    return replace(chat(talk, given["model"], others), template=template(lays_out))


def texts(text: str | None, pair: str | None, question: str | None, context: str | None) -> Any:
    """One text, two, or a question with the text that answers it."""
    if (question is None) != (context is None):
        raise BadInput("--question and --context belong together; give both.")
    if question is not None and context is not None:
        if text is not None or pair is not None:
            raise BadInput("give either TEXT (with --pair) or --question with --context, not both.")
        return Question(question=question, context=_read(context))
    if text is None:
        raise BadInput(
            "there is no text; give TEXT, - for standard input, --file DATA for many texts, --question "
            "with --context, --image or --chat."
        )
    if text == pair == "-":
        raise BadInput("standard input holds one text; TEXT and --pair cannot both be -.")
    return _read(text) if pair is None else (_read(text), _read(pair))


def _read(text: str) -> str:
    if text != "-":
        _note_file_name(text)
        return text
    try:
        content = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as broken:
        raise BadInput(f"standard input is not UTF-8 text: {broken}.") from broken
    return content.removesuffix("\n").removesuffix("\r")


def _note_file_name(text: str) -> None:
    """A file's name is a text like any other, but its content was more likely meant."""
    if os.path.isfile(text):  # which, unlike Path, takes a text too long or too odd for a name
        many = f"tokenlight explain --file {shlex.quote(text)}; as one text: "
        tell(
            f"note: {text!r} is a file here, and its name is explained. For what is in it: "
            f"{many if ending_of(Path(text)) in ENDINGS else ''}tokenlight explain - < FILE",
            "yellow",
        )


@dataclass(frozen=True, slots=True)
class TextFile:
    """The texts of a file, read anew each time they are gone through."""

    source: str
    column: str | None
    limit: int | None
    split: str | None
    count: int
    questions: bool
    columns: str

    @classmethod
    def found(
        cls, source: str, column: str | None, limit: int | None, split: str | None
    ) -> "TextFile":
        """Gone through once, before a model is loaded: what is wrong with the file is told then."""
        kinds: dict[Columns, None] = {}
        made = cls(source, column, limit, split, 0, False, "")
        for where, row in islice(placed_rows(source, split), 1):
            Columns.of(row, column, None, where, marks=False)
        count, questions = 0, False
        for _, text in made.read():
            count += 1
            if not isinstance(text, BadInput):
                questions = questions or isinstance(text.text, Question)
                kinds[text.columns] = None
        if not count:
            raise BadInput(f"{Path(source).name} holds no text; give a file with at least one row.")
        plain = ending_of(Path(source)) == ".txt"  # lines, which have no columns
        words = "" if plain else taken(kinds, passed_on=True)
        return replace(made, count=count, questions=questions, columns=words)

    def read(self) -> Iterator[tuple[str, Example | BadInput]]:
        """Where each text stands, and the text or why there is none."""
        for where, row in islice(placed_rows(self.source, self.split), self.limit):
            try:
                yield where, example(row, where, text=self.column, marks=False)
            except BadInput as refused:
                said = str(refused).removeprefix(f"{where}: ").replace(f"{where} has", "it has", 1)
                yield where, BadInput(said)


def file(
    source: str,
    column: str | None,
    limit: int | None,
    split: str | None,
    others: Mapping[str, object],
) -> TextFile:
    """The texts of a file or data set, with a word on the columns they were found in."""
    given = [name for name, value in others.items() if value is not None]
    if given == ["--pair"]:
        raise BadInput(
            "--file reads both texts of a pair from the file; leave --pair out, and name two columns "
            "with --text FIRST+SECOND where they are not found by their names."
        )
    if given:
        raise BadInput(f"--file replaces {' and '.join(given)}; give one of the two.")
    found = TextFile.found(source, column, limit, split)
    if found.columns:
        tell(f"{Path(source).name}: {found.columns}")
    return found


def only_files(column: str | None, limit: int | None, split: str | None) -> None:
    """Refuse what one text cannot have."""
    for option, value in (("--text", column), ("--limit", limit), ("--split", split)):
        if value is not None:
            raise BadInput(
                f"{option} {value} belongs to a file of texts; give --file DATA with it."
            )


def image(file: Path, fill: Any, model: str | None, text: Any, others: Sequence[object]) -> Any:
    """An image, for a model that was named, and the text or chat beside it, where it reads both."""
    if any(other for other in others):
        raise BadInput("--image stands alone or beside a TEXT or --chat; leave out the others.")
    if model is None:
        raise BadInput(
            "--image needs --model: no image model is embedded. Give a folder or a hub id of a ViT, "
            "DeiT, DINOv2 or BEiT image classifier, or of a model of LLaVA's kind."
        )
    return Picture(file, fill=fill, text=text)


def only_images(png: Path | None, fill: str | None) -> None:
    """Refuse what texts cannot have."""
    if png is not None:
        raise BadInput(f"--png {png} draws one text or image; for a file of them write --html.")
    if fill is not None:
        raise BadInput(
            f"--fill {fill} says what a hidden patch of an image shows, and no image is given. Leave "
            "--fill out, or give --image FILE in the place of the text."
        )


def chat(file: Path, model: str | None, others: Sequence[object]) -> Any:
    """The messages of a JSON file, for a model that was named."""
    if any(other is not None for other in others):
        raise BadInput("--chat replaces a text or a question; give one of the two.")
    if model is None:
        raise BadInput(
            "--chat needs --model: no model that holds chats is embedded. Give a folder or a hub id "
            "of a language model whose tokenizer has a chat template."
        )
    try:
        messages = json_in(file)
    except (OSError, ValueError) as broken:
        raise BadInput(
            f"--chat {file} is not a readable JSON file ({broken}); it holds a list of messages, each "
            'with a "role" and a "content".'
        ) from broken
    return Chat(messages)


def template(file: Path | None) -> str | None:
    """The chat template of a file."""
    try:
        return None if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as broken:
        raise BadInput(f"--chat-template {file} is no readable file: {broken}.") from broken


def documents(
    files: Sequence[Path], question: str | None, model: str | None, others: Sequence[object]
) -> Any:
    """The texts of files and a question about them, for a model that was named."""
    if any(other is not None for other in others):
        raise BadInput("--document stands in the place of a text or a chat; give one of the two.")
    if model is None:
        raise BadInput(
            "--document needs --model: no model that writes is embedded. Give a folder or a hub id of "
            "a language model, or of one that writes after a source such as T5."
        )
    texts: dict[str, str] = {}
    for number, file in enumerate(files):
        if file in files[:number]:
            raise BadInput(f"--document {file} is given twice; leave one out.")
        name = file.name if file.name not in texts else str(file)
        try:
            texts[name] = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as broken:
            raise BadInput(f"--document {file} is no readable UTF-8 file: {broken}.") from broken
    return Context(texts, question)


def as_a_whole(target: Any, by: str | None) -> Any:
    """What was written as one answer, where that is the target and sums are asked for."""
    return replace(target, together=True) if by and isinstance(target, Continuation) else target


@dataclass(frozen=True, slots=True)
class Wish:
    """What --target, --rather-than and the options beside them say together."""

    target: str
    rather_than: str | None = None
    occurrence: int | None = None
    no_answer: bool = False
    token: str | None = None
    continuation: str | None = None
    generate: int | None = None
    above: str | None = None

    @property
    def of_a_token(self) -> dict[str, object]:
        """The options given that ask for one token of a text, or for tokens written after it."""
        options = {"token": self.token, "continue": self.continuation, "generate": self.generate}
        return {f"--{name}": value for name, value in options.items() if value is not None}


def not_of_the_default_model(wish: Wish) -> None:
    """Without --model a text goes to the sentiment classifier, which has no tokens to explain."""
    for flag, value in wish.of_a_token.items():
        fitting = (
            "a model that labels each token, or tokenlight/masked_lm to fill a [MASK]"
            if flag == "--token"
            else "a folder or a hub id of a model that writes on, such as GPT-2 or Llama"
        )
        raise BadInput(
            f"{flag} {value} needs --model: the default one, {SENTIMENT}, judges a text as a "
            f"whole. Give {fitting}."
        )


def asked(wish: Wish) -> Any:
    """The target of a text, an image or a chat."""
    if wish.no_answer:
        raise BadInput("--no-answer explains a question's; give --question and --context with it.")
    if wish.occurrence is not None and wish.token is None:
        raise BadInput(
            f"--occurrence {wish.occurrence} counts places of a word or of an answer; give --token "
            "WORD, or --question and --context with the words of the answer as --target."
        )
    if wish.continuation is not None or wish.generate is not None:
        return _continued(wish)
    wanted: Any = wish.target
    if wish.above is not None:
        if wish.rather_than is not None or wish.token is not None:
            raise BadInput("--above compares two passages; leave out --rather-than and --token.")
        return Above(wish.above, wish.target)
    if wish.rather_than is not None:
        if wish.target == "all":
            raise BadInput(
                f"--rather-than {wish.rather_than} compares with one label: give --target LABEL, or "
                "leave --target out for the predicted one."
            )
        wanted = Contrast(wish.target, wish.rather_than)
    return wanted if wish.token is None else _token(wish.token, wanted, wish.occurrence)


def answer_asked(wish: Wish) -> Any:
    """The target of a question: the model's own answer, given words of the context, or none."""
    for option, value in wish.of_a_token.items():
        raise BadInput(
            f"{option} {value} does not go with a question, which is answered with a part of the "
            "context. Leave it out; to explain an answer of your own give --target WORDS."
        )
    if wish.target == "all":
        raise BadInput(
            "--target all explains every class, but a question is answered with a part of the "
            "context. Leave --target out to explain the model's own answer, or give the words of "
            "an answer as they appear in the context: --target WORDS."
        )
    named = wish.target != "predicted"
    if wish.no_answer and named:
        raise BadInput(f"give either --target {wish.target!r} or --no-answer, not both.")
    if wish.occurrence is not None and not named:
        raise BadInput("--occurrence counts places of an answer; give its words with --target.")
    answer = wish.target if named else None
    this = SpanTarget(answer=answer, occurrence=wish.occurrence, no_answer=wish.no_answer)
    if wish.rather_than is None:
        return this
    return Contrast(this, wish.rather_than)


def _token(token: str, label: Any, occurrence: int | None) -> Any:
    if label in ("all", "entities"):
        raise BadInput(
            f"--token {token} goes with one label: leave out --target {label}, or give --target LABEL."
        )
    if token.isdigit() and occurrence is not None:
        raise BadInput(
            f"--occurrence {occurrence} counts equal words, but --token {token} is the number of "
            "one token; leave --occurrence out."
        )
    return TokenTarget(int(token) if token.isdigit() else token, label, occurrence)


def _continued(wish: Wish) -> Any:
    if wish.continuation is not None and wish.generate is not None:
        raise BadInput("give either --continue (what was written) or --generate N, not both.")
    if wish.target != "predicted" or wish.token is not None:
        raise BadInput(
            "--continue and --generate explain the written tokens themselves; leave out --target and "
            "--token."
        )
    written = Continuation(wish.continuation)
    if wish.generate is not None:
        written = Continuation(tokens=wish.generate)
    return (
        written if wish.rather_than is None else Contrast(written, Continuation(wish.rather_than))
    )
