"""packed tokens -> hidden states -> pooled -> calibrated: the backends, and the choice between them.

A backend runs the three numeric stages of one model. It is chosen once, when the Runtime is built: ``auto`` may step
down and says so in ``notes``; a named backend that cannot run raises with the reason and what can.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow import calibration
from fastflow.artifact import Model
from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.flow import fold
from fastflow.kernels import reference
from fastflow.tokens import Tokens
from fastflow.vectors import shorten
from fastflow.weights import encoder_shape, load_weights, read_config

Floats = NDArray[np.floating[Any]]


class ReferenceBackend:
    """NumPy, from the equations: the oracle, and what runs where nothing faster does. float32 or float64."""

    name = "reference"
    dtypes: tuple[str, ...] = ("float32", "float64")

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        self.dtype, self.device, self.notes = dtype, "cpu", [] if threads is None else ["threads: NumPy's BLAS decides"]
        self._np_dtype = np.dtype(dtype)
        self._pooling = model.pooling
        config = read_config(model.encoder)
        self._shape = encoder_shape(config, model.encoder)
        self._weights = load_weights(model.encoder, config, self._shape, self._np_dtype)
        self._stages = [stage.astype(self._np_dtype) for stage in model.calibration]

    def encoder(self, tokens: Tokens) -> dict[int, Floats]:
        """Hidden states of the layers that pooling needs, {layer: (N, D)}."""
        layers = self._pooling.layers
        return reference.encode(self._weights, tokens.ids, tokens.offsets, self._shape, layers, self._np_dtype)

    def pooling(self, hidden: dict[int, Floats], tokens: Tokens) -> Floats:
        """(B, D) pooled vectors."""
        if self._pooling.mode == "mean":
            layers = [reference.pool_mean(hidden[i], tokens.offsets) for i in self._pooling.layers]
            return np.mean(layers, axis=0, dtype=self._np_dtype)
        first = reference.pool_first(hidden[self._pooling.layers[0]], tokens.offsets)
        return reference.pooler(first, self._weights) if self._pooling.mode == "pooler" else first

    def calibration(self, pooled: Floats, normalize: bool = False, truncate: int | None = None) -> Floats:
        """(B, D) -> (B, D') calibrated embeddings, cut to ``truncate`` columns, then L2-normalised, as asked."""
        z = np.asarray(calibration.apply(self._stages, pooled.astype(self._np_dtype, copy=False)))
        return shorten(z, normalize, truncate)


class CpuBackend(ReferenceBackend):
    """The native CPU path: the folded calibration is one compiled call; the encoder is inherited from the reference."""

    name = "cpu"
    dtypes: tuple[str, ...] = ("float32",)

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        from fastflow.kernels.cpu import CpuFlow

        super().__init__(model, dtype, device, None)
        plans = [plan.astype(np.float32) for plan in fold(model.calibration, self._shape.hidden)]
        try:
            self._flow = CpuFlow(plans, threads)
        except ValueError as error:  # FASTFLOW_ISA names what this machine lacks: a named choice never steps down
            raise UsageError(str(error)) from error
        self.notes.append(f"calibration compiled for {self._flow.isa}, {self._flow.threads} threads; encoder in NumPy")

    def calibration(self, pooled: Floats, normalize: bool = False, truncate: int | None = None) -> Floats:
        """As the reference, in one call without intermediate arrays; same bits for a row whatever its company."""
        return np.asarray(self._flow(np.ascontiguousarray(pooled, np.float32), normalize, truncate))


def load_torch_encoder(directory: Path, dtype: str = "float32") -> Any:
    """The transformers model of a local encoder directory, frozen, in ``dtype``; quiet, and never from the network."""
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    encoder = AutoModel.from_pretrained(
        str(directory), local_files_only=True, use_safetensors=True, dtype=getattr(torch, dtype)
    )
    return encoder.requires_grad_(False)


class TorchBackend:
    """PyTorch and transformers, padded and unfused: the reference to beat, and the way to run on a GPU today."""

    name = "torch"
    dtypes = ("float32", "bfloat16", "float64")

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        self._torch, self._process = torch, os.getpid()
        self.dtype, self.device = dtype, "cuda" if device == "cuda" else "cpu"
        self.notes: list[str] = []
        self._pooling = model.pooling
        flow_dtype = torch.float64 if dtype == "float64" else torch.float32
        self._flow_dtype = flow_dtype
        config = read_config(model.encoder)
        # checked first: transformers fills a missing tensor with random numbers and goes on
        load_weights(model.encoder, config, encoder_shape(config, model.encoder), np.float32)
        self._encoder = load_torch_encoder(model.encoder, dtype).eval().to(self.device)
        self._stages = [
            calibration.Stage(s.kind, s.settings, {k: self._tensor(v) for k, v in s.params.items()})
            for s in model.calibration
        ]

    def train_mode(self) -> None:
        """Switch the encoder's dropout on: noise while a flow is fitted, never when embedding."""
        self._encoder.train()

    def _mind_fork(self) -> None:
        """In a forked child PyTorch's thread pool is gone and would be waited for: go on with one thread."""
        if os.getpid() != self._process:
            self._torch.set_num_threads(1)
            self._process = os.getpid()

    def _tensor(self, array: NDArray[Any]) -> Any:
        tensor = self._torch.tensor(np.array(array), device=self.device)
        return tensor.to(self._flow_dtype) if tensor.is_floating_point() else tensor

    def encoder(self, tokens: Tokens) -> Any:
        """transformers' output with hidden states (B, T, D), and the padding mask (B, T)."""
        torch = self._torch
        self._mind_fork()
        lengths = np.diff(tokens.offsets)
        mask = np.arange(lengths.max(initial=0))[None] < lengths[:, None]
        ids = np.full(mask.shape, self._encoder.config.pad_token_id or 0, np.int64)
        ids[mask] = tokens.ids
        mask = torch.from_numpy(mask).to(self.device)
        with torch.inference_mode():
            ids = torch.from_numpy(ids).to(self.device)
            return self._encoder(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True), mask

    def pooling(self, hidden: Any, tokens: Tokens) -> Floats:
        """(B, D) pooled vectors, summed in float32 or better."""
        output, mask = hidden
        if self._pooling.mode == "pooler":
            return self._numpy(output.pooler_output)
        states = [output.hidden_states[i].to(self._flow_dtype) for i in self._pooling.layers]
        if self._pooling.mode == "cls":
            return self._numpy(states[0][:, 0])
        weights = mask[:, :, None].to(self._flow_dtype)
        return self._numpy(sum((s * weights).sum(1) / weights.sum(1) for s in states) / len(states))

    def calibration(self, pooled: Floats, normalize: bool = False, truncate: int | None = None) -> Floats:
        """(B, D) -> (B, D') calibrated embeddings, cut to ``truncate`` columns, then L2-normalised, as asked."""
        self._mind_fork()
        with self._torch.inference_mode():
            x = self._torch.from_numpy(np.ascontiguousarray(pooled)).to(self.device, self._flow_dtype)
            z = self._numpy(calibration.apply(self._stages, x))
        return shorten(z, normalize, truncate)

    def _numpy(self, tensor: Any) -> Floats:
        return np.asarray(tensor.to(self._flow_dtype).cpu().numpy())


BACKENDS: dict[str, Any] = {"cpu": CpuBackend, "torch": TorchBackend, "reference": ReferenceBackend}


def open_backend(model: Model, backend: str, device: str, dtype: str, threads: int | None) -> Any:
    """The backend for ``model``; raises with what is usable here when a named choice cannot run."""
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}")
    if backend != "auto":
        return _open_named(backend, model, device, dtype, threads)
    if device == "cuda":
        return _open_named("torch", model, device, dtype, threads)
    if dtype in ("auto", *CpuBackend.dtypes):
        try:
            return _open_named("cpu", model, device, dtype, threads)
        except UsageError:
            raise
        except FastflowError as reason:
            opened = _open_named("reference", model, device, dtype, threads)
            opened.notes.append(f"stepped down from the cpu backend: {reason}")
            return opened
    return _open_named("reference", model, device, dtype, threads)


def _open_named(name: str, model: Model, device: str, dtype: str, threads: int | None) -> Any:
    if name not in BACKENDS:
        raise UsageError(f"unknown backend {name!r}; known are auto, {', '.join(BACKENDS)}")
    if reason := cannot_run(name, device):
        raise reason
    kind = BACKENDS[name]
    dtype = "float32" if dtype == "auto" else dtype
    if dtype not in kind.dtypes:
        raise UsageError(f"dtype {dtype!r} does not run on the {name} backend; usable are {', '.join(kind.dtypes)}")
    return kind(model, dtype, device, threads)


def cannot_run(name: str, device: str) -> FastflowError | None:
    """Why backend ``name`` cannot run on ``device`` here, or None."""
    if device not in ("auto", "cpu", "cuda"):
        return UsageError(f"unknown device {device!r}; use auto, cpu or cuda")
    if device == "cuda" and name != "torch":
        return UsageError(f"the {name} backend runs on the CPU; on a CUDA device use the torch backend")
    if name == "cpu" and find_spec("fastflow.kernels._cpu") is None:
        return FastflowError("the cpu backend needs the compiled extension: install a C compiler and fastflow again")
    if name != "torch":
        return None
    for module in ("torch", "transformers"):
        if find_spec(module) is None:
            return missing_extra("train", module, "the torch backend")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            return FastflowError("device 'cuda': PyTorch finds no CUDA device; usable here: cpu")
    return None
