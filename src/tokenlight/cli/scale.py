"""``tokenlight explain --file DATA -o FOLDER``: many texts into Parquet, by many workers."""

import os
from collections.abc import Mapping
from typing import Any

import typer

from tokenlight.cli.failures import INTERRUPTED, complain, tell
from tokenlight.errors import BadInput

UNFINISHED = 1
# Of explain: what a folder needs, and what has no place in one.
ONLY = ("engine", "workers", "address", "gpus_per_worker", "keep", "block")
NEVER = (
    "text", "pair", "question", "context", "document", "image", "fill", "chat", "chat_template", "split",
    "by", "trust", "words", "layers", "reference", "html", "json", "csv", "parquet", "png",
    "continuation", "generate", "batch_tokens", "batch_size",
)  # fmt: skip
NAMES = {"text": "TEXT", "continuation": "--continue"}


def is_for_folder(given: Mapping[str, Any]) -> bool:
    """Whether the options of explain ask for a folder of rows; refused where they contradict."""
    file, out = given["file"], given["out"]
    if out is None:
        for name in ONLY:
            if given[name] is not None:
                raise BadInput(f"{_flag(name)} belongs to many texts; give --file DATA -o FOLDER.")
        if file is not None and ("://" in file or "*" in file or os.path.isdir(file)):
            raise BadInput(f"--file {file} may be many files; say where to, with -o FOLDER.")
        return False
    if file is None:
        raise BadInput(f"-o {out} is for the texts of --file DATA; for one text, give --json FILE.")
    for name in NEVER:
        if given[name] not in (None, False):
            raise BadInput(
                f"{_flag(name)} has no place beside -o FOLDER, which holds rows of Parquet."
            )
    for name in ("address", "gpus_per_worker"):
        if given[name] is not None and given["engine"] != "ray":
            raise BadInput(f"{_flag(name)} is for a Ray cluster; give --engine ray with it.")
    return True


def _flag(name: str) -> str:
    return NAMES.get(name, f"--{name.replace('_', '-')}")


def explain_into_folder(given: Mapping[str, Any], methods: Any, target: Any) -> None:
    """Explain the texts of --file into the folder -o."""
    from tokenlight.scale import Engine, explain_files
    from tokenlight.scale.worker import DiskFull

    if methods == "best" or len(methods) > 1:
        raise BadInput("a folder holds one row a text, so it has one --method: name one, not best.")
    import torch

    gpus, workers, here = given["gpus_per_worker"], given["workers"], given["engine"] != "ray"
    usual = "cuda" if gpus or (here and torch.cuda.is_available()) else "cpu"
    device = given["device"] or usual
    if gpus and not device.startswith("cuda"):
        raise BadInput(f"--gpus-per-worker {gpus:g} asks for GPUs, and --device {device} for none.")
    if workers is None and device == "cuda" and here:
        workers = torch.cuda.device_count()
    engine = Engine(
        "local" if here else "ray", workers, given["address"], 1 if gpus is None else gpus
    )
    how = {name: given[name] for name in ("explain_mask", "token_types", "long", "seed")}
    try:
        done = explain_files(
            given["file"],
            given["out"],
            model=given["model"],
            method=methods[0],
            target=target,
            text=given["column"],
            keep=[name.strip() for name in (given["keep"] or "").split(",") if name.strip()],
            limit=given["limit"],
            engine=engine,
            device=device,
            loading={name: given[name] for name in ("dtype", "quantize") if given[name]},
            block=given["block"] or 1024,
            tell=tell,
            **how,
        )
    except KeyboardInterrupt:
        tell(f"stopped; the same command goes on with what is in {given['out']}.", "yellow")
        raise typer.Exit(INTERRUPTED) from None
    except DiskFull as full:
        complain(str(full))
        raise typer.Exit(UNFINISHED) from None
    now = done.rows + done.refused - done.there
    rate = f", {now / done.seconds:.1f} texts/s" if done.made else ""
    tell(f"{done.rows:,} of {done.texts:,} texts are in {done.folder}/rows{rate}")
    if done.refused:
        tell(f"{done.refused:,} were refused: {done.folder}/refused says why", "yellow")
    if done.failed:
        number, why = done.failed[0]
        complain(
            f"{len(done.failed)} blocks were not made; the same command tries them again. Block "
            f"{number}: {why}"
        )
        raise typer.Exit(UNFINISHED)
