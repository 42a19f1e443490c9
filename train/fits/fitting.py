"""Fit to texts: read, embed, fit, choose, and measure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.choose import cannot_run
from fastflow.errors import UsageError
from fastflow.evaluation.evaluate import find_sets
from fastflow.model.encoder import size_of
from fastflow.model.tokenizer.fragmentation import take_words
from fastflow.model.tokenizer.languages import recognise
from fastflow.train.choice.selection import AUTO, AUTO_STREAMED, Choice, choose
from fastflow.train.choice.separability import Views, make_views
from fastflow.train.choice.tuned import explain_tuning, warn_of_tuning
from fastflow.train.data.background import load_language
from fastflow.train.data.embeddings import Embedder, cache_key
from fastflow.train.data.encoder import OF_MODULES, FrozenEncoder, has_modules, open_encoder
from fastflow.train.fits.corpus import Corpus, Setup, count_fitted, describe, embed, make_background, pick_fitted, read
from fastflow.train.methods.chain import Fitted, check_chain, fit_chain
from fastflow.train.methods.loop import Schedule, Source, Training, open_log
from fastflow.train.option_fields import flag
from fastflow.train.options import DEFAULTS, FEWEST, OF_LANGUAGE, POOLING, TUNED_SPECTRUM, Options
from fastflow.train.ship import summary
from fastflow.train.ship.export import check_reference
from fastflow.train.ship.result import Fit


@dataclass(frozen=True)
class Fitting:
    """A fit to texts; ``encoder`` is a directory or name, ``pairs`` are files or folders of scored pairs."""

    encoder: str
    options: Options
    setup: Setup = field(default_factory=Setup)
    pairs: Sequence[Path] = ()

    def run(self, texts: Iterable[str], names: Sequence[str]) -> Fit | None:
        """Fit and measure, without saving; ``names`` are recorded. A dry run gives None."""
        setup = self.setup
        if self.options.order_from is not None and self.options.pooling != "auto":
            raise UsageError("--order-from compares poolings for --pooling auto: leave one of them out")
        options, reason = resolve_auto(self.encoder, self.options, setup.reference)
        options, doubt = suit_tuned(self.encoder, self.options, options, setup.reference)
        frozen = check_encoder(self.encoder, options, setup.reference)
        if self.options.order_from is not None and (reason or doubt or not size_of(frozen.directory).layers):
            raise UsageError("--order-from compares layers, and this encoder was tuned or has none: leave it out")
        if frozen.pooling.mode != "mean":  # only a mean has token weights, on which recolour's defaults depend
            if self.options.has_weights:
                raise UsageError(f"--token-weights sif is for a mean, and --pooling {options.pooling} is none")
            options = replace(options, token_weights="none")
        sets = find_sets(self.pairs) if self.pairs else []
        if setup.dry_run and options.stream:
            return None
        free = self.options.pooling == "auto" and not (reason or doubt)
        corpus = read(texts, ", ".join(names), frozen, options, setup.voice, free)
        automatic = self.options.method == "auto"
        least = max(FEWEST, options.batch_size)
        if automatic and options.method == AUTO and corpus.count < least:
            options = replace(options, method="none")
            reason = (
                f"auto keeps the pooling as it is: a flow takes {least:,} texts or more, and these are {corpus.count:,}"
            )
        background = make_background(corpus, options)
        concerns = [doubt] if doubt else []
        for concern in concerns:
            setup.voice.say(f"WARNING: {concern}")
        concerns += describe(corpus, options, setup.voice, background.count)
        reasons = [*corpus.reasons, *([reason] if reason else [])]
        if setup.dry_run:
            for reason in reasons:
                setup.voice.say(reason)
            return None
        pooled = embed(corpus, options, setup)
        choice = replace(self, options=options)._choose(corpus, pooled, automatic, background)
        choice.reasons += reasons
        measures = summary.measure_change(choice.fitted, pooled, choice.views)
        if sets:
            measures["spearman"] = summary.measure_spearman(choice.fitted, corpus.encoder, sets, options.device)
        training = self._record(corpus, names, choice, measures, background.count)
        return Fit(corpus.encoder, choice, measures, training, corpus.texts, pooled, concerns)

    def _choose(self, corpus: Corpus, pooled: NDArray[np.float32], automatic: bool, background: Corpus) -> Choice:
        options, setup = self.options, self.setup
        views: Views | None = None
        if options.stop == "rule" and options.method != "none":
            views = make_views(corpus.texts, corpus.encoder, options.device, options.seed)
        corpus, pooled = pick_fitted(corpus, pooled, options, background.count)
        texts = [*corpus.texts, *background.texts]
        live: Source | None = None
        if options.encoder_dropout and options.has_flow:
            embedder = Embedder(corpus.encoder, options.device, dropout=True)
            live = lambda rows: embedder([texts[i] for i in rows])  # noqa: E731
        identity = cache_key(corpus.encoder, texts, options.device)
        of_background = embed(background, options, setup) if background.count else None
        with open_log(setup.log_dir) as log:

            def fit_method() -> Fitted:
                shape = options.shape(corpus.count, background.count)
                run = f"{identity} {options.method} dropout={options.encoder_dropout}"
                training = Training(Schedule.of(options), setup.checkpoints, run, setup.resume, views, log, setup.voice)
                colour, moments = options.colour, corpus.moments
                return fit_chain(options.links, pooled, shape, training, colour, live, moments, of_background)

            if views is None:
                return Choice(fit_method(), options.method)
            return choose(options.method, fit_method, views, automatic)

    def _record(
        self, corpus: Corpus, names: Sequence[str], choice: Choice, measures: dict[str, Any], background: int
    ) -> dict[str, Any]:
        options, language = self.options, recognise(take_words(corpus.texts), lambda name: False)
        entry = {
            "corpus": list(names), "texts": corpus.count, "corpus_sha256": corpus.sha256,
            "languages": [language.name] if language else [],
            "fitted": count_fitted(corpus, options, background), "background": background,
            "method": options.method, "schedule": vars(Schedule.of(options)),
            "encoder_dropout": options.encoder_dropout,
            "streamed": options.stream, "sentences": options.sentences, "stop": options.stop,
            "choice": choice.record, "reasons": choice.reasons, **measures,
        }  # fmt: skip
        if corpus.encoder.hub_id:
            entry["encoder"] = {"hub_id": corpus.encoder.hub_id, "revision": corpus.encoder.revision}
        return entry


def resolve_auto(encoder: str, options: Options, reference: bool = False) -> tuple[Options, str | None]:
    """Resolve every ``auto``; return options, and the reason to keep a tuned encoder."""
    reason = explain_tuning(encoder) if _names_nothing(options) else None
    method = "none" if reason else AUTO_STREAMED if options.stream else AUTO
    whole = options.pooling == OF_MODULES
    usual = {"method": method, "token_weights": "none" if reason or whole else "sif"}
    usual["pooling"] = _choose_tuned_pooling(encoder, options, reference) if reason else POOLING
    resolved: dict[str, Any] = {name: value for name, value in usual.items() if getattr(options, name) == "auto"}
    if reason:
        none = {name: getattr(DEFAULTS, name) for name in ("background", *OF_LANGUAGE)}
        resolved |= none  # method none uses no background
    return replace(options, **resolved), reason


def suit_tuned(encoder: str, asked: Options, resolved: Options, reference: bool = False) -> tuple[Options, str | None]:
    """Choose options that were not ``asked`` for, and a warning, for a tuned encoder."""
    if _names_nothing(asked) or resolved.method == "none" or (doubt := warn_of_tuning(encoder)) is None:
        return resolved, None
    own: dict[str, Any] = {}
    if asked.pooling == "auto":
        own["pooling"] = _choose_tuned_pooling(encoder, asked, reference)
    if asked.token_weights == "auto":  # noqa: S105
        own["token_weights"] = "none"  # noqa: S105
    if asked.spectrum is None:
        own["spectrum"] = TUNED_SPECTRUM
    return replace(resolved, **own), doubt


def _choose_tuned_pooling(encoder: str, asked: Options, reference: bool) -> str:
    whole = not reference and asked.max_length is None and not asked.has_weights and has_modules(encoder)
    return OF_MODULES if whole else "last"


def _names_nothing(options: Options) -> bool:
    return options.method == "auto" and options.token_weights != "sif"  # noqa: S105


def check_encoder(encoder: str, options: Options, reference: bool) -> FrozenEncoder:
    """Open the encoder; raises for options that do not suit it."""
    if reason := cannot_run("torch", options.device):
        raise reason
    if options.stop == "likelihood":
        raise UsageError("--stop likelihood is for vectors without an encoder: texts take --stop rule or budget")
    links = options.links
    frozen = open_encoder(encoder, options.pooling, options.max_length)
    if frozen.head is not None and options.token_weights != "none":  # noqa: S105
        raise UsageError("--pooling model pools as the directory says: leave out --token-weights")
    if reference:
        check_reference(frozen)
    if options.stream and (options.has_flow or options.sample):
        raise UsageError("--stream is for closed forms, such as whiten,recolour; a flow needs --sample N instead")
    if options.background and not options.has_recolour:
        latent = " with --latent" * options.latent
        raise UsageError(
            f"--background goes with recolour, and method {options.method}{latent} has none behind it: leave it out"
        )
    given = [name for name in OF_LANGUAGE if getattr(options, name) != getattr(DEFAULTS, name)]
    if given and not (options.has_weights or options.has_recolour):
        raise UsageError(f"{flag(given[0])} serves token weights and recolour, and this fit has neither: leave it out")
    if options.language != DEFAULTS.language:
        load_language(options.language)  # raises before the corpus is read
    check_chain(links, frozen.dim, options.shape())
    return frozen
