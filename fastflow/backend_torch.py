"""The torch and triton backends: the encoder through PyTorch and transformers, the calibration unfused or fused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow import calibration
from fastflow.artifact import Model
from fastflow.flow import fold
from fastflow.tokens import Tokens
from fastflow.vectors import shorten
from fastflow.weights import encoder_shape, load_weights, read_config

Floats = NDArray[np.floating[Any]]


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
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float64")

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        self._torch, self._process = torch, os.getpid()
        self.dtype, self.device = dtype, "cuda" if device == "cuda" else "cpu"
        self.notes: list[str] = []
        self._pooling, self._order = model.pooling, model.truncation
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
        return shorten(z, normalize, truncate, self._order)

    def _numpy(self, tensor: Any) -> Floats:
        return np.asarray(tensor.to(self._flow_dtype).cpu().numpy())


class TritonBackend(TorchBackend):
    """The torch backend with the folded calibration as fused Triton launches, for a CUDA device."""

    name = "triton"
    dtypes = ("float32", "bfloat16")

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        from fastflow.kernels.flow_triton import TritonFlow

        super().__init__(model, dtype, "cuda", threads)  # device auto means the same here
        plans = [plan.astype(np.float32) for plan in fold(model.calibration, self._encoder.config.hidden_size)]
        self._flow = TritonFlow(plans, device=self.device)

    def calibration(self, pooled: Floats, normalize: bool = False, truncate: int | None = None) -> Floats:
        """As the torch backend, in one or two launches."""
        x = self._torch.from_numpy(np.ascontiguousarray(pooled, np.float32)).to(self.device)
        return shorten(self._numpy(self._flow(x)), normalize, truncate, self._order)
