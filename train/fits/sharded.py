"""A fit to a corpus that many workers read: the map of ``fitting``, with another way to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fastflow.errors import FastflowError, UsageError
from fastflow.train.data.corpus import clean
from fastflow.train.data.embeddings import FrozenEncoder
from fastflow.train.data.sharded import (
    Counting,
    Embedding,
    Encoding,
    Measuring,
    Shards,
    Workers,
    count_all,
    embed_all,
    measure_all,
)
from fastflow.train.data.token_weights import weigh_by
from fastflow.train.fits.fitting import calibrate_corpus
from fastflow.train.methods.chain import SAMPLE
from fastflow.train.options import Options
from fastflow.train.reading import COUNTED, Corpus, Run, language_of
from fastflow.train.ship.fit import Fit

FLOW_SAMPLE = 100_000  # distinct texts that a flow is trained on, unless asked otherwise


def calibrate_sharded(
    texts: Callable[[], Iterable[str]],
    names: Sequence[str],
    encoder: str,
    options: Options,
    run: Run,
    workers: Workers,
    pairs: Sequence[Path] = (),
) -> Fit | None:
    """Fit a calibration on the texts that every call of ``texts`` gives in the same order; None from a dry run.

    Closed forms are fitted to the statistics of all texts. A flow, which ``auto`` is without ``stream``, is trained on
    a sample of distinct ones. Token weights are of all texts in either case.
    Raises as ``calibrate`` does, and for texts that are not the same at the second reading.
    """
    options = settled(options)

    def reader(frozen: FrozenEncoder, options: Options) -> Corpus:
        return read(texts, ", ".join(names), encoder, frozen, options, run, workers)

    return calibrate_corpus(reader, names, encoder, options, run, pairs)


def settled(options: Options) -> Options:
    """``options`` with ``stream`` for closed forms, and a sample for a flow."""
    if options.encoder_dropout:
        raise UsageError("--encoder-dropout runs the encoder at every step, which workers cannot: leave it out")
    if options.device != "cpu":
        raise UsageError("workers compute on CPUs: leave out --device")
    flow = options.has_flow or (options.method == "auto" and not options.stream)
    if not flow:
        return replace(options, stream=True)
    return replace(options, sample=FLOW_SAMPLE) if options.sample is None and not options.stream else options


def read(
    texts: Callable[[], Iterable[str]],
    name: str,
    encoder: str,
    frozen: FrozenEncoder,
    options: Options,
    run: Run,
    workers: Workers,
) -> Corpus:
    """The corpus in two passes: counts and a sample, then for closed forms the statistics of all embeddings."""
    shards = Shards(lambda: clean(texts(), options.sentences), name)
    encoding = Encoding(encoder, options.pooling, frozen.max_length, frozen.hash, frozen.pooling, options.device)
    weighted = options.weighted
    kept = SAMPLE if options.stream or options.sample is None else options.sample
    with run.voice.progress("corpus", None, "texts") as progress:
        counted = count_all(workers, Counting(encoding, weighted, kept, options.seed), shards, progress.advance)
    if not counted.texts:
        raise FastflowError(f"{name}: holds no text")
    words = language_of(list(counted.sample.values()), options)
    if counted.tokens is not None:
        frozen = weigh_by(frozen, counted.tokens, words)
        encoding = replace(encoding, pooling=frozen.pooling)
    sample, statistics = list(counted.sample.values()), None
    if options.stream:
        with run.voice.progress("encoder", counted.texts, "texts") as progress:
            statistics = measure_all(workers, Measuring(encoding), shards, frozen.dim, progress.advance)
    pooled = embed_all(workers, Embedding(encoding), sample, frozen.dim)
    run.voice.say(f"corpus: {counted.texts} texts, read by workers; {len(sample)} of them kept")
    count = counted.texts if options.stream else len(sample)
    return Corpus(name, sample, count, shards.sha256, frozen, words, pooled, statistics, sample[:COUNTED])
