"""Small batches on a GPU: a CUDA graph for each size copies and computes with one launch and one wait."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastflow.model.tokenizer import Tokens

Tensor = Any
Work = Callable[[], Any]


@dataclass(frozen=True)
class CapturedGraph:
    """A captured CUDA graph."""

    replay: Work
    nbytes: int


class Device:
    """A CUDA device, cuda or cuda:N; only ``empty``, ``synchronize``, ``capture`` and ``replay`` wait for it."""

    def __init__(self, on: str) -> None:
        import torch

        self._torch, self._on = torch, torch.device(on)
        self.OutOfMemory: type[BaseException] = torch.cuda.OutOfMemoryError
        self.name = torch.cuda.get_device_name(self._on)

    def allocate_pinned(self, size: int, dtype: str) -> Tensor:
        return self._torch.empty(size, dtype=getattr(self._torch, dtype), pin_memory=True)

    def empty(self, size: int, dtype: str) -> Tensor:
        """Return uninitialised device memory. Raises ``OutOfMemory``."""
        made = self._torch.empty(size, dtype=getattr(self._torch, dtype), device=self._on)
        self._torch.cuda.current_stream(self._on).synchronize()
        return made

    def stream(self) -> Any:
        stream = self._torch.cuda.Stream(self._on)
        stream.wait_stream(self._torch.cuda.current_stream(self._on))
        return stream

    def run(self, stream: Any, work: Work, tokens: int = 0) -> None:
        """Queue ``work`` on ``stream``. Raises ``OutOfMemory``."""
        with stream, self._torch.inference_mode():
            work()

    def record(self, stream: Any) -> Any:
        return stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def synchronize(self, event: Any) -> None:
        event.synchronize()

    def capture(self, stream: Any, work: Work, tokens: int = 0) -> CapturedGraph:
        """Run ``work`` once, then capture it. Raises ``OutOfMemory``."""
        cuda = self._torch.cuda
        self.run(stream, work)  # compiles kernels and loads libraries before the capture
        stream.synchronize()
        cuda.empty_cache()
        before, graph = cuda.memory_reserved(self._on), cuda.CUDAGraph()
        with self._torch.inference_mode(), cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            work()
        return CapturedGraph(graph.replay, max(0, cuda.memory_reserved(self._on) - before))

    def replay(self, stream: Any, graph: CapturedGraph) -> None:
        with stream:
            graph.replay()
        stream.synchronize()

    def release(self) -> None:
        self._torch.cuda.empty_cache()


TEXTS = (1, 2, 4, 8, 16, 32)
TOKENS = (16, 32, 64, 128)
MOST = 32
MOST_BYTES = 2 << 30


class Bucket(NamedTuple):
    """The most texts of a batch, and the most tokens of a text."""

    texts: int
    tokens: int


def bucket_for(texts: int, longest: int) -> Bucket | None:
    """Return the smallest bucket for ``texts`` texts of at most ``longest`` tokens; None if too many."""
    if texts > TEXTS[-1] or longest > TOKENS[-1]:
        return None
    return Bucket(TEXTS[bisect_left(TEXTS, texts)], TOKENS[bisect_left(TOKENS, longest)])


class Buffers:
    """Page-locked and device memory for one batch: ids (N,), positions (N,), offsets (B + 1,), vectors (B, width)."""

    def __init__(self, device: Device, texts: int, tokens: int, width: int) -> None:
        self.texts, self.tokens, self.width = texts, tokens, width
        size = 2 * tokens + texts + 1
        self.host_in, self.device_in = device.allocate_pinned(size, "int32"), device.empty(size, "int32")
        self.host_out = device.allocate_pinned(texts * width, "float32")
        self._in: NDArray[np.int32] = self.host_in.numpy()
        self._out: NDArray[np.float32] = self.host_out.numpy()
        self._in[:] = 0  # unfilled places are computed too, and need a valid id

    def fill(self, batch: Tokens, positions: NDArray[Any]) -> None:
        """Write ``batch`` to page-locked memory; unused texts get no tokens."""
        n, b = len(batch.ids), len(batch.offsets) - 1
        self._in[:n], self._in[self.tokens : self.tokens + n] = batch.ids, positions
        offsets = self._in[2 * self.tokens :]
        offsets[: b + 1], offsets[b + 1 :] = batch.offsets, n

    def inputs(self, tokens: int, texts: int) -> tuple[Tensor, Tensor, Tensor]:
        x, at = self.device_in, self.tokens
        return x[:tokens], x[at : at + tokens], x[2 * at : 2 * at + texts + 1]

    def outputs(self, texts: int) -> Tensor:
        return self.host_out[: texts * self.width].view(texts, self.width)

    def vectors(self, texts: int) -> NDArray[np.float32]:
        """Return a view."""
        return self._out[: texts * self.width].reshape(texts, self.width)


Run = Callable[[tuple[Tensor, Tensor, Tensor], int], Tensor]  # inputs, tokens of the longest text -> vectors (B, width)


class BucketGraph:
    """The CUDA graph of one bucket; ``run`` launches the kernels to capture."""

    def __init__(self, device: Device, stream: Any, bucket: Bucket, width: int, run: Run) -> None:
        self._device, self._stream, self._bucket, self._run = device, stream, bucket, run
        self.buffers = Buffers(device, bucket.texts, bucket.texts * bucket.tokens, width)
        self._graph: CapturedGraph = device.capture(stream, self._work, self.buffers.tokens)
        self.nbytes = self._graph.nbytes

    def _work(self) -> None:
        buffers = self.buffers
        buffers.device_in.copy_(buffers.host_in, non_blocking=True)
        z = self._run(buffers.inputs(buffers.tokens, buffers.texts), self._bucket.tokens)
        buffers.outputs(buffers.texts).copy_(z, non_blocking=True)

    def __call__(self, batch: Tokens, positions: NDArray[Any]) -> NDArray[np.float32]:
        self.buffers.fill(batch, positions)
        self._device.replay(self._stream, self._graph)
        return self.buffers.vectors(len(batch.offsets) - 1)


class Sized(Protocol):
    """An object of ``nbytes`` bytes."""

    nbytes: int


Kept = TypeVar("Kept", bound=Sized)


class Graphs(Generic[Kept]):
    """A cache of graphs ``make(key)``, which drops the least recently used graph, but never the only one."""

    def __init__(self, make: Callable[[Any], Kept], most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._make, self._most, self._most_bytes = make, most, most_bytes
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()

    def __getitem__(self, key: Hashable) -> Kept:
        if key not in self._kept:
            while len(self._kept) >= self._most:
                self._kept.popitem(last=False)
            self._kept[key] = self._make(key)
            while len(self._kept) > 1 and self.nbytes > self._most_bytes:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    @property
    def nbytes(self) -> int:
        return sum(graph.nbytes for graph in self._kept.values())

    def clear(self) -> None:
        self._kept.clear()
