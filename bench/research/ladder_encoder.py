"""The encoder's part of the kernel ladder: BERT-base with random weights, its steps at fixed sizes, and padding."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fastflow.backends.choose import open_backend
from fastflow.bench.measure.compare import least_cosine
from fastflow.bench.measure.subject import Array, Subject
from fastflow.bench.measure.timing import Effort
from fastflow.bench.peers.encoder import torch_eager
from fastflow.bench.peers.pooled import reference
from fastflow.bench.research.ladder_builds import using
from fastflow.bench.research.ladder_rows import SHIPPED, Builds, Call, Rows, same_bits, timed
from fastflow.bench.suites.encoder import DTYPES, forced, packed, vocabulary
from fastflow.bench.suites.texts import real_texts
from fastflow.bench.suites.workbench import workbench
from fastflow.kernels.isa import amx_missing
from fastflow.model.artifact import load_model
from fastflow.model.tokens import Tokenizer, Tokens

QUICK_STEPS = Effort(budget_s=40, min_runs=7, max_runs=25, sample_s=0)
SLOW_STEPS = Effort(budget_s=30, min_runs=5, max_runs=9, sample_s=0)
WITHOUT = ("float32", "int8")  # dtypes in which the builds that lack a step are timed


def encoder_steps(subject: Subject, builds: Builds) -> dict[str, tuple[str, Any]]:
    """{step: (dtype, backend)}: the kernels as shipped in each dtype, forced down, and without a step each."""
    model, steps = load_model(subject.model), {}
    for dtype in DTYPES:
        steps[f"{SHIPPED}, {dtype}"] = dtype, open_backend(model, "cpu", "cpu", dtype, 1)
        for name, module in builds.items() if dtype in WITHOUT else ():
            with using(module):
                lacks = name.partition(", ")[2]
                steps[f"without {lacks}, {dtype}"] = dtype, open_backend(model, "cpu", "cpu", dtype, 1)
    for isa in ("avx2", "portable"):
        with forced(isa):
            steps[f"compiled, {isa}, float32"] = "float32", open_backend(model, "cpu", "cpu", "float32", 1)
    for dtype in () if amx_missing() else DTYPES[1:]:
        with forced("amx"):
            steps[f"compiled, amx, {dtype}"] = dtype, open_backend(model, "cpu", "cpu", dtype, 1)
    return steps


def measure_encoder(builds: Builds) -> Rows:
    """BERT-base: all steps at 8 x 32 tokens; groups and prefetch at 32 x 32 too; padding."""
    rows: Rows = []
    with workbench(None) as bench:
        subject = bench.base()
        every, exact = encoder_steps(subject, builds), reference(subject)
        fewer = {n: step for n, step in every.items() if n.endswith(WITHOUT) and not n.startswith("compiled")}
        for batch in (8, 32):
            steps = every if batch == 8 else fewer
            ids = np.random.default_rng(batch).integers(5, vocabulary(subject), (batch, 32))
            mask = np.ones_like(ids)
            truth = exact(ids, mask)
            calls: dict[str, Call] = {name: packed(backend, ids, mask) for name, (_, backend) in steps.items()}
            details: dict[str, dict[str, Any]] = {}
            results = {name: call() for name, call in calls.items()}
            for name, (dtype, _) in steps.items():
                details[name] = {"dtype": dtype} | agrees(name, dtype, results[name], truth)
            same_bits(results)
            quick = {n: c for n, c in calls.items() if not n.startswith("compiled")}
            rows += timed(quick, QUICK_STEPS, details, ladder="encoder", batch=batch, tokens=32)
            if batch == 8:
                slow, more = slow_steps(subject, ids, mask, truth)
                slow |= {n: c for n, c in calls.items() if n not in quick or n == f"{SHIPPED}, float32"}
                start = "encoder, from the start"
                rows += timed(slow, SLOW_STEPS, details | more, ladder=start, batch=batch, tokens=32)
        rows += measure_padding(subject, every[f"{SHIPPED}, float32"][1])
    return rows


def slow_steps(subject: Subject, ids: Array, mask: Array, truth: Array) -> tuple[dict[str, Call], dict[str, Any]]:
    """The steps outside the compiled kernels and, by name, how far they agree."""
    numpy = open_backend(load_model(subject.model), "reference", "cpu", "float32", None)
    calls: dict[str, Call] = {"NumPy, float32": packed(numpy, ids, mask)}
    for dtype in DTYPES[:2]:
        calls[f"PyTorch, {dtype}"] = torch_eager(subject, dtype, 1)(ids, mask)
    details = {}
    for name, call in calls.items():
        details[name] = agrees(name, name.rpartition(", ")[2], call(), truth)
    return calls, details


def agrees(name: str, dtype: str, z: Array, truth: Array) -> dict[str, Any]:
    """The least cosine and the largest error of a step; raises where ``dtype`` does not allow them."""
    return {"least_cosine": least_cosine(name, dtype, z, truth), "max_abs_err": float(np.abs(z - truth).max())}


def measure_padding(subject: Subject, backend: Any) -> Rows:
    """The same kernel on real sentences, and on as many tokens as padding would make of them in batches of 32.

    The lengthened texts repeat their own tokens: the kernel has no mask, so their vectors mean nothing here.
    """
    tokenize = Tokenizer(subject.encoder, subject.max_length)
    texts = tokenize(real_texts(64)[0])
    lengths = np.diff(texts.offsets)
    given, by_length = np.arange(len(lengths)), np.argsort(lengths, kind="stable")
    calls: dict[str, Call] = {SHIPPED: lambda: backend.pool(texts)}
    details = {SHIPPED: {"tokens": int(lengths.sum())}}
    for name, order in (("padded, sorted by length", by_length), ("padded, in the order given", given)):
        padded = lengthened(texts, order)
        calls[name] = partial(_one_by_one, backend, padded)
        details[name] = {"tokens": sum(len(batch.ids) for batch in padded)}
    return timed(calls, SLOW_STEPS, details, ladder="padding", batch=len(lengths))


def _one_by_one(backend: Any, batches: list[Tokens]) -> None:
    for batch in batches:
        backend.pool(batch)


def lengthened(texts: Tokens, order: Array, size: int = 32) -> list[Tokens]:
    """Batches of ``size`` texts, each text as long as the longest of its batch."""
    batches = []
    for start in range(0, len(order), size):
        ids = [texts.ids[texts.offsets[i] : texts.offsets[i + 1]] for i in order[start : start + size]]
        longest = max(map(len, ids))
        offsets = np.arange(len(ids) + 1, dtype=np.int64) * longest
        batches.append(Tokens(np.concatenate([np.resize(one, longest) for one in ids]), offsets, np.zeros(0, np.int64)))
    return batches
