"""``tokenlight explain --file``: text after text, of which one that is refused costs itself only; and with
``-o FOLDER`` many texts into Parquet, by many workers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import typer

from tokenlight.cli.console import INTERRUPTED, UNFINISHED, complain, refuse, resumable, tell
from tokenlight.cli.inputs import TextFile
from tokenlight.cli.outputs import Output
from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput, TokenlightError
from tokenlight.evaluation.choose import best
from tokenlight.evaluation.preflight import check_target, refused_options
from tokenlight.evaluation.run import text_by_text
from tokenlight.evaluation.trust import all_trusted
from tokenlight.explainer import Explainer
from tokenlight.explaining.jobs import name_of
from tokenlight.explaining.stream import OF_ONE_TEXT, half_by_half, windows
from tokenlight.files.tables import Example
from tokenlight.plots.dataset import Report
from tokenlight.progress import progress
from tokenlight.scale import Engine, explain_files


def explain_all(
    explainer: Explainer, texts: TextFile, how: dict[str, Any], output: Output, *, trust: bool
) -> int:
    """Show the texts one by one, write the files, and say how many were left out."""
    if explainer.live.head.kind == "span" and not texts.questions:
        answers = f"{name_of(explainer)} answers questions about a context"
        raise BadInput(f"{answers}; give a file with the columns 'question' and 'context'.")
    check_target(explainer, how["target"])
    note: tuple[str, ...] = ()
    if how["method"] == "best":  # chosen once, on a sample of all texts
        given = [text.text for _, text in texts.read() if not isinstance(text, BadInput)]
        filled = [text for text in given if text != "" and not str(text).isspace()]
        choice = best(explainer, filled, seed=how["seed"])
        note, how = (f"method='best': {choice.reason}",), {**how, "method": [choice.method]}
    report = Report(Path(texts.source).name, output.words is not False, output.reference)
    output.report = report
    try:
        with progress("explaining", texts.count) as advance:
            for where, found in _answered(explainer, texts, {**how, "progress": False}, trust):
                if not isinstance(found, TokenlightError):
                    output.take([replace(a, notes=a.notes + note) for a in found], where)
                else:
                    if not output.shown + output.left_out:
                        # Is it this text, or is it the options? A text without fault will show it.
                        for refused in refused_options(explainer, how["method"], how["seed"]):
                            raise refused
                    output.left_out += 1
                    tell(f"{where} is left out: {found}", "yellow")
                advance(1)
    except KeyboardInterrupt:
        done = f"{output.shown} of {texts.count} texts"
        report.about["stopped"] = f"after {done}; the others are missing"
        output.end()
        written = " and written" if output.shown and output.files else ""
        tell(f"stopped: {done} are shown{written}.", "yellow")
        raise typer.Exit(INTERRUPTED) from None
    output.end()
    if output.left_out:
        left_out = f"{output.left_out} of {texts.count} texts could not be explained"
        complain(f"{left_out}; the reasons are given above.")
    return output.left_out


def _answered(
    explainer: Explainer, texts: TextFile, how: Mapping[str, Any], trust: bool
) -> Iterator[tuple[str, list[Attribution] | TokenlightError]]:
    """Each text's explanations, or why it has none, in order and in constant memory."""
    others = {option: value for option, value in how.items() if option != "method"}

    def explain(given: Sequence[Example]) -> list[list[Attribution]]:
        return text_by_text(explainer, given, how["method"], others)

    def tested(given: Sequence[list[Attribution]]) -> list[list[Attribution]]:
        return [all_trusted(explainer, found, seed=how["seed"]) for found in given]

    for window in windows(texts.read(), explainer.live.batch_tokens or explainer.live.budget):
        given = [text for _, text in window if not isinstance(text, BadInput)]
        groups = iter(half_by_half(explain, given, OF_ONE_TEXT))
        for where, text in window:
            found: Any = text if isinstance(text, BadInput) else next(groups)
            if trust and not isinstance(found, TokenlightError):
                (found,) = half_by_half(tested, [found], OF_ONE_TEXT)
            yield where, found


def explain_into_folder(given: Mapping[str, Any], methods: Any, target: Any) -> None:
    """Explain the texts of --file into the folder -o."""
    names = ["best"] if methods == "best" else [name for name, _ in methods]
    said = f"a folder holds one row a text, by one method, not by {' and '.join(names)}: "
    refuse(methods == "best" or len(names) > 1, f"{said}give one --method, and each a folder.")
    gpus, workers, here = given["gpus_per_worker"], given["workers"], given["engine"] != "ray"
    usual = "cuda" if gpus or (here and torch.cuda.is_available()) else "cpu"
    device = given["device"] or usual
    none = f"--gpus-per-worker {gpus} asks for GPUs, and --device {device} for none."
    refuse(gpus and not device.startswith("cuda"), none)
    if workers is None and device == "cuda" and here:
        workers = torch.cuda.device_count()
    how = {name: given[name] for name in ("explain_mask", "token_types", "long", "seed")}
    with resumable(lambda: f"what is done is in {given['out']}"):
        done = explain_files(
            given["file"],
            given["out"],
            model=given["model"],
            method=methods[0],
            target=target,
            text=given["column"],
            keep=[name.strip() for name in (given["keep"] or "").split(",") if name.strip()],
            limit=given["limit"],
            engine=Engine(
                given["engine"] or "local", workers, given["address"], 1 if gpus is None else gpus
            ),
            device=device,
            loading={name: given[name] for name in ("dtype", "quantize") if given[name]},
            block=given["block"] or 1024,
            tell=tell,
            **how,
        )
    now = done.rows + done.refused - done.there
    rate = f", {now / done.seconds:.1f} texts/s" if done.made else ""
    tell(f"{done.rows:,} of {done.texts:,} texts are in {done.folder}/rows{rate}")
    if done.refused:
        tell(f"{done.refused:,} were refused: {done.folder}/refused says why", "yellow")
    if done.failed:
        (number, why), again = done.failed[0], "the same command tries them again"
        complain(f"{len(done.failed)} blocks were not made; {again}. Block {number}: {why}")
        raise typer.Exit(UNFINISHED)
