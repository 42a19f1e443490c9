"""Small batches on a GPU: one captured graph for each size of batch, made when first needed, few enough to keep.

A graph holds the whole way from token ids to vectors, the copies to and from the device included, so that a call is one
launch and one wait. Its buffers never move: the ids are written into page-locked memory, and the vectors read there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.gpu.device import Device, Graph, Tensor
from fastflow.model.tokenizer.encode import Tokens

TEXTS = (1, 2, 4, 8, 16, 32)
TOKENS = (16, 32, 64, 128)
MOST = 32  # graphs kept
MOST_BYTES = 2 << 30  # and the device memory that all keep


class Bucket(NamedTuple):
    """A size of batch: room for a number of texts of a number of tokens."""

    texts: int
    tokens: int


def bucket_for(texts: int, longest: int) -> Bucket | None:
    """The smallest bucket that holds ``texts`` texts of at most ``longest`` tokens, or None for a larger batch."""
    if texts > TEXTS[-1] or longest > TOKENS[-1]:
        return None
    return Bucket(next(t for t in TEXTS if texts <= t), next(t for t in TOKENS if longest <= t))


class Buffers:
    """Page-locked and device memory for one batch: ids (N,), positions (N,), offsets (B + 1,), and the vectors made.

    Room for ``tokens`` tokens and ``texts`` texts; the vectors have ``width`` float32.
    """

    def __init__(self, device: Device, texts: int, tokens: int, width: int) -> None:
        self.texts, self.tokens, self.width = texts, tokens, width
        size = 2 * tokens + texts + 1
        self.host_in, self.device_in = device.pinned(size, "int32"), device.empty(size, "int32")
        self.host_out = device.pinned(texts * width, "float32")
        self._in: NDArray[np.int32] = self.host_in.numpy()
        self._out: NDArray[np.float32] = self.host_out.numpy()
        self._in[:] = 0  # unfilled places are tokens too, and have to be in the vocabulary

    def fill(self, batch: Tokens, positions: NDArray[Any]) -> None:
        """Write ``batch`` into the page-locked memory; texts beyond it get no tokens."""
        n, b = len(batch.ids), len(batch.offsets) - 1
        self._in[:n], self._in[self.tokens : self.tokens + n] = batch.ids, positions
        offsets = self._in[2 * self.tokens :]
        offsets[: b + 1], offsets[b + 1 :] = batch.offsets, n

    def inputs(self, tokens: int, texts: int) -> tuple[Tensor, Tensor, Tensor]:
        """ids (tokens,), positions (tokens,) and offsets (texts + 1,) in device memory."""
        x, at = self.device_in, self.tokens
        return x[:tokens], x[at : at + tokens], x[2 * at : 2 * at + texts + 1]

    def outputs(self, texts: int) -> Tensor:
        """(texts, width) in page-locked memory."""
        return self.host_out[: texts * self.width].view(texts, self.width)

    def vectors(self, texts: int) -> NDArray[np.float32]:
        """A copy of the results for the first ``texts`` texts."""
        return self._out[: texts * self.width].reshape(texts, self.width).copy()


Run = Callable[[tuple[Tensor, Tensor, Tensor], int], Tensor]  # inputs, tokens of the longest text -> vectors (B, width)


class BucketGraph:
    """The graph of one bucket and its buffers. ``run`` issues the launches that make vectors of token ids."""

    def __init__(self, device: Device, stream: Any, bucket: Bucket, width: int, run: Run) -> None:
        self._device, self._stream, self._bucket, self._run = device, stream, bucket, run
        self.buffers = Buffers(device, bucket.texts, bucket.texts * bucket.tokens, width)
        self._graph: Graph = device.capture(stream, self._work, self.buffers.tokens)
        self.nbytes = self._graph.nbytes

    def _work(self) -> None:
        buffers = self.buffers
        buffers.device_in.copy_(buffers.host_in, non_blocking=True)
        z = self._run(buffers.inputs(buffers.tokens, buffers.texts), self._bucket.tokens)
        buffers.outputs(buffers.texts).copy_(z, non_blocking=True)

    def __call__(self, batch: Tokens, positions: NDArray[Any]) -> NDArray[np.float32]:
        """Vectors (b, width) of ``batch``, which fits the bucket: one launch, one wait."""
        self.buffers.fill(batch, positions)
        self._device.run(self._stream, self._graph.replay)
        self._device.synchronize(self._device.record(self._stream))
        return self.buffers.vectors(len(batch.offsets) - 1)


class Sized(Protocol):
    """Something that keeps ``nbytes`` of memory."""

    nbytes: int


Kept = TypeVar("Kept", bound=Sized)


class Graphs(Generic[Kept]):
    """A cache of ``make(key)``, each made when first asked for; the least recently used go when there are too many.

    At most ``most`` are kept and at most ``most_bytes``, but always the one asked for last.
    """

    def __init__(self, make: Callable[[Any], Kept], most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._make, self._most, self._most_bytes = make, most, most_bytes
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()

    def __getitem__(self, key: Hashable) -> Kept:
        if key not in self._kept:
            while len(self._kept) >= self._most:  # before, so that there is room
                self._kept.popitem(last=False)
            self._kept[key] = self._make(key)
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and self.nbytes > self._most_bytes:
            self._kept.popitem(last=False)
        return self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    @property
    def nbytes(self) -> int:
        """Of everything kept."""
        return sum(graph.nbytes for graph in self._kept.values())

    def clear(self) -> None:
        """Let go of all."""
        self._kept.clear()
