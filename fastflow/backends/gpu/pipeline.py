"""Large batches on a GPU: copies and computation overlap, with two batches in flight.

host       fill a free slot of page-locked memory, wait for the oldest batch, return its vectors
copying    ids to the device
computing  ids -> vectors, after their copy
returning  vectors to page-locked memory
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.gpu.device import Device, Tensor
from fastflow.backends.gpu.graphs import Buffers, Run
from fastflow.errors import FastflowError
from fastflow.model.tokenizer import Tokens

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
