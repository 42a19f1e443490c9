"""Embeddings for the study: every layer's pooled states of each set and corpus, and two noisy views of a sample.

Computed once into a cache directory: NAME.npy (n, layers + 1, D) float32, NAME.json the texts, NAME.v.KIND0.npy and
NAME.v.KIND1.npy the views, NAME.noisy.npy one pass with the encoder's dropout on. NAME@sif weights tokens by
a / (a + p(token)), a = 1e-3, without [CLS] and [SEP] (Arora et al. 2017), p counted over CORPORA; NAME@prompt is the
[MASK] state of PROMPT (Jiang et al. 2022).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.backends.torch import TorchBackend
from fastflow.evaluation.evaluate import SEVEN, Pairs, read_pairs, score
from fastflow.model.tokens import Tokenizer, load_tokenizer
from fastflow.stages.vectors import paired_cosine
from fastflow.train.data.corpus import read_corpus
from fastflow.train.data.embeddings import FrozenEncoder, open_encoder

Matrix = NDArray[np.float64]
Map = Callable[[Matrix], Matrix]

FIT, CONFIRM = SEVEN[:3], SEVEN[3:]  # rules are chosen on STS12-14 and confirmed on the rest
CORPORA = {  # file, sample (None: all of it)
    "snli": ("nli-snli-dev-test.txt", None),
    "news": ("leipzig-eng-news-2016-10k.txt", None),
    "qnli": ("nli-qnli-dev-test.txt", None),
    "wiki": ("wikipedia-core.txt.gz", 5000),
    "wiki-sentences": ("wikipedia-core.txt.gz", 5000),  # the same paragraphs, cut into sentences, 10,000 of them
    "novels": ("eltec-eng-novels.txt.gz", 5000),
    "snli500": ("nli-snli-dev-test.txt", 500),
}
LARGE = {"flickr100k": ("nli-flickr30k-premises.txt.gz", 100_000)}
CUT = {"novel-sentences": ("eltec-eng-novels.txt.gz", 5000)}  # into sentences, 10,000 of them
NOISY = (*SEVEN, "snli")  # texts that a flow is also trained on with the encoder's dropout
POOLINGS = ("", "@sif", "@prompt")
PROMPT = 'This sentence : "{}" means [MASK].'
SIF = 1e-3
VIEWS = ("drop", "del", "half")
VIEWED = 1500  # texts of which views are made
FIRST_LAST = (1, 4)
SPECIAL = ("[CLS]", "[SEP]", "[MASK]", "[PAD]")
VOCABULARY = 30_522


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

    def spearman(
        self, name: str, calibrate: Map, layers: tuple[int, ...] = FIRST_LAST, pooling: str = ""
    ) -> list[float]:
        """[all, wmean] of one set under a calibration."""
        pairs, first, second = self.pairs(name)
        z = calibrate(self.layers(name + pooling, layers))
        row = score(pairs, paired_cosine(z[first], z[second]))
        return [row["all"], row["wmean"]]


class Layers:
    """texts -> (n, layers + 1, D) pooled states of every layer; ``dropout`` leaves the encoder's noise on."""

    def __init__(self, encoder: FrozenEncoder) -> None:
        self._tokenizer = Tokenizer(encoder.directory, encoder.max_length)
        self._quiet = TorchBackend(encoder.model, "float32", "cpu", 1)
        self._noisy = TorchBackend(encoder.model, "float32", "cpu", 1)
        self._noisy.train_mode()
        self._special = {name: load_tokenizer(encoder.directory).token_to_id(name) for name in SPECIAL}
        self._frequencies: torch.Tensor | None = None

    def count(self, texts: Sequence[str]) -> None:
        """Take the weights of ``@sif`` from the tokens of ``texts``."""
        counts = torch.from_numpy(np.bincount(self._tokenizer(texts).ids, minlength=VOCABULARY)).double()
        counts[list(self._special.values())] = 0
        self._frequencies = (SIF / (SIF + counts / counts.sum())).float()
        self._frequencies[list(self._special.values())] = 0

    def __call__(self, texts: Sequence[str], dropout: bool = False, pooling: str = "") -> NDArray[np.float32]:
        backend = self._noisy if dropout else self._quiet
        tokens = self._tokenizer([PROMPT.format(text) for text in texts] if pooling == "@prompt" else texts)
        out: NDArray[np.float32] | None = None
        for rows in tokens.batches(len(texts), 4096):
            batch = tokens.select(rows)
            output, mask = backend.hidden_states(batch)
            weights = self._weights(torch.from_numpy(batch.ids).long(), mask, pooling)[:, :, None]
            total = weights.sum(1).clamp(min=1e-6)  # a text of special tokens alone, or one cut before its [MASK]
            means = torch.stack([(s * weights).sum(1) / total for s in output.hidden_states], 1).numpy()
            if out is None:
                out = np.empty((len(texts), *means.shape[1:]), np.float32)
            out[rows] = means
        if out is None:
            raise ValueError("no texts to embed")
        return out

    def _weights(self, ids: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
        """(B, T) from the packed ids (N,)."""
        weights = mask.float()
        if pooling == "@prompt":
            weights[mask] = (ids == self._special["[MASK]"]).float()
        elif pooling == "@sif":
            if self._frequencies is None:
                raise ValueError("count a corpus first")
            weights[mask] = self._frequencies[ids]
        return weights


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


def read_texts(name: str, data: Path) -> list[str]:
    """The distinct texts of the set or corpus ``name`` in the directory ``data``."""
    if name in CORPORA or name in LARGE or name in CUT:
        file, size = (CORPORA | LARGE | CUT)[name]
        texts = read_corpus([str(data / "corpora" / file)], sample=size)
        if name.endswith("-sentences"):
            cut = [part for text in texts for part in re.split(r"(?<=[.!?]) +(?=[A-Z])", text)]
            return random.Random(0).sample(list(dict.fromkeys(cut)), 10_000)
        return texts
    pairs = read_pairs(data / "sts" / f"{name}.tsv")
    return list(dict.fromkeys(text.strip() for text in [*pairs.first, *pairs.second] if text.strip()))


class Preparer:
    """``need(name, pooling)`` fills the cache with whatever is missing of one set or corpus."""

    def __init__(self, encoder: str, data: Path, root: Path, say: Callable[[str], None]) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._data, self._root, self._say = data, root, say
        self._layers = Layers(open_encoder(encoder, "first-last", None))
        self._counted = False

    def need(self, name: str, pooling: str = "") -> None:
        texts = self._texts(name)
        if pooling == "@sif" and not self._counted:
            self._layers.count([text for corpus in CORPORA for text in self._texts(corpus)])
            self._counted = True
        self._keep(name, pooling, "", texts)
        suitable = [text for text in texts if 6 <= len(text.split()) <= 60]
        sample = random.Random(7).sample(suitable, min(VIEWED, len(suitable)))
        for i in (0, 1):
            torch.manual_seed(7 + i)  # anew for each, so that one made after an interruption is not the other again
            self._keep(name, pooling, f".v.drop{i}", sample, dropout=True)
            for kind, sides in word_views(sample).items() if not pooling else ():
                self._keep(name, pooling, f".v.{kind}{i}", sides[i])
        if name in NOISY and not pooling:
            self._keep(name, pooling, ".noisy", texts, dropout=True)

    def _texts(self, name: str) -> list[str]:
        path = self._root / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(read_texts(name, self._data)))
        return list(json.loads(path.read_text()))

    def _keep(self, name: str, pooling: str, suffix: str, texts: Sequence[str], dropout: bool = False) -> None:
        path = self._root / f"{name}{pooling}{suffix}.npy"
        if not path.exists():
            partial = path.with_suffix(".partial.npy")
            np.save(partial, self._layers(texts, dropout, pooling))
            partial.replace(path)
            self._say(f"embedded {path.stem}: {len(texts)} texts")
