"""Fit to vectors made elsewhere, without an encoder.

A flow stops at the highest likelihood of held-out vectors, but similarity falls earlier (bench/results/verdicts.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.matrix import Matrix
from fastflow.train.choice.selection import Choice
from fastflow.train.data.moments import BLOCK, Moments
from fastflow.train.fits.corpus import Setup
from fastflow.train.methods.chain import HELD_OUT, check_chain, fit_chain
from fastflow.train.methods.loop import Schedule, Training, open_log
from fastflow.train.methods.names import Method
from fastflow.train.option_fields import flag
from fastflow.train.options import DEFAULTS, Options, make_options
from fastflow.train.progress import Voice
from fastflow.train.ship import summary
from fastflow.train.ship.result import Fit

OPTIONS = (  # that need neither encoder nor texts
    "method", "stop", "levels", "depth", "width", "coupling", "permutation", "spectrum", "mean_share", "demoted",
    "latent", "init", "epochs", "batch_size", "lr", "seed", "save_steps", "sample",
)  # fmt: skip
DIRECTIONS = 10  # directions that auto removes
EVIDENCE = (
    f"removing {DIRECTIONS} of 256 directions was above raw pooling on eight of nine corpora and 0.9 points below it "
    "on one (bench/results/verdicts.md)"
)
PART, MOST = 20, 4096  # one row in PART is held out, at most MOST
SAME = 1e-13  # variance over squared mean, below which float32 rows are equal
UNJUDGED = "without an encoder there are no dropout views, so nothing judged the calibration by similarity"


def choose_vector_options(given: dict[str, Any], named: Collection[str]) -> Options:
    """Choose the options of a fit to vectors; raises a UsageError if the ``named`` ones need texts."""
    if odd := [name for name in named if name not in OPTIONS]:
        raise UsageError(f"{flag(odd[0])} is for texts and their encoder, and these are vectors: leave it out")
    options = {name: given[name] for name in OPTIONS if name in given}
    if "stop" not in named:
        options["stop"] = "likelihood"
    method = options.get("method", DEFAULTS.method)
    if options["stop"] == "rule":
        raise UsageError(
            "--stop rule judges by the encoder's dropout, and vectors have no encoder: use --stop likelihood or budget"
        )
    if "stop" in named and isinstance(method, str) and "flow" not in method:
        raise UsageError(f"--stop is for a flow, and --method {method} fits none to vectors: leave it out")
    return make_options(options | {"token_weights": "none"})  # token_weights decides recolour's settings


@dataclass(frozen=True)
class VectorFitting:
    """A fit to vectors."""

    options: Options
    setup: Setup = field(default_factory=Setup)

    def run(self, matrix: Matrix, name: str) -> Fit | None:
        """Fit to the rows of ``matrix``, recorded as ``name``; a dry run gives None."""
        options, setup = self.options, self.setup
        if options.method == "auto":
            options = replace(options, method=recommend_method(matrix.shape[1]))
        links = options.links
        if not links:
            raise UsageError("--method none leaves vectors as they are: there is no model to make of it")
        check_chain(links, matrix.shape[1], options.shape(len(matrix)))
        sampled = matrix if options.sample is None else draw(matrix, options.sample, options.seed)
        _check_rows(links, sampled, options)
        decided = "a fixed method"
        if options.has_flow:
            decided = "stopped by held-out likelihood" if options.stop == "likelihood" else "stopped after its budget"
        setup.voice.say(
            f"vectors: {len(sampled)} of {matrix.shape[1]} numbers, no encoder; method: {options.method}, {decided}"
        )
        if setup.dry_run:
            return None
        statistics, sha256, concerns = _survey(sampled, setup.voice)
        choice = self._choose(options, sampled, statistics, sha256)
        measures = summary.measure_change(choice.fitted, sampled)
        training = {
            "source": name, "vectors": len(sampled), "vectors_sha256": sha256, "method": self.options.method,
            "schedule": vars(Schedule.of(options)), "stop": options.stop, "choice": choice.record,
            "reasons": choice.reasons, **measures,
        }  # fmt: skip
        return Fit(None, choice, measures, training, [], sampled, concerns)

    def _choose(self, options: Options, matrix: Matrix, statistics: Moments, sha256: str) -> Choice:
        setup, method, flow = self.setup, options.method, options.has_flow
        rows, judge = matrix, None
        if flow and options.stop == "likelihood":
            train, apart = split(len(matrix), options.seed)
            rows, judge = matrix.take(train), matrix[apart]
        with open_log(setup.log_dir) as log:
            run = f"{sha256} {method}"
            training = Training(Schedule.of(options), setup.checkpoints, run, setup.resume, judge, log, setup.voice)
            shape, known = options.shape(len(rows)), None if flow else statistics
            fitted = fit_chain(options.links, rows, shape, training, options.colour, statistics=known)
        if judge is not None:
            reasons = [*(_explain_stop(look, len(judge)) for look in fitted.looks), f"{method}: {UNJUDGED}"]
            rule = "likelihood of held-out vectors"
        elif flow:
            reasons, rule = [f"{method} was kept as it was after its last step: {UNJUDGED}"], "budget"
        elif self.options.method == "auto":
            reasons, rule = [f"auto took {method}, which is fixed: {UNJUDGED}; {EVIDENCE}"], "fixed"
        else:
            reasons, rule = [f"{method} was kept as it was fitted: {UNJUDGED}"], "named"
        return Choice(fitted, method, None, {"rule": rule, "looks": fitted.looks, "chosen": method}, reasons)


def _explain_stop(look: dict[str, Any], vectors: int) -> str:
    return (
        f"flow: kept step {look['kept_step']} of {look['steps']}, where {vectors} held-out vectors were most likely, "
        f"{-look[HELD_OUT]:.3f} bits per dimension; likelihood does not see similarity, so compare it with a closed "
        "form on pairs of your own"
    )


def count_held_out(count: int) -> int:
    """Count the rows to hold out."""
    return max(1, min(MOST, count // PART))


def split(count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw ascending row numbers to train on and to hold out."""
    order = np.random.default_rng((seed, 1 << 33)).permutation(count)
    return np.sort(order[count_held_out(count) :]), np.sort(order[: count_held_out(count)])


def recommend_method(dim: int) -> str:
    """Name the method of ``auto`` for vectors of ``dim`` numbers."""
    return f"nullspace:{max(1, min(DIRECTIONS, dim // 10))}"


def draw(matrix: Matrix, count: int, seed: int) -> Matrix:
    """Draw ``count`` rows at random, in their order, or all."""
    if count >= len(matrix):
        return matrix
    return matrix.take(np.sort(np.random.default_rng((seed, 1 << 34)).choice(len(matrix), count, replace=False)))


def _check_rows(links: list[Method], matrix: Matrix, options: Options) -> None:
    dim, needed, what = matrix.shape[1], 2, ""
    for link in links:
        if link.kind == "flow":
            rows = options.batch_size
            while options.stop == "likelihood" and rows - count_held_out(rows) < options.batch_size:
                rows += 1
        else:
            kept = dim if link.dims is None else link.dims
            rows = {"whiten": kept + 1, "standardize": 2}.get(link.kind, (link.dims or 1) + 2)
        if rows > needed:
            needed, what = rows, f" for {link.kind}"
        dim = link.dims or dim if link.kind == "whiten" else dim
    if len(matrix) < needed:
        raise FastflowError(
            f"{matrix.name}: {len(matrix)} rows are too few, at least {needed} are needed{what}: give more vectors, or "
            "name another --method"
        )


def _survey(matrix: Matrix, voice: Voice) -> tuple[Moments, str, list[str]]:
    statistics, digest = Moments(matrix.shape[1], "vectors"), hashlib.sha256()
    zeros, first = 0, 0
    with voice.progress("vectors", len(matrix), "vectors") as progress:
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
        voice.say(f"WARNING: {concerns[0]}")
    return statistics, digest.hexdigest(), concerns
