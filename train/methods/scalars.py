"""Log a training run's scalars for TensorBoard."""

from __future__ import annotations

from typing import Any

from fastflow.errors import FastflowError, missing_extra


class Scalars:
    """Gives log(step, {name: value}) in a ``with`` block; writes no file without a directory."""

    def __init__(self, directory: str | None) -> None:
        self._writer: Any = None
        if directory is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise missing_extra("train", "tensorboard", "--log-dir") from error
            try:
                self._writer = SummaryWriter(directory)
            except OSError as error:
                raise FastflowError(f"--log-dir {directory} cannot be written: {error.strerror}") from error

    def __enter__(self) -> Any:
        return self._log

    def _log(self, step: int, values: dict[str, float]) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def __exit__(self, *unused: object) -> None:
        if self._writer is not None:
            self._writer.close()
