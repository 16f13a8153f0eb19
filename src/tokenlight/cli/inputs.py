"""Read the input of ``tokenlight explain``: a text, pair, question, image, chat, documents or a file."""

import os
import sys
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tokenlight.cli.console import print_message, read_errors_reported
from tokenlight.data.tokens import Question
from tokenlight.errors import BadInput
from tokenlight.files.columns import Columns, describe_columns
from tokenlight.files.parsing import read_json, read_text
from tokenlight.files.tables import Example, RowLocation, get_extension, iter_rows, parse_example
from tokenlight.inputs.picture import Picture
from tokenlight.inputs.prompt import CHAT_TEMPLATE, Chat, Context


def read_input(arguments: Mapping[str, Any]) -> Any:
    """Read the input that the options name.

    Args:
        arguments: The value of each option by the name of its parameter; checked by
            :func:`tokenlight.cli.option_checks.check_option_combinations`.

    Returns:
        A TextFile, Picture, Context, Chat, Question, a pair of texts, or a text.
    """
    if arguments["file"] is not None:
        return TextFile(
            arguments["file"],
            arguments["column"],
            arguments["limit"],
            arguments["split"],
            label=arguments["label"],
        )
    # A vision-language model reads the image together with a text or a chat.
    if arguments["image"] is not None:
        prompt = arguments["text"] if arguments["chat"] is None else _read_chat(arguments)
        return Picture(arguments["image"], fill=arguments["fill"] or "mean", text=prompt)
    if arguments["document"]:
        template = CHAT_TEMPLATE if arguments["chat_prompt"] else None
        return _read_documents(arguments["document"], arguments["question"], template)
    if arguments["chat"] is not None:
        return _read_chat(arguments)
    return _read_texts(arguments)


def _read_documents(paths: list[Path], question: str, template: str | None) -> Context:
    texts: dict[str, str] = {}
    for path in paths:
        if paths.count(path) > 1:
            raise BadInput(
                f"--document {path} is given twice. Leave one out.", code="document-twice"
            )
        # Documents are called by their file name, and by their path where two have the same name.
        name = path.name if path.name not in texts else str(path)
        with read_errors_reported("--document", path, "text"):
            texts[name] = read_text(path).strip()
    return Context(texts, question, template)


def _read_texts(arguments: Mapping[str, Any]) -> str | tuple[str, str] | Question:
    """Read one text, a pair, or a question with its context."""
    text = arguments["text"]
    pair = arguments["pair"]
    if arguments["question"] is not None:
        return Question(question=arguments["question"], context=_read_text(arguments["context"]))
    if text is None:
        raise BadInput(
            "There is no text to explain. Give TEXT, - for standard input, --file DATA for many texts, "
            "--question with --context, --image or --chat.",
            code="no-text-given",
        )
    if text == "-" and pair == "-":
        raise BadInput(
            "TEXT and --pair cannot both be -, since standard input holds one text. Give one of them "
            "on the command line.",
            code="standard-input-twice",
        )
    if pair is None:
        return _read_text(text)
    return _read_text(text), _read_text(pair)


def _read_text(text: str) -> str:
    """Return the text, or that of standard input where it is ``-``."""
    if text == "-":
        return _read_standard_input()
    # The name of a file is a valid text, but more likely its content was meant. os.path.isfile, unlike
    # Path, accepts a text that is too long for a file name.
    if os.path.isfile(text):
        print_message(
            f"note: {text!r} is also a file; the name itself was explained. Give --file FILE to explain its "
            "texts, or - < FILE to explain its content as one text.",
            "yellow",
        )
    return text


def _read_standard_input() -> str:
    try:
        content = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"Standard input is not UTF-8 text: {error}. Convert it to UTF-8.",
            code="standard-input-not-utf8",
        ) from error
    # The line break at the end belongs to `echo`, not to the text.
    return content.removesuffix("\n").removesuffix("\r")


def _read_chat(arguments: Mapping[str, Any]) -> Chat:
    path = arguments["chat"]
    with read_errors_reported("--chat", path, "a JSON list of messages with a role and a content"):
        messages = read_json(path)
    template_path = arguments["chat_template"]
    if template_path is None:
        return Chat(messages)
    with read_errors_reported("--chat-template", template_path, "a Jinja template"):
        template = read_text(template_path)
    return Chat(messages, template=template)


class TextFile:
    """The texts of a file. They are read again at each pass, so that the file need not fit into memory.

    Args:
        source: Path of the file, or the name of a data set.
        column: Column that holds the text, or two joined by ``+``.
        limit: Maximum number of texts.
        split: Split of a data set.
        label: Column that holds the true label; by default a usual name.

    Attributes:
        num_texts: Number of rows, including those that hold no text.
        has_questions: Whether some rows are questions with a context.
        has_labels: Whether some rows have a true label, or a question its answer.
        label_counts: Numbers of texts by true label, as the table writes it.
        column_names: Names of the columns that hold no text.
        ignores_labels: Whether the column of labels is only kept, because it holds something else.

    Raises:
        BadInput: The file cannot be read, or holds no text.
    """

    def __init__(
        self,
        source: str,
        column: str | None,
        limit: int | None,
        split: str | None,
        *,
        label: str | None = None,
    ) -> None:
        self.source = source
        self.column = column
        self.label = label
        self.limit = limit
        self.split = split
        self.num_texts = 0
        self.has_questions = False
        self.has_labels = False
        self.label_counts: Counter[str | int] = Counter()
        self.column_names: set[str] = set()
        self.ignores_labels = False
        # One pass over the file, so that its faults are reported before a model is loaded.
        self._check_first_row()
        column_sets = self._count_texts()
        name = Path(source).name
        if self.num_texts == 0:
            raise BadInput(
                f"{name} contains no text. Give a file with at least one row.",
                code="file-without-text",
            )
        has_columns = get_extension(Path(source)) != ".txt"
        if has_columns and column_sets:
            print_message(f"{name}: {describe_columns(column_sets, keeps_unread=True)}")

    def _check_first_row(self) -> None:
        """Raise an error of the columns as one of the file, not as one of each row."""
        with closing(iter_rows(self.source, self.split)) as rows:
            for location, row in islice(rows, 1):
                Columns.from_row(
                    row, self.column, self.label, str(location), with_annotations=False
                )

    def _count_texts(self) -> dict[Columns, None]:
        """Count the texts; return the distinct sets of columns in the order of the rows."""
        column_sets: dict[Columns, None] = {}
        with closing(self.read_examples()) as examples:
            for _, example in examples:
                self.num_texts += 1
                if not isinstance(example, BadInput):
                    self.has_questions |= isinstance(example.text, Question)
                    self.has_labels |= example.true_target is not None
                    if example.label is not None:
                        self.label_counts[example.label] += 1
                    column_sets[example.columns] = None
        for columns in column_sets:
            self.column_names.update(filter(None, (columns.label, *columns.unread)))
        return column_sets

    def read_examples(self) -> Generator[tuple[str, Example | BadInput], None, None]:
        """Yield the location of each row, and its example or the reason why there is none.

        Close the generator when it is not read to its end, since it holds the file open.
        """
        with closing(iter_rows(self.source, self.split)) as rows:
            for location, row in islice(rows, self.limit):
                yield str(location), self._parse_row(location, row)

    def ignore_labels(self) -> None:
        """Treat the column of labels as any other column from now on."""
        self.ignores_labels = True
        self.has_labels = self.has_questions
        self.label_counts.clear()

    def _parse_row(self, location: RowLocation, row: Mapping[str, Any]) -> Example | BadInput:
        try:
            example = parse_example(
                row,
                location,
                text_column=self.column,
                label_column=self.label,
                with_annotations=False,
            )
        except BadInput as error:
            # The location is printed before the message, so it need not be repeated.
            message = str(error).removeprefix(f"In {location}, ").replace(f" in {location}", "", 1)
            return BadInput(message[:1].upper() + message[1:], code=error.code)
        if self.ignores_labels and example.columns.label is not None:
            kept_columns = {**example.extra_columns, example.columns.label: example.label}
            return replace(example, label=None, extra_columns=kept_columns)
        return example
