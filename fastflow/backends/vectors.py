"""The backends of a model without an encoder: they only calibrate."""

from __future__ import annotations

from fastflow.backends.cpu import CpuCalibration, CpuCalibrator
from fastflow.backends.reference import ReferenceCalibrator
from fastflow.backends.torch import TorchCalibration, TorchCalibrator
from fastflow.model.kinds import VectorModel


class CpuVectors(CpuCalibrator):
    """Compiled kernels; a row has the same bits in any batch, order and number of threads."""

    name = "cpu"
    dtypes = ("float32",)

    def __init__(self, model: VectorModel, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, model.input_dim, dtype, "cpu")
        self._calibration = CpuCalibration(model, model.input_dim, threads)
        self.details.append(f"calibration compiled for {self._calibration.isa}, {self._calibration.threads} threads")


class ReferenceVectors(ReferenceCalibrator):
    """The equations in NumPy, float32 or float64."""

    name = "reference"
    dtypes = ("float32", "float64")

    def __init__(self, model: VectorModel, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, model.input_dim, dtype, "cpu")
        if threads is not None:
            self.notes.append("threads: NumPy's BLAS decides")
        self._stages = [stage.astype(self.floats) for stage in model.calibration]


class TorchVectors(TorchCalibrator):
    """PyTorch, unfused, on a CPU or GPU, float32 or float64."""

    name = "torch"
    dtypes = ("float32", "float64")

    def __init__(self, model: VectorModel, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, model.input_dim, dtype, "cuda" if device == "cuda" else "cpu")
        self._calibration = TorchCalibration(model, dtype, self.device, threads)
