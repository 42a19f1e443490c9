"""Read a corpus once: sum its sentences' bags of tokens with the teacher's vectors, and hold some out.

A bag has each token's share of a text, without special and unknown tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from fastflow.console import add_note
from fastflow.errors import FastflowError
from fastflow.files.write.partial import cannot_write, open_partial
from fastflow.model.tokenizer import UNKNOWN
from fastflow.progress import format_count
from fastflow.train.data.corpus import add_text, key_of
from fastflow.train.distil.ridge import Lengths, Sums, fit_lengths
from fastflow.train.distil.teacher import Teacher, Vectors
from fastflow.train.reporter import Reporter, refuse
from fastflow.values import system_errors

BLOCK = 4096


def list_special_ids(tokenizer: Any) -> list[int]:
    """List the ids of special and unknown tokens."""
    found = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return sorted(found | {i for i in map(tokenizer.token_to_id, UNKNOWN) if i is not None})


class Bags:
    """Makes bags of texts; a token counts by its weight in ``weights`` (V,), None: 1."""

    def __init__(self, tokenizer: Any, weights: NDArray[np.float32] | None = None) -> None:
        self._tokenizer = tokenizer
        self.size = tokenizer.get_vocab_size(with_added_tokens=True)
        self.uniform, self.weights = weights is None, weights
        counted = np.ones(self.size) if weights is None else weights.astype(np.float64)
        counted[list_special_ids(tokenizer)] = 0
        self._weights = counted

    def find_ids(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        found = []
        for start in range(0, len(texts), BLOCK):
            for encoding in self._tokenizer.encode_batch_fast(texts[start : start + BLOCK], add_special_tokens=False):
                ids = np.array(encoding.ids, np.int64)
                found.append(ids[self._weights[ids] > 0])
        return found

    def weigh(self, ids: Sequence[NDArray[np.int64]]) -> sparse.csr_array:
        """Make the bags (n, V) float64 of n texts' ``ids``; zeros for a text without a token."""
        lengths = np.array([len(row) for row in ids], np.int64)
        flat = np.concatenate([np.empty(0, np.int64), *ids])
        ends = np.concatenate([[0], np.cumsum(lengths)])
        weights = self._weights[flat]
        sums = np.add.reduceat(np.append(weights, 0.0), ends[:-1]) if len(ids) else np.empty(0)
        share = weights / np.repeat(np.where(lengths > 0, sums, 1.0), lengths)
        found = sparse.csr_array((share, flat, ends), shape=(len(ids), self.size))
        found.sum_duplicates()
        return found

    def __call__(self, texts: Sequence[str]) -> sparse.csr_array:
        return self.weigh(self.find_ids(texts))


def find_split_words(tokenizer: Any, texts: Iterable[str], count: int) -> list[str]:
    """Find the ``count`` most frequent normalized words that a WordPiece tokenizer splits."""
    from tokenizers.models import WordPiece

    if not isinstance(tokenizer.model, WordPiece):
        kind = type(tokenizer.model).__name__
        raise refuse(f"{{words}} is for the tokenizers of BERT, WordPiece, and this one is {kind}: leave it out")
    found: Counter[str] = Counter()
    for text in texts:
        normal = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
        found.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal))
    several: list[str] = []
    for word in sorted(found, key=lambda word: (-found[word], word)):
        if len(several) == count or found[word] < 2:
            break
        if word.isalnum() and len(tokenizer.model.tokenize(word)) > 1:
            several.append(word)
    return several


def add_words(tokenizer: Any, words: Sequence[str]) -> None:
    """Add tokens for whole ``words``: vocabulary entries would also match starts of longer words."""
    from tokenizers import AddedToken

    tokenizer.add_tokens([AddedToken(word, single_word=True, normalized=True) for word in words])


SHARD = 8192  # sentences of a shard
SHARE, MOST = 32, 2000  # one sentence in SHARE is held out, at most MOST
EVERY = 60.0  # seconds between savings
WORTH = 5.0  # seconds: a longer pass is saved at its end


@dataclass
class Gathered:
    """A corpus read so far: ``sums`` by target, token ``counts`` (V,), and sentences ``held`` out.

    ``texts`` counts summed sentences; ``lengths`` are of the first SHARD. ``sha256`` covers all sentences.
    """

    sums: dict[str, Sums] = field(default_factory=dict)
    counts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    texts: int = 0
    held: list[str] = field(default_factory=list)
    lengths: Lengths | None = None
    sha256: str = ""
    whole: bool = True

    def merge(self, sums: dict[str, Sums], counts: NDArray[np.int64], texts: int, sha256: str) -> None:
        """Add a shard's sums; ``sha256`` covers sentences up to its end."""
        self.whole = False
        for name, found in sums.items():
            self.sums[name] = self.sums[name].merge(found) if name in self.sums else found
        self.counts = self.counts + counts if len(self.counts) else counts
        self.texts, self.sha256 = self.texts + texts, sha256
        self.whole = True


class Kept:
    """The file next to ``out`` with the sums of an interrupted pass; ``resume`` continues it if ``run`` is equal."""

    def __init__(self, out: Path, resume: bool, reporter: Reporter) -> None:
        self.path = out.with_name(out.name + ".distilling")
        self.run: dict[str, Any] = {}  # JSON of all that decides the sums
        self._resume, self._reporter = resume, reporter
        self._due, self._saved = time.monotonic() + EVERY, 0

    @staticmethod
    @contextmanager
    def lock(out: Path) -> Iterator[None]:
        path = out.with_name(out.name + ".distilling.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
        handle = open_partial(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            handle.close()

    def start(self) -> Path:
        """Return the path, of a file without sums; say if it is replaced."""
        if self.path.is_file() and not self._resume:
            self._reporter.write(f"fastflow: starts again and replaces {self.path}; --resume would have continued it")
        return self.path

    def note(self, stop: KeyboardInterrupt) -> None:
        if self.path.is_file():
            done = f"{self._saved:,} texts are gathered" if self._saved else "the training's state is"
            add_note(stop, f"{done} in {self.path}; the same command with --resume continues")

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def load(self) -> tuple[Gathered, str]:
        if not self.path.is_file():
            if self._resume:
                self._reporter.write(
                    f"fastflow: no interrupted run has left {self.path}, so this one starts from the beginning"
                )
            return Gathered(), ""
        if not self._resume:
            self.start()
            return Gathered(), ""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, "numpy") as file:
                state = json.loads(file.metadata()["run"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            run, digest, texts, names = state["run"], state["digest"], int(state["texts"]), list(state["targets"])
            sums = {name: Sums.read({k.partition(".")[2]: a for k, a in arrays.items() if k.startswith(f"{name}.")})
                    for name in names}  # fmt: skip
            counts, lengths = arrays["counts"], Lengths(arrays["lengths"])
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise FastflowError(f"{self.path} is damaged; remove it to start again") from error
        if run != self.run:
            other = " and ".join(name for name in self.run if run.get(name) != self.run[name])
            raise FastflowError(
                f"{self.path} is from a run that differs in {other}; give the same again, or remove it to start again"
            )
        self._saved = texts
        self._reporter.write(f"fastflow: continues after {texts:,} texts that an interrupted run has gathered")
        return Gathered(sums, counts, texts, lengths=lengths), digest

    def save(self, found: Gathered, digest: str, now: bool = False) -> None:
        if found.lengths is None or found.texts == self._saved or not (now or time.monotonic() >= self._due):
            return
        from safetensors.numpy import save_file

        arrays = {f"{name}.{key}": a for name, sums in found.sums.items() for key, a in sums.arrays().items()}
        state = {"run": self.run, "digest": digest, "texts": found.texts, "targets": list(found.sums)}
        growing = self.path.with_name(self.path.name + ".tmp")
        try:
            arrays |= {"counts": found.counts, "lengths": found.lengths.table}
            with system_errors():
                save_file(arrays, growing, {"run": json.dumps(state)})
            os.replace(growing, self.path)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        finally:
            growing.unlink(missing_ok=True)
        self._saved, self._due = found.texts, time.monotonic() + EVERY


def gather(
    texts: Iterable[str],
    teacher: Teacher,
    bags: dict[str, Bags],
    alone: dict[str, Vectors],
    seed: int,
    reporter: Reporter,
    kept: Kept | None,
    total: int | None = None,
) -> Gathered:
    """Sum bags and vectors of ``texts``, about ``total``; ``alone``: the teacher's vectors (V, D) of single tokens.

    Raises a FastflowError for too few texts, or if ``kept`` is of other texts.
    """
    found, wanted = (Gathered(), "") if kept is None else kept.load()
    done, digest, began, read = found.texts, hashlib.sha256(), time.monotonic(), 0
    seen = set[bytes]()
    try:
        with reporter.progress("teacher", total, "texts", done, about=True) as progress:
            for shard in _split_shards(texts, found, seed, digest, seen):
                before, read = read, read + len(shard)
                if before < done:
                    if read > done or (read == done and digest.hexdigest() != wanted):
                        raise _refuse_texts(kept)
                    continue
                mark, vectors = digest.hexdigest(), teacher(shard, progress.within)
                found.merge(*_sum_shard(shard, vectors, bags, alone, found), len(shard), mark)
                progress.advance(len(shard))
                if kept is not None:
                    kept.save(found, mark)
            if read < done:
                raise _refuse_texts(kept)
    except KeyboardInterrupt:
        if kept is not None and found.texts and found.whole:
            kept.save(found, found.sha256 or wanted, now=True)
        raise
    if kept is not None and time.monotonic() - began > WORTH:
        kept.save(found, found.sha256 or wanted, now=True)  # the fit that follows takes as long again
    found.sha256 = digest.hexdigest()
    if found.texts < 2 or not found.held:
        different = len(found.held) + found.texts if found.held else len(seen)
        raise FastflowError(
            f"the corpus holds {format_count(different, 'distinct texts')}, too few to learn from some and to hold out "
            "others; give at least a few hundred"
        )
    return found


def _refuse_texts(kept: Kept | None) -> FastflowError:
    return FastflowError(
        f"{kept.path if kept else 'the sums'} is from other texts, or another order of them; give the same corpus "
        "again, or remove the file to start again"
    )


def _split_shards(
    texts: Iterable[str], found: Gathered, seed: int, digest: Any, seen: set[bytes]
) -> Iterator[list[str]]:
    """Yield lists of SHARD texts; put held-out texts into ``found.held``, and keys until the first into ``seen``."""
    shard: list[str] = []
    held: set[str] = set()
    for text in texts:
        add_text(digest, text)
        if text in held:
            continue
        if len(held) < MOST:
            key = key_of(text, seed)
            if key[0] % SHARE == 0:
                held.add(text)
                found.held.append(text)
                continue
            if not held:
                seen.add(key)
        shard.append(text)
        if len(shard) == SHARD:
            yield shard
            shard = []
    if shard:
        yield shard


def _sum_shard(
    shard: Sequence[str], vectors: dict[str, Vectors], bags: dict[str, Bags], alone: dict[str, Vectors], found: Gathered
) -> tuple[dict[str, Sums], Any]:
    own = bags["vectors"]
    ids = own.find_ids(shard)
    counts = np.bincount(np.concatenate([np.empty(0, np.int64), *ids]), minlength=own.size)
    rows = {name: bag.weigh(ids) for name, bag in bags.items()}
    if found.lengths is None:
        found.lengths = fit_lengths(alone["vectors"], counts, rows["vectors"], vectors["vectors"])
    rows["vectors"] = found.lengths.divide(rows["vectors"])
    return {name: Sums.of(row, vectors[name]) for name, row in rows.items()}, counts
