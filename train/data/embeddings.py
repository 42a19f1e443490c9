"""texts -> pooled embeddings (n, D) of the frozen encoder, computed once and kept as a memory-mapped cache.

The compiled kernels make the pass wherever they run the encoder; PyTorch makes it elsewhere, on a GPU, and with
dropout. The two agree to about 1e-6, not bit for bit, so each has cache entries of its own and a run gives the same
model whatever ran before it.
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
from fastflow.cache_folder import cache_directory as cache_directory
from fastflow.errors import FastflowError, UnsupportedArchitecture, UsageError
from fastflow.files.reuse.cache import bytes_for_people, describe, wait_for_lock
from fastflow.kernels.encoder.shape import Head
from fastflow.model.artifact import DEFAULT, PACKAGED, load_model
from fastflow.model.encoder.architecture import encoder_shape, is_static, read_config, size_of
from fastflow.model.encoder.weights import has_pooler
from fastflow.model.hashing import MANIFEST, encoder_hash
from fastflow.model.hub import hub_snapshot
from fastflow.model.kinds import Model, tokenizer_of
from fastflow.model.sentence.directory import Modules, read_modules
from fastflow.model.tokenizer.encode import Tokens
from fastflow.stages.pooling import WORDS, Pooling, parse_pooling
from fastflow.train.data.corpus import corpus_hash
from fastflow.train.progress import COMMAND, Voice

OF_MODULES = "model"  # the pooling of a directory of Sentence Transformers, with all its modules
WINDOW = 4096  # texts tokenized and length-sorted at a time, and kept when the pass is interrupted after them
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder as training uses it: where it is, how to pool, and its identity.

    ``modules`` are those of the directory that Sentence Transformers saved it in, None of any other. ``head`` is given
    if they are run, pooling included, and ``hash`` is then that of all their files.
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
        """The uncalibrated model, as a backend runs it."""
        plain = Model(self.directory, self.directory, self.pooling, self.max_length, (), self.hash)
        return plain if self.head is None else replace(plain, modules=self.modules, head=self.head)

    @property
    def packaged(self) -> bool:
        """Whether it is the encoder of the model in the package."""
        return self.directory.is_relative_to(DEFAULT)

    @property
    def name(self) -> str:
        """Its name for a person: its Hub id, ``default``, or its directory."""
        own = "default" if self.packaged else str(self.directory.absolute())
        return self.hub_id or own

    @property
    def dim(self) -> int:
        """D, the width of a pooled embedding."""
        return self.model.pooled_dim

    def tokenizing(self) -> Callable[[Sequence[str]], Tokens]:
        """Texts -> tokens, with the default prompt of the modules that are run."""
        tokenizer, prompts = self.model.tokenizer(), self.model.prompts
        return lambda texts: tokenizer.prompted(texts, prompts.resolve(), prompts.pooled)


def open_encoder(name: str, pooling: str, max_length: int | None) -> FrozenEncoder:
    """The encoder ``name``: a Hugging Face directory, a fastflow model (its encoder), ``default``, or a Hub id.

    Of a directory that Sentence Transformers saved it is the encoder of the Transformer. Raises a FastflowError for an
    encoder that is missing or damaged, and a UsageError for a pooling or a length that it does not have.
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
    """The encoder in ``directory`` with the modules that Sentence Transformers saved with it."""
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
    """Whether the encoder ``name`` is a directory of Sentence Transformers that a fit can run as it is."""
    modules = read_modules(_locate(name)[0])
    return modules is not None and modules.truncate_dim is None


def _locate(name: str) -> tuple[Path, str | None, str | None]:
    """(directory, Hub id or None, revision or None)."""
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
    """Runs the frozen encoder in float32; ``backend`` is cpu or torch, None for ``who_runs``.

    With ``dropout`` PyTorch runs it in training mode, with fresh noise at every call; ``rate`` replaces the dropout
    rates of its configuration.
    """

    def __init__(
        self,
        encoder: FrozenEncoder,
        device: str,
        dropout: bool = False,
        rate: float | None = None,
        backend: str | None = None,
    ) -> None:
        name = "torch" if dropout else backend or who_runs(encoder.directory, device)
        if reason := cannot_run(name, device):
            raise reason
        self._tokenize = encoder.tokenizing()
        self.backend: Any
        self.backend = open_backend(encoder.model, name, device, "float32", None)
        if dropout:
            self.backend.train_mode(rate)
        self.dim = encoder.dim
        self._where = encoder.directory

    def __call__(self, texts: Sequence[str], advance: Callable[[int], None] = lambda n: None) -> NDArray[np.float32]:
        """(n, D) float32 in the order of ``texts``."""
        out = np.empty((len(texts), self.dim), np.float32)
        for start in range(0, len(texts), WINDOW):
            self._window(texts[start : start + WINDOW], out[start : start + WINDOW], advance)
        return out

    def _window(self, texts: Sequence[str], out: NDArray[np.float32], advance: Callable[[int], None]) -> None:
        """Fill ``out`` (n, D); batches are sorted by length, so little is spent on padding."""
        tokens = self._tokenize(texts)
        for rows in tokens.batches(len(texts), BATCH_TOKENS):
            batch = tokens.select(rows)
            out[rows] = self.backend.pool(batch)
            advance(len(rows))
        if len(bad := np.flatnonzero(~np.isfinite(out).all(axis=1))):
            raise FastflowError(f"{self._where}: the encoder gives NaN or infinity for the text {texts[bad[0]][:60]!r}")


def who_runs(directory: Path, device: str) -> str:
    """The backend of a pass over a corpus: ``cpu``, the compiled kernels, if they run the encoder; else torch."""
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
    """Encoder hash + pooling and its token weights + length limit + corpus hash + who computes."""
    parts = [encoder.hash, encoder.pooling.as_dict(), encoder.max_length, corpus_hash(texts)]
    parts.append([who_runs(encoder.directory, device), device])
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
    """(n, D) read-only memory map of the pooled embeddings, from the cache or computed into it.

    An interrupted pass keeps its finished windows, and the next one continues after them, bit for bit as if it had
    never stopped. A second process that needs the same embeddings waits for the first. The entry stays locked while
    the array lives, so that ``fastflow cache --clear`` leaves it alone. ``corpus`` names it in that command's list.
    """
    path, shape = cache / f"{cache_key(encoder, texts, device)}.npy", (len(texts), encoder.dim)
    head = _header(shape)
    if (found := _found(path, head, shape)) is not None:
        return found
    embedder, partial = Embedder(encoder, device), path.with_suffix(".partial")
    waiting = f"another process computes these embeddings in {partial}; waiting for it"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with wait_for_lock(partial, lambda: voice.say(waiting)) as f:
            if (found := _found(path, head, shape)) is not None:
                partial.unlink()
                return found
            describe(partial, {"texts": len(texts), "corpus": corpus, "encoder": encoder.name})
            try:
                _fill(f, head, texts, embedder, voice)
            except FastflowError:  # of this corpus and encoder: another run would end there too
                _discard(partial)
                raise
            except BaseException:
                _keep_windows(f, head, partial, embedder.dim, voice)
                raise
            partial.replace(path)
            size = bytes_for_people(len(head) + 4 * shape[0] * shape[1])
            voice.say(f"cached {size} in {cache}; `{_clearing(cache)}` removes it")
            return _mapped(f, len(head), shape)
    except OSError as error:
        raise FastflowError(
            f"the cache {cache} cannot be written: {error.strerror}; choose another with --cache-folder"
        ) from error


def _clearing(cache: Path) -> str:
    return "fastflow cache --clear" + ("" if cache == cache_directory(None) else f" {cache}")


def _header(shape: tuple[int, int]) -> bytes:
    """The first bytes of a .npy file of float32 in ``shape``, as np.save writes them."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return out.getvalue()


def _found(path: Path, head: bytes, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """The cached array; None when it is absent, or damaged and so to be computed again."""
    try:
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            if handle.read(len(head)) != head or size != len(head) + 4 * shape[0] * shape[1]:
                return None
            return _mapped(handle, len(head), shape)
    except OSError:
        return None


def _mapped(handle: BinaryIO | io.FileIO, offset: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    """A read-only map that holds a shared lock: mmap duplicates the descriptor, and the lock ends with the last one."""
    fcntl.flock(handle, fcntl.LOCK_SH)
    return np.asarray(np.memmap(handle, np.float32, "r", offset, shape))


def _fill(handle: io.FileIO, head: bytes, texts: Sequence[str], embedder: Embedder, voice: Voice) -> None:
    """Write the .npy file from the first window on that is not in it yet."""
    done = _kept(handle, head, embedder.dim)
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
    """All of ``data``: a write without a buffer may take a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[handle.write(rest) :]


def _kept(handle: io.FileIO, head: bytes, dim: int) -> int:
    """How many texts of whole windows the unfinished file holds."""
    handle.seek(0)
    if handle.read(len(head)) != head:
        return 0
    rows = (os.fstat(handle.fileno()).st_size - len(head)) // (4 * dim)
    return rows - rows % WINDOW


def _keep_windows(handle: io.FileIO, head: bytes, partial: Path, dim: int, voice: Voice) -> None:
    """After an interruption: name the rows that are kept, or remove the file if there are none."""
    if done := _kept(handle, head, dim):
        voice.say(f"encoder: stopped; {done:,} texts are kept in the cache, and the same command continues after them")
    else:
        _discard(partial)


def _discard(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    partial.with_suffix(".json").unlink(missing_ok=True)
