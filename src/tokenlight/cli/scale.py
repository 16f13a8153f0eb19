"""``tokenlight explain --file DATA -o FOLDER``: many texts into Parquet, by many workers."""

from collections.abc import Mapping
from typing import Any

import typer

from tokenlight.cli.console import UNFINISHED, complain, refuse, resumable, tell


def explain_into_folder(given: Mapping[str, Any], methods: Any, target: Any) -> None:
    """Explain the texts of --file into the folder -o."""
    from tokenlight.scale import Engine, explain_files

    refuse(
        methods == "best" or len(methods) > 1,
        "a folder holds one row a text, so it has one --method: name one, not best.",
    )
    import torch

    gpus, workers, here = given["gpus_per_worker"], given["workers"], given["engine"] != "ray"
    usual = "cuda" if gpus or (here and torch.cuda.is_available()) else "cpu"
    device = given["device"] or usual
    none = f"--gpus-per-worker {gpus} asks for GPUs, and --device {device} for none."
    refuse(gpus and not device.startswith("cuda"), none)
    if workers is None and device == "cuda" and here:
        workers = torch.cuda.device_count()
    engine = Engine(
        "local" if here else "ray", workers, given["address"], 1 if gpus is None else gpus
    )
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
            engine=engine,
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
        number, why = done.failed[0]
        complain(
            f"{len(done.failed)} blocks were not made; the same command tries them again. Block "
            f"{number}: {why}"
        )
        raise typer.Exit(UNFINISHED)
