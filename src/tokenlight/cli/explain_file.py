"""``tokenlight explain --file``: explain the texts of a file one after the other.

A text that cannot be explained is reported and skipped; the others are shown and written all the same.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from tokenlight.cli.console import EXIT_INTERRUPTED, print_error, print_message
from tokenlight.cli.flag_hints import format_for_command_line
from tokenlight.cli.inputs import TextFile
from tokenlight.cli.outputs import OutputWriter
from tokenlight.cli.pipes import EXIT_PIPE_CLOSED
from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import Question
from tokenlight.data.true_label import name_label
from tokenlight.errors import BadInput, TokenlightError, UnknownName
from tokenlight.evaluation.choose import choose_best
from tokenlight.evaluation.preflight import find_option_errors, try_target
from tokenlight.evaluation.run import LABEL_TARGET, explain_by_text
from tokenlight.evaluation.trust import assess_trust_of_all
from tokenlight.explainer import Explainer
from tokenlight.explaining.input_rows import get_model_class_name
from tokenlight.explaining.streams import TEXT_ERRORS, isolate_failures, read_chunks
from tokenlight.files.tables import Example
from tokenlight.plots.characters import to_single_line
from tokenlight.plots.dataset_report import DataSetReport
from tokenlight.progress import progress_bar

MAX_LISTED_LABELS = 5
# The location of a text in its file, and its explanations or the reason why it has none.
TextOutcome = tuple[str, list[Attribution] | TokenlightError]


def explain_file_texts(
    explainer: Explainer,
    text_file: TextFile,
    options: dict[str, Any],
    output: OutputWriter,
    *,
    trust: bool,
) -> int:
    """Explain, show and write the texts of a file.

    Args:
        explainer: The loaded model.
        text_file: The texts.
        options: Keywords of ``Explainer.explain``.
        output: Where explanations are shown and written.
        trust: Whether each explanation is tested (``--trust``).

    Returns:
        The number of texts that could not be explained.

    Raises:
        TokenlightError: The options do not fit the model, whatever the text.
        typer.Exit: The command was interrupted, or its output was closed.
    """
    if explainer.runner.head.task == "question-answering" and not text_file.has_questions:
        raise BadInput(
            f"{get_model_class_name(explainer)} answers questions about a context. Give a file with the "
            "columns 'question' and 'context'.",
            code="file-without-questions",
        )
    _check_true_labels(explainer, text_file)
    if options["target"] != LABEL_TARGET:
        _check_target_is_no_column(explainer, text_file, options["target"])
        try_target(explainer, options["target"])
    elif not text_file.has_labels:
        raise BadInput(
            f"--target {LABEL_TARGET} explains the true label of each text, but "
            f"{Path(text_file.source).name} has no column of labels. Name it with --label COLUMN.",
            code="target-label-without-labels",
        )
    note = ""
    if options["method"] == "best":
        # The method is chosen once, on a sample of all texts.
        choice = choose_best(explainer, _read_nonempty_texts(text_file), seed=options["seed"])
        note = f"method='best': {choice.reason}"
        options = {**options, "method": [choice.method]}
    # The page lists the texts in words unless tokens are asked for.
    output.report = DataSetReport(
        Path(text_file.source).name, output.words is not False, output.reference
    )
    try:
        _write_explanations(explainer, text_file, options, output, trust=trust, note=note)
    except KeyboardInterrupt:
        _finish_interrupted(output, text_file.num_texts)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    output.finish()
    if output.num_omitted:
        print_error(
            f"{output.num_omitted} of {text_file.num_texts} texts could not be explained; the reasons are "
            "given above."
        )
    return output.num_omitted


def _check_target_is_no_column(explainer: Explainer, text_file: TextFile, target: Any) -> None:
    """Refuse the name of a column where a label of the model is expected.

    Raises:
        UnknownName: ``target`` is a column, which may hold the true labels.
    """
    is_column = isinstance(target, str) and target in text_file.column_names
    if is_column and target not in explainer.runner.head.labels:
        raise UnknownName(
            f"--target {target} is no label of the model but a column of {Path(text_file.source).name}. Give "
            f"--target {LABEL_TARGET} --label {target} to explain each text for the label in that column.",
            code="target-is-a-column",
        )


def _check_true_labels(explainer: Explainer, text_file: TextFile) -> None:
    """Compare the labels of the file with those of the model, which alone can be predicted.

    A column that was found by its usual name and holds other words is not compared with the predictions.

    Raises:
        BadInput: The user named the column of labels, and the model has none of them.
    """
    head = explainer.runner.head
    if head.task == "question-answering" or head.is_language_model or not text_file.label_counts:
        return
    unknown_counts: Counter[str] = Counter()
    for label, count in text_file.label_counts.items():
        if name_label(label, head.labels) not in head.labels:
            unknown_counts[str(label)] += count
    if not unknown_counts:
        return
    file_name = Path(text_file.source).name
    unknown = _list_names([label for label, _ in unknown_counts.most_common()])
    known = f"the model predicts {_list_names(head.labels)}"
    if unknown_counts.total() < text_file.label_counts.total():
        print_message(
            f"note: {unknown_counts.total()} of the {text_file.label_counts.total()} labels in {file_name} "
            f"({unknown}) can never be right: {known}.",
            "yellow",
        )
        return
    if text_file.label is not None:
        raise BadInput(
            f"No label in column {text_file.label!r} of {file_name} is one of the model's: it holds "
            f"{unknown}, but {known}. Name the labels as the model does, or give a model that was trained "
            "on them.",
            code="no-label-of-the-model",
        )
    text_file.ignore_labels()
    print_message(
        f"note: the labels in {file_name} ({unknown}) are not compared with the predictions: {known}.",
        "yellow",
    )


def _list_names(names: Sequence[str]) -> str:
    """List the first names, and say how many more there are."""
    shown = ", ".join(to_single_line(name) for name in names[:MAX_LISTED_LABELS])
    num_omitted = len(names) - MAX_LISTED_LABELS
    return f"{shown} and {num_omitted} more" if num_omitted > 0 else shown


def _read_nonempty_texts(text_file: TextFile) -> list[Any]:
    texts = []
    with closing(text_file.read_examples()) as rows:
        for _, example in rows:
            if isinstance(example, BadInput):
                continue
            is_empty = example.text == "" or str(example.text).isspace()
            if not is_empty:
                texts.append(example.text)
    return texts


def _write_explanations(
    explainer: Explainer,
    text_file: TextFile,
    options: Mapping[str, Any],
    output: OutputWriter,
    *,
    trust: bool,
    note: str,
) -> None:
    """Show each text as soon as it is explained; add ``note`` to every explanation."""
    outcomes = _explain_each_text(explainer, text_file, {**options, "progress": False}, trust=trust)
    extra_notes = (note,) if note else ()
    activity = "explaining and testing" if trust else "explaining"
    with progress_bar(activity, text_file.num_texts) as advance, closing(outcomes):
        for location, outcome in outcomes:
            if isinstance(outcome, TokenlightError):
                # If the first text fails, the options may be wrong for all texts: then stop immediately.
                is_first_text = output.num_explained + output.num_omitted == 0
                if is_first_text:
                    _raise_option_error(explainer, options)
                output.num_omitted += 1
                print_message(
                    f"{location} is left out: {format_for_command_line(outcome)}", "yellow"
                )
            else:
                attributions = [
                    replace(attribution, notes=attribution.notes + extra_notes)
                    for attribution in outcome
                ]
                output.add(attributions, location)
            if output.has_no_reader:
                raise typer.Exit(EXIT_PIPE_CLOSED)
            advance(1)


def _raise_option_error(explainer: Explainer, options: Mapping[str, Any]) -> None:
    """Raise if the options fail on a harmless text too: then they are at fault, not the text."""
    errors = find_option_errors(explainer, options["method"], options["seed"])
    if errors:
        raise errors[0]


def _finish_interrupted(output: OutputWriter, num_texts: int) -> None:
    """Write what is finished, marked as incomplete, and report it."""
    finished = f"{output.num_explained} of {num_texts} texts"
    if output.report is not None:
        output.report.metadata["stopped"] = f"after {finished}; the others are missing"
    output.finish()
    written = " and written" if output.num_explained and output.files else ""
    print_message(f"stopped: {finished} are explained{written}.", "yellow")


def _explain_each_text(
    explainer: Explainer, text_file: TextFile, options: Mapping[str, Any], *, trust: bool
) -> Generator[TextOutcome, None, None]:
    """Yield the outcome of each text, in order and in constant memory."""
    other_options = {name: value for name, value in options.items() if name != "method"}

    def explain(examples: Sequence[Example]) -> list[list[Attribution]]:
        text_options = other_options
        if options["target"] == LABEL_TARGET:
            targets = [_find_true_target(explainer, example) for example in examples]
            text_options = {**other_options, "target": targets}
        return explain_by_text(explainer, examples, options["method"], text_options)

    def assess(groups: Sequence[list[Attribution]]) -> list[list[Attribution]]:
        return [
            assess_trust_of_all(explainer, attributions, seed=options["seed"])
            for attributions in groups
        ]

    # Chunks grow: the first text is shown soon, later ones are packed into full batches.
    batch_tokens = explainer.runner.batch_tokens or explainer.runner.default_batch_tokens
    with closing(text_file.read_examples()) as rows:
        for chunk in read_chunks(rows, batch_tokens):
            for location, outcome in _process_chunk(chunk, explain):
                if trust and not isinstance(outcome, TokenlightError):
                    (assessed,) = isolate_failures(assess, [outcome], TEXT_ERRORS)
                    yield location, assessed
                else:
                    yield location, outcome


def _find_true_target(explainer: Explainer, example: Example) -> Any:
    """Return the true label of a row, as the model names it, or the answer to its question.

    Raises:
        BadInput: The row has none.
    """
    if example.true_target is None:
        raise BadInput(
            f"The row has no true label, which --target {LABEL_TARGET} explains. Add one.",
            code="row-without-label",
        )
    if isinstance(example.text, Question):
        return example.true_target
    return name_label(example.label, explainer.runner.head.labels)


def _process_chunk(
    chunk: Sequence[tuple[str, Example | BadInput]],
    explain: Callable[[Sequence[Example]], list[list[Attribution]]],
) -> Iterator[TextOutcome]:
    """Explain the rows of a chunk together; a row that could not be read keeps its error."""
    examples = [example for _, example in chunk if not isinstance(example, BadInput)]
    outcomes = iter(isolate_failures(explain, examples, TEXT_ERRORS))
    for location, example in chunk:
        if isinstance(example, BadInput):
            yield location, example
        else:
            yield location, next(outcomes)
