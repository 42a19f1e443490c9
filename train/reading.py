"""The corpus of a fit: read, weighted, described, embedded, and the background that goes with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.model.kinds import tokenizer_of
from fastflow.model.tokenizer.fragmentation import unsuited
from fastflow.train.data.background import Words, caseless, random_sentences, unlike, words_of
from fastflow.train.data.corpus import clean, corpus_hash, draw
from fastflow.train.data.embeddings import Embedder, FrozenEncoder, embed_corpus
from fastflow.train.data.moments import Moments, read_through
from fastflow.train.data.sharded import by_hash
from fastflow.train.data.token_weights import first_of, perplexity, token_counts, weigh
from fastflow.train.methods.chain import SAMPLE
from fastflow.train.methods.loop import Schedule
from fastflow.train.methods.names import recoloured
from fastflow.train.options import BACKGROUND, BROAD_SHARE, SHARE, Options
from fastflow.train.progress import COMMAND, Voice

PARAGRAPH = 40  # words: with equal weights no fit on paragraphs beats raw pooling (bench/results/verdicts.md)
VARIED = 270  # tokens as varied as those of texts that need no further outweighing: chosen in bench/results/verdicts.md
COUNTED = 1250  # texts whose tokens show how varied a corpus is


@dataclass(frozen=True)
class Run:
    """The surroundings of a fit, which do not change its result.

    ``cache`` keeps pooled embeddings (None: memory does), ``checkpoints`` those of a flow (None: nothing does),
    ``log_dir`` TensorBoard scalars. ``dry_run`` stops before the encoder's pass over the corpus. ``reference`` is that
    of ``export``, checked before anything is read.
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
    """``texts`` to fit on: the distinct ones, or of a corpus read once a sample, with the statistics of the whole.

    ``count`` and ``sha256`` are of the whole corpus; ``encoder`` has the token weights of its texts; ``words`` are
    those of its language, if they are known.
    """

    name: str
    texts: list[str]
    count: int
    sha256: str
    encoder: FrozenEncoder
    words: Words | None = None
    pooled: NDArray[np.float32] | None = None  # (k, D) of a corpus that is read once
    moments: Moments | None = None
    shown: Sequence[str] | None = None  # COUNTED texts, the same for every reader; None: some of texts

    @cached_property
    def perplexity(self) -> float:
        """How many tokens, all equally frequent, would be as varied as those of COUNTED of the texts."""
        rows = np.linspace(0, len(self.texts) - 1, min(len(self.texts), COUNTED)).astype(int)
        shown = [self.texts[row] for row in rows] if self.shown is None else self.shown
        return perplexity(token_counts(self.encoder, shown))


def read(texts: Iterable[str], name: str, frozen: FrozenEncoder, options: Options, run: Run) -> Corpus:
    """The corpus, with the token weights that its texts give; a streamed one is embedded on the way."""
    found, weighted = clean(texts, options.sentences), options.weighted
    if options.stream:
        head, found = first_of(found)
        words = language_of(head, options)
        if weighted:
            frozen = weigh(frozen, head, words)
        embedder = Embedder(frozen, options.device)
        streamed = read_through(found, embedder, SAMPLE, options.seed, run.voice)
        kept, statistics = streamed.texts, streamed.moments
        run.voice.say(f"corpus: {statistics.count} texts, read once; {len(kept)} of them kept to measure on")
        shown = by_hash(head, COUNTED, options.seed)
        return Corpus(name, kept, statistics.count, streamed.sha256, frozen, words, streamed.pooled, statistics, shown)
    kept = draw(run.voice.counting("corpus", found), name, options.sample, options.seed)
    words = language_of(kept, options)
    if weighted:
        frozen = weigh(frozen, kept, words)
    return Corpus(name, kept, len(kept), corpus_hash(kept), frozen, words)


def language_of(texts: Sequence[str], options: Options) -> Words | None:
    """The language of ``texts``, if it is known; beside a background that was asked for its words alone."""
    words = words_of(texts, options.background_words)
    return words if words is None or options.background is None else words._replace(sentences=())


def background_of(corpus: Corpus, options: Options) -> Corpus:
    """The sentences that a recoloured method is fitted to with the corpus; there may be none."""
    texts: list[str] = []
    if recoloured(options.method, options.latent):
        if options.background is None:
            texts = usual_background(corpus.words, corpus.count)
        elif options.background:
            if corpus.words is None:
                raise UsageError(
                    "--background draws English words, and the corpus is not English: give the words of its language "
                    "by --background-words, or leave it out"
                )
            texts = random_sentences(options.background, corpus.words)
    return replace(corpus, name="the background", texts=texts, count=len(texts), pooled=None, moments=None)


def fitted_count(corpus: Corpus, options: Options, background: int) -> int:
    """How many texts are fitted with ``background`` sentences: all beside a number that was asked for.

    A corpus of one field has its topics as leading directions. A fit that it outweighs takes them for what all texts
    have in common, and equalises them. The smaller its vocabulary, the fewer of its texts count.
    """
    if options.background is not None or not background:
        return corpus.count
    if corpus.words is None or not corpus.words.sentences:
        return min(corpus.count, background // SHARE)
    most = background // BROAD_SHARE * min(1.0, corpus.perplexity / VARIED) ** 3
    return min(corpus.count, max(2, int(most)))


def part_of(
    corpus: Corpus, pooled: NDArray[np.float32], options: Options, background: int
) -> tuple[Corpus, NDArray[np.float32]]:
    """The part of the corpus that is fitted, and its embeddings: ``fitted_count`` texts drawn at random.

    The statistics of a corpus that was read once are of all texts, and count as those of that many.
    """
    size = fitted_count(corpus, options, background)
    if size == corpus.count:
        return corpus, pooled
    if corpus.moments is not None:
        return replace(corpus, moments=corpus.moments.counted(size)), pooled
    rows = np.sort(np.random.default_rng((options.seed, 1 << 35)).choice(corpus.count, size, replace=False))
    return replace(corpus, texts=[corpus.texts[row] for row in rows], count=size), np.asarray(pooled[rows])


def describe(corpus: Corpus, options: Options, voice: Voice, background: int = 0) -> list[str]:
    """Describe the corpus to the user; returns warnings about it. Raises if nothing can be fitted.

    ``background``: its sentences.
    """
    frozen, concerns, fitted = corpus.encoder, [], fitted_count(corpus, options, background)
    steps = _steps(corpus.count, options) and _steps(fitted + background, options)  # the corpus alone fills a batch
    if corpus.count < 2:
        raise FastflowError("the corpus holds a single distinct text, which shows nothing to calibrate; give more text")
    if not options.stream:
        voice.say(
            f"corpus: {corpus.count} distinct texts; encoder: {frozen.dim} dimensions, {frozen.pooling.describe()}"
        )
    if frozen.modules is not None and frozen.head is None and frozen.modules.beyond_encoder():
        concerns.append(frozen.modules.unused())
    words = median(len(text.split()) for text in corpus.texts)
    if words > PARAGRAPH and options.method != "none":
        paragraphs = f"these texts are paragraphs, of {words:.0f} words in the median"
        if options.weighted:  # as good as cut
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
    found = [unsuited(tokenizer, corpus.texts)]
    if options.background_words and corpus.words:
        found += [unlike(corpus.words, corpus.texts), caseless(corpus.words, corpus.texts, tokenizer)]
    concerns += [warning for warning in found if warning]
    for concern in concerns:
        voice.say(f"WARNING: {concern}")
    if background:
        too = ", to which the method is fitted too"
        if fitted < corpus.count:
            drawn = f"to {fitted} of the texts, drawn at random"
            too = "; the method is fitted to them and " + (
                f"to all texts, which count as {fitted}" if options.stream else drawn
            )
            if fitted < background // BROAD_SHARE:
                too += ", few because their vocabulary is small"
        voice.say(f"background: {background} sentences of the language at large{too}")
    elif options.background is None and recoloured(options.method, options.latent):
        voice.say("background: none, because the corpus is not English; --background-words FILE gives one")
    if steps:
        voice.say(
            f"flow: {steps} steps of {options.batch_size} texts; "
            "embeddings are continuous, so negative bits per dimension are in order"
        )
    return concerns


def embed(corpus: Corpus, options: Options, run: Run) -> NDArray[np.float32]:
    """(n, D) pooled embeddings of ``corpus.texts``; of a streamed corpus those are a sample, embedded when it was read.

    Others come from ``run.cache``, where they are put if they are not there yet; without a cache they are computed.
    """
    if corpus.pooled is not None:
        return corpus.pooled
    if run.cache is not None:
        return embed_corpus(corpus.texts, corpus.encoder, run.cache, options.device, corpus.name, run.voice)
    embedder = Embedder(corpus.encoder, options.device)
    with run.voice.progress("encoder", corpus.count, "texts") as progress:
        return embedder(corpus.texts, progress.advance)


def _steps(texts: int, options: Options) -> int:
    """The steps of a flow on ``texts``; 0 without one, and where auto leaves it out because there are too few texts."""
    return Schedule.of(options).steps(texts) if options.has_flow else 0


def usual_background(words: Words | None, count: int) -> list[str]:
    """The sentences beside a corpus of ``count`` texts: those of its language and as many of random words.

    A language that has words alone has SHARE of random words for each text, within BACKGROUND.
    """
    if words is None:
        return []
    least, most = BACKGROUND
    number = len(words.sentences) or max(least, min(SHARE * count, most))
    return [*words.sentences, *random_sentences(number, words)]
