"""Fit to texts: diagnose, decide, embed, fit, and measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.evaluation.evaluate import find_sets
from fastflow.model.tokenizer.fragmentation import take_words
from fastflow.model.tokenizer.languages import recognise
from fastflow.train.data.background import draw_sentences
from fastflow.train.data.corpus import key_of
from fastflow.train.data.embeddings import Embedder, cache_key, embed_corpus
from fastflow.train.data.moments import Moments
from fastflow.train.export import summary
from fastflow.train.export.result import Fit
from fastflow.train.methods.chain import Choice, Fitted, choose, fit_chain
from fastflow.train.methods.closed_forms import fit_groups
from fastflow.train.methods.loop import Schedule, Source, Training, open_log
from fastflow.train.methods.own import check_options, fit_own
from fastflow.train.options import DEFAULTS, Method, TrainOptions
from fastflow.train.pipeline.diagnosis import Corpus, diagnose, diagnose_encoder, open_suited, read
from fastflow.train.pipeline.recipe import Recipe, recipe
from fastflow.train.reporter import COMMAND, Reporter
from fastflow.train.selection.separability import Views, make_views
from fastflow.transforms.truncation import Rows


@dataclass(frozen=True)
class RunConfig:
    """The settings of a fit that do not change its numbers, such as folders.

    A ``dry_run`` stops before embedding. ``reference`` stores the encoder's Hub id, not a copy.
    """

    reporter: Reporter = COMMAND
    cache: Path | None = None
    checkpoints: Path | None = None
    resume: bool = False
    log_dir: str | None = None
    dry_run: bool = False
    reference: bool = False


@dataclass(frozen=True)
class PooledVectors:
    """What a recipe is fitted to: ``rows`` (n, D) of texts and ``background`` (k, D), or ``moments`` of a corpus.

    ``views`` judge it; ``live`` embeds texts again, with dropout; ``identity`` names corpus and encoder.
    """

    rows: NDArray[np.float32]
    background: NDArray[np.float32] | None
    moments: Moments | None
    views: Views | None
    live: Source | None
    identity: str


def fit_texts(
    encoder: str,
    asked: TrainOptions,
    texts: Iterable[str],
    names: Sequence[str],
    config: RunConfig = RunConfig(),
    pairs: Sequence[Path] = (),
    *,
    own: Any = None,
    groups: Mapping[bytes, str] | None = None,
) -> Fit | None:
    """Fit and measure, without saving.

    ``encoder`` is a directory or name, ``pairs`` are files or folders of scored pairs, ``names`` are recorded; ``own``
    is a user's calibration; ``groups`` has each text's group by ``key_of`` once the texts are read. A dry run gives
    None.
    """
    check_options(asked, own)
    seen = diagnose_encoder(encoder, config.reference)
    plan = recipe(seen, asked)  # raises before the corpus is read
    frozen = open_suited(encoder, plan.options, config.reference)
    sets = find_sets(pairs) if pairs else []
    if config.dry_run and asked.stream:
        return None
    corpus = read(texts, ", ".join(names), frozen, plan, config.reporter)
    plan = recipe(diagnose(seen, corpus, plan.options), asked)
    for line in (*plan.lines, *(plan.reasons if config.dry_run else ())):
        config.reporter.write(line)
    if config.dry_run:
        return None
    whole = _embed(corpus, corpus.texts, plan, config) if corpus.pooled is None else corpus.pooled
    labels = [groups[key_of(text, 0)] for text in corpus.texts] if groups else []
    links, found = link_groups(plan.options.links, whole, labels)
    choice = fit(plan, links, _gather(plan, corpus, whole, config), config, own)
    choice.reasons += plan.reasons
    measures = summary.measure_change(choice.fitted, whole, choice.views) | found
    if sets:
        measures["spearman"] = summary.measure_spearman(choice.fitted, corpus.encoder, sets, asked.device)
    training = _record(asked, plan, corpus, names, choice, measures)
    return Fit(corpus.encoder, choice, measures, training, corpus.texts, whole, list(plan.warnings))


def link_groups(links: list[Method], rows: Rows, labels: Sequence[str]) -> tuple[list[Method], dict[str, Any]]:
    """Fit a first link groups to ``rows`` (n, D) of the groups ``labels``; returns links, and counts to record."""
    if not labels:
        return links, {}
    stage = fit_groups(rows, labels, links[0].dims)
    return [replace(links[0], stage=stage), *links[1:]], {"groups": dict(sorted(Counter(labels).items()))}


def fit(plan: Recipe, links: Sequence[Method], pooled: PooledVectors, config: RunConfig, own: Any = None) -> Choice:
    """Fit the method of ``plan``, ``links``, or ``own``, to ``pooled``; if there are views, compare it with pooling."""
    options, name = plan.options, plan.options.method if own is None else type(own).__name__
    run = f"{pooled.identity} {options.method} dropout={options.encoder_dropout}"
    with open_log(config.log_dir) as log:
        schedule, views = Schedule.of(options), pooled.views
        training = Training(schedule, config.checkpoints, run, config.resume, views, log, config.reporter)

        def fit_method() -> Fitted:
            if own is not None:
                return fit_own(own, pooled.rows)
            beside = pooled.moments, pooled.background
            return fit_chain(links, pooled.rows, plan.shape, training, options.colour, pooled.live, *beside)

        if views is None:
            return Choice(fit_method(), name)
        return choose(name, fit_method, views, plan.automatic)


def _gather(plan: Recipe, corpus: Corpus, rows: NDArray[np.float32], config: RunConfig) -> PooledVectors:
    """Draw the texts to fit with embeddings, or count the texts of Moments; embed views and background."""
    options, frozen, texts, moments, views = plan.options, corpus.encoder, corpus.texts, corpus.moments, None
    if options.stop == "rule" and options.method != "none":
        views = make_views(texts, frozen, options.device, options.seed)
    if plan.fitted != corpus.count:
        if moments is not None:
            moments = moments.count_as(plan.fitted)
        else:
            rng = np.random.default_rng((options.seed, 1 << 35))
            drawn = np.sort(rng.choice(corpus.count, plan.fitted, replace=False))
            texts, rows = [texts[row] for row in drawn], np.asarray(rows[drawn])
    beside: list[str] = []
    if plan.background and corpus.words is not None:
        sentences = corpus.words.sentences if plan.sentences else ()
        beside = [*sentences, *draw_sentences(plan.drawn, corpus.words)]
    every, live = [*texts, *beside], None
    if options.encoder_dropout and options.has_flow:
        embedder = Embedder(frozen, options.device, dropout=True)
        live = lambda rows: embedder([every[i] for i in rows])  # noqa: E731
    identity = cache_key(frozen, every, options.device)
    background = _embed(corpus, beside, plan, config, "the background") if beside else None
    return PooledVectors(rows, background, moments, views, live, identity)


def _embed(
    corpus: Corpus, texts: list[str], plan: Recipe, config: RunConfig, name: str | None = None
) -> NDArray[np.float32]:
    """Embed ``texts`` (n, D), perhaps from the cache."""
    frozen, device, reporter = corpus.encoder, plan.options.device, config.reporter
    if config.cache is not None:
        return embed_corpus(texts, frozen, config.cache, device, name or corpus.name, reporter)
    embedder = Embedder(frozen, device)
    with reporter.progress("encoder", len(texts), "texts") as progress:
        return embedder(texts, progress.advance)


def _record(
    asked: TrainOptions, plan: Recipe, corpus: Corpus, names: Sequence[str], choice: Choice, measures: dict[str, Any]
) -> dict[str, Any]:
    language = recognise(take_words(corpus.texts), lambda name: False)
    entry = {
        "corpus": list(names), "texts": corpus.count, "corpus_sha256": corpus.sha256,
        "languages": [language.name] if language else [],
        "fitted": plan.fitted, "background": plan.background,
        "method": asked.method, "schedule": vars(Schedule.of(asked)),
        "encoder_dropout": asked.encoder_dropout,
        "streamed": asked.stream, "sentences": asked.sentences, "stop": asked.stop,
        "choice": choice.record, "reasons": choice.reasons, **measures,
    }  # fmt: skip
    if asked.preset != DEFAULTS.preset:
        entry["preset"] = asked.preset
    if corpus.encoder.hub_id:
        entry["encoder"] = {"hub_id": corpus.encoder.hub_id, "revision": corpus.encoder.revision}
    return entry
