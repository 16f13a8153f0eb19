"""``tokenlight explain --file DATA -o FOLDER``: explain many texts into Parquet files, by many workers."""

from collections.abc import Mapping
from typing import Any

import torch
import typer

from tokenlight.cli.console import (
    EXIT_UNFINISHED,
    print_error,
    print_message,
    resumable_command,
)
from tokenlight.cli.flag_hints import format_text_for_command_line
from tokenlight.cli.options import EngineKind
from tokenlight.errors import BadInput
from tokenlight.evaluation.run import LABEL_TARGET
from tokenlight.files.stores import Folder
from tokenlight.scale import Engine, explain_files

DEFAULT_PART_SIZE = 1024  # texts per output file


def explain_into_folder(
    arguments: Mapping[str, Any], methods: Any, target: Any, effort: Mapping[str, Any]
) -> None:
    """Explain the texts of ``--file`` into the folder ``-o``.

    Args:
        arguments: The options of ``tokenlight explain`` by name.
        methods: Names and options of the methods, or ``"best"``; exactly one method is accepted.
        target: The target to explain.
        effort: ``effort`` and ``stable``, if they are given.

    Raises:
        BadInput: Several methods, or GPUs on a device that has none.
        typer.Exit: Some parts could not be made; the same command tries them again.
    """
    if methods == "best" or len(methods) > 1:
        names = ["best"] if methods == "best" else [name for name, _ in methods]
        raise BadInput(
            f"A folder holds one row per text by a single method, but got {' and '.join(names)}. "
            "Run the command once per method, each with its own folder.",
            code="several-methods-for-folder",
        )
    if target == LABEL_TARGET:
        raise BadInput(
            f"--target {LABEL_TARGET} cannot be combined with -o, which explains one target for all texts. "
            "Leave -o out, or give a label.",
            code="target-label-for-folder",
        )
    device = _choose_device(arguments)
    part_size = arguments["part_size"] or DEFAULT_PART_SIZE
    with resumable_command(lambda: describe_finished_parts(arguments["output"], part_size)):
        result = explain_files(
            arguments["file"],
            arguments["output"],
            model=arguments["model"],
            method=methods[0],
            target=target,
            text_column=arguments["column"],
            keep_columns=_parse_column_names(arguments["keep"]),
            limit=arguments["limit"],
            engine=_make_engine(arguments, device),
            device=device,
            load_arguments={
                name: arguments[name] for name in ("dtype", "quantize") if arguments[name]
            },
            part_size=part_size,
            on_message=print_message,
            explain_mask=arguments["explain_mask"],
            token_types=arguments["token_types"],
            long=arguments["long"],
            seed=arguments["seed"],
            **effort,
        )
    _print_result(result)


def describe_finished_parts(output: str, part_size: int) -> str:
    """Describe what an interrupted command leaves; only whole parts are kept."""
    folder = Folder(output)
    if folder.local_path is None:
        return f"finished texts are in {output}"  # a store may not answer in the time that a user waits
    # A part is written under a hidden name until it is complete.
    names = [file.name for file in (folder.local_path / "rows").rglob("*.parquet")]
    num_parts = sum(not name.startswith(".") for name in names)
    if num_parts == 0:
        return f"no part of {part_size:,} texts was finished"
    return f"{num_parts:,} finished parts of up to {part_size:,} texts are in {output}"


def _choose_device(arguments: Mapping[str, Any]) -> str:
    """Return ``--device``, or by default a GPU where the workers have one."""
    num_gpus = arguments["gpus_per_worker"]
    device = arguments["device"]
    if device is None:
        # Ray places workers on GPUs only if it is told how many each of them needs.
        is_local = arguments["engine"] != "ray"
        has_gpu = num_gpus or (is_local and torch.cuda.is_available())
        device = "cuda" if has_gpu else "cpu"
    if num_gpus and not device.startswith("cuda"):
        raise BadInput(
            f"--gpus-per-worker {num_gpus} requests GPUs, but --device {device} does not use any. "
            "Leave one of them out.",
            code="gpus-without-gpu-device",
        )
    return str(device)


def _make_engine(arguments: Mapping[str, Any], device: str) -> Engine:
    kind: EngineKind = arguments["engine"] or "local"
    num_workers = arguments["workers"]
    if num_workers is None and device == "cuda" and kind == "local":
        num_workers = torch.cuda.device_count()  # one worker per GPU
    num_gpus = arguments["gpus_per_worker"]
    return Engine(kind, num_workers, arguments["address"], 1 if num_gpus is None else num_gpus)


def _parse_column_names(names: str | None) -> list[str]:
    stripped = [name.strip() for name in (names or "").split(",")]
    return [name for name in stripped if name]


def _print_result(result: Any) -> None:
    """Print how many texts were explained and refused; exit where parts are missing."""
    rate = ""
    if result.num_parts_made:
        # The rate counts texts of this call only, not those of earlier calls.
        num_texts_now = result.num_explained + result.num_refused - result.num_existing
        rate = f", {num_texts_now / result.seconds:.1f} texts/s"
    print_message(
        f"{result.num_explained:,} of {result.num_texts:,} texts are in {result.folder}/rows{rate}"
    )
    if result.num_refused:
        print_message(
            f"{result.num_refused:,} texts could not be explained; see {result.folder}/refused",
            "yellow",
        )
    if result.failed_parts:
        part_number, reason = result.failed_parts[0]
        print_error(
            f"{len(result.failed_parts)} parts failed; run the same command again to retry. "
            f"Part {part_number}: {format_text_for_command_line(reason)}"
        )
        raise typer.Exit(EXIT_UNFINISHED)
