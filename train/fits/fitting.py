"""The map of training: texts and a frozen encoder -> a calibration, measured and ready to be saved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.choose import cannot_run
from fastflow.errors import UsageError
from fastflow.evaluation.evaluate import find_sets
from fastflow.train.choice.selection import AUTO, AUTO_STREAMED, Choice, choose
from fastflow.train.choice.separability import Views, make_views
from fastflow.train.choice.tuned import caution, why_tuned
from fastflow.train.data.embeddings import (
    OF_MODULES,
    Embedder,
    FrozenEncoder,
    cache_key,
    has_modules,
    open_encoder,
)
from fastflow.train.methods.chain import Fitted, check_chain, fit
from fastflow.train.methods.loop import Fitting, Schedule, Source
from fastflow.train.methods.names import parse_method, recoloured, shipped
from fastflow.train.methods.scalars import Scalars
from fastflow.train.options import FEWEST, POOLING, TUNED_SPECTRUM, Options
from fastflow.train.reading import Corpus, Run, background_of, describe, embed, fitted_count, part_of, read
from fastflow.train.ship import summary
from fastflow.train.ship.export import check_reference
from fastflow.train.ship.fit import Fit


def calibrate(
    texts: Iterable[str], names: Sequence[str], encoder: str, options: Options, run: Run, pairs: Sequence[Path] = ()
) -> Fit | None:
    """Fit a calibration on ``texts`` and measure it, without saving it; None from a dry run, which fits nothing.

    ``names`` say where the texts come from, for the record. ``encoder`` is a directory, a Hub id or ``default``;
    ``pairs`` are files of scored pairs to measure on, or folders of such .tsv files.
    Raises a FastflowError for files that cannot be read and texts that cannot be fitted, and a UsageError for options
    that do not go together.
    """
    asked, (options, reason) = options, settle(encoder, options, run.reference)
    options, doubt = gentle(encoder, asked, options, run.reference)
    frozen = prepare(encoder, options, run)
    if frozen.pooling.mode != "mean":  # token weights are of a mean, and recolour's defaults go by them
        options = replace(options, token_weights="none")
    sets = find_sets(pairs) if pairs else []
    if run.dry_run and options.stream:
        return None
    corpus = read(texts, ", ".join(names), frozen, options, run)
    automatic = asked.method == "auto"
    least = max(FEWEST, options.batch_size)
    if automatic and options.method == AUTO and corpus.count < least:
        options = replace(options, method="none")
        reason = (
            f"auto keeps the pooling as it is: a flow takes {least:,} texts or more, and these are {corpus.count:,}"
        )
    background = background_of(corpus, options)
    if doubt:
        run.voice.say(f"WARNING: {doubt}")
    concerns = [*([doubt] if doubt else []), *describe(corpus, options, run.voice, background.count)]
    if run.dry_run:
        if reason:
            run.voice.say(reason)
        return None
    pooled = embed(corpus, options, run)
    choice = fit_and_choose(corpus, pooled, options, run, automatic, background)
    if reason:
        choice.reasons.append(reason)
    measures = summary.before_and_after(choice.fitted, pooled, choice.views)
    if sets:
        measures["spearman"] = summary.spearman(choice.fitted, corpus.encoder, sets, options.device)
    training = record(corpus, names, asked, choice, measures, background.count)
    return Fit(corpus.encoder, choice, measures, training, corpus.texts, pooled, concerns)


def settle(encoder: str, options: Options, reference: bool = False) -> tuple[Options, str | None]:
    """``options`` with nothing left to auto, and the reason if the encoder is kept as it is.

    As it is are all modules of a directory of Sentence Transformers, unless it is left on the Hub (``reference``).
    """
    reason = why_tuned(encoder) if _unasked(options) else None
    method = "none" if reason else AUTO_STREAMED if options.stream else AUTO
    whole = options.pooling == OF_MODULES
    usual = {"method": method, "token_weights": "none" if reason or whole else "sif"}
    usual["pooling"] = _own_pooling(encoder, options, reference) if reason else POOLING
    settled: dict[str, Any] = {name: value for name, value in usual.items() if getattr(options, name) == "auto"}
    if reason:
        settled |= {"background": None, "background_words": None}  # nothing is fitted, with the corpus or on it
    return replace(options, **settled), reason


def gentle(encoder: str, asked: Options, settled: Options, reference: bool = False) -> tuple[Options, str | None]:
    """``settled`` with what suits a tuned encoder that is calibrated because it was ``asked``, and the warning.

    That is its own pooling, no token weights and the encoder's spectrum, where none is named.
    """
    if _unasked(asked) or settled.method == "none" or (doubt := caution(encoder)) is None:
        return settled, None
    own: dict[str, Any] = {}
    if asked.pooling == "auto":
        own["pooling"] = _own_pooling(encoder, asked, reference)
    if asked.token_weights == "auto":  # noqa: S105
        own["token_weights"] = "none"  # noqa: S105
    if asked.spectrum is None:
        own["spectrum"] = TUNED_SPECTRUM
    return replace(settled, **own), doubt


def _own_pooling(encoder: str, asked: Options, reference: bool) -> str:
    """The pooling that a tuned encoder was tuned with: its modules if they can be run, else the last layer's mean."""
    whole = not reference and asked.max_length is None and not asked.weighted and has_modules(encoder)
    return OF_MODULES if whole else "last"


def _unasked(options: Options) -> bool:
    """Whether nothing names a calibration, so that a tuned encoder is left as it is."""
    return options.method == "auto" and options.token_weights != "sif"  # noqa: S105


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
    if options.stream and (options.has_flow or options.sample):
        raise UsageError("--stream is for closed forms, such as whiten,recolour; a flow needs --sample N instead")
    if options.background and not recoloured(options.method, options.latent):
        latent = " with --latent" * options.latent
        raise UsageError(
            f"--background goes with recolour, and method {options.method}{latent} has none behind it: leave it out"
        )
    if options.background_words is not None and not (options.weighted or recoloured(options.method, options.latent)):
        raise UsageError("--background-words serves token weights and recolour, and this fit has neither: leave it out")
    check_chain(links, frozen.dim, options.shape())
    return frozen


def fit_and_choose(
    corpus: Corpus, pooled: NDArray[np.float32], options: Options, run: Run, automatic: bool, background: Corpus
) -> Choice:
    """The method fitted, or none where dropout views do not favour it; ``--stop budget`` takes no views."""
    views: Views | None = None
    if options.stop == "rule" and options.method != "none":
        views = make_views(corpus.texts, corpus.encoder, options.device, options.seed)
    corpus, pooled = part_of(corpus, pooled, options, background.count)
    texts = [*corpus.texts, *background.texts]
    live = _live(replace(corpus, texts=texts), options) if options.encoder_dropout and options.has_flow else None
    identity = cache_key(corpus.encoder, texts, options.device)
    of_background = embed(background, options, run) if background.count else None
    with Scalars(run.log_dir) as log:

        def once(name: str) -> Fitted:
            links, shape = shipped(parse_method(name), options.latent), options.shape(corpus.count, background.count)
            named = f"{identity} {name} dropout={options.encoder_dropout}"
            fitting = Fitting(Schedule.of(options), run.checkpoints, named, run.resume, views, log, run.voice)
            return fit(links, pooled, shape, fitting, options.colour, live, corpus.moments, of_background)

        if views is None:
            return Choice(once(options.method), options.method)
        return choose(options.method, once, views, automatic)


def record(
    corpus: Corpus, names: Sequence[str], options: Options, choice: Choice, measures: dict[str, Any], background: int
) -> dict[str, Any]:
    """The manifest's entry ``training``."""
    entry = {
        "corpus": list(names), "texts": corpus.count, "corpus_sha256": corpus.sha256,
        "fitted": fitted_count(corpus, options, background), "background": background,
        "method": options.method, "schedule": vars(Schedule.of(options)),
        "encoder_dropout": options.encoder_dropout,
        "streamed": options.stream, "sentences": options.sentences, "stop": options.stop,
        "choice": choice.record, "reasons": choice.reasons, **measures,
    }  # fmt: skip
    if corpus.encoder.hub_id:
        entry["encoder"] = {"hub_id": corpus.encoder.hub_id, "revision": corpus.encoder.revision}
    return entry


def _live(corpus: Corpus, options: Options) -> Source:
    """Pooled embeddings computed for each batch, with the encoder's dropout on."""
    embedder = Embedder(corpus.encoder, options.device, dropout=True)
    return lambda rows: embedder([corpus.texts[i] for i in rows])
