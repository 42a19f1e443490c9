"""Decide a fit: a table from the Diagnosis of encoder and texts to a Recipe."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from fastflow.errors import FastflowError
from fastflow.train.data.encoder import OF_MODULES
from fastflow.train.methods.loop import Schedule
from fastflow.train.options import BACKGROUND, BROAD_SHARE, DEFAULTS, FEWEST, SHARE, TrainOptions
from fastflow.train.reporter import WARNING, name_options, refuse
from fastflow.transforms.pooling import parse_pooling

AUTO, AUTO_STREAMED = "flow", "whiten,recolour"  # chosen on STS12-14 (bench/results/verdicts.md)
POOLING = "words"  # ``auto`` for an untuned encoder
TUNED_SPECTRUM = 0.0  # recolour's default for a tuned encoder
VARIED = 270  # perplexity above which the number of fitted texts does not grow
PARAGRAPH = 40  # words: above, on Wikipedia, no fit with equal weights beats raw pooling (bench/results/verdicts.md)
OF_LANGUAGE = ("background_words", "background_sentences", "language")
KEPT = (
    "this encoder was tuned for similarity: {}. Token weights and a calibration would harm it, so it is kept as it is; "
    "name a --method, or --token-weights sif, to calibrate it all the same"
)
GENTLE = (
    "a calibration without labels was never found to help an encoder that was tuned for similarity, as this one was "
    "({shown}): whiten,recolour and flow cost all-MiniLM-L6-v2 1.0 to 2.7 points of Spearman "
    "(bench/results/verdicts.md); compare with {method:auto}, which keeps it as it is, on pairs of your own"
)


@dataclass(frozen=True)
class Diagnosis:
    """What decides a fit: properties of the encoder and, once ``texts`` is a number, of the texts.

    ``tuning``: how the encoder shows that it was tuned for similarity. ``whole``: all modules of its directory can run
    and be saved. ``words``: frequencies of the words of the language are known, with ``sentences`` of it at large.
    ``order``: the reason for the averaged layers. ``concerns``: warnings about tokens and words.
    """

    tuning: str | None = None
    whole: bool = False
    layers: int = 0
    texts: int | None = None
    words: bool = False
    sentences: int = 0
    perplexity: float = math.inf  # of the tokens
    length: float = 0.0  # words of a text, median
    pooling: str = ""
    order: str | None = None
    concerns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """What a fit does: ``options`` without any auto, to ``fitted`` of the texts and a background.

    The background is ``sentences`` of the language at large and ``drawn`` sentences of random words.
    ``chooses_layers``: neighbouring sentences choose the pooling. ``automatic``: a calibration that is not better than
    the pooling is dropped. ``lines`` are for the log.
    """

    options: TrainOptions
    chooses_layers: bool
    automatic: bool
    fitted: int = 0
    sentences: int = 0
    drawn: int = 0
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def background(self) -> int:
        return self.sentences + self.drawn

    @property
    def shape(self) -> dict[str, Any]:
        return self.options.shape(self.fitted, self.background)


def recipe(seen: Diagnosis, asked: TrainOptions) -> Recipe:
    """Decide a fit; raises a UsageError for options that do not go together or with what is ``seen``."""
    if asked.order_from is not None and asked.pooling != "auto":
        raise refuse("{order_from} compares poolings for {pooling:auto}: leave one of them out")
    automatic = asked.method == "auto"
    kept = seen.tuning is not None and automatic and not asked.has_weights
    gentle = seen.tuning is not None and not kept and asked.method != "none"
    only_groups = re.fullmatch(r"groups(:\d+)?", asked.method) is not None
    own_pooling = kept or gentle or (only_groups and seen.whole)
    least = max(FEWEST, asked.batch_size)
    few = automatic and not (kept or asked.stream) and seen.texts is not None and seen.texts < least
    own: dict[str, Any] = {}
    if automatic:
        own["method"] = "none" if kept or few else AUTO_STREAMED if asked.stream else AUTO
    if asked.pooling == "auto":
        whole = seen.whole and asked.max_length is None and not asked.has_weights
        own["pooling"] = POOLING if not own_pooling else OF_MODULES if whole else "last"
    pooling = own.get("pooling", asked.pooling)
    is_mean = pooling == OF_MODULES or parse_pooling(pooling, seen.layers).mode == "mean"
    if asked.token_weights == "auto":  # noqa: S105
        own["token_weights"] = "none" if own_pooling or pooling == OF_MODULES or not is_mean else "sif"
    if gentle and asked.spectrum is None:
        own["spectrum"] = TUNED_SPECTRUM
    if kept:  # method none uses no background
        own |= {name: getattr(DEFAULTS, name) for name in ("background", *OF_LANGUAGE)}
    options, chooses_layers = replace(asked, **own), asked.pooling == "auto" and not own_pooling
    _refuse(seen, options, chooses_layers, is_mean)
    if seen.texts is None:
        return Recipe(options, chooses_layers, automatic)
    plan = Recipe(options, chooses_layers, automatic, *_count(seen, options))
    reasons = [seen.order] if seen.order else []
    if kept:
        reasons.append(KEPT.format(seen.tuning))
    elif few:
        reasons.append(
            f"auto keeps the pooling as it is: a flow takes {least:,} texts or more, and these are {seen.texts:,}"
        )
    doubts = [name_options(GENTLE, shown=seen.tuning)] if gentle and not only_groups else []
    concerns, notes = _find_concerns(seen, options)
    lines = [*map(WARNING.__add__, doubts), *notes, *map(WARNING.__add__, concerns), *_describe(seen, plan)]
    return replace(plan, reasons=tuple(reasons), warnings=(*doubts, *concerns), lines=tuple(lines))


def _refuse(seen: Diagnosis, options: TrainOptions, chooses_layers: bool, is_mean: bool) -> None:
    if options.order_from is not None and not (chooses_layers and seen.layers):
        raise refuse("{order_from} compares layers, and this encoder was tuned or has none: leave it out")
    if options.has_weights and options.pooling == OF_MODULES:
        raise refuse("{pooling:model} pools as the directory says: leave out {token_weights}")
    if options.has_weights and not is_mean:
        raise refuse("{token_weights:sif} is for a mean, and {pooling:{given}} is none", given=options.pooling)
    if options.stream and (options.has_flow or options.sample):
        raise refuse("{stream} is for closed forms, such as whiten,recolour; a flow needs {sample:N} instead")
    if options.stream and options.method.startswith("groups"):
        raise refuse("{stream} keeps no vectors, and {method:groups} needs them: leave out {stream}")
    if options.background and not options.has_recolour:
        method = "method {given} with {latent}" if options.latent else "method {given}"
        raise refuse(
            "{background} goes with recolour, and " + method + " has none behind it: leave it out", given=options.method
        )
    given = [name for name in OF_LANGUAGE if getattr(options, name) != getattr(DEFAULTS, name)]
    if given and not (options.has_weights or options.has_recolour):
        raise refuse(f"{{{given[0]}}} serves token weights and recolour, and this fit has neither: leave it out")
    if options.background and seen.texts is not None and not seen.words:
        raise refuse(
            "{background} draws English words, and the corpus is not English: give the words of its language by "
            "{language} or {background_words}, or leave it out"
        )


def _count(seen: Diagnosis, options: TrainOptions) -> tuple[int, int, int]:
    """Count the texts to fit, sentences and drawn sentences: the smaller the vocabulary, the fewer texts.

    The leading directions of a narrow corpus are its topics, which a fit would equalise.
    """
    count, sentences, drawn = seen.texts or 0, 0, 0
    if options.has_recolour and options.background is not None:
        drawn = options.background
    elif options.has_recolour and seen.words:
        least, most = BACKGROUND
        sentences, drawn = seen.sentences, seen.sentences or max(least, min(SHARE * count, most))
    fitted, beside = count, sentences + drawn
    if sentences:
        fitted = min(count, max(2, int(beside // BROAD_SHARE * min(1.0, seen.perplexity / VARIED) ** 3)))
    elif beside and options.background is None:
        fitted = min(count, beside // SHARE)
    if options.has_flow:
        for texts in (count, fitted + beside):  # both hold a batch
            Schedule.of(options).steps(texts)
    if count < 2:
        raise FastflowError("the corpus holds a single distinct text, which shows nothing to calibrate; give more text")
    return fitted, sentences, drawn


def _find_concerns(seen: Diagnosis, options: TrainOptions) -> tuple[list[str], list[str]]:
    """Return warnings, and lines about the corpus."""
    concerns, lines = list(seen.concerns), []
    if not options.stream:
        lines.append(f"corpus: {seen.texts} distinct texts; encoder: {seen.pooling}")
    if seen.length > PARAGRAPH and options.method != "none":
        paragraphs = f"these texts are paragraphs, of {seen.length:.0f} words in the median"
        if options.has_weights:
            lines.append(
                f"corpus: {paragraphs}; the defaults were chosen on sentences: to embed sentences, use fastflow-train "
                "--sentences; to search paragraphs, compare with word search by fastflow eval"
            )
        else:
            concerns.insert(
                0,
                name_options(
                    paragraphs + ", and a calibration fitted on them may harm sentences: if you will embed sentences, "
                    "use {sentences}"
                ),
            )
    return concerns, lines


def _describe(seen: Diagnosis, plan: Recipe) -> list[str]:
    options, lines, count, beside = plan.options, [], seen.texts or 0, plan.background
    if beside:
        too = ", to which the method is fitted too"
        if plan.fitted < count:
            whole, drawn = f"all texts, which count as {plan.fitted}", f"{plan.fitted} of the texts, drawn at random"
            too = f"; the method is fitted to them and to {whole if options.stream else drawn}"
        if plan.fitted < min(count, beside // BROAD_SHARE):
            too += ", few because their vocabulary is small"
        kind = f"sentences of the language at large{too}"
        if not seen.sentences and options.background is None:
            kind = f"sentences of random words{too}; --background-sentences FILE adds real ones"
        lines.append(f"background: {beside} {kind}")
    elif options.background is None and options.has_recolour:
        lines.append("background: none, because the corpus is not English; --language CODE gives one")
    if options.has_flow:
        steps = Schedule.of(options).steps(plan.fitted + beside)
        lines.append(
            f"flow: {steps} steps of {options.batch_size} texts; "
            "embeddings are continuous, so negative bits per dimension are in order"
        )
    return lines
