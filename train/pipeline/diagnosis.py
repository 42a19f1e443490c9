"""Look at the encoder and the texts of a fit: read, weigh, choose layers, and embed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.choose import cannot_run
from fastflow.model import tokenizer_of
from fastflow.model.encoder import size_of
from fastflow.model.tokenizer.fragmentation import warn_of_unsuited
from fastflow.train.data.background import Words, load_language, recognise_words, warn_of_case, warn_of_language
from fastflow.train.data.corpus import clean, corpus_hash, draw, pick_by_hash, read_corpus
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import FrozenEncoder, open_encoder
from fastflow.train.data.moments import Moments, read_through
from fastflow.train.data.token_weights import count_tokens, measure_perplexity, split_head, weigh
from fastflow.train.export.export import check_reference
from fastflow.train.methods.chain import SAMPLE, check_chain
from fastflow.train.options import TrainOptions
from fastflow.train.pipeline.recipe import Diagnosis, Recipe
from fastflow.train.reporter import Reporter, refuse
from fastflow.train.selection.heuristics import choose_pooling, find_tuning

COUNTED = 1250  # texts that perplexity is measured on
SENTENCES = 5000  # of --background-sentences


@dataclass(frozen=True)
class Corpus:
    """The distinct ``texts`` to fit to, or a sample of a corpus that is read once, embedded as ``pooled`` (k, D).

    ``count`` and ``sha256`` are of the whole corpus; ``words`` are of its language; ``head`` are its first texts.
    """

    name: str
    texts: list[str]
    count: int
    sha256: str
    encoder: FrozenEncoder
    words: Words | None = None
    order: str | None = None
    pooled: NDArray[np.float32] | None = None
    moments: Moments | None = None
    head: Sequence[str] = ()


def diagnose_encoder(name: str, reference: bool = False) -> Diagnosis:
    """Look at the encoder ``name``; ``reference``: it stays on the Hub, without its modules."""
    frozen = open_encoder(name, "last", None)
    whole = not reference and frozen.modules is not None and frozen.modules.truncate_dim is None
    return Diagnosis(find_tuning(frozen), whole, size_of(frozen.directory).layers)


def open_suited(name: str, options: TrainOptions, reference: bool) -> FrozenEncoder:
    """Open the encoder; raises for options that do not suit it, before the corpus is read."""
    if reason := cannot_run("torch", options.device):
        raise reason
    frozen = open_encoder(name, options.pooling, options.max_length)
    if reference:
        check_reference(frozen)
    if options.language != "en":
        load_language(options.language)
    check_chain(options.links, frozen.dim, options.shape())
    return frozen


def read(texts: Iterable[str], name: str, frozen: FrozenEncoder, plan: Recipe, reporter: Reporter) -> Corpus:
    """Read the corpus and suit the encoder to it; with ``stream`` also embed it."""
    options, found = plan.options, clean(texts, plan.options.sentences)
    if options.stream:
        head, found = split_head(found)
    else:
        head = draw(reporter.count("corpus", found), name, options.sample, options.seed)
    words, order = _find_words(head, options), None
    if options.has_weights:
        frozen = weigh(frozen, head, words)
    if plan.chooses_layers:
        english = words is not None and options.source is None
        frozen, order = choose_pooling(frozen, head, english, options.order_from, options.device, reporter.write)
    if not options.stream:
        return Corpus(name, head, len(head), corpus_hash(head), frozen, words, order, head=head)
    streamed = read_through(found, Embedder(frozen, options.device), SAMPLE, options.seed, reporter)
    kept, moments = streamed.texts, streamed.moments
    reporter.write(f"corpus: {moments.count} texts, read once; {len(kept)} of them kept to measure on")
    shown = pick_by_hash(head, COUNTED, options.seed)
    return Corpus(
        name, kept, moments.count, streamed.sha256, frozen, words, order, streamed.pooled, moments, shown
    )  # fmt: skip


def _find_words(texts: Sequence[str], options: TrainOptions) -> Words | None:
    words = recognise_words(texts, options.background_words, options.language)
    if options.background_sentences is not None:
        if words is None:
            raise refuse(
                "{background_sentences} goes with the words of its language, and the corpus is not English: add "
                "{language} or {background_words}"
            )
        found = pick_by_hash(read_corpus([options.background_sentences]), SENTENCES, options.seed)
        return words._replace(sentences=tuple(found))
    return words if words is None or options.background is None else words._replace(sentences=())


def diagnose(seen: Diagnosis, corpus: Corpus, options: TrainOptions) -> Diagnosis:
    """Add the findings about the texts of ``corpus`` to the findings ``seen`` about the encoder."""
    frozen, words = corpus.encoder, corpus.words
    tokenizer = tokenizer_of(frozen.directory, frozen.max_length)
    concerns: list[str | None] = []
    if frozen.modules is not None and frozen.head is None and frozen.modules.beyond_encoder():
        concerns.append(frozen.modules.warn_of_unused())
    concerns.append(warn_of_unsuited(tokenizer, corpus.texts))
    if options.source and words:
        concerns.append(warn_of_language(words, corpus.texts, options.source))
        concerns.append(warn_of_case(words, corpus.texts, tokenizer, options.source))
    return replace(
        seen,
        texts=corpus.count,
        words=words is not None,
        sentences=0 if words is None else len(words.sentences),
        perplexity=measure_corpus_perplexity(frozen, corpus.head),
        length=median(len(text.split()) for text in corpus.texts),
        pooling=f"{frozen.dim} dimensions, {frozen.pooling.describe()}",
        order=corpus.order,
        concerns=tuple(concern for concern in concerns if concern),
    )


def measure_corpus_perplexity(frozen: FrozenEncoder, texts: Sequence[str]) -> float:
    """Compute exp(entropy) of the token distribution of COUNTED of ``texts``."""
    rows = np.linspace(0, len(texts) - 1, min(len(texts), COUNTED)).astype(int)
    return measure_perplexity(count_tokens(frozen, [texts[row] for row in rows]))
