"""Read, weigh, describe and embed the corpus and background of a fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.model import tokenizer_of
from fastflow.model.tokenizer.fragmentation import warn_of_unsuited
from fastflow.train.choice.neighbours import choose_pooling
from fastflow.train.data.background import Words, draw_sentences, recognise_words, warn_of_case, warn_of_language
from fastflow.train.data.corpus import clean, corpus_hash, draw, pick_by_hash, read_corpus
from fastflow.train.data.embeddings import Embedder, embed_corpus
from fastflow.train.data.encoder import FrozenEncoder
from fastflow.train.data.moments import Moments, read_through
from fastflow.train.data.token_weights import count_tokens, measure_perplexity, split_head, weigh
from fastflow.train.methods.chain import SAMPLE
from fastflow.train.methods.loop import Schedule
from fastflow.train.options import BACKGROUND, BROAD_SHARE, SHARE, Options
from fastflow.train.progress import COMMAND, Voice

PARAGRAPH = 40  # words: above, on Wikipedia, no fit with equal weights beats raw pooling (bench/results/verdicts.md)
VARIED = 270  # perplexity above which the number of fitted texts does not grow
COUNTED = 1250  # texts that perplexity is measured on
SENTENCES = 5000  # of --background-sentences


@dataclass(frozen=True)
class Setup:
    """The settings of a fit that do not change its numbers, such as folders.

    A ``dry_run`` stops before embedding. ``reference`` stores the encoder's Hub id, not a copy.
    """

    voice: Voice = COMMAND
    cache: Path | None = None
    checkpoints: Path | None = None
    resume: bool = False
    log_dir: str | None = None
    dry_run: bool = False
    reference: bool = False


@dataclass(frozen=True)
class Corpus:
    """The distinct ``texts`` to fit to, or a sample of a corpus that is read once.

    ``count`` and ``sha256`` are of the whole corpus; ``words`` are of its language.
    """

    name: str
    texts: list[str]
    count: int
    sha256: str
    encoder: FrozenEncoder
    words: Words | None = None
    reasons: Sequence[str] = ()
    pooled: NDArray[np.float32] | None = None  # (k, D) of the sample of a corpus that is read once
    moments: Moments | None = None
    shown: Sequence[str] | None = None

    @cached_property
    def perplexity(self) -> float:
        """exp(entropy) of the token distribution of COUNTED texts."""
        rows = np.linspace(0, len(self.texts) - 1, min(len(self.texts), COUNTED)).astype(int)
        shown = [self.texts[row] for row in rows] if self.shown is None else self.shown
        return measure_perplexity(count_tokens(self.encoder, shown))


def read(
    texts: Iterable[str],
    name: str,
    frozen: FrozenEncoder,
    options: Options,
    voice: Voice,
    free: bool = False,
) -> Corpus:
    """Read the corpus and suit the encoder to it; with ``stream`` also embed it. If ``free``, choose layers."""
    found = clean(texts, options.sentences)
    if options.stream:
        head, found = split_head(found)
        words = _find_words(head, options)
        suited, reasons = suit(frozen, head, words, options, free, voice)
        streamed = read_through(found, Embedder(suited, options.device), SAMPLE, options.seed, voice)
        kept, statistics = streamed.texts, streamed.moments
        voice.say(f"corpus: {statistics.count} texts, read once; {len(kept)} of them kept to measure on")
        shown = pick_by_hash(head, COUNTED, options.seed)
        return Corpus(
            name, kept, statistics.count, streamed.sha256, suited, words, reasons, streamed.pooled, statistics, shown,
        )  # fmt: skip
    kept = draw(voice.count("corpus", found), name, options.sample, options.seed)
    words = _find_words(kept, options)
    suited, reasons = suit(frozen, kept, words, options, free, voice)
    return Corpus(name, kept, len(kept), corpus_hash(kept), suited, words, reasons)


def suit(
    frozen: FrozenEncoder,
    texts: Sequence[str],
    words: Words | None,
    options: Options,
    free: bool,
    voice: Voice,
) -> tuple[FrozenEncoder, list[str]]:
    """Weigh the tokens and, if ``free``, choose the layers; return the encoder and reasons of the choice."""
    if options.has_weights:
        frozen = weigh(frozen, texts, words)
    if not free:
        return frozen, []
    english = words is not None and options.source is None
    frozen, reason = choose_pooling(frozen, texts, english, options.order_from, options.device, voice.say)
    return frozen, [reason] if reason else []


def _find_words(texts: Sequence[str], options: Options) -> Words | None:
    words = recognise_words(texts, options.background_words, options.language)
    if options.background_sentences is not None:
        if words is None:
            raise UsageError(
                "--background-sentences goes with the words of its language, and the corpus is not English: add "
                "--language or --background-words"
            )
        found = pick_by_hash(read_corpus([options.background_sentences]), SENTENCES, options.seed)
        return words._replace(sentences=tuple(found))
    return words if words is None or options.background is None else words._replace(sentences=())


def make_background(corpus: Corpus, options: Options) -> Corpus:
    """Make the sentences, perhaps none, that recolour is fitted to with the corpus."""
    texts: list[str] = []
    if options.has_recolour and options.background is None:
        texts = _make_usual_background(corpus.words, corpus.count)
    elif options.has_recolour and options.background:
        if corpus.words is None:
            raise UsageError(
                "--background draws English words, and the corpus is not English: give the words of its language by "
                "--language or --background-words, or leave it out"
            )
        texts = draw_sentences(options.background, corpus.words)
    return replace(corpus, name="the background", texts=texts, count=len(texts), pooled=None, moments=None)


def _make_usual_background(words: Words | None, count: int) -> list[str]:
    if words is None:
        return []
    least, most = BACKGROUND
    number = len(words.sentences) or max(least, min(SHARE * count, most))
    return [*words.sentences, *draw_sentences(number, words)]


def count_fitted(corpus: Corpus, options: Options, background: int) -> int:
    """Count the texts to fit with ``background`` sentences: the smaller the vocabulary, the fewer.

    The leading directions of a narrow corpus are its topics, which a fit would equalise.
    """
    if options.background is not None or not background:
        return corpus.count
    if corpus.words is None or not corpus.words.sentences:
        return min(corpus.count, background // SHARE)
    most = background // BROAD_SHARE * min(1.0, corpus.perplexity / VARIED) ** 3
    return min(corpus.count, max(2, int(most)))


def pick_fitted(
    corpus: Corpus, pooled: NDArray[np.float32], options: Options, background: int
) -> tuple[Corpus, NDArray[np.float32]]:
    """Draw ``count_fitted`` texts with embeddings; Moments of a streamed corpus count as so many texts."""
    size = count_fitted(corpus, options, background)
    if size == corpus.count:
        return corpus, pooled
    if corpus.moments is not None:
        return replace(corpus, moments=corpus.moments.count_as(size)), pooled
    rows = np.sort(np.random.default_rng((options.seed, 1 << 35)).choice(corpus.count, size, replace=False))
    return replace(corpus, texts=[corpus.texts[row] for row in rows], count=size), np.asarray(pooled[rows])


def describe(corpus: Corpus, options: Options, voice: Voice, background: int = 0) -> list[str]:
    """Describe the corpus and return warnings; raises for a single text."""
    frozen, fitted = corpus.encoder, count_fitted(corpus, options, background)
    steps = _count_steps(corpus.count, options) and _count_steps(fitted + background, options)  # both check the batch
    if corpus.count < 2:
        raise FastflowError("the corpus holds a single distinct text, which shows nothing to calibrate; give more text")
    if not options.stream:
        voice.say(
            f"corpus: {corpus.count} distinct texts; encoder: {frozen.dim} dimensions, {frozen.pooling.describe()}"
        )
    concerns = _find_concerns(corpus, options, voice)
    for concern in concerns:
        voice.say(f"WARNING: {concern}")
    if background:
        too = ", to which the method is fitted too"
        if fitted < corpus.count:
            whole, drawn = f"all texts, which count as {fitted}", f"{fitted} of the texts, drawn at random"
            too = f"; the method is fitted to them and to {whole if options.stream else drawn}"
        if fitted < min(corpus.count, background // BROAD_SHARE):
            too += ", few because their vocabulary is small"
        kind = f"sentences of the language at large{too}"
        if corpus.words is not None and not corpus.words.sentences and options.background is None:
            kind = f"sentences of random words{too}; --background-sentences FILE adds real ones"
        voice.say(f"background: {background} {kind}")
    elif options.background is None and options.has_recolour:
        voice.say("background: none, because the corpus is not English; --language CODE gives one")
    if steps:
        voice.say(
            f"flow: {steps} steps of {options.batch_size} texts; "
            "embeddings are continuous, so negative bits per dimension are in order"
        )
    return concerns


def _find_concerns(corpus: Corpus, options: Options, voice: Voice) -> list[str]:
    frozen, concerns = corpus.encoder, []
    if frozen.modules is not None and frozen.head is None and frozen.modules.beyond_encoder():
        concerns.append(frozen.modules.warn_of_unused())
    words = median(len(text.split()) for text in corpus.texts)
    if words > PARAGRAPH and options.method != "none":
        paragraphs = f"these texts are paragraphs, of {words:.0f} words in the median"
        if options.has_weights:
            voice.say(
                f"corpus: {paragraphs}; the defaults were chosen on sentences: to embed sentences, use fastflow-train "
                "--sentences; to search paragraphs, compare with word search by fastflow eval"
            )
        else:
            concerns.append(
                f"{paragraphs}, and a calibration fitted on them may harm sentences: if you will embed sentences, use "
                "--sentences"
            )
    tokenizer = tokenizer_of(frozen.directory, frozen.max_length)
    found = [warn_of_unsuited(tokenizer, corpus.texts)]
    if options.source and corpus.words:
        found.append(warn_of_language(corpus.words, corpus.texts, options.source))
        found.append(warn_of_case(corpus.words, corpus.texts, tokenizer, options.source))
    return [*concerns, *(warning for warning in found if warning)]


def embed(corpus: Corpus, options: Options, setup: Setup) -> NDArray[np.float32]:
    """Embed ``corpus.texts`` (n, D), perhaps from the cache."""
    if corpus.pooled is not None:
        return corpus.pooled
    if setup.cache is not None:
        return embed_corpus(corpus.texts, corpus.encoder, setup.cache, options.device, corpus.name, setup.voice)
    embedder = Embedder(corpus.encoder, options.device)
    with setup.voice.progress("encoder", corpus.count, "texts") as progress:
        return embedder(corpus.texts, progress.advance)


def _count_steps(texts: int, options: Options) -> int:
    return Schedule.of(options).steps(texts) if options.has_flow else 0
