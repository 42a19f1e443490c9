"""The map of training: texts and a frozen encoder -> a calibration, measured and ready to be saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.choose import cannot_run
from fastflow.errors import FastflowError, UsageError
from fastflow.evaluation.evaluate import find_sets
from fastflow.model.fragmentation import unsuited
from fastflow.model.tokens import Tokenizer
from fastflow.train.choice.selection import AUTO, AUTO_STREAMED, Choice, choose
from fastflow.train.choice.separability import Views, make_views
from fastflow.train.choice.tuned import why_tuned
from fastflow.train.data.background import is_english, sentences
from fastflow.train.data.corpus import clean, corpus_hash, draw
from fastflow.train.data.embeddings import OF_MODULES, Embedder, FrozenEncoder, cache_key, embed_corpus, open_encoder
from fastflow.train.data.moments import Moments, read_through
from fastflow.train.data.token_weights import weigh, weigh_by_first
from fastflow.train.methods.chain import SAMPLE, Fitted, check_chain, fit
from fastflow.train.methods.loop import Schedule, Source
from fastflow.train.methods.names import parse_method, recoloured, shipped
from fastflow.train.methods.scalars import Scalars
from fastflow.train.options import FEWEST, Options, background_of
from fastflow.train.ship import summary
from fastflow.train.ship.export import check_reference
from fastflow.train.ship.fit import Fit
from fastflow.train.voice import COMMAND, Voice

PARAGRAPH = (
    40  # words: with equal token weights, no fit on Wikipedia's paragraphs beats raw pooling of sentences (study.md)
)


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

    ``count`` and ``sha256`` are of the whole corpus; ``encoder`` has the token weights of its texts.
    """

    name: str
    texts: list[str]
    count: int
    sha256: str
    encoder: FrozenEncoder
    pooled: NDArray[np.float32] | None = None  # (k, D) of a corpus that is read once
    moments: Moments | None = None


def calibrate(
    texts: Iterable[str], names: Sequence[str], encoder: str, options: Options, run: Run, pairs: Sequence[Path] = ()
) -> Fit | None:
    """Fit a calibration on ``texts``, which come from ``names``; None from a dry run.

    ``encoder`` is a directory, a Hub id or ``default``; ``pairs`` are files of scored pairs to measure on.
    Raises a FastflowError for files that cannot be read and texts that cannot be fitted, and a UsageError for options
    that do not go together.
    """

    def whole(frozen: FrozenEncoder, options: Options) -> Corpus:
        return read(texts, ", ".join(names), frozen, options, run)

    return calibrate_corpus(whole, names, encoder, options, run, pairs)


def calibrate_corpus(
    reader: Callable[[FrozenEncoder, Options], Corpus],
    names: Sequence[str],
    encoder: str,
    options: Options,
    run: Run,
    pairs: Sequence[Path] = (),
) -> Fit | None:
    """``calibrate`` on the corpus that ``reader`` reads with the encoder and settled options."""
    asked, (options, reason) = options, settle(encoder, options)
    frozen = prepare(encoder, options, run)
    if frozen.pooling.mode != "mean":  # token weights are of a mean, and recolour's defaults go by them
        options = replace(options, token_weights="none")
    sets = find_sets(pairs) if pairs else []
    if run.dry_run and options.stream:
        return None
    corpus = reader(frozen, options)
    automatic = asked.method == "auto"
    least = max(FEWEST, options.batch_size)
    if automatic and options.method == AUTO and corpus.count < least:
        options = replace(options, method="none")
        reason = (
            f"auto keeps the pooling as it is: a flow takes {least:,} texts or more, and these are {corpus.count:,}"
        )
    beside = background(corpus, options)
    concerns = describe(corpus, options, run.voice, beside.count)
    if run.dry_run:
        if reason:
            run.voice.say(reason)
        return None
    pooled = embed(corpus, options, run)
    choice = fit_and_choose(corpus, pooled, options, run, automatic, beside)
    if reason:
        choice.reasons.append(reason)
    measures = summary.before_and_after(choice.fitted, pooled, choice.views)
    if sets:
        measures["spearman"] = summary.spearman(choice.fitted, corpus.encoder, sets, options.device)
    training = record(corpus, names, asked, choice, measures, beside.count)
    return Fit(corpus.encoder, choice, measures, training, corpus.texts, pooled, concerns)


def settle(encoder: str, options: Options) -> tuple[Options, str | None]:
    """``options`` with nothing left to auto, and the reason if the encoder is kept as it is."""
    unasked = options.method == "auto" and options.token_weights != "sif"  # noqa: S105
    reason = why_tuned(encoder) if unasked else None
    method = "none" if reason else AUTO_STREAMED if options.stream else AUTO
    whole = options.pooling == OF_MODULES
    usual = {"method": method, "token_weights": "none" if reason or whole else "sif"}
    usual["pooling"] = "last" if reason else "first-last"
    settled: dict[str, Any] = {name: value for name, value in usual.items() if getattr(options, name) == "auto"}
    return replace(options, **settled), reason


def prepare(encoder: str, options: Options, run: Run) -> FrozenEncoder:
    """The encoder, once everything that can be refused before the corpus is read has been checked."""
    if reason := cannot_run("torch", options.device):
        raise reason
    if options.stop == "likelihood":
        raise UsageError("--stop likelihood is for vectors without an encoder: texts take --stop rule or budget")
    links = shipped(parse_method(options.method), options.latent)
    frozen = open_encoder(encoder, options.pooling, options.max_length)
    if frozen.head is not None and options.token_weights != "none":  # noqa: S105
        raise UsageError("--pooling model pools as the directory says: leave out --token-weights")
    if run.reference:
        check_reference(frozen)
    if options.stream and (_has_flow(options) or options.sample):
        raise UsageError("--stream is for closed forms, such as whiten,recolour; a flow needs --sample N instead")
    if options.background and not recoloured(options.method, options.latent):
        latent = " with --latent" * options.latent
        raise UsageError(
            f"--background goes with recolour, and method {options.method}{latent} has none behind it: leave it out"
        )
    check_chain(links, frozen.dim, options.shape())
    return frozen


def read(texts: Iterable[str], name: str, frozen: FrozenEncoder, options: Options, run: Run) -> Corpus:
    """The corpus, with the token weights that its texts give; a streamed one is embedded on the way."""
    found, weighted = clean(texts, options.sentences), _weighted(options)
    if options.stream:
        if weighted:
            frozen, found = weigh_by_first(frozen, found)
        embedder = Embedder(frozen, options.device)
        streamed = read_through(found, embedder, SAMPLE, options.seed, run.voice)
        kept, statistics = streamed.texts, streamed.moments
        run.voice.say(f"corpus: {statistics.count} texts, read once; {len(kept)} of them kept to measure on")
        return Corpus(name, kept, statistics.count, streamed.sha256, frozen, streamed.pooled, statistics)
    kept = draw(found, name, options.sample, options.seed)
    if weighted:
        frozen = weigh(frozen, kept)
    return Corpus(name, kept, len(kept), corpus_hash(kept), frozen)


def background(corpus: Corpus, options: Options) -> Corpus:
    """The sentences of random words that a recoloured method is fitted to beside the corpus, which may be none."""
    count = 0
    if recoloured(options.method, options.latent):
        usual = background_of(corpus.count) if is_english(corpus.texts) else 0
        count = usual if options.background is None else options.background
    return replace(corpus, name="the background", texts=sentences(count), count=count, pooled=None, moments=None)


def describe(corpus: Corpus, options: Options, voice: Voice, beside: int = 0) -> list[str]:
    """Describe the corpus to the user; returns warnings about it. Raises where nothing can be fitted.

    ``beside``: sentences of the background.
    """
    frozen, concerns = corpus.encoder, []
    steps = _steps(corpus.count, options) and _steps(corpus.count + beside, options)  # the corpus alone fills a batch
    if corpus.count < 2:
        raise FastflowError("the corpus holds a single distinct text, which shows nothing to calibrate; give more text")
    if not options.stream:
        voice.say(
            f"corpus: {corpus.count} distinct texts; encoder: {frozen.dim} dimensions, {frozen.pooling.describe()}"
        )
    if frozen.modules is not None and frozen.head is None:
        concerns.append(frozen.modules.unused())
    words = sum(len(text.split()) for text in corpus.texts) / len(corpus.texts)
    if words > PARAGRAPH and options.method != "none" and not _weighted(options):  # weighted: as good as cut
        concerns.append(
            f"these texts have {words:.0f} words on average, and a calibration fitted on paragraphs may harm "
            "sentences: if you will embed sentences, use --sentences"
        )
    if warning := unsuited(Tokenizer(frozen.directory, frozen.max_length), corpus.texts):
        concerns.append(warning)
    for concern in concerns:
        voice.say(f"WARNING: {concern}")
    if beside:
        voice.say(f"background: {beside} sentences of random English words, to which the method is fitted too")
    elif options.background is None and recoloured(options.method, options.latent):
        voice.say("background: no sentences of random English words, because the corpus is not English")
    if steps:
        voice.say(
            f"flow: {steps} steps of {options.batch_size} texts; "
            "embeddings are continuous, so negative bits per dimension are in order"
        )
    return concerns


def embed(corpus: Corpus, options: Options, run: Run) -> NDArray[np.float32]:
    """(n, D) pooled embeddings of the corpus's texts: from the pass that read it, from the cache, or computed."""
    if corpus.pooled is not None:
        return corpus.pooled
    if run.cache is not None:
        return embed_corpus(corpus.texts, corpus.encoder, run.cache, options.device, corpus.name, run.voice)
    embedder = Embedder(corpus.encoder, options.device)
    with run.voice.progress("encoder", corpus.count, "texts") as progress:
        return embedder(corpus.texts, progress.advance)


def fit_and_choose(
    corpus: Corpus, pooled: NDArray[np.float32], options: Options, run: Run, automatic: bool, beside: Corpus
) -> Choice:
    """The method fitted, or none where dropout views do not favour it; ``--stop budget`` takes no views."""
    texts = [*corpus.texts, *beside.texts]
    live = _live(replace(corpus, texts=texts), options) if options.encoder_dropout and _has_flow(options) else None
    identity = cache_key(corpus.encoder, texts, options.device)
    ground = embed(beside, options, run) if beside.count else None
    views: Views | None = None
    if options.stop == "rule" and options.method != "none":
        views = make_views(corpus.texts, corpus.encoder, options.device, options.seed)
    with Scalars(run.log_dir) as log:

        def once(name: str) -> Fitted:
            return fit(
                shipped(parse_method(name), options.latent),
                pooled,
                options.shape(corpus.count, beside.count),
                schedule_of(options),
                options.colour,
                live,
                run.checkpoints,
                f"{identity} {name} dropout={options.encoder_dropout}",
                run.resume,
                log,
                views,
                corpus.moments,
                run.voice,
                ground,
            )

        if views is None:
            return Choice(once(options.method), options.method)
        return choose(options.method, once, views, automatic)


def record(
    corpus: Corpus, names: Sequence[str], options: Options, choice: Choice, measures: dict[str, Any], beside: int
) -> dict[str, Any]:
    """The manifest's entry ``training``."""
    entry = {
        "corpus": list(names), "texts": corpus.count, "corpus_sha256": corpus.sha256,
        "background": beside, "method": options.method, "schedule": vars(schedule_of(options)),
        "encoder_dropout": options.encoder_dropout,
        "streamed": options.stream, "sentences": options.sentences, "stop": options.stop,
        "choice": choice.record, "reasons": choice.reasons, **measures,
    }  # fmt: skip
    if corpus.encoder.hub_id:
        entry["encoder"] = {"hub_id": corpus.encoder.hub_id, "revision": corpus.encoder.revision}
    return entry


def _weighted(options: Options) -> bool:
    return options.token_weights == "sif"  # noqa: S105


def _has_flow(options: Options) -> bool:
    return "flow" in options.method


def schedule_of(options: Options) -> Schedule:
    """How a flow of the fit is trained."""
    return Schedule(**{field.name: getattr(options, field.name) for field in fields(Schedule)})


def _steps(texts: int, options: Options) -> int:
    """The steps of a flow on ``texts``; 0 without one, and where auto leaves it out because there are too few texts."""
    return schedule_of(options).steps(texts) if _has_flow(options) else 0


def _live(corpus: Corpus, options: Options) -> Source:
    """Pooled embeddings computed for each batch, with the encoder's dropout on."""
    embedder = Embedder(corpus.encoder, options.device, dropout=True)
    return lambda rows: embedder([corpus.texts[i] for i in rows])
