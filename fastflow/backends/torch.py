"""The torch backend: transformers or a token table, then the calibration stage by stage."""

from __future__ import annotations

import os
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastflow.backends import Backend, Calibrator, Floats
from fastflow.backends.reference import pool_states
from fastflow.errors import FastflowError, UnsupportedArchitecture, UsageError
from fastflow.kernels.encoder import WORDS
from fastflow.kernels.encoder.texts import apply_head
from fastflow.kernels.stored import LARGEST
from fastflow.model import Model, VectorModel
from fastflow.model.encoder import encoder_shape, encoder_size, read_config
from fastflow.model.encoder.weights import BAD, SCALES, load_weights, weight_files
from fastflow.model.tensors import MappedTensors
from fastflow.model.tokenizer import Tokens
from fastflow.transforms import calibration
from fastflow.transforms.vectors import shorten
from fastflow.values import panics, reason

TABLE = "embeddings.position_embeddings"
PROJECTIONS = ("embeddings_project", "encoder.embedding_hidden_mapping_in")  # of an embedding layer


def load_torch_encoder(directory: Path, dtype: str = "float32") -> Any:
    """Load the transformers model of a directory; missing or non-finite weights are a FastflowError."""
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with panics():
            encoder, found = AutoModel.from_pretrained(
                str(directory),
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=getattr(torch, dtype),
                output_loading_info=True,
            )
    except Exception as error:
        raise FastflowError(f"{directory}: transformers cannot load this encoder: {reason(error)}") from error
    restore_words(encoder, directory)
    # transformers fills missing tensors with random numbers; a missing pooler raises at its use
    if missing := sorted(name for name in found["missing_keys"] if "pooler." not in name):
        raise FastflowError(f"{directory}: the weights lack tensor {missing[0]}")
    for name, tensor in encoder.named_parameters():
        if not (tensor.abs() <= LARGEST).all():  # false for NaN
            raise FastflowError(f"{directory}: tensor {name} {BAD}")
    for tensor in (*encoder.parameters(), *encoder.buffers()):
        tensor.data = tensor.data.clone()
    return encoder.requires_grad_(False)


def restore_words(encoder: Any, directory: Path) -> None:
    """Give transformers' model of ``directory`` the word rows that are stored as int8."""
    import torch

    if any(SCALES in MappedTensors(path).arrays for path in weight_files(directory)):
        config = read_config(directory)
        rows = load_weights(directory, config, encoder_shape(config, directory), np.float32)["word"]
        words = torch.nn.Embedding.from_pretrained(torch.from_numpy(rows).to(encoder.dtype))
        encoder.set_input_embeddings(words)


class TorchCalibrator(Calibrator):
    """The calibration, stage by stage in PyTorch."""

    name = "torch"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")

    def _open_calibration(self, threads: int | None) -> None:
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        self.arithmetic = f"PyTorch {torch.__version__}, {self.device}"
        self._torch, self._process = torch, os.getpid()
        self._floats = torch.float64 if self.dtype == "float64" else torch.float32
        self._stages = [
            calibration.Stage(s.kind, s.settings, {k: self._tensor(v) for k, v in s.params.items()})
            for s in self._calibrated.calibration
        ]

    def calibrate(self, pooled: Floats, normalize: bool = False, truncate: int | None = None) -> Floats:
        self._mind_fork()
        with self._torch.inference_mode():
            z = self._numpy(calibration.apply(self._stages, self._send(pooled)))
        return shorten(z, normalize, truncate, self._order)

    def _mind_fork(self) -> None:
        """Use one thread in a forked child, which would wait for PyTorch's lost threads."""
        if os.getpid() != self._process:
            self._torch.set_num_threads(1)
            self._process = os.getpid()

    def _send(self, pooled: Floats) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(pooled)).to(self.device, self._floats)

    def _tensor(self, array: NDArray[Any]) -> Any:
        tensor = self._torch.tensor(np.array(array), device=self.device)
        return tensor.to(self._floats) if tensor.is_floating_point() else tensor

    def _numpy(self, tensor: Any) -> Floats:
        return np.asarray(tensor.to(self._floats).cpu().numpy())


class TorchBackend(TorchCalibrator, Backend):
    """An encoder in transformers, on padded batches."""

    dtypes = ("float32", "bfloat16", "float64")

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, dtype, device if device.startswith("cuda") else "cpu", threads)
        self._open_calibration(threads)
        config = read_config(model.encoder)
        with suppress(UnsupportedArchitecture):
            load_weights(model.encoder, config, encoder_shape(config, model.encoder), np.float32)
        self._encoder = load_torch_encoder(model.encoder, dtype).eval().to(self.device)
        self._words: Any = None
        if WORDS in self._pooling.layers:
            longest = encoder_size(config, model.encoder).max_tokens
            self._words = build_words_layer(self._encoder, longest, model.encoder)

    def train_mode(self, dropout: float | None = None) -> None:
        for part in (self._encoder, self._words or self._encoder):
            part.train()
            if dropout is not None:
                for module in part.modules():
                    if isinstance(module, self._torch.nn.Dropout):
                        module.p = dropout

    def pool(self, tokens: Tokens) -> Floats:
        return self.pooling(self.hidden_states(tokens), tokens)

    def hidden_states(self, tokens: Tokens) -> Any:
        """Return {layer: (B, T, D)}, or (B, D) of a pooler, and the padding mask (B, T)."""
        torch = self._torch
        self._mind_fork()
        tokens.check(self._encoder.get_input_embeddings().num_embeddings)
        lengths = np.diff(tokens.offsets)
        mask = np.arange(lengths.max(initial=0))[None] < lengths[:, None]
        ids = np.full(mask.shape, self._encoder.config.pad_token_id or 0, np.int64)
        ids[mask] = tokens.ids
        mask = torch.from_numpy(mask).to(self.device)
        with torch.inference_mode():
            ids = torch.from_numpy(ids).to(self.device)
            states = {} if self._words is None else {WORDS: self._words(ids)}
            if len(states) < len(self._pooling.layers):
                output = self._encoder(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True)
                if self._pooling.mode == "pooler":
                    return {self._pooling.layers[0]: output.pooler_output}, mask
                others = (layer for layer in self._pooling.layers if layer not in states)
                states |= {layer: get_states(output)[max(layer, 0)] for layer in others}
            return states, mask

    def pooling(self, hidden: Any, tokens: Tokens) -> Floats:
        """Pool hidden states to vectors (B, D), summed in float32 or float64."""
        found, mask = hidden
        if self._pooling.mode == "pooler":
            return self._numpy(found[self._pooling.layers[0]])
        if not self._pooling.plain or tokens.skip or self._head:
            packed = {layer: self._numpy(state[mask]) for layer, state in found.items()}
            return pool_states(packed, tokens, self._pooling, self._head)
        states = [found[layer].to(self._floats) for layer in self._pooling.layers]
        if self._pooling.mode == "cls":
            return self._numpy(states[0][:, 0])
        weights = mask[:, :, None].to(self._floats)
        if self._pooling.weights is not None:
            weights[mask] = self._tensor(self._pooling.weights[tokens.ids])[:, None]
        means = [(state * weights).sum(1) / weights.sum(1) for state in states]
        if self._pooling.shares is None:
            return self._numpy(sum(means) / len(means))
        return self._numpy(sum(share * x for share, x in zip(self._pooling.shares, means, strict=True)))


class TorchTable(TorchCalibrator, Backend):
    """A token table by PyTorch's embedding_bag."""

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, dtype, device if device.startswith("cuda") else "cpu", threads)
        self._open_calibration(threads)
        from fastflow.kernels.table.reference import WHOLE
        from fastflow.model.static.table import open_table

        table = open_table(model.encoder)
        try:
            vectors = table.vectors(np.arange(table.vocabulary), np.float32)
        except ValueError as error:
            raise FastflowError(str(error)) from error
        self._vectors = self._tensor(vectors)
        self._summed = self._torch.float64 if table.run < WHOLE else self._vectors.dtype
        weights = self._pooling.weights
        self._weights: Any = None if weights is None else self._tensor(weights)
        self._dropout = 0.0

    def train_mode(self, dropout: float | None = None) -> None:
        self._dropout = dropout or 0.0

    def pool(self, tokens: Tokens) -> Floats:
        self._mind_fork()
        tokens.check(len(self._vectors))
        torch = self._torch
        with torch.inference_mode():
            ids, starts = (torch.tensor(a, device=self.device) for a in (tokens.ids, tokens.offsets[:-1]))
            vectors = self._vectors[ids]
            if self._dropout:
                vectors = torch.nn.functional.dropout(vectors, self._dropout)
            if self._weights is None:
                return self._finish(self._sums(vectors, starts, "mean"))
            weights = self._weights[ids]
            sums, total = self._sums(vectors, starts, "sum", weights), self._sums(weights[:, None], starts, "sum")
            return self._finish(torch.where(total > 0, sums / total, sums))

    def _sums(self, vectors: Any, starts: Any, mode: str, weights: Any = None) -> Any:
        rows = self._torch.arange(len(vectors), device=self.device)
        bag = self._torch.nn.functional.embedding_bag
        weights = None if weights is None else weights.to(self._summed)
        sums = bag(rows, vectors.to(self._summed), starts.long(), mode=mode, per_sample_weights=weights)
        return sums.to(vectors.dtype)

    def _finish(self, pooled: Any) -> Floats:
        return apply_head(self._head, self._numpy(pooled))


class TorchVectors(TorchCalibrator):
    """A calibration without an encoder in PyTorch."""

    def __init__(self, model: VectorModel, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, model.input_dim, dtype, device if device.startswith("cuda") else "cpu")
        self._open_calibration(threads)


def build_words_layer(encoder: Any, longest: int, where: object) -> Any:
    """Make a module, ids (B, T) -> layer WORDS (B, T, D); None if layer 0 has no positions.

    The module shares the word table of ``encoder``, and averages the last ``longest`` rows of the position table.
    Raises a UsageError if a trial run fails.
    """
    import torch

    ids = torch.full((1, 3), int(encoder.config.pad_token_id == 0), device=encoder.device)
    modules = dict(encoder.named_modules())
    projection = [modules[name] for name in PROJECTIONS if name in modules]
    with torch.inference_mode():
        first = get_states(encoder(input_ids=ids, output_hidden_states=True))[0]
        if (first == first[:, :1]).all():
            return None
        found = torch.nn.Sequential(modules["embeddings"], *projection)(ids) if TABLE in modules else None
        if not torch.is_tensor(found) or not torch.equal(found, first):
            raise UsageError(
                f"{where}: the torch backend cannot leave the positions out of the embedding layer of a "
                f"{type(encoder).__name__}; choose a pooling without words"
            )
    return torch.nn.Sequential(_without_positions(modules["embeddings"], longest), *projection)


def get_states(output: Any) -> Any:
    """Return hidden states by layer; the last is after ModernBERT's final LayerNorm, which transformers 4 omits."""
    return (*(output.hidden_states or ())[:-1], output.last_hidden_state)


def _without_positions(layer: Any, longest: int) -> Any:
    words = layer.word_embeddings
    copy = deepcopy(layer, {id(words): words})
    table = copy.position_embeddings.weight.data
    mean = table[len(table) - longest :].double().mean(dim=0)
    table.copy_(mean.to(table.dtype).expand_as(table))
    return copy
