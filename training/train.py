"""Train the four heads over one encoder: a masked-LM phase, then all tasks in every step.

The second phase goes in rounds. A round trains several members from one start; the best of them, or
the mean of their weights, is where the next round starts.

Reads the work folder of ``prepare`` and writes ``trained.safetensors`` (fp16) and
``training_log.json`` into it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.autograd import backward
from torch.nn.functional import cross_entropy

from training import batches
from training.held_out import look
from training.model import TASKS, FourHeads
from training.settings import Round, Settings

log = logging.getLogger(__name__)
SHORT_WIDTHS = (32, 64, 128)


class Average:
    """Exponential moving average of the weights: the model that is kept."""

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        """Start at the present weights."""
        self.decay = decay
        self.live = list(model.parameters())
        self.mean = [parameter.detach().clone() for parameter in self.live]
        self.steps = 0

    @torch.no_grad()
    def update(self) -> None:
        """Move a little towards the present weights; early steps move more."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self.mean, [p.detach() for p in self.live], 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the present weights and the mean; twice is nothing."""
        for parameter, mean in zip(self.live, self.mean, strict=True):
            parameter.data, mean.data = mean.data, parameter.data


class Phase:
    """Optimiser, schedule, average and clock of one phase."""

    def __init__(
        self, model: torch.nn.Module, settings: Settings, steps: int, rate: float, seconds: float
    ) -> None:
        """AdamW without decay on biases and norms; warm-up, then a straight line to zero."""
        self.settings = settings
        self.steps = steps
        self.rate = rate
        self.seconds = seconds
        self.started = time.monotonic()
        plain = [p for p in model.parameters() if p.ndim > 1]
        small = [p for p in model.parameters() if p.ndim <= 1]
        on_device = plain[0].is_cuda
        self.optimizer = torch.optim.AdamW(
            [
                {"params": plain, "weight_decay": settings.weight_decay},
                {"params": small, "weight_decay": 0.0},
            ],
            lr=rate,
            betas=(0.9, 0.98),
            fused=on_device,
        )
        self.average = Average(model, settings.averaging)
        self.parameters = plain + small

    def done(self, number: int) -> float:
        """How much of the phase is over after ``number`` steps, from 0 to 1."""
        by_clock = (time.monotonic() - self.started) / self.seconds if self.seconds else 0.0
        return min(1.0, max(number / self.steps, by_clock))

    def step(self, number: int) -> None:
        """Apply the gradients that the losses of this step left."""
        warm_up = self.settings.warm_up
        rising = (number + 1) / (warm_up * self.steps)
        scale = min(rising, (1 - self.done(number)) / (1 - warm_up))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * max(0.0, min(1.0, scale))
        torch.nn.utils.clip_grad_norm_(
            self.parameters, self.settings.largest_gradient, foreach=True
        )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update()


class Trainer:
    """Holds the model, the data and the log over both phases."""

    def __init__(self, work: Path, settings: Settings, device: str) -> None:
        """Read the work folder; seed everything."""
        torch.manual_seed(settings.seed)
        torch.set_float32_matmul_precision("high")
        self.work = work
        self.settings = settings
        self.device = torch.device(device)
        self.pieces = (work / "vocabulary.txt").read_text(encoding="utf-8").splitlines()
        with np.load(work / "tasks.npz", allow_pickle=False) as stored:
            self.arrays = dict(stored)
        stream = batches.read_stream(work / "text.ids.xz").to(self.device)
        kept = settings.held_out["masked_lm"] * (settings.block - 2)
        self.held_stream = stream[-kept:]
        self.stream = stream[:-kept]
        self.generator = torch.Generator(self.device).manual_seed(settings.seed)
        self.model = FourHeads(len(self.pieces)).to(self.device)
        self.history: list[dict[str, Any]] = []
        self.started = time.monotonic()

    def autocast(self) -> torch.autocast:
        """bf16 matrix products on an accelerator; weights, norms and losses stay float32."""
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.device.type != "cpu"
        )

    def masked_loss(self, ids: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the hidden pieces."""
        masked, places, pieces = batches.mask(
            ids, self.settings.masked_share, len(self.pieces), self.generator
        )
        with self.autocast():
            logits = self.model.masked_logits(masked, places)
        return cross_entropy(logits.float(), pieces)

    def supervised_loss(self, task: str, batch: batches.Batch) -> torch.Tensor:
        """The loss the standard model computes from its own labels."""
        moved = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
        with self.autocast():
            loss: torch.Tensor = getattr(self.model, task)(**moved).loss
        return loss

    def record(self, phase: str, number: int, tasks: tuple[str, ...]) -> float:
        """Look at the held-out parts and note it; gives the mean of the tasks' scores."""
        scores = look(self, tasks)
        seconds = time.monotonic() - self.started
        self.history.append(
            {"phase": phase, "step": number, "seconds": round(seconds, 1), **scores}
        )
        log.info("%s %d %.0fs %s", phase, number, seconds, scores)
        return sum(scores[task] for task in tasks) / len(tasks)

    def run(
        self, phase: Phase, name: str, tasks: tuple[str, ...], losses: Callable[[], None]
    ) -> None:
        """Take the steps of a phase; keep the averaged weights of the best look."""
        best = -1.0
        best_weights = None
        waited = 0
        for number in range(phase.steps):
            self.model.train()
            losses()
            phase.step(number)
            last = phase.done(number + 1) >= 1.0
            if (number + 1) % self.settings.look_every and not last:
                continue
            phase.average.swap()
            score = self.record(name, number + 1, tasks)
            if score > best:
                best = score
                waited = 0
                best_weights = [p.detach().clone() for p in phase.average.live]
            else:
                waited += 1
            phase.average.swap()
            if last or waited >= self.settings.patience:
                log.info("%s ends at step %d, best look %.4f", name, number + 1, best)
                break
        assert best_weights is not None
        with torch.no_grad():
            for parameter, kept in zip(phase.average.live, best_weights, strict=True):
                parameter.copy_(kept)

    def pretrain(self) -> None:
        """Masked-language modelling alone, from the pruned public weights."""
        settings = self.settings
        self.model.load_encoder(self.work / "encoder.safetensors")
        source = batches.endless_blocks(
            self.stream, settings.pretrain_blocks, (settings.block,), self.generator
        )
        phase = Phase(self.model, settings, settings.pretrain_steps, settings.pretrain_rate, 0.0)
        self.run(
            phase, "pretrain", ("masked_lm",), lambda: backward(self.masked_loss(next(source)))
        )

    def joint(self, name: str, one: Round, rate: float) -> None:
        """One batch of each task in every step; gradients add up with the tasks' weights."""
        settings = self.settings
        arrays = batches.with_reviews(self.arrays) if one.reviews else self.arrays
        sources: dict[str, Iterator[batches.Batch]] = {
            task: batches.endless(arrays, task, one.batch[task], settings.seed + index)
            for index, task in enumerate(TASKS[:-1])
        }
        running_text = batches.endless_blocks(
            self.stream, one.batch["masked_lm"], SHORT_WIDTHS, self.generator
        )

        def losses() -> None:
            for task, source in sources.items():
                backward(one.loss_weight[task] * self.supervised_loss(task, next(source)))
            backward(one.loss_weight["masked_lm"] * self.masked_loss(next(running_text)))

        phase = Phase(self.model, settings, one.steps, rate, settings.round_seconds)
        self.run(phase, name, TASKS, losses)

    def save(self, name: str, dtype: torch.dtype = torch.float32) -> None:
        """Write every weight once."""
        weights = {
            key: tensor.detach().to("cpu", dtype).contiguous()
            for key, tensor in self.model.weights().items()
        }
        save_file(weights, self.work / name)

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        """Take over weights that ``save`` wrote."""
        with torch.no_grad():
            for key, parameter in self.model.weights().items():
                parameter.copy_(weights[key])


def train_member(work: Path, settings: Settings, device: str, number: int, index: int) -> None:
    """One run of one round, with its own seed and rate."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    seed = settings.seed + 100 * index + 1_000 * number
    trainer = Trainer(work, dataclasses.replace(settings, seed=seed), device)
    trainer.load(load_file(work / f"start{number}.safetensors"))
    one = settings.rounds[number]
    trainer.joint(f"round {number} member {index}", one, one.rates[index])
    trainer.save(f"member{index}.safetensors")
    (work / f"member{index}.json").write_text(json.dumps(trainer.history), encoding="utf-8")


def train_members(work: Path, settings: Settings, device: str, number: int) -> None:
    """All members of a round at once: each leaves most of an accelerator idle."""
    spawn = multiprocessing.get_context("spawn")
    members = [
        spawn.Process(target=train_member, args=(work, settings, device, number, index))
        for index in range(len(settings.rounds[number].rates))
    ]
    for member in members:
        member.start()
    for member in members:
        member.join()
    failed = [index for index, member in enumerate(members) if member.exitcode]
    if failed:
        raise SystemExit(f"members {failed} of round {number} failed; their logs are above.")


def choose(trainer: Trainer, count: int) -> None:
    """Load the mean of the members' weights or the best member, as held-out rows decide."""
    members = [load_file(trainer.work / f"member{index}.safetensors") for index in range(count)]
    mean = {key: torch.stack([m[key] for m in members]).mean(0) for key in members[0]}
    candidates = {"mean": mean} | {f"member {i}": member for i, member in enumerate(members)}
    scores = {}
    for name, weights in candidates.items():
        trainer.load(weights)
        scores[name] = trainer.record(f"{name} alone", 0, TASKS)
    best = max(scores, key=scores.__getitem__)
    log.info("kept: %s", best)
    trainer.history.append({"kept": best})
    trainer.load(candidates[best])


def train(work: Path, settings: Settings, device: str, *, first_round: int | None = None) -> None:
    """Both phases; ``first_round`` goes on from the saved start of that round instead."""
    trainer = Trainer(work, settings, device)
    if first_round is None:
        trainer.pretrain()
        trainer.save("start0.safetensors")
    for number in range(first_round or 0, len(settings.rounds)):
        count = len(settings.rounds[number].rates)
        train_members(work, settings, device, number)
        for index in range(count):
            history = (work / f"member{index}.json").read_text(encoding="utf-8")
            trainer.history += json.loads(history)
        choose(trainer, count)
        trainer.save(f"start{number + 1}.safetensors")
    trainer.save("trained.safetensors", torch.float16)
    summary = {
        "settings": dataclasses.asdict(settings),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - trainer.started, 1),
        "history": trainer.history,
    }
    (work / "training_log.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
