"""Fit a closed form to vectors made elsewhere, without an encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastflow.errors import FastflowError
from fastflow.files.read.matrix import MatrixRows
from fastflow.train.data.moments import BLOCK, Moments
from fastflow.train.export import summary
from fastflow.train.export.result import Fit
from fastflow.train.methods.chain import Choice, check_chain, fit_chain
from fastflow.train.methods.loop import Training
from fastflow.train.methods.own import check_options, fit_own
from fastflow.train.options import DEFAULTS, Method, TrainOptions, check_groups, make_options
from fastflow.train.pipeline.fit import RunConfig, link_groups
from fastflow.train.reporter import WARNING, Reporter, name_options, refuse

OPTIONS = ("method", "spectrum", "mean_share", "demoted", "seed", "sample")  # that need neither encoder nor texts
DIRECTIONS = 10  # directions that auto removes
EVIDENCE = (
    f"removing {DIRECTIONS} of 256 directions was above raw pooling on eight of nine corpora and 0.9 points below it "
    "on one (bench/results/verdicts.md)"
)
SAME = 1e-13  # variance over squared mean, below which float32 rows are equal
UNJUDGED = "without an encoder there are no dropout views, so nothing judged the calibration by similarity"


def choose_vector_options(given: dict[str, Any], named: Collection[str]) -> TrainOptions:
    """Choose the options of a fit to vectors; raises a UsageError if the ``named`` ones need texts."""
    method = given.get("method", DEFAULTS.method)
    if isinstance(method, str) and "flow" in method:
        raise refuse(
            "{method:{given}} trains a flow, which dropout views of texts stop, and vectors have none: name a "
            "closed form, nullspace[:K], components[:K], groups[:K], whiten[:K], standardize, or whiten,recolour",
            given=method,
        )
    if odd := [name for name in named if name not in OPTIONS]:
        text = "{" + odd[0] + "} is for texts and their encoder, and these are vectors: leave it out"
        raise refuse(text)
    options = {name: given[name] for name in OPTIONS if name in given}
    if method == "auto":
        make_options(options | {"method": "nullspace"})  # refuses what auto would ignore
    return make_options(options | {"token_weights": "none"})  # token_weights decides recolour's settings


def fit_vectors(
    options: TrainOptions, matrix: MatrixRows, name: str, config: RunConfig, *, own: Any = None,
    groups: Sequence[Any] | None = None,
) -> Fit | None:  # fmt: skip
    """Fit to the rows of ``matrix``, perhaps of ``groups`` (n,), recorded as ``name``.

    ``own`` is a user's calibration. A dry run gives None.
    """
    asked = options.method
    check_options(options, own)
    if asked == "auto":
        options = replace(options, method=recommend_method(matrix.shape[1]))
    links, method = options.links, options.method if own is None else type(own).__name__
    if not links:
        raise refuse("{method:none} leaves vectors as they are: there is no model to make of it")
    check_chain(links, matrix.shape[1], {})
    check_groups(groups, matrix)
    sampled = matrix if options.sample is None else draw(matrix, options.sample, options.seed)
    _check_rows(links, sampled)
    config.reporter.write(f"vectors: {len(sampled)} of {matrix.shape[1]} numbers, no encoder; method: {method}")
    if config.dry_run:
        return None
    statistics, sha256, concerns = _survey(sampled, config.reporter)
    labels = [str(groups[sampled.number(row)]) for row in range(len(sampled))] if groups is not None else []
    links, found = link_groups(links, sampled, labels)
    if own is None:
        fitted = fit_chain(links, sampled, {}, Training(), options.colour, statistics=statistics)
    else:
        fitted = fit_own(own, sampled)
    if asked == "auto":
        rule, reason = "fixed", f"auto took {method}, which is fixed: {UNJUDGED}; {EVIDENCE}"
    else:
        rule, reason = "named", f"{method} was kept as it was fitted: {UNJUDGED}"
    choice = Choice(fitted, method, None, {"rule": rule, "looks": [], "chosen": method}, [reason])
    measures = summary.measure_change(fitted, sampled) | found
    training = {
        "source": name, "vectors": len(sampled), "vectors_sha256": sha256, "method": asked, "choice": choice.record,
        "reasons": choice.reasons, **measures,
    }  # fmt: skip
    return Fit(None, choice, measures, training, [], sampled, concerns)


def recommend_method(dim: int) -> str:
    """Name the method of ``auto`` for vectors of ``dim`` numbers."""
    return f"nullspace:{max(1, min(DIRECTIONS, dim // 10))}"


def draw(matrix: MatrixRows, count: int, seed: int) -> MatrixRows:
    """Draw ``count`` rows at random, in their order, or all."""
    if count >= len(matrix):
        return matrix
    return matrix.take(np.sort(np.random.default_rng((seed, 1 << 34)).choice(len(matrix), count, replace=False)))


def _check_rows(links: list[Method], matrix: MatrixRows) -> None:
    dim, needed, what = matrix.shape[1], 2, ""
    for link in links:
        kept = dim if link.dims is None else link.dims
        rows = {"whiten": kept + 1, "standardize": 2}.get(link.kind, (link.dims or 1) + 2)
        if rows > needed:
            needed, what = rows, f" for {link.kind}"
        dim = kept if link.kind == "whiten" else dim
    if len(matrix) < needed:
        raise FastflowError(
            name_options(
                "{name}: "
                f"{len(matrix)} rows are too few, at least {needed} are needed{what}: give more vectors, or name "
                "another {method}",
                name=matrix.name,
            )
        )


def _survey(matrix: MatrixRows, reporter: Reporter) -> tuple[Moments, str, list[str]]:
    statistics, digest = Moments(matrix.shape[1], "vectors"), hashlib.sha256()
    zeros, first = 0, 0
    with reporter.progress("vectors", len(matrix), "vectors") as progress:
        for block in matrix.blocks(BLOCK):
            digest.update(block.data)
            empty = np.flatnonzero(~block.any(axis=1))
            if len(empty) and not zeros:
                first = matrix.number(statistics.count + int(empty[0]))
            zeros += len(empty)
            statistics.update(block)
            progress.advance(len(block))
    if np.trace(statistics.covariance) <= SAME * np.square(statistics.mean).sum():
        raise FastflowError(f"{matrix.name}: all rows are equal, which shows nothing to calibrate")
    concerns = []
    if zeros:
        concerns.append(
            f"{zeros} of {len(matrix)} vectors are all zeros, the first is row {first}: such placeholders move the "
            "mean; leave them out"
        )
        reporter.write(WARNING + concerns[0])
    return statistics, digest.hexdigest(), concerns
