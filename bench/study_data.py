"""Embeddings for the study: every layer's masked mean of each set and corpus, and two noisy views of a sample of them.

Computed once into a cache directory: NAME.npy (n, layers + 1, D) float32, NAME.json the texts, NAME.v.KIND0.npy and
NAME.v.KIND1.npy the views, NAME.noisy.npy one pass with the encoder's dropout on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.backend_torch import TorchBackend
from fastflow.evaluate import SEVEN, Pairs, read_pairs, score
from fastflow.tokens import Tokenizer
from fastflow.train.corpus import read_corpus
from fastflow.train.embeddings import FrozenEncoder, open_encoder
from fastflow.vectors import paired_cosine

Matrix = NDArray[np.float64]
Map = Callable[[Matrix], Matrix]

FIT, CONFIRM = SEVEN[:3], SEVEN[3:]  # rules are chosen on STS12-14 and confirmed on the rest
CORPORA = {  # file, sample (None: all of it)
    "snli": ("nli-snli-dev-test.txt", None),
    "news": ("leipzig-eng-news-2016-10k.txt", None),
    "qnli": ("nli-qnli-dev-test.txt", None),
    "wiki": ("wikipedia-core.txt.gz", 5000),
    "novels": ("eltec-eng-novels.txt.gz", 5000),
    "snli500": ("nli-snli-dev-test.txt", 500),
}
NOISY = (*SEVEN, "snli")  # texts that a flow is also trained on with the encoder's dropout
VIEWS = ("drop", "del", "half")
VIEWED = 1500  # texts of which views are made
FIRST_LAST = (1, 4)


class Store:
    """The cache directory ``root`` of the embeddings of one encoder."""

    def __init__(self, root: Path, data: Path) -> None:
        self.root, self.data = root, data

    @lru_cache(maxsize=64)  # noqa: B019 - one store lives as long as the process
    def layers(self, name: str, layers: tuple[int, ...] = FIRST_LAST) -> Matrix:
        """(n, D) mean of ``layers``, in float64."""
        held = np.load(self.root / f"{name}.npy", mmap_mode="r")
        return np.asarray(held[:, list(layers)].mean(axis=1), np.float64)

    @lru_cache(maxsize=8)  # noqa: B019
    def pairs(self, name: str) -> tuple[Pairs, NDArray[np.int64], NDArray[np.int64]]:
        """The scored pairs of a set and the rows of both sides."""
        pairs = read_pairs(self.data / "sts" / f"{name}.tsv")
        where = {text: i for i, text in enumerate(json.loads((self.root / f"{name}.json").read_text()))}
        return pairs, *(np.array([where[text.strip()] for text in side]) for side in (pairs.first, pairs.second))  # type: ignore[return-value]

    def spearman(self, name: str, calibrate: Map, layers: tuple[int, ...] = FIRST_LAST) -> list[float]:
        """[all, wmean] of one set under a calibration."""
        pairs, first, second = self.pairs(name)
        z = calibrate(self.layers(name, layers))
        row = score(pairs, paired_cosine(z[first], z[second]))
        return [row["all"], row["wmean"]]


class Layers:
    """texts -> (n, layers + 1, D) masked means of every layer; ``dropout`` leaves the encoder's noise on."""

    def __init__(self, encoder: FrozenEncoder) -> None:
        self._tokenizer = Tokenizer(encoder.directory, encoder.max_length)
        self._quiet = TorchBackend(encoder.model, "float32", "cpu", 1)
        self._noisy = TorchBackend(encoder.model, "float32", "cpu", 1)
        self._noisy.train_mode()

    def __call__(self, texts: Sequence[str], dropout: bool = False) -> NDArray[np.float32]:
        backend, tokens = self._noisy if dropout else self._quiet, self._tokenizer(texts)
        out: NDArray[np.float32] | None = None
        for rows in tokens.batches(len(texts), 4096):
            output, mask = backend.encoder(tokens.select(rows))
            weights = mask[:, :, None].float()
            means = torch.stack([(s * weights).sum(1) / weights.sum(1) for s in output.hidden_states], 1).numpy()
            if out is None:
                out = np.empty((len(texts), *means.shape[1:]), np.float32)
            out[rows] = means
        if out is None:
            raise ValueError("no texts to embed")
        return out


def word_views(texts: Sequence[str], seed: int = 7) -> dict[str, tuple[list[str], list[str]]]:
    """Views made on words: the two halves of a text, and two copies that each lost three words in ten."""
    rng = random.Random(seed)
    halves: tuple[list[str], list[str]] = ([], [])
    deleted: tuple[list[str], list[str]] = ([], [])
    for text in texts:
        words = text.split()
        middle = len(words) // 2
        halves[0].append(" ".join(words[:middle]))
        halves[1].append(" ".join(words[middle:]))
        for side in deleted:
            side.append(" ".join([word for word in words if rng.random() > 0.3] or words))
    return {"half": halves, "del": deleted}


def preparer(encoder: str, data: Path, root: Path, say: Callable[[str], None]) -> Callable[[str], None]:
    """``need(name)``: fill the cache with whatever is missing of one set or corpus."""
    root.mkdir(parents=True, exist_ok=True)
    layers = Layers(open_encoder(encoder, "first-last", None))

    def keep(name: str, texts: Sequence[str], dropout: bool = False) -> None:
        path = root / f"{name}.npy"
        if not path.exists():
            partial = path.with_suffix(".partial.npy")
            np.save(partial, layers(texts, dropout))
            partial.replace(path)
            say(f"embedded {name}: {len(texts)} texts")

    def read(name: str) -> list[str]:
        if name in CORPORA:
            file, size = CORPORA[name]
            return read_corpus([str(data / "corpora" / file)], sample=size)
        pairs = read_pairs(data / "sts" / f"{name}.tsv")
        return list(dict.fromkeys(text.strip() for text in [*pairs.first, *pairs.second] if text.strip()))

    def need(name: str) -> None:
        path = root / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(read(name)))
        texts = json.loads(path.read_text())
        keep(name, texts)
        suitable = [text for text in texts if 6 <= len(text.split()) <= 60]
        sample = random.Random(7).sample(suitable, min(VIEWED, len(suitable)))
        torch.manual_seed(7)
        for i in (0, 1):
            keep(f"{name}.v.drop{i}", sample, dropout=True)
            for kind, sides in word_views(sample).items():
                keep(f"{name}.v.{kind}{i}", sides[i])
        if name in NOISY:
            keep(f"{name}.noisy", texts, dropout=True)

    return need
