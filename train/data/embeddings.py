"""Embed texts by the frozen encoder, (n, D), and keep them in a memory-mapped cache.

The compiled kernels run every encoder that they support; PyTorch runs the others, on a GPU, and with dropout. The two
agree to about 1e-6, not bit for bit, so each has its own cache entries.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.choose import cannot_run, open_backend
from fastflow.cache_folder import cache_directory
from fastflow.errors import FastflowError, UnsupportedArchitecture, UsageError
from fastflow.files.reuse.cache import bytes_for_people, describe, locked
from fastflow.kernels.encoder.shape import Head
from fastflow.model.artifact import load_model
from fastflow.model.encoder.architecture import encoder_shape, is_static, read_config, size_of
from fastflow.model.encoder.weights import has_pooler
from fastflow.model.hashing import MANIFEST, encoder_hash
from fastflow.model.kinds import Model, tokenizer_of
from fastflow.model.locate import DEFAULT, PACKAGED, hub_snapshot
from fastflow.model.sentence.directory import Modules, read_modules
from fastflow.model.tokenizer.encode import Tokens
from fastflow.stages.pooling import WORDS, Pooling, parse_pooling
from fastflow.train.data.corpus import corpus_hash
from fastflow.train.progress import COMMAND, Voice

OF_MODULES = "model"  # the pooling that runs all modules of a directory of Sentence Transformers
WINDOW = 4096  # texts to tokenize and sort at a time; an interrupted pass keeps whole windows
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder to calibrate: its directory, pooling and identity.

    ``modules`` belong to a directory of Sentence Transformers. ``head`` is set if they run, with their pooling; then
    ``hash`` covers all their files.
    """

    directory: Path
    pooling: Pooling
    max_length: int
    hash: str
    hub_id: str | None = None
    revision: str | None = None
    modules: Modules | None = None
    head: Head | None = None

    @property
    def model(self) -> Model:
        """The uncalibrated model, for a backend."""
        plain = Model(self.directory, self.directory, self.pooling, self.max_length, (), self.hash)
        return plain if self.head is None else replace(plain, modules=self.modules, head=self.head)

    @property
    def packaged(self) -> bool:
        """Whether it is the encoder of the model ``default``."""
        return self.directory.is_relative_to(DEFAULT)

    @property
    def name(self) -> str:
        """Its Hub id, ``default``, or its directory."""
        own = "default" if self.packaged else str(self.directory.absolute())
        return self.hub_id or own

    @property
    def dim(self) -> int:
        """The width D of a pooled embedding."""
        return self.model.pooled_dim

    def make_tokenize(self) -> Callable[[Sequence[str]], Tokens]:
        """Make the function from texts to tokens, with the modules' default prompt."""
        tokenizer, prompts = self.model.tokenizer(), self.model.prompts
        return lambda texts: tokenizer.tokenize_prompted(texts, prompts.resolve(), prompts.pooled)


def open_encoder(name: str, pooling: str, max_length: int | None) -> FrozenEncoder:
    """Open a Hugging Face directory, the encoder of a model or of a Transformer module, ``default``, or a Hub id.

    Raises a FastflowError for a missing or damaged encoder, and a UsageError for a pooling or length that it lacks.
    """
    directory, hub_id, revision = _locate(name)
    if pooling == OF_MODULES:
        return _open_modules(directory, max_length, hub_id, revision)
    if modules := read_modules(directory):
        directory = modules.transformer.directory
    size, static = size_of(directory), is_static(directory)
    length = min(size.max_tokens if static else 128, size.max_tokens) if max_length is None else max_length
    if not 3 <= length <= size.max_tokens:
        raise UsageError(f"--max-length must be 3 to {size.max_tokens} for this encoder, not {length}")
    length = tokenizer_of(directory, length).max_length  # raises if it is missing or does not fit
    pool = parse_pooling(pooling, size.layers)
    if static and (pool.mode != "mean" or not {WORDS, 0}.issuperset(pool.layers)):
        raise UsageError(f"{directory} is a token table, which has no layers: leave out --pooling {pooling}")
    pool = Pooling("mean", (WORDS,)) if static else pool
    if pool.mode == "pooler" and not has_pooler(directory):
        raise UsageError(f"{directory}: pooling 'pooler' needs a pooler, and this encoder has none")
    return FrozenEncoder(directory, pool, length, encoder_hash(directory), hub_id, revision, modules)


def _open_modules(directory: Path, max_length: int | None, hub_id: str | None, revision: str | None) -> FrozenEncoder:
    if (modules := read_modules(directory)) is None:
        raise UsageError(f"--pooling model is for a directory of Sentence Transformers, and {directory} is none")
    model = load_model(directory)
    if max_length not in (None, model.max_length):
        raise UsageError(f"--pooling model keeps the limit of {model.max_length} tokens: leave out --max-length")
    if modules.truncate_dim is not None:
        raise UsageError(
            f"{directory} keeps {modules.truncate_dim} dimensions of its own (truncate_dim), and a calibration needs "
            "all: remove that setting from config_sentence_transformers.json"
        )
    model.tokenizer()  # raises if it is missing or does not fit
    return FrozenEncoder(
        model.encoder, model.pooling, model.max_length, model.fingerprint, hub_id, revision, modules, model.head
    )  # fmt: skip


def has_modules(name: str) -> bool:
    """Whether ``name`` is a directory of Sentence Transformers of which a fit can run all modules."""
    modules = read_modules(_locate(name)[0])
    return modules is not None and modules.truncate_dim is None


def _locate(name: str) -> tuple[Path, str | None, str | None]:
    """Find (directory, Hub id or None, revision or None)."""
    directory = PACKAGED.get(name, Path(name))
    if (directory / MANIFEST).is_file():
        model = load_model(directory)
        if model.modules is not None:
            return model.modules.path, None, None
        return model.encoder, model.manifest["encoder"].get("hub_id"), model.manifest["encoder"].get("revision")
    if directory.is_dir():
        return directory, None, None
    if directory.exists() or name in PACKAGED or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FastflowError(f"{name}: no such encoder directory")
    if directory.parent != Path(".") and directory.parent.is_dir():  # more likely a mistyped path than a Hub id
        raise FastflowError(
            f"{name}: no such encoder directory, though {directory.parent} is one; if you mean the Hub's {name}, give "
            f"the directory that 'hf download {name}' prints"
        )
    snapshot = hub_snapshot(name)
    return snapshot, name, snapshot.name  # a snapshot's folder is named by its commit


class Embedder:
    """Runs the frozen encoder in float32; ``backend`` is cpu or torch, None for ``pick_backend``.

    With ``dropout`` PyTorch runs it in training mode, with new noise at every call; ``rate`` replaces its rates.
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
        """Embed ``texts``: (n, D) float32."""
        out = np.empty((len(texts), self.dim), np.float32)
        for start in range(0, len(texts), WINDOW):
            self._embed_window(texts[start : start + WINDOW], out[start : start + WINDOW], advance)
        return out

    def _embed_window(self, texts: Sequence[str], out: NDArray[np.float32], advance: Callable[[int], None]) -> None:
        tokens = self._tokenize(texts)
        for rows in tokens.batches(len(texts), BATCH_TOKENS):
            batch = tokens.select(rows)
            out[rows] = self.backend.pool(batch)
            advance(len(rows))
        if len(bad := np.flatnonzero(~np.isfinite(out).all(axis=1))):
            raise FastflowError(f"{self._where}: the encoder gives NaN or infinity for the text {texts[bad[0]][:60]!r}")


def pick_backend(directory: Path, device: str) -> str:
    """Pick ``cpu`` if the compiled kernels run the encoder, else ``torch``."""
    if device != "cpu" or cannot_run("cpu", "cpu") is not None:
        return "torch"
    if is_static(directory):
        return "cpu"
    try:
        encoder_shape(read_config(directory), directory)
    except UnsupportedArchitecture:
        return "torch"
    return "cpu"


def cache_key(encoder: FrozenEncoder, texts: Sequence[str], device: str = "cpu") -> str:
    """Hash encoder, pooling, token weights, length limit, corpus and backend."""
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
    voice: Voice = COMMAND,
) -> NDArray[np.float32]:
    """Map the pooled embeddings (n, D), read-only, from the cache; compute them into it first if they are absent.

    An interrupted pass keeps its windows, and the next one continues after them, bit for bit. A second process waits
    for the first. The entry is locked while the array lives, so ``fastflow cache --clear`` keeps it. ``corpus`` names
    it in the command's list.
    """
    path, shape = cache / f"{cache_key(encoder, texts, device)}.npy", (len(texts), encoder.dim)
    head = _make_header(shape)
    if (found := _open_entry(path, head, shape)) is not None:
        return found
    embedder, partial = Embedder(encoder, device), path.with_suffix(".partial")
    waiting = f"another process computes these embeddings in {partial}; waiting for it"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(partial, lambda: voice.say(waiting)) as f:
            if (found := _open_entry(path, head, shape)) is not None:
                partial.unlink()
                return found
            describe(partial, {"texts": len(texts), "corpus": corpus, "encoder": encoder.name})
            try:
                _fill(f, head, texts, embedder, voice)
            except FastflowError:  # another run would end there too
                _discard(partial)
                raise
            except BaseException:
                _keep_windows(f, head, partial, embedder.dim, voice)
                raise
            partial.replace(path)
            size = bytes_for_people(len(head) + 4 * shape[0] * shape[1])
            voice.say(f"cached {size} in {cache}; `{_name_clearing(cache)}` removes it")
            return _map(f, len(head), shape)
    except OSError as error:
        raise FastflowError(
            f"the cache {cache} cannot be written: {error.strerror}; choose another with --cache-folder"
        ) from error


def _name_clearing(cache: Path) -> str:
    return "fastflow cache --clear" + ("" if cache == cache_directory(None) else f" {cache}")


def _make_header(shape: tuple[int, int]) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return out.getvalue()


def _open_entry(path: Path, head: bytes, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """Map the cached array; None if it is absent or damaged."""
    try:
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            if handle.read(len(head)) != head or size != len(head) + 4 * shape[0] * shape[1]:
                return None
            return _map(handle, len(head), shape)
    except OSError:
        return None


def _map(handle: BinaryIO | io.FileIO, offset: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Map read-only with a shared lock: mmap duplicates the descriptor, so the lock lives as long as the map."""
    fcntl.flock(handle, fcntl.LOCK_SH)
    return np.asarray(np.memmap(handle, np.float32, "r", offset, shape))


def _fill(handle: io.FileIO, head: bytes, texts: Sequence[str], embedder: Embedder, voice: Voice) -> None:
    done = _count_kept(handle, head, embedder.dim)
    handle.seek(0)
    _write(handle, head)
    handle.truncate(len(head) + 4 * done * embedder.dim)
    handle.seek(0, os.SEEK_END)
    if done:
        voice.say(
            f"encoder: continues after {done:,} of {len(texts):,} texts that an interrupted run left in the cache"
        )
    with voice.progress("encoder", len(texts), "texts", done) as progress:
        for start in range(done, len(texts), WINDOW):  # a full disk raises here; a memory map would kill the process
            _write(handle, embedder(texts[start : start + WINDOW], progress.advance).tobytes())
            os.fsync(handle.fileno())


def _write(handle: io.FileIO, data: bytes) -> None:
    """Write all of ``data``: an unbuffered write may take a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[handle.write(rest) :]


def _count_kept(handle: io.FileIO, head: bytes, dim: int) -> int:
    """Count the texts in whole windows of the unfinished file."""
    handle.seek(0)
    if handle.read(len(head)) != head:
        return 0
    rows = (os.fstat(handle.fileno()).st_size - len(head)) // (4 * dim)
    return rows - rows % WINDOW


def _keep_windows(handle: io.FileIO, head: bytes, partial: Path, dim: int, voice: Voice) -> None:
    if done := _count_kept(handle, head, dim):
        voice.say(f"encoder: stopped; {done:,} texts are kept in the cache, and the same command continues after them")
    else:
        _discard(partial)


def _discard(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    partial.with_suffix(".json").unlink(missing_ok=True)
