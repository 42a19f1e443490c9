"""Choose the backend of a model. ``auto`` may take a slower one, with a note; a named one raises."""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from fastflow.backends import Backend, Calibrator
from fastflow.errors import FastflowError, UnsupportedArchitecture, UsageError, WrongOnGpu, missing_extra, warn
from fastflow.model import Model, VectorModel
from fastflow.model.encoder import encoder_shape, is_static, read_config
from fastflow.transforms.vectors import check_count
from fastflow.values import short


class BackendClass(NamedTuple):
    """A class of ``fastflow.backends``, imported when chosen."""

    module: str
    name: str
    dtypes: tuple[str, ...]

    def load(self) -> Any:
        return getattr(import_module(f"fastflow.backends.{self.module}"), self.name)


BACKENDS = {
    "cpu": BackendClass("cpu", "CpuBackend", ("float32", "bfloat16", "int8")),
    "triton": BackendClass("triton", "TritonBackend", ("float32", "bfloat16", "float16")),
    "torch": BackendClass("torch", "TorchBackend", ("float32", "bfloat16", "float64")),
    "reference": BackendClass("reference", "ReferenceBackend", ("float32", "float64")),
}
OF_VECTORS = {
    "cpu": BackendClass("cpu", "CpuVectors", ("float32",)),
    "torch": BackendClass("torch", "TorchVectors", ("float32", "float64")),
    "reference": BackendClass("reference", "ReferenceVectors", ("float32", "float64")),
}
OF_TABLES = {
    "cpu": BackendClass("cpu", "CpuTableBackend", ("float32",)),
    "torch": BackendClass("torch", "TorchTable", ("float32", "float64")),
    "reference": BackendClass("reference", "ReferenceTable", ("float32", "float64")),
}
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", *dict.fromkeys(dtype for kind in BACKENDS.values() for dtype in kind.dtypes))
GPU = re.compile(r"cuda(:\d{1,3})?", re.ASCII)
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
NEEDS = {"triton": ("gpu", ("torch", "triton")), "torch": ("train", ("torch", "transformers"))}


def open_backend(model: Model, backend: str, device: str, dtype: str, threads: int | None) -> Backend:
    """Open the backend for ``model``."""
    _check_options(backend, device, dtype, threads)
    given = model, device, dtype, threads
    if is_static(model.encoder):
        lacking = f"runs a transformer, and {model.path} has a token table"
        found: Backend = _open_simple(OF_TABLES, lacking, " on a token table", backend, *given)
        return found
    if backend != "auto":
        return _open_named(backend, *given)
    if of_device(device) == "cuda":
        try:
            return _open_named("triton", *given)
        except UnsupportedArchitecture as reason:
            return _step_down("torch", reason, *given)
    try:
        encoder_shape(read_config(model.encoder), model.encoder)
    except UnsupportedArchitecture as reason:
        return _step_down("torch", reason, *given)
    if device == "auto" and dtype in ("auto", *BACKENDS["triton"].dtypes) and _sees_gpu():
        try:
            return _open_named("triton", *given)
        except FastflowError as reason:
            opened = open_backend(model, backend, "cpu", dtype, threads)
            opened.notes.append(f"stepped down from the triton backend: {reason}")
            if isinstance(reason, WrongOnGpu):
                warn(opened.notes[-1])
            return opened
    if dtype in ("auto", *BACKENDS["cpu"].dtypes):
        try:
            return _open_named("cpu", *given)
        except UsageError:
            raise
        except FastflowError as reason:
            return _step_down("reference", reason, *given)
    if dtype not in BACKENDS["reference"].dtypes:
        usable = ", ".join(("auto", *BACKENDS["cpu"].dtypes, "float64"))
        raise UsageError(f"dtype {dtype!r} runs on a GPU alone (device cuda); on the CPU use {usable}")
    return _open_named("reference", *given)


def open_calibrator(model: VectorModel, backend: str, device: str, dtype: str, threads: int | None) -> Calibrator:
    """Open the calibrator of a model without encoder."""
    _check_options(backend, device, dtype, threads)
    lacking, where = f"runs an encoder, and {model.path} has none", " without an encoder"
    found: Calibrator = _open_simple(OF_VECTORS, lacking, where, backend, model, device, dtype, threads)
    return found


def _open_simple(
    kinds: dict[str, BackendClass], lacking: str, where: str, backend: str, model: Model | VectorModel, device: str,
    dtype: str, threads: int | None,
) -> Any:  # fmt: skip
    notes = []
    if (name := backend) == "auto":
        name = "torch" if of_device(device) == "cuda" else "reference" if dtype == "float64" else "cpu"
        if name == "cpu" and (missing := cannot_run(name, device)):
            name, notes = "reference", [f"stepped down from the cpu backend: {missing}"]
    if name not in kinds:
        raise UsageError(f"backend {name!r} {lacking}; usable are {', '.join(kinds)}")
    opened = _open_kind(kinds[name], name, where, model, device, dtype, threads)
    opened.notes += notes
    return opened


def _open_kind(
    kind: BackendClass, name: str, where: str, model: Any, device: str, dtype: str, threads: int | None
) -> Any:
    if reason := cannot_run(name, device):
        raise reason
    details: list[str] = []
    if dtype == "auto" and kind is BACKENDS["cpu"]:
        from fastflow.backends.cpu import auto_dtype

        dtype, note = auto_dtype(model)
        details.append(note)
    dtype = "float32" if dtype == "auto" else dtype
    if dtype not in kind.dtypes:
        usable = ", ".join(kind.dtypes)
        raise UsageError(f"dtype {dtype!r} does not run on the {name} backend{where}; usable are {usable}")
    opened = kind.load()(model, dtype, device, threads)
    if name == "cpu":
        from fastflow.kernels.processor import faults

        for fault in faults():  # instruction sets that failed their self-tests
            opened.notes.append(fault)
            warn(fault)
    _check_gpu(opened, model)
    opened.details += details
    return opened


def _check_gpu(opened: Calibrator, model: Model | VectorModel) -> None:
    if of_device(opened.device) == "cuda":
        from fastflow.backends.gpu.self_test import self_test

        self_test(opened, model)


def _check_options(backend: str, device: str, dtype: str, threads: int | None) -> None:
    check_count("threads", threads)
    known = {"backend": ("auto", *BACKENDS), "device": DEVICES, "dtype": DTYPES}
    for (option, usable), value in zip(known.items(), (backend, of_device(device), dtype), strict=True):
        if not isinstance(value, str) or value not in usable:
            more = ", cuda:N" * (option == "device")
            raise UsageError(f"unknown {option} {short(value)}; known are {', '.join(usable)}{more}")


def _step_down(name: str, reason: FastflowError, model: Model, device: str, dtype: str, threads: int | None) -> Backend:
    if lacking := cannot_run(name, device):
        raise FastflowError(f"{reason}; {lacking}") from reason
    if dtype not in ("auto", *BACKENDS[name].dtypes):
        raise UsageError(f"{reason}; and dtype {dtype!r} does not run on the {name} backend") from reason
    opened = _open_named(name, model, device, dtype, threads)
    opened.notes.append(f"stepped down from the {'triton' if of_device(device) == 'cuda' else 'cpu'} backend: {reason}")
    return opened


def _open_named(name: str, model: Model, device: str, dtype: str, threads: int | None) -> Backend:
    opened: Backend = _open_kind(BACKENDS[name], name, "", model, device, dtype, threads)
    return opened


def cannot_run(name: str, device: str) -> FastflowError | None:
    """Return why backend ``name`` cannot run on ``device``, or None."""
    on_gpu = of_device(device) == "cuda"
    if of_device(device) not in DEVICES:
        return UsageError(f"unknown device {device!r}; known are {', '.join(DEVICES)}")
    if on_gpu and name not in NEEDS:
        return UsageError(f"the {name} backend runs on the CPU; on a CUDA device use triton or torch")
    if device == "cpu" and name == "triton":
        return UsageError("the triton backend runs on a CUDA device; on the CPU use cpu, torch or reference")
    if name == "cpu" and find_spec("fastflow.kernels._cpu") is None:
        return FastflowError("the cpu backend needs the compiled extension: install a C compiler and fastflow again")
    if name == "cpu":
        from fastflow.kernels.processor import best_first, faults  # the first call runs self-tests

        if next(best_first(), None) is None:
            warn(fault := f"the cpu backend cannot run: {'; '.join(faults())}")
            return FastflowError(fault)
    extra, modules = NEEDS.get(name, ("", ()))
    for module in modules:
        if find_spec(module) is None:
            return missing_extra(extra, module, f"the {name} backend" + " (device 'cuda')" * on_gpu)
    if (name == "triton" or on_gpu) and not _has_cuda():
        return FastflowError(
            f"{name}: PyTorch finds no CUDA device; usable here: cpu, which device cpu and device auto take"
        )
    if device.startswith("cuda:") and int(device[5:]) >= (count := _count_gpus()):
        return FastflowError(f"device {device!r}: PyTorch finds cuda:0 to cuda:{count - 1} here; take one of them")
    return None


def of_device(device: Any) -> Any:
    """Return "cuda" for cuda:N, any other device as it is."""
    return "cuda" if isinstance(device, str) and GPU.fullmatch(device) else device


def _sees_gpu() -> bool:
    """Look for a GPU driver; asking PyTorch would take a second."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "all") != "" and any(Path(p).exists() for p in GPU_FILES)


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _count_gpus() -> int:
    import torch

    return int(torch.cuda.device_count())
