"""The common parts of the end-to-end suites: the texts, candidates that take texts, and their check against PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fastflow.bench.measure.compare import Agreement, Candidate, agreement
from fastflow.bench.measure.subject import Array, Subject
from fastflow.bench.peers.pooled import reference
from fastflow.bench.peers.text_engines import Embed, TextCandidate
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model
from fastflow.model.tokenizer.encode import Tokens

CHECKOUT = Path(__file__).resolve().parent.parent.parent
STSB = CHECKOUT.parent / "shared" / "data" / "sts" / "STSb-test.tsv"
LINES = CHECKOUT / "examples" / "novels.txt"
BATCH = 32  # texts in a padded batch: Sentence Transformers' default
CHECKED = 64  # texts, spread over the list, whose vectors are compared with PyTorch's
Tokenize = Callable[[Sequence[str]], Tokens]


def real_texts(most: int | None) -> tuple[list[str], str]:
    """The sentences of STSb-test if the data are, else lines of novels; and what they are, in words.

    ``most``: this many, spread over the list; None: all.
    """
    if STSB.is_file():
        lines = STSB.read_text(encoding="utf-8").splitlines()[1:]
        texts, source = [text for line in lines for text in line.split("\t")[2:4]], "the sentences of STSb-test"
    elif LINES.is_file():
        texts, source = LINES.read_text(encoding="utf-8").splitlines(), "the lines of examples/novels.txt"
    else:
        raise FastflowError(f"bench: no texts for the end-to-end suite: neither {STSB} nor {LINES} is there")
    if most is not None:
        texts, source = texts[:: max(1, len(texts) // most)][:most], f"some of {source}"
    return texts, source


def tokenizer_of(subject: Subject) -> Tokenize:
    """Texts -> tokens as the subject's model makes them, its default prompt before each."""
    tokenize = load_model(subject.model).tokenizer()
    return lambda texts: tokenize([subject.prompt + text for text in texts])


class Check:
    """Compares the pooled vectors of some of the texts with PyTorch's in float32."""

    def __init__(self, subject: Subject, texts: Sequence[str], tokenize: Tokenize) -> None:
        self.subject, self.tokenize = subject, tokenize
        self.few = [texts[i] for i in np.unique(np.linspace(0, len(texts) - 1, min(CHECKED, len(texts))).astype(int))]
        self._exact: dict[tuple[int, ...] | None, Array] = {}

    def __call__(self, candidate: TextCandidate) -> Agreement:
        """How far ``candidate`` agrees; raises FastflowError if its precision does not allow the difference."""
        if candidate.layers not in self._exact:
            run = reference(self.subject, candidate.layers)
            self._exact[candidate.layers] = padded(run, self.tokenize)(self.few)
        if candidate.alone:
            z = np.concatenate([candidate.prepare([text])() for text in self.few])
        else:
            z = candidate.prepare(self.few)() if candidate.pool is None else candidate.pool(self.few)
        return agreement(candidate, np.array(z), self._exact[candidate.layers])


def of_texts(
    name: str, dtype: str, backend: str, embed: Embed, pool: Embed | None = None, layers: tuple[int, ...] | None = None
) -> TextCandidate:
    """A candidate that embeds texts."""
    return TextCandidate(name, dtype, backend, lambda texts: partial(embed, texts), pool=pool, layers=layers)


def on_padded(candidate: Candidate, tokenize: Tokenize) -> TextCandidate:
    """A candidate for texts out of one for padded token ids."""
    embed = padded(lambda ids, mask: candidate.prepare(ids, mask)(), tokenize)
    return of_texts(candidate.name, candidate.dtype, candidate.backend, embed)


def padded(run: Callable[[Array, Array], Any], tokenize: Tokenize) -> Embed:
    """``run`` on padded batches of texts sorted by length, results in the texts' order."""

    def embed(texts: Sequence[str]) -> Array:
        tokens = tokenize(texts)
        lengths = np.diff(tokens.offsets)
        order, out = np.argsort(-lengths, kind="stable"), None
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            mask = (np.arange(lengths[rows].max()) < lengths[rows, None]).astype(np.int64)
            ids = np.zeros_like(mask)
            ids[mask.astype(bool)] = tokens.select(rows).ids
            z = run(ids, mask)
            out = np.empty((len(texts), z.shape[1]), np.float32) if out is None else out
            out[rows] = z
        return np.zeros((0, 0), np.float32) if out is None else out

    return embed
