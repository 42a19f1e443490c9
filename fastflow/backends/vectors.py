"""The backends of a model without an encoder: each only calibrates vectors that were made elsewhere."""

from __future__ import annotations

import numpy as np

from fastflow.backends.base import Calibrator, Floats
from fastflow.backends.cpu import CpuCalibration, CpuCalibrator
from fastflow.backends.torch import TorchCalibration
from fastflow.model.kinds import VectorModel
from fastflow.stages import calibration
from fastflow.stages.density import Densities
from fastflow.stages.vectors import shorten


class CpuVectors(CpuCalibrator):
    """The compiled kernels: a row has the same bits whatever its company, the order and the number of threads."""

    name = "cpu"
    dtypes = ("float32",)

    def __init__(self, model: VectorModel, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, model.input_dim, dtype, "cpu")
        self._calibration = CpuCalibration(model, model.input_dim, threads)
        self.details.append(f"calibration compiled for {self._calibration.isa}, {self._calibration.threads} threads")


class ReferenceVectors(Calibrator):
    """NumPy, from the equations. float32 or float64."""

    name = "reference"
    dtypes = ("float32", "float64")

    def __init__(self, model: VectorModel, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, model.input_dim, dtype, "cpu")
        if threads is not None:
            self.notes.append("threads: NumPy's BLAS decides")
        self._stages = [stage.astype(self.floats) for stage in model.calibration]

    def calibrate(self, pooled: Floats, normalize: bool = False, truncate: int | None = None) -> Floats:
        """(B, D) -> (B, D') calibrated embeddings, cut to ``truncate`` columns, then L2-normalised, as asked."""
        with np.errstate(over="ignore", invalid="ignore"):  # found in the rows, by whoever asked for them
            z = np.asarray(calibration.apply(self._stages, pooled.astype(self.floats, copy=False)))
            return shorten(z, normalize, truncate, self._order)

    def log_prob(self, pooled: Floats) -> Densities:
        """(B, D) -> (B,) log-densities under the flow, from the equations."""
        return self.density.log_prob(pooled.astype(self.floats, copy=False), self._stages)


class TorchVectors(Calibrator):
    """PyTorch, unfused, on a CPU or a GPU. float32 or float64."""

    name = "torch"
    dtypes = ("float32", "float64")

    def __init__(self, model: VectorModel, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, model.input_dim, dtype, "cuda" if device == "cuda" else "cpu")
        self._calibration = TorchCalibration(model, dtype, self.device, threads)

    def calibrate(self, pooled: Floats, normalize: bool = False, truncate: int | None = None) -> Floats:
        """(B, D) -> (B, D') calibrated embeddings, cut to ``truncate`` columns, then L2-normalised, as asked."""
        return self._calibration(pooled, normalize, truncate)

    def log_prob(self, pooled: Floats) -> Densities:
        """(B, D) -> (B,) log-densities under the flow, from the equations."""
        return self._calibration.log_prob(pooled, self.density)
