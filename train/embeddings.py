"""texts -> pooled embeddings (n, D) of the frozen encoder, computed once and kept as a memory-mapped cache."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.architecture import encoder_size, read_config
from fastflow.artifact import DEFAULT, MANIFEST, Model, encoder_hash, load_model
from fastflow.backend_torch import TorchBackend
from fastflow.encoder import cannot_run
from fastflow.errors import FastflowError, UsageError
from fastflow.hub import hub_snapshot
from fastflow.pooling import Pooling, parse_pooling
from fastflow.progress import Progress
from fastflow.tokens import Tokenizer
from fastflow.train.corpus import corpus_hash
from fastflow.weights import has_pooler

WINDOW = 32768  # texts tokenized and length-sorted at a time
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder as training uses it: where it is, how to pool, and its identity."""

    directory: Path
    pooling: Pooling
    max_length: int
    hash: str
    hub_id: str | None = None
    revision: str | None = None

    @property
    def model(self) -> Model:
        """The uncalibrated model: what a backend runs."""
        return Model(self.directory, self.directory, self.pooling, self.max_length, (), self.hash)

    @property
    def dim(self) -> int:
        """D, the width of a pooled embedding."""
        return encoder_size(read_config(self.directory), self.directory).hidden


def open_encoder(name: str, pooling: str, max_length: int | None) -> FrozenEncoder:
    """The encoder ``name``: a Hugging Face directory, a fastflow model (its encoder), ``default``, or a Hub id."""
    directory, hub_id, revision = _locate(name)
    size = encoder_size(read_config(directory), directory)
    length = min(128, size.max_tokens) if max_length is None else max_length
    if not 3 <= length <= size.max_tokens:
        raise UsageError(f"--max-length must be 3 to {size.max_tokens} for this encoder, not {length}")
    Tokenizer(directory, length)  # raises if it is missing or does not fit
    pool = parse_pooling(pooling, size.layers)
    if pool.mode == "pooler" and not has_pooler(directory):
        raise UsageError(f"{directory}: pooling 'pooler' needs a pooler, and this encoder has none")
    return FrozenEncoder(directory, pool, length, encoder_hash(directory), hub_id, revision)


def _locate(name: str) -> tuple[Path, str | None, str | None]:
    """(directory, Hub id or None, revision or None)."""
    directory = DEFAULT if name == "default" else Path(name)
    if (directory / MANIFEST).is_file():
        model = load_model(directory)
        return model.encoder, model.manifest["encoder"].get("hub_id"), model.manifest["encoder"].get("revision")
    if directory.is_dir():
        return directory, None, None
    if directory.exists() or directory == DEFAULT or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FastflowError(f"{name}: no such encoder directory")
    snapshot = hub_snapshot(name)
    return snapshot, name, snapshot.name  # a snapshot's folder is named by its commit


class Embedder:
    """Runs the frozen encoder; with ``dropout`` the encoder stays in training mode, a fresh noise at every call.

    ``rate`` replaces the dropout rates of its configuration.
    """

    def __init__(self, encoder: FrozenEncoder, device: str, dropout: bool = False, rate: float | None = None) -> None:
        if reason := cannot_run("torch", device):
            raise reason
        self._tokenizer = Tokenizer(encoder.directory, encoder.max_length)
        self.backend = TorchBackend(encoder.model, "float32", device, None)
        if dropout:
            self.backend.train_mode(rate)
        self.dim = encoder.dim
        self._where = encoder.directory

    def __call__(self, texts: Sequence[str], advance: Callable[[int], None] = lambda n: None) -> NDArray[np.float32]:
        """(n, D) float32 in the order of ``texts``; batches are length-sorted, so little is spent on padding."""
        tokens = self._tokenizer(texts)
        out = np.empty((len(texts), self.dim), np.float32)
        for rows in tokens.batches(len(texts), BATCH_TOKENS):
            batch = tokens.select(rows)
            out[rows] = self.backend.pooling(self.backend.encoder(batch), batch)
            advance(len(rows))
        if len(bad := np.flatnonzero(~np.isfinite(out).all(axis=1))):
            raise FastflowError(f"{self._where}: the encoder gives NaN or infinity for the text {texts[bad[0]][:60]!r}")
        return out


def cache_key(encoder: FrozenEncoder, texts: Sequence[str]) -> str:
    """Encoder hash + pooling and its token weights + length limit + corpus hash."""
    parts = [encoder.hash, encoder.pooling.as_dict(), encoder.max_length, corpus_hash(texts)]
    if encoder.pooling.weights is not None:
        parts.append(hashlib.sha256(encoder.pooling.weights.tobytes()).hexdigest())
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def cache_directory(given: str | None) -> Path:
    """``given``, else fastflow's folder under $XDG_CACHE_HOME or ~/.cache."""
    if given is not None:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastflow"


def embed_corpus(texts: Sequence[str], encoder: FrozenEncoder, cache: Path, device: str = "cpu") -> NDArray[np.float32]:
    """(n, D) read-only memory map of the pooled embeddings, from the cache or computed into it."""
    path = cache / f"{cache_key(encoder, texts)}.npy"
    found = _open(path, (len(texts), encoder.dim))
    if found is not None:
        return found
    embedder = Embedder(encoder, device)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _fill(partial, texts, embedder)
        partial.replace(path)
    except OSError as error:
        raise FastflowError(
            f"the cache {cache} cannot be written: {error.strerror}; choose another with --cache"
        ) from error
    finally:
        if partial.is_file():
            partial.unlink()
    return np.asarray(np.load(path, mmap_mode="r"))


def _open(path: Path, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """The cached array; None when it is absent, or damaged and so to be made anew."""
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return np.asarray(found) if found.shape == shape and found.dtype == np.float32 else None


def _fill(path: Path, texts: Sequence[str], embedder: Embedder) -> None:
    with path.open("wb") as handle:  # plain writes: a full disk raises here, where a memory map would kill the process
        header = {"descr": "<f4", "fortran_order": False, "shape": (len(texts), embedder.dim)}
        np.lib.format.write_array_header_1_0(handle, header)
        with Progress("encoder", len(texts), "texts") as progress:
            for start in range(0, len(texts), WINDOW):
                handle.write(embedder(texts[start : start + WINDOW], progress.advance).tobytes())
