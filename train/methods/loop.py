"""Train a flow by maximum likelihood, with checkpoints that resume bit for bit."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastflow.atomic import replace_bytes
from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.options import DEFAULTS, TrainOptions
from fastflow.train.reporter import COMMAND, Reporter, name_options, refuse
from fastflow.train.selection.separability import Keeper, Views, is_due

Source = Callable[[NDArray[np.int64]], NDArray[np.float32]]  # row numbers -> pooled embeddings (b, D)
Log = Callable[[int, dict[str, float]], None]  # step, values by name

INITIAL_TEXTS = 2048  # texts of the data-dependent initialisation
CLIP = 1.0  # largest global gradient norm
BETAS, EPS, DECAY = (0.9, 0.999), 1e-6, 0.01
SIDES = 2.0  # the official loss counts both texts of a pair


@dataclass(frozen=True)
class Schedule:
    """The options of a flow's training."""

    epochs: float = DEFAULTS.epochs
    batch_size: int = DEFAULTS.batch_size
    lr: float = DEFAULTS.lr
    seed: int = DEFAULTS.seed
    init: str = DEFAULTS.init
    save_steps: int = DEFAULTS.save_steps

    @classmethod
    def of(cls, options: TrainOptions) -> Schedule:
        return cls(**{one.name: getattr(options, one.name) for one in fields(cls)})

    def steps(self, texts: int) -> int:
        """Count the optimiser steps; an epoch drops texts that do not fill a batch."""
        if texts < self.batch_size:
            raise refuse(
                f"the corpus has {texts} distinct texts, fewer than one batch of {self.batch_size}: give more text or "
                "a smaller {batch_size}"
            )
        return max(1, int(self.epochs * (texts // self.batch_size)))


@dataclass(frozen=True)
class Training:
    """The settings of a chain's training.

    ``checkpoints`` is a folder; ``identity`` names corpus and encoder. A flow keeps the step that is best on
    the dropout ``views``; None: the last.
    """

    schedule: Schedule = field(default_factory=Schedule)
    checkpoints: Path | None = None
    identity: str = ""
    resume: bool = False
    views: Views | None = None
    log: Log = lambda step, values: None
    reporter: Reporter = COMMAND


@contextmanager
def open_log(directory: str | None) -> Iterator[Log]:
    """Open a log of scalars for TensorBoard; ``directory`` None: drop them."""
    if directory is None:
        yield lambda step, values: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_extra("train", "tensorboard", "a log for TensorBoard") from error
    try:
        writer = SummaryWriter(directory)  # type: ignore[no-untyped-call]
    except OSError as error:
        text = name_options("{log_dir:{place}} cannot be written: {fault}", place=directory, fault=error.strerror)
        raise FastflowError(text) from error

    def log(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]

    with closing(writer):
        yield log


def compute_loss(flow: Flow, x: Tensor) -> Tensor:
    """Compute the official loss on (b, D): mean bits per dimension, summed over both sides of pairs."""
    return SIDES * flow.bits_per_dimension(x)


class PaperAdamW:
    """The official ``optimization_bert_flow.py``: Adam with decoupled decay and **no bias correction**.

    m <- 0.9 m + 0.1 g; v <- 0.999 v + 0.001 g^2; theta <- theta - lr (m / (sqrt(v) + 1e-6) + 0.01 theta).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        self.parameters = list(parameters)
        self.lr = lr
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self) -> float:
        """Clip, apply and clear the gradients; returns their norm before clipping."""
        norm = float(nn.utils.clip_grad_norm_(self.parameters, CLIP))
        for p, m, v in zip(self.parameters, self.first, self.second, strict=True):
            if p.grad is None:
                continue
            m.mul_(BETAS[0]).add_(p.grad, alpha=1 - BETAS[0])
            v.mul_(BETAS[1]).addcmul_(p.grad, p.grad, value=1 - BETAS[1])
            p.mul_(1 - self.lr * DECAY).addcdiv_(m, v.sqrt().add_(EPS), value=-self.lr)
            p.grad = None
        return norm


def pick_batches(texts: int, schedule: Schedule, start: int, stop: int) -> Iterator[NDArray[np.int64]]:
    """Yield the row numbers (batch_size,) of steps ``start`` to ``stop``."""
    per_epoch = texts // schedule.batch_size
    order, drawn = np.empty(0, np.int64), -1
    for step in range(start, stop):
        epoch, index = divmod(step, per_epoch)
        if epoch != drawn:
            order, drawn = np.random.default_rng((schedule.seed, epoch)).permutation(texts), epoch
        yield order[index * schedule.batch_size : (index + 1) * schedule.batch_size]


@contextmanager
def _use_one_thread() -> Iterator[None]:
    """Use one thread, so that weights do not depend on the cores."""
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
    training: Training,
    checkpoint: Path | None = None,
    keeper: Keeper | None = None,
) -> Flow:
    """Train a flow on ``texts`` embeddings; ``keeper`` picks the step. Raises a FastflowError if training diverges."""
    schedule, log = training.schedule, training.log
    steps = schedule.steps(texts)
    torch.manual_seed(schedule.seed)
    flow = Flow(config)
    if schedule.init == "data":
        rows = np.random.default_rng((schedule.seed, 1 << 32)).permutation(texts)[:INITIAL_TEXTS]
        first = torch.from_numpy(source(np.sort(rows)))
        with _use_one_thread():
            flow.initialise(first)
    optimiser = PaperAdamW(flow.parameters(), schedule.lr)
    run = _identify_run(training.identity + " kept by separability" * bool(keeper), config, schedule)
    start = _load_checkpoint(checkpoint, flow, optimiser, run, keeper) if training.resume and checkpoint else 0
    if keeper and not start:
        log(0, {"separability": keeper.look(0, flow)})
    with training.reporter.progress("flow", steps, "steps", start) as progress:
        for step, rows in enumerate(pick_batches(texts, schedule, start, steps), start + 1):
            x = torch.from_numpy(source(rows))
            with _use_one_thread():
                loss = compute_loss(flow, x)
                loss.backward()
                norm, bits = optimiser.step(), loss.item() / SIDES
                flow.hold()
            if not (math.isfinite(bits) and math.isfinite(norm)):
                raise FastflowError(
                    name_options(
                        f"training diverged at step {step} of {steps}: the likelihood is not finite; use a smaller "
                        "{lr}"
                    )
                )
            log(step, {"bits_per_dimension": bits, "gradient_norm": norm})
            if keeper and is_due(step, steps):
                log(step, {"separability": keeper.look(step, flow)})
            progress.advance(1, f"{bits:.3f} bits/dim")
            if checkpoint and schedule.save_steps and step % schedule.save_steps == 0 and step < steps:
                _save_checkpoint(checkpoint, flow, optimiser, step, run, keeper)
    if keeper:
        flow.load_state_dict(keeper.best)
    return flow.eval()


def _identify_run(identity: str, config: FlowConfig, schedule: Schedule) -> str:
    settings = {name: value for name, value in asdict(schedule).items() if name != "save_steps"}
    return hashlib.sha256(json.dumps([identity, asdict(config), settings], sort_keys=True).encode()).hexdigest()


def _save_checkpoint(path: Path, flow: Flow, optimiser: PaperAdamW, step: int, run: str, keeper: Keeper | None) -> None:
    from safetensors.torch import save

    tensors = {f"flow.{name}": tensor for name, tensor in flow.state_dict().items()}
    tensors |= {f"first.{i}": tensor for i, tensor in enumerate(optimiser.first)}
    tensors |= {f"second.{i}": tensor for i, tensor in enumerate(optimiser.second)}
    meta = {"step": str(step), "run": run}
    if keeper:
        tensors |= {f"best.{name}": tensor for name, tensor in keeper.best.items()}
        meta["history"] = json.dumps(keeper.history)
    tensors["random"] = torch.get_rng_state()
    if torch.cuda.is_initialized():
        tensors["random_cuda"] = torch.cuda.get_rng_state()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, save(tensors, meta))
    except OSError as error:
        raise FastflowError(f"the checkpoint {path} cannot be written: {error.strerror}") from error


def _load_checkpoint(path: Path, flow: Flow, optimiser: PaperAdamW, run: str, keeper: Keeper | None) -> int:
    from safetensors import safe_open

    if not path.is_file():
        return 0
    try:
        with safe_open(str(path), "pt") as handle:
            meta: dict[str, str] = handle.metadata() or {}
            tensors: dict[str, Tensor] = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    except Exception as error:
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
