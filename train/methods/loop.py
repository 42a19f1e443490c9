"""Fitting the flow: batches of pooled embeddings -> maximum likelihood, with checkpoints that resume bit for bit."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastflow.errors import FastflowError, UsageError
from fastflow.train.choice.separability import Keeper, due
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.methods.objective import SIDES, PaperAdamW, step_loss
from fastflow.train.options import DEFAULTS, Options
from fastflow.train.progress import COMMAND, Voice

Source = Callable[[NDArray[np.int64]], NDArray[np.float32]]  # row numbers -> pooled embeddings (b, D)
Log = Callable[[int, dict[str, float]], None]

INITIAL_TEXTS = 2048  # sentences that data-dependent initialisation looks at


@dataclass(frozen=True)
class Schedule:
    """The paper's schedule for a target corpus: one epoch of 32 pairs (64 sentences) a step at a constant 1e-3."""

    epochs: float = DEFAULTS.epochs
    batch_size: int = DEFAULTS.batch_size
    lr: float = DEFAULTS.lr
    seed: int = DEFAULTS.seed
    init: str = DEFAULTS.init  # or glorot, the official code as run
    save_steps: int = DEFAULTS.save_steps

    @classmethod
    def of(cls, options: Options) -> Schedule:
        """That of ``options``, whose fields have the same names."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})

    def steps(self, texts: int) -> int:
        """Optimiser steps on a corpus of ``texts``; a remainder smaller than a batch is dropped."""
        if texts < self.batch_size:
            raise UsageError(
                f"the corpus has {texts} distinct texts, fewer than one batch of "
                f"{self.batch_size}: give more text or a smaller --batch-size"
            )
        return max(1, int(self.epochs * (texts // self.batch_size)))


def epoch_order(texts: int, schedule: Schedule, epoch: int) -> NDArray[np.int64]:
    """A new order of the rows for every epoch, from the seed and the epoch alone, so that resuming needs no state."""
    return np.random.default_rng((schedule.seed, epoch)).permutation(texts)


def batch_rows(texts: int, schedule: Schedule, start: int, stop: int) -> Iterator[NDArray[np.int64]]:
    """The row numbers (batch_size,) of steps ``start`` to ``stop``."""
    per_epoch = texts // schedule.batch_size
    order, drawn = np.empty(0, np.int64), -1
    for step in range(start, stop):
        epoch, index = divmod(step, per_epoch)
        if epoch != drawn:
            order, drawn = epoch_order(texts, schedule, epoch), epoch
        yield order[index * schedule.batch_size : (index + 1) * schedule.batch_size]


@contextmanager
def one_thread() -> Iterator[None]:
    """A flow's matrices are too small to share: one thread is faster, and the weights do not depend on the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fit_flow(
    source: Source,
    texts: int,
    config: FlowConfig,
    schedule: Schedule,
    checkpoint: Path | None = None,
    identity: str = "",
    resume: bool = False,
    log: Log = lambda step, values: None,
    keeper: Keeper | None = None,
    voice: Voice = COMMAND,
) -> Flow:
    """Train a flow on ``texts`` pooled embeddings; raises a FastflowError when the loss stops being finite.

    ``checkpoint`` is written every ``schedule.save_steps`` steps; ``resume`` continues from it, if it is there and of a
    run with the same ``identity``, configuration and schedule. With a ``keeper`` the flow comes back as it was at the
    step that the keeper holds best, else as it is after the last one.
    """
    steps = schedule.steps(texts)
    torch.manual_seed(schedule.seed)
    flow = Flow(config)
    if schedule.init == "data":
        rows = np.random.default_rng((schedule.seed, 1 << 32)).permutation(texts)[:INITIAL_TEXTS]
        first = torch.from_numpy(source(np.sort(rows)))
        with one_thread():
            flow.initialise(first)
    optimiser = PaperAdamW(flow.parameters(), schedule.lr)
    run = run_identity(identity + (f" kept by {keeper.what}" if keeper else ""), config, schedule)
    start = load_checkpoint(checkpoint, flow, optimiser, run, keeper) if resume and checkpoint else 0
    if keeper and not start:
        log(0, {keeper.what: keeper.look(0, flow)})
    with voice.progress("flow", steps - start, "steps") as progress:
        for step, rows in enumerate(batch_rows(texts, schedule, start, steps), start + 1):
            x = torch.from_numpy(source(rows))
            with one_thread():
                loss = step_loss(flow, x)
                loss.backward()
                norm, bits = optimiser.step(), loss.item() / SIDES
            if not (math.isfinite(bits) and math.isfinite(norm)):
                raise FastflowError(
                    f"training diverged at step {step} of {steps}: the likelihood is not finite; use a smaller --lr"
                )
            log(step, {"bits_per_dimension": bits, "gradient_norm": norm})
            if keeper and due(step, steps):
                log(step, {keeper.what: keeper.look(step, flow)})
            progress.advance(1, f"{bits:.3f} bits/dim")
            if checkpoint and schedule.save_steps and step % schedule.save_steps == 0 and step < steps:
                save_checkpoint(checkpoint, flow, optimiser, step, run, keeper)
    if keeper:
        keeper.restore(flow)
    return flow.eval()


def run_identity(identity: str, config: FlowConfig, schedule: Schedule) -> str:
    """sha256 of everything that decides the weights; --save-steps does not."""
    settings = {name: value for name, value in asdict(schedule).items() if name != "save_steps"}
    return hashlib.sha256(json.dumps([identity, asdict(config), settings], sort_keys=True).encode()).hexdigest()


def save_checkpoint(
    path: Path, flow: Flow, optimiser: PaperAdamW, step: int, run: str, keeper: Keeper | None = None
) -> None:
    """Write weights, both moments, the random state and the keeper's best weights, under a temporary name first."""
    from safetensors.torch import save

    tensors = {f"flow.{name}": tensor for name, tensor in flow.state_dict().items()}
    tensors |= {f"first.{i}": tensor for i, tensor in enumerate(optimiser.first)}
    tensors |= {f"second.{i}": tensor for i, tensor in enumerate(optimiser.second)}
    meta = {"step": str(step), "run": run}
    if keeper:
        tensors |= {f"best.{name}": tensor for name, tensor in keeper.best.items()}
        meta["history"] = json.dumps(keeper.history)
    tensors["random"] = torch.get_rng_state()
    if torch.cuda.is_initialized():  # the encoder's dropout then draws there
        tensors["random_cuda"] = torch.cuda.get_rng_state()
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(save(tensors, meta))
        partial.replace(path)
    except OSError as error:
        if partial.is_file():  # unlink would raise again if the folder itself is the trouble
            partial.unlink()
        raise FastflowError(f"the checkpoint {path} cannot be written: {error.strerror}") from error


def load_checkpoint(path: Path, flow: Flow, optimiser: PaperAdamW, run: str, keeper: Keeper | None = None) -> int:
    """Restore a checkpoint in place and return its step; 0 when there is none. Raises if it is of another run."""
    from safetensors import safe_open

    if not path.is_file():
        return 0
    try:
        with safe_open(str(path), "pt") as handle:
            meta: dict[str, str] = handle.metadata() or {}
            tensors: dict[str, Tensor] = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    except Exception as error:  # SafetensorError is raised for every malformed file
        raise FastflowError(f"the checkpoint {path} is damaged: {error}; remove it or drop --resume") from error
    if meta.get("run") != run:
        raise UsageError(f"{path} is from a run with another corpus, encoder or settings; remove it or drop --resume")
    flow.load_state_dict({name.removeprefix("flow."): t for name, t in tensors.items() if name.startswith("flow.")})
    for i in range(len(optimiser.parameters)):
        optimiser.first[i].copy_(tensors[f"first.{i}"])
        optimiser.second[i].copy_(tensors[f"second.{i}"])
    if keeper:
        keeper.best = {name.removeprefix("best."): t for name, t in tensors.items() if name.startswith("best.")}
        keeper.history = [(int(look), float(value)) for look, value in json.loads(meta["history"])]
    torch.set_rng_state(tensors["random"])
    if "random_cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random_cuda"])
    return int(meta["step"])
