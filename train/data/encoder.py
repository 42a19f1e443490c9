"""Find a fit's encoder, check its pooling and length, and hash it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.encoder import Head
from fastflow.model import Model, tokenizer_of
from fastflow.model.artifact import load_model
from fastflow.model.encoder import is_static, size_of
from fastflow.model.encoder.weights import encoder_hash, has_pooler
from fastflow.model.hashing import MANIFEST
from fastflow.model.locate import PACKAGED, UNTUNED, hub_snapshot
from fastflow.model.sentence.directory import Modules, read_modules
from fastflow.model.tokenizer import Tokens
from fastflow.train.reporter import refuse
from fastflow.transforms.pooling import WORDS, Pooling, parse_pooling

OF_MODULES = "model"  # the pooling that runs all modules


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder to calibrate; ``head`` is set if its ``modules`` run, and ``hash`` covers their files."""

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
        plain = Model(self.directory, self.directory, self.pooling, self.max_length, identity=self.hash)
        return plain if self.head is None else replace(plain, modules=self.modules, head=self.head)

    @property
    def packaged(self) -> bool:
        return self.directory.is_relative_to(UNTUNED)

    @property
    def name(self) -> str:
        """Its Hub id, ``untuned``, or its directory."""
        own = "untuned" if self.packaged else str(self.directory.absolute())
        return self.hub_id or own

    @property
    def dim(self) -> int:
        return self.model.pooled_dim

    def make_tokenize(self) -> Callable[[Sequence[str]], Tokens]:
        tokenizer, prompts = self.model.tokenizer(), self.model.prompts
        return lambda texts: tokenizer.tokenize_prompted(texts, prompts.resolve(), prompts.pooled)


def open_encoder(name: str, pooling: str, max_length: int | None) -> FrozenEncoder:
    """Open a directory, a model's encoder, a packaged model, or a Hub id.

    Raises a FastflowError for a missing or damaged encoder, a UsageError for a pooling or length that it lacks.
    """
    directory, hub_id, revision = _locate(name)
    if pooling == OF_MODULES:
        return _open_modules(directory, max_length, hub_id, revision)
    if modules := read_modules(directory):
        directory = modules.transformer.directory
    size, static = size_of(directory), is_static(directory)
    length = min(size.max_tokens if static else 128, size.max_tokens) if max_length is None else max_length
    if not 3 <= length <= size.max_tokens:
        raise refuse(f"{{max_length}} must be 3 to {size.max_tokens} for this encoder, not {length}")
    length = tokenizer_of(directory, length).max_length  # raises if the tokenizer is missing or does not fit
    pool = parse_pooling(pooling, size.layers)
    if static and (pool.mode != "mean" or not {WORDS, 0}.issuperset(pool.layers)):
        raise refuse(
            "{it} is a token table, which has no layers: leave out {pooling:{pool}}", it=directory, pool=pooling
        )
    pool = Pooling("mean", (WORDS,)) if static else pool
    if pool.mode == "pooler" and not has_pooler(directory):
        raise UsageError(f"{directory}: pooling 'pooler' needs a pooler, and this encoder has none")
    return FrozenEncoder(directory, pool, length, encoder_hash(directory), hub_id, revision, modules)


def _open_modules(directory: Path, max_length: int | None, hub_id: str | None, revision: str | None) -> FrozenEncoder:
    if (modules := read_modules(directory)) is None:
        raise refuse("{pooling:model} is for a directory of Sentence Transformers, and {it} is none", it=directory)
    model = load_model(directory)
    if max_length not in (None, model.max_length):
        raise refuse(f"{{pooling:model}} keeps the limit of {model.max_length} tokens: leave out {{max_length}}")
    if modules.truncate_dim is not None:
        raise UsageError(
            f"{directory} keeps {modules.truncate_dim} dimensions of its own (truncate_dim), and a calibration needs "
            "all: remove that setting from config_sentence_transformers.json"
        )
    model.tokenizer()  # raises if it is missing or does not fit
    return FrozenEncoder(
        model.encoder, model.pooling, model.max_length, model.fingerprint, hub_id, revision, modules, model.head
    )  # fmt: skip


def _locate(name: str) -> tuple[Path, str | None, str | None]:
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
    if directory.parent != Path(".") and directory.parent.is_dir():
        raise FastflowError(
            f"{name}: no such encoder directory, though {directory.parent} is one; if you mean the Hub's {name}, give "
            f"the directory that 'hf download {name}' prints"
        )
    snapshot = hub_snapshot(name)
    return snapshot, name, snapshot.name
