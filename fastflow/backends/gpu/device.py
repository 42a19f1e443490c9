"""The CUDA device of the triton backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Tensor = Any
Work = Callable[[], Any]


@dataclass(frozen=True)
class Graph:
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

    def capture(self, stream: Any, work: Work, tokens: int = 0) -> Graph:
        """Run ``work`` once, then capture it. Raises ``OutOfMemory``."""
        cuda = self._torch.cuda
        self.run(stream, work)  # compiles kernels and loads libraries before the capture
        stream.synchronize()
        cuda.empty_cache()
        before, graph = cuda.memory_reserved(self._on), cuda.CUDAGraph()
        with self._torch.inference_mode(), cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            work()
        return Graph(graph.replay, max(0, cuda.memory_reserved(self._on) - before))

    def replay(self, stream: Any, graph: Graph) -> None:
        with stream:
            graph.replay()
        stream.synchronize()

    def release(self) -> None:
        self._torch.cuda.empty_cache()
