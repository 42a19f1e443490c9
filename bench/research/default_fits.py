"""The fits and figures of ``default``: a corpus, a candidate and a seed -> the figure of a set."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastflow.bench.research.default_model import mixture
from fastflow.evaluation.classes import LabelledTexts
from fastflow.evaluation.evaluate import Pairs, Task, measure, read_task
from fastflow.model.tokens import Tokenizer
from fastflow.stages.calibration import Stage, apply
from fastflow.stages.rows import Joined, Rows
from fastflow.train.choice.separability import make_views
from fastflow.train.data.background import background, words_of
from fastflow.train.data.corpus import clean, read_corpus
from fastflow.train.data.embeddings import Embedder, FrozenEncoder, open_encoder
from fastflow.train.data.token_weights import PRIOR, sif_weights, token_counts
from fastflow.train.methods.chain import fit
from fastflow.train.methods.loop import Fitting, Schedule
from fastflow.train.methods.names import parse_method
from fastflow.train.methods.recolour import fit_recolour, joint_moments
from fastflow.train.options import DEFAULTS, POOLING, Options
from fastflow.train.progress import SILENT
from fastflow.train.reading import Corpus, background_of, part_of

CORPORA = {  # name -> file in corpora/, and paragraphs to draw (None: every line), cut into sentences
    "news": ("leipzig-eng-news-2016-10k.txt", None),
    "snli": ("nli-snli-dev-test.txt", None),
    "novels": ("eltec-eng-novels.txt.gz", 5000),
    "wiki": ("wikipedia-core.txt.gz", 5000),
    "German novels": ("../tasks/corpora/eltec-deu-novels.txt.zst", 5000),
}
MOST = 10_000  # sentences of a corpus of paragraphs
MAIN = {"pairs": "ap", "retrieval": "ndcg@10"}
COLOUR = tuple(DEFAULTS.colour.values())
ALL = (
    3_000,
    10_000,
    100_000,
)  # sentences with all texts: three a text within the first two, a third of a larger corpus


@dataclass(frozen=True)
class Candidate:
    """A way to fit: ``prior`` times the corpus's frequencies those of the language count (None: every token counts 1).

    ``colour`` is recolour's spectrum, mean share and demoted directions. ``background``: *outweighs* the corpus as in
    fastflow-train, goes with *all* texts of it, or *none*.
    """

    pooling: str = POOLING
    prior: float | None = PRIOR
    method: str = "flow"
    colour: tuple[float, float, int] = COLOUR
    background: str = "outweighs"

    def sentences(self, texts: int) -> int | None:
        """How many sentences of random words are asked for with so many texts; None: fastflow-train decides."""
        least, usual, most = ALL
        counts = {"outweighs": None, "all": max(least, min(3 * texts, usual), min(texts // 3, most)), "none": 0}
        return counts[self.background]

    @property
    def fitless(self) -> bool:
        """Whether it is the same on every corpus."""
        return self.prior is None and self.method == "none"


class Lab:
    """Sets and corpora of ``data``, and the fits of ``encoder`` to them; ``words`` is a list as --background-words.

    Texts are cut at ``max_length`` tokens.
    """

    def __init__(self, encoder: str, data: Path, words: str | None = None, max_length: int | None = None) -> None:
        self.encoder, self.data, self.words, self.max_length = encoder, data, words, max_length

    def embed(self, frozen: FrozenEncoder, texts: list[str]) -> NDArray[np.float32]:
        """(n, D) pooled vectors."""
        return Embedder(frozen, "cpu")(texts)

    @lru_cache(maxsize=None)  # noqa: B019, UP033 - one lab lives as long as the process
    def task(self, name: str) -> Task:
        """The set ``name``."""
        places = [
            self.data / "sts",
            *(self.data / "tasks" / kind for kind in ("classes", "pairs", "retrieval", "sts-multi")),
        ]
        return read_task(next(p for place in places for p in (place / f"{name}.tsv", place / name) if p.exists()))

    @lru_cache(maxsize=None)  # noqa: B019, UP033
    def texts(self, corpus: str) -> list[str]:
        """The distinct texts of a corpus, or of a set; a number after a comma draws that many."""
        name, _, count = corpus.partition(", ")
        if count:
            return random.Random(0).sample(self.texts(name), min(int(count), len(self.texts(name))))
        if name == "mix":
            return list(dict.fromkeys(mixture(self.data)))
        if name in CORPORA:
            file, paragraphs = CORPORA[name]
            lines = read_corpus([str(self.data / "corpora" / file)], sample=paragraphs)
            found = list(dict.fromkeys(clean(lines, cut=paragraphs is not None)))
            return found if paragraphs is None else random.Random(0).sample(found, min(MOST, len(found)))
        return list(dict.fromkeys(clean(self.task(name).texts)))

    def figure(self, corpus: str, candidate: Candidate, seed: int, name: str) -> float:
        """The main figure of the set ``name`` under the candidate's fit to ``corpus``."""
        return self.main_figure(name, self.vectors(corpus, candidate, seed, name))

    def main_figure(self, name: str, vectors: NDArray[np.float64]) -> float:
        """The main figure of the set ``name`` under the vectors (n, D) of its texts."""
        task = self.task(name)
        if isinstance(task, LabelledTexts):
            return task.clusters(vectors).value
        return measure(task, vectors)["all" if isinstance(task, Pairs) else MAIN[task.kind]]

    def both(self, corpus: str, candidate: Candidate, seed: int, name: str) -> list[float]:
        """[all, wmean] of the scored pairs ``name``."""
        found = measure(self.task(name), self.vectors(corpus, candidate, seed, name))
        return [found["all"], found["wmean"]]

    def vectors(self, corpus: str, candidate: Candidate, seed: int, name: str) -> NDArray[np.float64]:
        """(n, D) of the texts of the set ``name``."""
        frozen, stages = self.fitted(corpus.replace("own texts", name), candidate, seed)
        pooled = self.embed(frozen, list(self.task(name).texts)).astype(np.float64)
        return np.asarray(apply([stage.astype(np.float64) for stage in stages], pooled))

    def fitted(self, corpus: str, candidate: Candidate, seed: int) -> tuple[FrozenEncoder, list[Stage]]:
        """The encoder with the candidate's token weights, and the stages fitted to ``corpus``."""
        frozen = self.weighed(corpus, candidate.pooling, candidate.prior)
        if candidate.method == "none":
            return frozen, []
        base, end, _ = candidate.method.partition(",recolour")
        stages, rows = self.uncoloured(corpus, replace(candidate, method=base, colour=COLOUR), seed)
        if not end and base != "flow":
            return frozen, stages
        joint = joint_moments(stages, rows)
        return frozen, [*stages, fit_recolour(joint, frozen.dim, *candidate.colour)]

    @lru_cache(maxsize=32)  # noqa: B019
    def uncoloured(self, corpus: str, candidate: Candidate, seed: int) -> tuple[list[Stage], Rows]:
        """The stages before recolour, and the rows that they are fitted to: the corpus, then random words."""
        frozen = self.weighed(corpus, candidate.pooling, candidate.prior)
        texts = self.texts(corpus)
        whole = Corpus(corpus, texts, len(texts), "", frozen, words_of(texts, self.words))
        options = Options("flow", seed=seed, background=candidate.sentences(len(texts)) if whole.words else None)
        beside = background_of(whole, options)
        part, pooled = part_of(whole, self.embed(frozen, texts), options, beside.count)
        ground = self.embed(frozen, beside.texts) if beside.count else None
        views = make_views(texts, frozen, seed=seed) if candidate.method == "flow" else None
        fitting = Fitting(Schedule(seed=seed), views=views, voice=SILENT)
        shape = DEFAULTS.shape(part.count, beside.count)
        made = fit(parse_method(candidate.method), pooled, shape, fitting, background=ground)
        return list(made.stages), pooled if ground is None else Joined(pooled, ground)

    @lru_cache(maxsize=64)  # noqa: B019
    def weighed(self, corpus: str, pooling: str, prior: float | None) -> FrozenEncoder:
        """The encoder with the token weights of ``corpus``."""
        frozen = open_encoder(self.encoder, pooling, self.max_length)
        if prior is None:
            return frozen
        texts = self.texts(corpus)
        counts, words = token_counts(frozen, texts), words_of(texts, self.words)
        tokenize = Tokenizer(frozen.directory, frozen.max_length)
        at_large = background(tokenize, len(counts), words) if words else None
        return replace(frozen, pooling=replace(frozen.pooling, weights=sif_weights(counts, at_large, prior)))
