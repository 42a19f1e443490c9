"""The triton backend: from token ids to embeddings on a CUDA GPU.

few short texts   one captured graph for the size of batch (``gpu.graphs``): lowest latency
others            packed without padding, copies and computation overlap (``Pipeline``): throughput
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.backends import Backend, Floats
from fastflow.backends.gpu.graphs import Bucket, BucketGraph, Buffers, Device, Graphs, Run, Tensor, bucket_for
from fastflow.errors import FastflowError, UnsupportedArchitecture, UsageError
from fastflow.kernels.encoder.reference import positions
from fastflow.kernels.encoder.texts import apply_head
from fastflow.model import Model
from fastflow.model.encoder import CPU_ONLY, encoder_shape, read_config, whole_number
from fastflow.model.encoder.weights import load_weights
from fastflow.model.tokenizer import Tokens
from fastflow.plan import fold
from fastflow.transforms.vectors import shorten

IN_FLIGHT = 2
Rows = NDArray[np.int64]
Positions = Callable[[Tokens], NDArray[Any]]


class Slot:
    """Buffers, text numbers and vectors of one batch in flight."""

    def __init__(self) -> None:
        self.buffers: Buffers | None = None
        self.rows: Rows = np.zeros(0, np.int64)
        self.vectors: Tensor = None
        self.done: Any = None

    def fitting(self, device: Device, texts: int, tokens: int, width: int) -> Buffers:
        b = self.buffers
        if b is None or b.texts < texts or b.tokens < tokens or b.width != width:
            room = (texts, tokens) if b is None else (max(texts, b.texts), max(tokens, b.tokens))
            self.buffers = None
            self.buffers = b = Buffers(device, *room, width)
        return b


class Pipeline:
    """Run the batches of successive calls; ``computing`` is the CUDA stream for kernels.

    A batch that exceeds the device's memory is halved, and ``budget`` limits later batches, in padded tokens. ``note``
    gets a sentence; ``make_room`` frees graphs first.
    """

    def __init__(
        self, device: Device, computing: Any, positions: Positions, note: Callable[[str], None],
        make_room: Callable[[], None],
    ) -> None:  # fmt: skip
        self._device, self._positions, self._note, self._make_room = device, positions, note, make_room
        self._copying, self._computing, self._returning = device.stream(), computing, device.stream()
        self._free = [Slot() for _ in range(IN_FLIGHT + 1)]
        self._flying: deque[Slot] = deque()
        self.budget: int | None = None

    def submit(self, tokens: Tokens, rows: Rows, run: Run, out: NDArray[np.float32]) -> None:
        """Queue the texts ``rows``; after ``finish`` their vectors are in ``out``.

        Raises FastflowError for a single text that does not fit.
        """
        pieces = list(self._cut(tokens, rows))[::-1]
        while pieces:
            piece = pieces.pop()
            try:
                self._launch(tokens.select(piece), piece, run, out)
            except self._device.OutOfMemory as error:
                self.finish(out)
                if len(piece) == 1:
                    raise FastflowError(
                        f"a text of {int(np.diff(tokens.offsets)[piece[0]])} tokens does not fit into the device's "
                        "memory, even alone; use a smaller max_length, dtype bfloat16 or device='cpu'"
                    ) from error
                self.halve(count_padded(tokens, piece))
                pieces += list(self._cut(tokens, piece))[::-1]

    def halve(self, size: int) -> None:
        self.budget = max(1, size // 2)
        self._note(f"the device was out of memory at {size} tokens: batches hold at most {self.budget} since")
        self._make_room()
        self._device.release()

    def finish(self, out: NDArray[np.float32]) -> None:
        while self._flying:
            self._collect(out)

    def abandon(self) -> None:
        """Drop the batches in flight after an error elsewhere."""
        while self._flying:
            self._collect(None)

    def _cut(self, tokens: Tokens, rows: Rows) -> Iterator[Rows]:
        if self.budget is None or count_padded(tokens, rows) <= self.budget:
            yield rows
        else:
            yield from (rows[part] for part in tokens.select(rows).batches(len(rows), self.budget))

    def _launch(self, batch: Tokens, rows: Rows, run: Run, out: NDArray[np.float32]) -> None:
        slot = self._free.pop()
        try:
            self._fly(slot, batch, run, out)
        except BaseException:
            self._free.append(slot)
            raise
        slot.rows = rows
        self._flying.append(slot)

    def _fly(self, slot: Slot, batch: Tokens, run: Run, out: NDArray[np.float32]) -> None:
        device, texts, count = self._device, len(batch.offsets) - 1, len(batch.ids)
        longest = int(np.diff(batch.offsets).max())
        buffers = slot.fitting(device, texts, count, out.shape[1])
        buffers.fill(batch, self._positions(batch))
        if len(self._flying) == IN_FLIGHT:
            self._collect(out)
        device.run(self._copying, lambda: buffers.device_in.copy_(buffers.host_in, non_blocking=True))
        device.wait(self._computing, device.record(self._copying))

        def compute() -> None:
            slot.vectors = run(buffers.inputs(count, texts), longest)

        device.run(self._computing, compute, count)
        device.wait(self._returning, device.record(self._computing))
        device.run(self._returning, lambda: buffers.outputs(texts).copy_(slot.vectors, non_blocking=True))
        slot.done = device.record(self._returning)

    def _collect(self, out: NDArray[np.float32] | None) -> None:
        slot = self._flying.popleft()
        self._device.synchronize(slot.done)
        if slot.buffers is not None and out is not None:
            out[slot.rows] = slot.buffers.vectors(len(slot.rows))
        slot.vectors = None
        self._free.append(slot)


def count_padded(tokens: Tokens, rows: Rows) -> int:
    """Count tokens, padded to the longest text."""
    return len(rows) * int(np.diff(tokens.offsets)[rows].max(initial=0))


PIECE = 65536


class Task(NamedTuple):
    """The output of a run: pooled vectors, or embeddings, normalised or not."""

    calibrated: bool
    unit: bool


def _check_pooling(model: Model) -> None:
    if not model.pooling.plain or not model.prompts.pooled or _has_zero(model.pooling.weights):
        prompt = "" if model.prompts.pooled else " without the tokens of a prompt"
        zero = " with token weights of 0" if _has_zero(model.pooling.weights) else ""
        raise UsageError(
            f"the triton backend does not pool by the {model.pooling.describe()}{prompt}{zero}; use cpu or torch"
        )


def _has_zero(weights: NDArray[np.float32] | None) -> bool:
    return weights is not None and not weights.all()


class TritonBackend(Backend):
    """Triton kernels between cuBLASLt's products, without padding; safe for several threads.

    Pooling and calibration are float32. Vectors depend on the batch size by rounding (see ``kernels/README.md``).
    """

    name = "triton"
    dtypes = ("float32", "bfloat16", "float16")
    on = "cuda"
    overlaps = True
    batch_tokens = 32768

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        self.on = device if device.startswith("cuda:") else self.on
        super().__init__(model, dtype, "cuda" if device == "auto" else device, threads)
        if threads is not None:
            self.notes.append("threads: a GPU has its own")
        self._process, self._lock = os.getpid(), RLock()
        config = read_config(model.encoder)
        self._shape = encoder_shape(config, model.encoder)
        if (family := config["model_type"]) in CPU_ONLY:
            raise UnsupportedArchitecture(
                f"{model.encoder}: architecture {family!r} is not supported by the triton backend; cpu and torch run it"
            )
        self._vocabulary = whole_number(config, "vocab_size", model.encoder)
        _check_pooling(model)
        self._encoder, self._flow = self._open(model, config)
        self.arithmetic = f"PyTorch {self._flow.torch.__version__}"
        self._pooler = self._open_pooler(model) if model.head else self._flow
        self._device = self._open_device()
        self._computing = self._device.stream()
        self._graphs: Graphs[BucketGraph] = Graphs(self._capture)
        self._pipeline = Pipeline(
            self._device, self._computing, self._positions, self.notes.append, self._graphs.clear
        )  # fmt: skip

    def _open(self, model: Model, config: dict[str, Any]) -> tuple[Any, Any]:
        from fastflow.kernels.encoder.triton import TritonEncoder
        from fastflow.kernels.flow.triton import TritonFlow

        weights = load_weights(model.encoder, config, self._shape, np.float32)
        if model.pooling.mode == "pooler" and "pooler.weight" not in weights:
            raise FastflowError(f"{model.encoder} has no pooler: its weights lack pooler.dense")
        try:
            encoder = TritonEncoder(weights, self._shape, model.pooling.layers, self.dtype, self.on)
            plans = fold(model.calibration, self.pooled_dim)
            return encoder, TritonFlow(plans, self.on, weights=model.pooling.weights, shares=model.pooling.shares)
        except ValueError as error:
            raise UsageError(str(error)) from error
        except RuntimeError as error:
            said = str(error).strip().partition("\n")[0]
            raise FastflowError(f"the triton backend cannot load the model onto the GPU: {said}") from error

    def _open_pooler(self, model: Model) -> Any:
        from fastflow.kernels.flow.triton import TritonFlow

        how = model.pooling
        return TritonFlow(fold((), self._shape.hidden), self.on, weights=how.weights, shares=how.shares)

    def _open_device(self) -> Device:
        return Device(self.on)

    def embed(
        self, tokens: Tokens, batches: Iterable[NDArray[np.int64]], normalize: bool = False, truncate: int | None = None
    ) -> Floats:
        if self._head:
            pooled = apply_head(self._head, self._run(tokens, batches, Task(False, False)))
            return self.calibrate(pooled, normalize, truncate)
        unit = normalize and truncate is None
        return shorten(self._run(tokens, batches, Task(True, unit)), normalize and not unit, truncate, self._order)

    def pool(self, tokens: Tokens) -> Floats:
        return apply_head(self._head, self._run(tokens, [np.arange(len(tokens.offsets) - 1)], Task(False, False)))

    def calibrate(self, pooled: Floats, normalize: bool = False, truncate: int | None = None) -> Floats:
        with self._alone():
            (z,) = self._compute(pooled, lambda x: (self._flow(x),))
        return shorten(z, normalize, truncate, self._order)

    def _run(self, tokens: Tokens, batches: Iterable[NDArray[np.int64]], task: Task) -> NDArray[np.float32]:
        tokens.check(self._vocabulary)  # a larger id would read past the table
        lengths = tokens.offsets[1:] - tokens.offsets[:-1]
        out = np.empty((len(lengths), self._width(task)), np.float32)
        with self._alone():
            try:
                for rows in batches:
                    if (graph := self._graph(len(rows), int(lengths[rows].max(initial=0)), task)) is not None:
                        batch = tokens.select(rows)
                        out[rows] = graph(batch, self._positions(batch))
                    elif len(rows):
                        self._pipeline.submit(tokens, rows, partial(self._launch, task), out)
                self._pipeline.finish(out)
            except BaseException:
                self._pipeline.abandon()
                raise
        return out

    def _launch(self, task: Task, inputs: tuple[Tensor, Tensor, Tensor], longest: int) -> Tensor:
        ids, places, offsets = inputs
        hidden = self._encoder(ids, places, offsets, longest)
        if self._pooling.mode == "mean":
            if task.calibrated:
                return self._flow(hidden, task.unit, offsets, ids)
            return self._pooler.pool(hidden, offsets, ids)
        pooled = self._encoder.first(hidden[0], offsets)
        if self._pooling.mode == "pooler":
            pooled = self._encoder.pooler(pooled)
        return self._flow(pooled, task.unit) if task.calibrated else pooled

    def _graph(self, texts: int, longest: int, task: Task) -> BucketGraph | None:
        bucket, limit = bucket_for(texts, longest) if texts else None, self._pipeline.budget
        if bucket is None or (limit is not None and bucket.texts * bucket.tokens > limit):
            return None
        try:
            return self._graphs[bucket, task]
        except self._device.OutOfMemory:
            self._pipeline.halve(bucket.texts * bucket.tokens)
            return None

    def _capture(self, key: tuple[Bucket, Task]) -> BucketGraph:
        bucket, task = key
        return BucketGraph(self._device, self._computing, bucket, self._width(task), partial(self._launch, task))

    def _compute(self, pooled: Floats, compute: Callable[[Tensor], tuple[Tensor, ...]]) -> list[NDArray[Any]]:
        parts: list[tuple[Tensor, ...]] = []

        def run(x: Tensor) -> None:
            parts.append(tuple(found.cpu() for found in compute(x.to(self._flow.device))))

        for start in range(0, max(1, len(pooled)), PIECE):
            piece = np.ascontiguousarray(pooled[start : start + PIECE], np.float32)
            self._device.run(self._computing, partial(run, self._flow.torch.from_numpy(piece)))
            self._device.synchronize(self._device.record(self._computing))
        return [np.concatenate([found.numpy() for found in column]) for column in zip(*parts, strict=True)]

    def _positions(self, batch: Tokens) -> NDArray[Any]:
        return positions(batch.ids, batch.offsets, self._shape)

    def _width(self, task: Task) -> int:
        return int(self._flow.outputs) if task.calibrated else self._shape.hidden

    def _alone(self) -> RLock:
        """Let one thread use the GPU; raise in a forked child, which would hang or crash in CUDA."""
        if os.getpid() != self._process:  # before the lock, which a fork may copy locked
            raise FastflowError("a Runtime on a GPU cannot be used in a forked process; make a new one in each process")
        return self._lock
