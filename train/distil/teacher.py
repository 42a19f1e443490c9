"""Run the teacher, any model of texts, on texts and tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model
from fastflow.model.locate import find_packaged_name
from fastflow.model.tokenizer import Tokens
from fastflow.model.tokenizer.files import load_tokenizer, lowercase_first
from fastflow.options import Options
from fastflow.session import Count, Session
from fastflow.train.data.corpus import corpus_hash
from fastflow.train.data.embeddings import cache_directory, keep_vectors
from fastflow.train.reporter import Reporter
from fastflow.transforms.vectors import compute_paired_cosine, shorten

BLOCK = 4096
Vectors = NDArray[np.float32]


class Teacher:
    """The model of texts ``name``, which gives the vectors to fit."""

    def __init__(self, name: str, dtype: str = "auto") -> None:
        self.model = load_model(name)
        self.opened = Session(self.model, "auto", dtype, None, "auto", False)
        self.dim = self.model.truncate_dim or self.opened.width
        self.name = find_packaged_name(self.model.path) or str(self.model.path)

    @property
    def targets(self) -> dict[str, NDArray[np.float32] | None]:
        """Token weights (V,), None: 1 each, of the ``vectors`` and, before a calibration, of ``pooled`` ones."""
        return {"vectors": None} | ({"pooled": self.model.pooling.weights} if self.model.calibration else {})

    def make_tokenizer(self) -> Any:
        found = load_tokenizer(self.model.encoder)
        if self.model.modules is not None and self.model.modules.transformer.do_lower_case:
            lowercase_first(found)
        found.no_padding()
        found.enable_truncation(max(1, self.model.max_length - found.num_special_tokens_to_add(is_pair=False)))
        return found

    def __call__(self, texts: Sequence[str], count: Count | None = None) -> dict[str, Vectors]:
        """Embed ``texts``: target -> (n, D), ``vectors`` of length 1; ``count`` takes a batch's number of texts."""
        return self._make_targets(self.opened.pool(texts, None, None, None, count))

    def finish(self, target: str, found: NDArray[Any]) -> Vectors:
        """Make embeddings (n, D') of a target's vectors (n, D): calibrate them unless ``target`` is vectors."""
        return np.asarray(found, np.float32) if target == "vectors" else self._calibrate(found)

    def embed_tokens(self, ids: Sequence[Sequence[int]], count: Count = lambda done: None) -> dict[str, Vectors]:
        """Embed m lists of ids, each between a text's special tokens: target -> (m, D)."""
        before, after = self._frame
        parts = []
        for start in range(0, len(ids), BLOCK):
            rows = [[*before, *row, *after] for row in ids[start : start + BLOCK]]
            offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
            flat = np.array([i for row in rows for i in row], np.int32)
            pooled = self.opened.pool_tokens(Tokens(flat, offsets, np.empty(0, np.int64)))
            found = self._make_targets(pooled)
            if "pooled" in found and self.model.pooling.of_embeddings:
                found["pooled"] = self._remove_frame(np.asarray(pooled, np.float64), flat, offsets)
            parts.append(found)
            count(len(rows))
        return {target: np.concatenate([part[target] for part in parts]) for target in self.targets}

    def _remove_frame(self, pooled: NDArray[np.float64], ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> Vectors:
        """Subtract the special tokens' part of the means ``pooled`` (m, D)."""
        weights = self.model.pooling.weights
        each = np.ones(len(ids)) if weights is None else weights[ids].astype(np.float64)
        total = np.add.reduceat(each, offsets[:-1])[:, None]
        frame = [*self._frame[0], *self._frame[1]]
        share = float(len(frame) if weights is None else weights[frame].sum(dtype=np.float64))
        empty = np.asarray(self.opened.pool([""], None, None, None), np.float64)
        return np.asarray((pooled * total - empty * share) / np.maximum(total - share, 1e-12), np.float32)

    def _calibrate(self, pooled: Any) -> Vectors:
        return np.asarray(self.opened.transform(pooled, Options()), np.float32)

    def _make_targets(self, pooled: Any) -> dict[str, Vectors]:
        found = {"vectors": shorten(self._calibrate(pooled), True, None)}
        return found | {"pooled": np.asarray(pooled, np.float32)} if self.model.calibration else found

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        tokenize = self.opened.tokenizer
        empty, one = (tokenize([text]).ids.tolist() for text in ("", "a"))
        before = next((i for i, (x, y) in enumerate(zip(empty, one, strict=False)) if x != y), len(empty))
        if one[len(one) - (len(empty) - before) :] != empty[before:]:
            raise FastflowError(f"{self.model.encoder}: its tokenizer frames texts in a way that no token can be alone")
        return empty[:before], empty[before:]


class KeptTeacher(Teacher):
    """A teacher in bfloat16; the cache keeps its vectors of a corpus."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "bfloat16")
        self._known: dict[str, int] = {}

    @property
    def targets(self) -> dict[str, NDArray[np.float32] | None]:
        return {"vectors": None}

    def keep(self, texts: Sequence[str], corpus: str, reporter: Reporter, cache: Path | None = None) -> Vectors:
        """Map the vectors (n, D) of ``texts`` from the cache, and take them from there from now on."""
        parts = [self.model.fingerprint, self.opened.backend.name, corpus_hash(texts)]
        path = cache_directory(cache) / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}.npy"
        about = {"corpus": corpus, "encoder": self.name}
        self._vectors = keep_vectors(path, texts, self.dim, lambda: self._embed, about, reporter)
        self._known = {text: i for i, text in enumerate(texts)}
        return self._vectors

    def _embed(self, texts: Sequence[str], count: Count | None = None) -> Vectors:
        return super().__call__(texts, count)["vectors"]

    def __call__(self, texts: Sequence[str], count: Count | None = None) -> dict[str, Vectors]:
        if all(text in self._known for text in texts):
            return {"vectors": np.array(self._vectors[[self._known[text] for text in texts]])}
        return super().__call__(texts, count)


def measure_following(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Compute the mean cosine of corresponding rows (n, D)."""
    return float(compute_paired_cosine(found.astype(np.float64), wanted).mean())
