"""The static suite: vectors of texts by a table, in bulk, one at a time, and from the start of a process.

Texts have no unknown words, on which libraries differ.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastflow.bench.measure.compare import Deviation, compare, measure_agreement
from fastflow.bench.measure.row import Array, Results
from fastflow.bench.measure.timing import Effort, Timing
from fastflow.bench.peers.encoder import Embed, TextCandidate, choose, excuse, first_line
from fastflow.bench.peers.gpu import settings
from fastflow.bench.report.ratios import compute_static_ratios
from fastflow.bench.suites.cold_start import TEXT, ColdStart, make_command, time_starts
from fastflow.bench.suites.texts import Lists, compare_texts, real_texts
from fastflow.bench.suites.workbench import SuiteRun, Workbench
from fastflow.errors import UsageError
from fastflow.model.artifact import load_model
from fastflow.model.encoder import is_model2vec
from fastflow.model.locate import UNTUNED
from fastflow.model.static.table import open_table
from fastflow.model.static.write import write_static
from fastflow.model.tokenizer.files import load_tokenizer
from fastflow.runtime import Runtime

PEERS = ("model2vec", "sentence-transformers", "tokenizers-numpy")
WIDTH = 256  # numbers of a vector of the random table
BULK = Effort(budget_s=0, min_runs=7, max_runs=7, sample_s=0, pause_s=2e-2)


class Static(NamedTuple):
    """The directory under test, and its name."""

    label: str
    path: Path


def run_static(request: SuiteRun) -> Results:
    """Run the suite on the static model given, else on random vectors with the packaged vocabulary."""
    families, results = choose(request.against, PEERS, "the static suite"), Results()
    threads, sizes = request.threads, request.sizes
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # threads of the tokenizers library
    subject = make_subject(request.bench)
    texts, source = real_texts(sizes.texts.most)
    texts = _pick_known(subject, texts)
    with settings(threads):
        exact = Runtime(subject.path, backend="reference", dtype="float64").encode(texts)
        tokens = len(load_model(subject.path).tokenizer()(texts).ids)
        results.subjects.append({"subject": subject.label, "inputs": f"{source}: {len(texts)} texts, {tokens} tokens"})

        def judge(candidate: TextCandidate) -> Deviation:
            return measure_agreement(candidate, np.asarray(candidate.embed(texts)), exact)

        def all_fields(timing: Timing) -> dict[str, Any]:
            return {"batch": len(texts), "tokens": tokens, "texts_per_s": len(texts) / timing.median_ms * 1e3}

        def one_fields(_: Timing) -> dict[str, Any]:
            return {"batch": 1, "tokens": round(tokens / len(texts))}

        candidates = _open_candidates(subject, families, threads, results)
        request.say(f"static: {subject.label}: {len(texts)} texts, {len(candidates)} candidates")
        lists = Lists(texts, texts[: sizes.texts.alone], wake=True, quantiles={"p99_ms": 0.99})
        fields = (all_fields, one_fields)
        compare_texts("static", subject.label, candidates, judge, lists, BULK, threads, fields, results)
        add_starts(request, subject, families, results)
    results.ratios = compute_static_ratios(results.rows)
    return results


def open_engines(path: Path, threads: int, texts: Sequence[str]) -> tuple[list[TextCandidate], list[str]]:
    """Return the peers that agree on ``texts``, and sentences on others."""
    if not is_model2vec(path):
        return [], ["the other engines: they are compared on directories of model2vec"]
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    lost = Results()
    exact = Runtime(path, backend="reference", dtype="float64").encode(texts)

    def admit(candidate: TextCandidate) -> tuple[Embed, Deviation]:
        return candidate.embed, measure_agreement(candidate, np.asarray(candidate.embed(texts)), exact)

    def leave_out(candidate: TextCandidate, reason: str) -> None:
        lost.leave_out("", candidate.name, reason)

    peers = _open_candidates(Static("", path), PEERS, threads, lost)[1:]
    right = compare(peers, admit, dict, excuse, leave_out)
    return [each for each, *_ in right], [f"{each['name']}: {each['reason']}" for each in lost.skipped]


def make_subject(bench: Workbench) -> Static:
    """Return the directory given, or a random table."""
    if bench.model is None:
        tokenizer, path = load_tokenizer(load_model(UNTUNED).encoder), bench.folder / "table"
        shape = (tokenizer.get_vocab_size(), WIDTH)
        write_static(path, tokenizer, np.random.default_rng(0).normal(0, 0.1, shape), max_length=None)
        return Static(f"a random table of {shape[0]} x {shape[1]}", path)
    path = load_model(bench.model).encoder
    if not is_model2vec(path):
        raise UsageError(f"{bench.model} is no directory of model2vec, which the static suite needs")
    return Static("the model given: a table of {} x {}".format(*open_table(path).rows.shape), path)


def _pick_known(subject: Static, texts: Sequence[str]) -> list[str]:
    tokenize, raw = load_model(subject.path).tokenizer(), load_tokenizer(subject.path)
    lengths = np.diff(tokenize(texts).offsets)
    plain = [len(raw.encode(text, add_special_tokens=False)) for text in texts]
    return [text for text, ours, all_of_them in zip(texts, lengths, plain, strict=True) if ours == all_of_them > 0]


def _open_candidates(subject: Static, families: Sequence[str], threads: int, results: Results) -> list[TextCandidate]:
    runtime = Runtime(subject.path, "cpu", "float32", threads, backend="cpu")
    out = [TextCandidate("fastflow", "float32", "cpu", runtime.encode)]
    opens = {"model2vec": open_model2vec, "sentence-transformers": _open_sentence, "tokenizers-numpy": open_numpy}
    for name in families:
        try:
            out.append(TextCandidate(name, "float32", name.partition("-")[0], opens[name](subject.path)))
        except Exception as error:
            results.leave_out(subject.label, f"{name} float32", f"it cannot be opened: {first_line(error)}")
    return out


def open_model2vec(path: Path) -> Embed:
    """Open model2vec."""
    from model2vec import StaticModel

    return StaticModel.from_pretrained(path).encode


def _open_sentence(path: Path) -> Embed:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(path), device="cpu", local_files_only=True).encode


def open_numpy(path: Path) -> Embed:
    """Open the least code a user may write: no limit, no unknown tokens, no weights."""
    table, tokenizer, head = open_table(path), load_tokenizer(path), load_model(path).head
    if table.scales is not None or table.mapping is not None or table.rows.dtype == np.int8:
        raise UsageError("it averages a plain table, and this one has weights, a mapping or int8")

    def embed(texts: Sequence[str]) -> Array:
        found = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        means = np.stack([table.rows[each.ids].mean(axis=0, dtype=np.float32) for each in found])
        return means / np.linalg.norm(means, axis=1, keepdims=True) if head else means

    return embed


def add_starts(request: SuiteRun, subject: Static, families: Sequence[str], results: Results) -> None:
    """Time a new process of each engine."""
    request.say(f"static: {subject.label}: starts")
    exact = Runtime(subject.path, backend="reference", dtype="float64").encode([TEXT])
    jobs = []
    for name in ("fastflow", *families):
        command = make_command(name, str(subject.path), "float32", request.threads)
        jobs.append(ColdStart(name, "float32", name.partition("-")[0], command, exact))
    time_starts("static", subject.label, jobs, request, results)
