"""Train the four heads over one encoder: a masked-LM phase, then all tasks in every step.

The second phase goes in rounds. A round trains several members from the same weights; the next round
starts from the best of them, or from the mean of their weights.

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
from torch import Tensor
from torch.nn.functional import cross_entropy

from training import batches
from training.held_out import evaluate_held_out
from training.model import TASKS, FourHeads
from training.reporting import set_up_logging
from training.settings import RoundSettings, Settings

log = logging.getLogger(__name__)
BLOCK_WIDTHS = (32, 64, 128)
SUPERVISED_TASKS = TASKS[:-1]
SEEDS_PER_MEMBER = 100
SEEDS_PER_ROUND = 1_000


class MovingAverage:
    """Exponential moving average of a model's weights, which is what a training keeps.

    Args:
        model: The model in training.
        decay: Share of the average that a step leaves as it is.
    """

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = list(model.parameters())
        self.averages = [parameter.detach().clone() for parameter in self.parameters]
        self.num_updates = 0

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the present weights; early updates move it further."""
        self.num_updates += 1
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        weights = [parameter.detach() for parameter in self.parameters]
        torch._foreach_lerp_(self.averages, weights, 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights and the average; a second call undoes the first."""
        for parameter, average in zip(self.parameters, self.averages, strict=True):
            parameter.data, average.data = average.data, parameter.data


class Phase:
    """Optimizer, schedule and moving average of one phase of training.

    AdamW decays neither biases nor norms. The learning rate rises in the warm-up, then falls linearly
    to zero.

    Args:
        model: The module whose weights are trained.
        settings: Settings of the recipe.
        num_steps: Steps of the schedule.
        learning_rate: Peak learning rate.
        max_seconds: Time at which the schedule ends in any case; 0 sets no limit.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        settings: Settings,
        num_steps: int,
        learning_rate: float,
        max_seconds: float,
    ) -> None:
        self.settings = settings
        self.num_steps = num_steps
        self.learning_rate = learning_rate
        self.max_seconds = max_seconds
        self.start_time = time.monotonic()
        decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        undecayed = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
        self.parameters = decayed + undecayed
        self.optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": settings.weight_decay},
                {"params": undecayed, "weight_decay": 0.0},
            ],
            lr=learning_rate,
            betas=(0.9, 0.98),
            fused=decayed[0].is_cuda,
        )
        self.average = MovingAverage(model, settings.averaging_decay)

    def progress(self, step: int) -> float:
        """Return how much of the phase is over after ``step`` steps, from 0 to 1."""
        progress_by_steps = step / self.num_steps
        progress_by_clock = 0.0
        if self.max_seconds:
            progress_by_clock = (time.monotonic() - self.start_time) / self.max_seconds
        return min(1.0, max(progress_by_steps, progress_by_clock))

    def scale_learning_rate(self, step: int) -> float:
        """Return the factor of the peak learning rate at a step, from 0 to 1."""
        warm_up_share = self.settings.warm_up_share
        rising = (step + 1) / (warm_up_share * self.num_steps)
        falling = (1 - self.progress(step)) / (1 - warm_up_share)
        return max(0.0, min(1.0, rising, falling))

    def step(self, step: int) -> None:
        """Apply the gradients that the losses of this step have left."""
        learning_rate = self.learning_rate * self.scale_learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        torch.nn.utils.clip_grad_norm_(
            self.parameters, self.settings.max_gradient_norm, foreach=True
        )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update()


class Trainer:
    """Model, data and log of a training through all its phases.

    Seeds torch's global generator and rounds float32 products to TF32 where the device can.

    Args:
        work_folder: The folder that ``prepare`` wrote.
        settings: Settings of the recipe.
        device: Name of a torch device.
    """

    def __init__(self, work_folder: Path, settings: Settings, device: str) -> None:
        torch.manual_seed(settings.seed)
        torch.set_float32_matmul_precision("high")
        self.work_folder = work_folder
        self.settings = settings
        self.device = torch.device(device)
        self.pieces = (work_folder / "vocabulary.txt").read_text(encoding="utf-8").splitlines()
        with np.load(work_folder / "tasks.npz", allow_pickle=False) as stored:
            self.arrays = dict(stored)
        stream = batches.read_token_stream(work_folder / "text.ids.xz").to(self.device)
        num_held_out = settings.num_held_out["masked_lm"] * (settings.block_length - 2)
        self.held_out_stream = stream[-num_held_out:]
        self.training_stream = stream[:-num_held_out]
        self.generator = torch.Generator(self.device).manual_seed(settings.seed)
        self.model = FourHeads(len(self.pieces)).to(self.device)
        self.history: list[dict[str, Any]] = []
        self.start_time = time.monotonic()

    def autocast(self) -> torch.autocast:
        """Compute matrix products in bf16 on an accelerator; weights, norms and losses stay float32."""
        is_accelerator = self.device.type != "cpu"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=is_accelerator)

    def compute_masked_loss(self, ids: Tensor) -> Tensor:
        """Compute the cross-entropy of masked tokens."""
        masked = batches.mask_tokens(
            ids, self.settings.masked_share, len(self.pieces), self.generator
        )
        with self.autocast():
            logits = self.model.compute_masked_logits(masked.input_ids, masked.positions)
        return cross_entropy(logits.float(), masked.labels)

    def compute_supervised_loss(self, task: str, batch: batches.Batch) -> Tensor:
        """Compute the loss that the standard model derives from its own labels."""
        inputs = {}
        for name, tensor in batch.items():
            inputs[name] = tensor.to(self.device, non_blocking=True)
        with self.autocast():
            loss: Tensor = getattr(self.model, task)(**inputs).loss
        return loss

    def evaluate(self, phase: str, step: int, tasks: tuple[str, ...]) -> float:
        """Evaluate on held-out rows, log the scores and return their mean over ``tasks``."""
        scores = evaluate_held_out(self, tasks)
        seconds = time.monotonic() - self.start_time
        self.history.append({"phase": phase, "step": step, "seconds": round(seconds, 1), **scores})
        log.info("%s %d %.0fs %s", phase, step, seconds, scores)
        return sum(scores[task] for task in tasks) / len(tasks)

    def run_phase(
        self,
        phase: Phase,
        name: str,
        tasks: tuple[str, ...],
        compute_gradients: Callable[[], None],
    ) -> None:
        """Take the steps of a phase and keep the averaged weights of its best evaluation.

        Args:
            phase: Optimizer and schedule.
            name: Name of the phase in the log.
            tasks: Tasks whose held-out scores decide.
            compute_gradients: Runs the losses of one step backward.
        """
        best_score = -1.0
        best_weights: list[Tensor] = []
        num_evaluations_without_gain = 0
        for step in range(phase.num_steps):
            self.model.train()
            compute_gradients()
            phase.step(step)
            num_steps_done = step + 1
            is_last_step = phase.progress(num_steps_done) >= 1.0
            if num_steps_done % self.settings.evaluation_interval and not is_last_step:
                continue
            phase.average.swap()
            score = self.evaluate(name, num_steps_done, tasks)
            if score > best_score:
                best_score = score
                num_evaluations_without_gain = 0
                best_weights = [weight.detach().clone() for weight in phase.average.parameters]
            else:
                num_evaluations_without_gain += 1
            phase.average.swap()
            if is_last_step or num_evaluations_without_gain >= self.settings.patience:
                log.info("%s ends at step %d, best score %.4f", name, num_steps_done, best_score)
                break
        with torch.no_grad():
            for parameter, weight in zip(phase.average.parameters, best_weights, strict=True):
                parameter.copy_(weight)

    def pretrain(self) -> None:
        """Train the masked LM alone, from the pruned public weights."""
        settings = self.settings
        self.model.load_encoder(self.work_folder / "encoder.safetensors")
        block_batches = batches.iter_block_batches(
            self.training_stream,
            settings.pretraining_batch_size,
            (settings.block_length,),
            self.generator,
        )

        def compute_gradients() -> None:
            self.compute_masked_loss(next(block_batches)).backward()

        phase = Phase(
            self.model, settings, settings.pretraining_steps, settings.pretraining_rate, 0.0
        )
        self.run_phase(phase, "pretrain", ("masked_lm",), compute_gradients)

    def train_jointly(self, name: str, round_settings: RoundSettings, learning_rate: float) -> None:
        """Train on one batch of each task in every step; the weighted gradients add up."""
        settings = self.settings
        arrays = batches.add_reviews(self.arrays) if round_settings.uses_reviews else self.arrays
        task_batches: dict[str, Iterator[batches.Batch]] = {}
        for index, task in enumerate(SUPERVISED_TASKS):
            task_batches[task] = batches.iter_task_batches(
                arrays, task, round_settings.batch_sizes[task], settings.seed + index
            )
        block_batches = batches.iter_block_batches(
            self.training_stream,
            round_settings.batch_sizes["masked_lm"],
            BLOCK_WIDTHS,
            self.generator,
        )
        loss_weights = round_settings.loss_weights

        def compute_gradients() -> None:
            for task, source in task_batches.items():
                loss = self.compute_supervised_loss(task, next(source))
                (loss_weights[task] * loss).backward()
            loss = self.compute_masked_loss(next(block_batches))
            (loss_weights["masked_lm"] * loss).backward()

        phase = Phase(
            self.model, settings, round_settings.steps, learning_rate, settings.max_round_seconds
        )
        self.run_phase(phase, name, TASKS, compute_gradients)

    def save(self, file_name: str, dtype: torch.dtype = torch.float32) -> None:
        """Write every weight once into the work folder."""
        weights = {}
        for name, tensor in self.model.get_weights().items():
            weights[name] = tensor.detach().to("cpu", dtype).contiguous()
        save_file(weights, self.work_folder / file_name)


def train_member(
    work_folder: Path, settings: Settings, device: str, round_index: int, member_index: int
) -> None:
    """Train one member of a round, with its own seed and learning rate."""
    set_up_logging()
    seed = settings.seed + SEEDS_PER_MEMBER * member_index + SEEDS_PER_ROUND * round_index
    trainer = Trainer(work_folder, dataclasses.replace(settings, seed=seed), device)
    trainer.model.load_weights(load_file(work_folder / f"start{round_index}.safetensors"))
    round_settings = settings.rounds[round_index]
    name = f"round {round_index} member {member_index}"
    trainer.train_jointly(name, round_settings, round_settings.learning_rates[member_index])
    trainer.save(f"member{member_index}.safetensors")
    history = json.dumps(trainer.history)
    (work_folder / f"member{member_index}.json").write_text(history, encoding="utf-8")


def train_members(work_folder: Path, settings: Settings, device: str, round_index: int) -> None:
    """Train all members of a round at once, since each leaves most of an accelerator idle.

    Raises:
        SystemExit: A member failed.
    """
    spawn = multiprocessing.get_context("spawn")
    processes = []
    for member_index in range(len(settings.rounds[round_index].learning_rates)):
        arguments = (work_folder, settings, device, round_index, member_index)
        processes.append(spawn.Process(target=train_member, args=arguments))
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    failed = [index for index, process in enumerate(processes) if process.exitcode]
    if failed:
        raise SystemExit(f"Members {failed} of round {round_index} failed; their logs are above.")


def load_best_weights(trainer: Trainer, num_members: int) -> None:
    """Load the best member or the mean of the members' weights, as held-out rows decide."""
    members = []
    for index in range(num_members):
        members.append(load_file(trainer.work_folder / f"member{index}.safetensors"))
    mean_weights = {}
    for name in members[0]:
        mean_weights[name] = torch.stack([member[name] for member in members]).mean(0)
    candidates = {"mean": mean_weights}
    for index, member in enumerate(members):
        candidates[f"member {index}"] = member
    scores = {}
    for name, weights in candidates.items():
        trainer.model.load_weights(weights)
        scores[name] = trainer.evaluate(f"{name} alone", 0, TASKS)
    best_name = max(scores, key=scores.__getitem__)
    log.info("kept: %s", best_name)
    trainer.history.append({"kept": best_name})
    trainer.model.load_weights(candidates[best_name])


def train(
    work_folder: Path, settings: Settings, device: str, *, first_round: int | None = None
) -> None:
    """Run all phases and write the trained weights and the log.

    Args:
        work_folder: The folder that ``prepare`` wrote.
        settings: Settings of the recipe.
        device: Name of a torch device.
        first_round: Resume from the saved weights with which this round starts; None starts anew.
    """
    trainer = Trainer(work_folder, settings, device)
    if first_round is None:
        trainer.pretrain()
        trainer.save("start0.safetensors")
    for round_index in range(first_round or 0, len(settings.rounds)):
        num_members = len(settings.rounds[round_index].learning_rates)
        train_members(work_folder, settings, device, round_index)
        for member_index in range(num_members):
            history = (work_folder / f"member{member_index}.json").read_text(encoding="utf-8")
            trainer.history += json.loads(history)
        load_best_weights(trainer, num_members)
        trainer.save(f"start{round_index + 1}.safetensors")
    trainer.save("trained.safetensors", torch.float16)
    summary = {
        "settings": dataclasses.asdict(settings),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - trainer.start_time, 1),
        "history": trainer.history,
    }
    (work_folder / "training_log.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
