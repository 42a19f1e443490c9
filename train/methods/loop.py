"""Train a flow by maximum likelihood, with checkpoints that resume bit for bit."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.train.choice.held_out import HeldOut
from fastflow.train.choice.separability import Keeper, Views, is_due
from fastflow.train.methods.checkpoints import load_checkpoint, save_checkpoint
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.methods.objective import SIDES, PaperAdamW, compute_loss
from fastflow.train.options import DEFAULTS, Options
from fastflow.train.progress import COMMAND, Voice

Source = Callable[[NDArray[np.int64]], NDArray[np.float32]]  # row numbers -> pooled embeddings (b, D)
Log = Callable[[int, dict[str, float]], None]

INITIAL_TEXTS = 2048  # of the data-dependent initialisation


@dataclass(frozen=True)
class Schedule:
    """The paper's schedule: one epoch of 32 pairs (64 sentences) a step at a constant 1e-3."""

    epochs: float = DEFAULTS.epochs
    batch_size: int = DEFAULTS.batch_size
    lr: float = DEFAULTS.lr
    seed: int = DEFAULTS.seed
    init: str = DEFAULTS.init  # or glorot, the official code as run
    save_steps: int = DEFAULTS.save_steps

    @classmethod
    def of(cls, options: Options) -> Schedule:
        return cls(**{one.name: getattr(options, one.name) for one in fields(cls)})

    def steps(self, texts: int) -> int:
        """Count the optimiser steps; a rest smaller than a batch is dropped."""
        if texts < self.batch_size:
            raise UsageError(
                f"the corpus has {texts} distinct texts, fewer than one batch of "
                f"{self.batch_size}: give more text or a smaller --batch-size"
            )
        return max(1, int(self.epochs * (texts // self.batch_size)))


def order_epoch(texts: int, schedule: Schedule, epoch: int) -> NDArray[np.int64]:
    """Draw the order of rows from seed and epoch, so that resuming needs no state."""
    return np.random.default_rng((schedule.seed, epoch)).permutation(texts)


def pick_batches(texts: int, schedule: Schedule, start: int, stop: int) -> Iterator[NDArray[np.int64]]:
    """Yield the row numbers (batch_size,) of steps ``start`` to ``stop``."""
    per_epoch = texts // schedule.batch_size
    order, drawn = np.empty(0, np.int64), -1
    for step in range(start, stop):
        epoch, index = divmod(step, per_epoch)
        if epoch != drawn:
            order, drawn = order_epoch(texts, schedule, epoch), epoch
        yield order[index * schedule.batch_size : (index + 1) * schedule.batch_size]


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Use one thread: faster on small matrices, and weights do not depend on the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Training:
    """The settings of a chain's training.

    ``checkpoints`` is a folder or None; ``identity`` names corpus and encoder in them. ``views``, of dropout or
    held-out vectors, choose a flow's best step; without them it is the last.
    """

    schedule: Schedule = field(default_factory=Schedule)
    checkpoints: Path | None = None
    identity: str = ""
    resume: bool = False
    views: Views | HeldOut | None = None
    log: Log = lambda step, values: None
    voice: Voice = COMMAND


def fit_flow(
    source: Source,
    texts: int,
    config: FlowConfig,
    training: Training,
    checkpoint: Path | None = None,
    keeper: Keeper | None = None,
) -> Flow:
    """Train a flow on ``texts`` embeddings; raises a FastflowError if the loss is not finite.

    ``checkpoint`` is written every ``save_steps`` steps. A ``keeper`` returns the flow of its best step.
    """
    schedule, log = training.schedule, training.log
    steps = schedule.steps(texts)
    torch.manual_seed(schedule.seed)
    flow = Flow(config)
    if schedule.init == "data":
        rows = np.random.default_rng((schedule.seed, 1 << 32)).permutation(texts)[:INITIAL_TEXTS]
        first = torch.from_numpy(source(np.sort(rows)))
        with use_one_thread():
            flow.initialise(first)
    optimiser = PaperAdamW(flow.parameters(), schedule.lr)
    run = identify_run(training.identity + (f" kept by {keeper.what}" if keeper else ""), config, schedule)
    start = load_checkpoint(checkpoint, flow, optimiser, run, keeper) if training.resume and checkpoint else 0
    if keeper and not start:
        log(0, {keeper.what: keeper.look(0, flow)})
    with training.voice.progress("flow", steps, "steps", start) as progress:
        for step, rows in enumerate(pick_batches(texts, schedule, start, steps), start + 1):
            x = torch.from_numpy(source(rows))
            with use_one_thread():
                loss = compute_loss(flow, x)
                loss.backward()
                norm, bits = optimiser.step(), loss.item() / SIDES
                flow.hold()
            if not (math.isfinite(bits) and math.isfinite(norm)):
                raise FastflowError(
                    f"training diverged at step {step} of {steps}: the likelihood is not finite; use a smaller --lr"
                )
            log(step, {"bits_per_dimension": bits, "gradient_norm": norm})
            if keeper and is_due(step, steps):
                log(step, {keeper.what: keeper.look(step, flow)})
            progress.advance(1, f"{bits:.3f} bits/dim")
            if checkpoint and schedule.save_steps and step % schedule.save_steps == 0 and step < steps:
                save_checkpoint(checkpoint, flow, optimiser, step, run, keeper)
    if keeper:
        keeper.restore(flow)
    return flow.eval()


def identify_run(identity: str, config: FlowConfig, schedule: Schedule) -> str:
    """Hash everything that decides the weights."""
    settings = {name: value for name, value in asdict(schedule).items() if name != "save_steps"}
    return hashlib.sha256(json.dumps([identity, asdict(config), settings], sort_keys=True).encode()).hexdigest()
