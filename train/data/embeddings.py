"""Embed texts by the frozen encoder, (n, D), with a memory-mapped cache.

Compiled kernels and PyTorch differ by about 1e-6, so each has its own cache entries.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.choose import cannot_run, open_backend
from fastflow.cache_folder import OWN
from fastflow.cache_folder import cache_directory as cache_directory
from fastflow.errors import FastflowError
from fastflow.files.cached_files import bytes_for_people, describe, description_path
from fastflow.files.write import Block
from fastflow.files.write.outputs import NpyFile, OutputFile
from fastflow.files.write.partial import partial_path
from fastflow.model.encoder import is_native, is_static
from fastflow.train.data.corpus import corpus_hash
from fastflow.train.data.encoder import FrozenEncoder
from fastflow.train.reporter import COMMAND, Reporter, name_options
from fastflow.transforms.vectors import first_bad

WINDOW = 4096  # texts to sort by length at a time; an interrupted pass keeps whole windows
BATCH_TOKENS = 8192
Embed = Callable[[Sequence[str], Callable[[int], None]], NDArray[np.float32]]


class Embedder:
    """Runs the encoder in float32 by ``backend``: cpu, torch, or None for ``pick_backend``.

    With ``dropout`` PyTorch draws noise at every call; ``rate`` replaces the encoder's rates.
    """

    def __init__(
        self,
        encoder: FrozenEncoder,
        device: str,
        dropout: bool = False,
        rate: float | None = None,
        backend: str | None = None,
    ) -> None:
        name = "torch" if dropout else backend or pick_backend(encoder.directory, device)
        if reason := cannot_run(name, device):
            raise reason
        self._tokenize = encoder.make_tokenize()
        self.backend: Any
        self.backend = open_backend(encoder.model, name, device, "float32", None)
        if dropout:
            self.backend.train_mode(rate)
        self.dim = encoder.dim
        self._where = encoder.directory

    def __call__(self, texts: Sequence[str], advance: Callable[[int], None] = lambda n: None) -> NDArray[np.float32]:
        out = np.empty((len(texts), self.dim), np.float32)
        for start in range(0, len(texts), WINDOW):
            window, found = texts[start : start + WINDOW], out[start : start + WINDOW]
            tokens = self._tokenize(window)
            for rows in tokens.batches(len(window), BATCH_TOKENS):
                found[rows] = self.backend.pool(tokens.select(rows))
                advance(len(rows))
            if (bad := first_bad(found)) is not None:
                text = window[bad][:60]
                raise FastflowError(f"{self._where}: the encoder gives NaN or infinity for the text {text!r}")
        return out


def pick_backend(directory: Path, device: str) -> str:
    """Pick ``cpu`` if the compiled kernels run the encoder, else ``torch``."""
    if device != "cpu" or cannot_run("cpu", "cpu") is not None:
        return "torch"
    return "cpu" if is_static(directory) or is_native(directory) else "torch"


def cache_key(encoder: FrozenEncoder, texts: Sequence[str], device: str = "cpu") -> str:
    """Hash all that decides the embeddings."""
    parts = [encoder.hash, encoder.pooling.as_dict(), encoder.max_length, corpus_hash(texts)]
    parts.append([pick_backend(encoder.directory, device), device])
    if encoder.pooling.weights is not None:
        parts.append(hashlib.sha256(encoder.pooling.weights.tobytes()).hexdigest())
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def embed_corpus(
    texts: Sequence[str],
    encoder: FrozenEncoder,
    cache: Path,
    device: str = "cpu",
    corpus: str = "a corpus",
    reporter: Reporter = COMMAND,
) -> NDArray[np.float32]:
    """Map the embeddings (n, D), read-only, from the cache; compute absent ones first.

    A pass continues an interrupted one bit for bit; a second process waits. The entry is locked while the array lives;
    ``corpus`` names it for ``fastflow cache``.
    """
    path, about = cache / f"{cache_key(encoder, texts, device)}.npy", {"corpus": corpus, "encoder": encoder.name}
    return keep_vectors(path, texts, encoder.dim, lambda: Embedder(encoder, device), about, reporter)


def keep_vectors(
    path: Path,
    texts: Sequence[str],
    dim: int,
    open_embedder: Callable[[], Embed],
    about: dict[str, str],
    reporter: Reporter = COMMAND,
) -> NDArray[np.float32]:
    """Map vectors (n, dim) of ``texts`` from the cache's file ``path``, as ``embed_corpus`` does."""
    cache, shape = path.parent, (len(texts), dim)
    head = _make_header(shape)
    if (found := _open_entry(path, head, shape)) is not None:
        return found
    embed = open_embedder()
    waiting = f"another process computes these embeddings in {partial_path(path)}; waiting for it"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        file = NpyFile(path, {}, OWN, lambda: reporter.write(waiting))
        with file:
            if (found := _open_entry(path, head, shape)) is not None:
                file.remove()
                return found
            describe(path, {"texts": len(texts), **about})
            try:
                _fill(file, head, texts, shape[1], embed, reporter)
            except BaseException as error:
                if not file.rows or (isinstance(error, FastflowError) and not isinstance(error.__cause__, OSError)):
                    file.remove()
                    description_path(path).unlink(missing_ok=True)
                else:
                    kept = f"{file.rows:,} texts are kept in the cache"
                    reporter.write(f"encoder: stopped; {kept}, and the same command continues after them")
                raise
            size = bytes_for_people(len(head) + 4 * shape[0] * shape[1])
            place = "" if cache == cache_directory(None) else f" {cache}"
            reporter.write(f"cached {size} in {cache}; `fastflow cache --clear{place}` removes it")
            return _map(file.handle, len(head), shape)
    except (OSError, FastflowError) as error:
        fault = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(fault, OSError):
            raise
        raise FastflowError(
            name_options(
                "the cache {place} cannot be written: {fault}; choose another with {cache_folder}",
                place=cache,
                fault=fault.strerror,
            )
        ) from fault


def _make_header(shape: tuple[int, int]) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return out.getvalue()


def _open_entry(path: Path, head: bytes, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    try:
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            if handle.read(len(head)) != head or size != len(head) + 4 * shape[0] * shape[1]:
                return None
            return _map(handle, len(head), shape)
    except OSError:
        return None


def _map(handle: BinaryIO, offset: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    fcntl.flock(handle, fcntl.LOCK_SH)  # the map duplicates the descriptor, which keeps the lock
    return np.asarray(np.memmap(handle, np.float32, "r", offset, shape))


def _fill(
    file: OutputFile, head: bytes, texts: Sequence[str], dim: int, embed: Embed, reporter: Reporter
) -> None:  # fmt: skip
    row, size = 4 * dim, os.fstat(file.handle.fileno()).st_size
    if file.handle.read(len(head)) in (head, bytes(len(head))):
        file.rows = (size - len(head)) // row // WINDOW * WINDOW
    file.begin(len(head) + row * file.rows if file.rows else None)
    if file.rows:
        reporter.write(
            f"encoder: continues after {file.rows:,} of {len(texts):,} texts that an interrupted run left in the cache"
        )
    with reporter.progress("encoder", len(texts), "texts", file.rows) as progress:
        for start in range(file.rows, len(texts), WINDOW):
            vectors = embed(texts[start : start + WINDOW], progress.advance)
            file.write(Block(range(start, start + len(vectors)), [], vectors))
            file.sync()  # a full disk raises; a memory map would kill the process
    file.finish()
