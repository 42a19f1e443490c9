"""The static suite: vectors of texts by a table, in bulk, one at a time, and from the start of a process.

Everybody opens the same directory and gets the same texts, those in which the tokenizer has every word: what the
libraries do with unknown tokens differs. The floor is the time to move the bytes: the rows of the tokens, the texts and
the vectors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from fastflow.bench.measure.compare import Agreement, agreement, compare
from fastflow.bench.measure.machine import Ceilings, ceilings
from fastflow.bench.measure.row import Results, Row
from fastflow.bench.measure.subject import Array
from fastflow.bench.measure.timing import Call, Effort, Timing, alternate, summarise
from fastflow.bench.peers.encoder import excuse, said
from fastflow.bench.peers.pytorch import settings
from fastflow.bench.peers.text_engines import TextCandidate
from fastflow.bench.report.ratios_texts import static_ratios
from fastflow.bench.suites.encoder import Say
from fastflow.bench.suites.sizes import Sizes
from fastflow.bench.suites.startup import CODE as STARTS
from fastflow.bench.suites.startup import REPORT, TEXT, memory_of, start
from fastflow.bench.suites.texts import of_texts, real_texts
from fastflow.bench.suites.workbench import Workbench
from fastflow.errors import UsageError
from fastflow.model.artifact import DEFAULT, load_model
from fastflow.model.encoder.architecture import is_model2vec
from fastflow.model.static.table import open_table
from fastflow.model.static.write import write_static
from fastflow.model.tokenizer.files import load_tokenizer
from fastflow.runtime import Runtime

PEERS = ("model2vec", "sentence-transformers", "tokenizers-numpy")
WIDTH = 256  # of the random table
BULK = Effort(budget_s=0, min_runs=7, max_runs=7, sample_s=0, pause_s=2e-2)
CODE = {name: STARTS[name] for name in ("fastflow", "sentence-transformers")} | {
    "model2vec": """
import os, sys
from model2vec import StaticModel
model, dtype, threads, text = sys.argv[1:5]
encoder = StaticModel.from_pretrained(model)
vector = encoder.encode(text)
print(flush=True)
""",
    "tokenizers-numpy": """
import os, sys
import numpy, safetensors.numpy, tokenizers
model, dtype, threads, text = sys.argv[1:5]
table = safetensors.numpy.load_file(model + '/model.safetensors')['embeddings']
ids = tokenizers.Tokenizer.from_file(model + '/tokenizer.json').encode(text, add_special_tokens=False).ids
vector = table[ids].mean(axis=0)
print(flush=True)
""",
}


class Static(NamedTuple):
    """The directory under test, as model2vec saves it, and its name for the report."""

    label: str
    path: Path


def run_static(bench: Workbench, against: Sequence[str] | None, sizes: Sizes, threads: int, say: Say) -> Results:
    """Run the suite on the static model given, else on a table of random numbers with the packaged vocabulary."""
    if odd := [word for word in against or () if word not in PEERS]:
        raise UsageError(f"unknown peer {odd[0]!r} for the static suite; known: {', '.join(PEERS)}")
    families, results = [name for name in PEERS if against is None or name in against], Results()
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # of the tokenizers library, for everybody
    say("static: measuring the machine's ceilings")
    limits = ceilings([threads], sizes.probe_s)[threads]
    results.ceilings = [limits.as_dict()]
    subject = _subject(bench)
    texts, source = real_texts(sizes.texts.most)
    with settings(threads):
        _compare(subject, _known(subject, texts), source, families, threads, sizes, limits, say, results)
        _starts(subject, families, threads, sizes, say, results)
    results.ratios = static_ratios(results.rows)
    return results


def engines(path: Path, threads: int, texts: Sequence[str]) -> tuple[list[TextCandidate], list[str]]:
    """The installed peers that open the table at ``path`` and agree on ``texts``, and why the others are left out."""
    if not is_model2vec(path):
        return [], ["the other engines: they are compared on directories of model2vec"]
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    results, left_out, found = Results(), [], []
    exact = Runtime(path, backend="reference", dtype="float64").encode(texts)
    for candidate in _candidates(Static("", path), PEERS, threads, results)[1:]:
        try:
            agreement(candidate, np.asarray(candidate.prepare(texts)()), exact)
        except Exception as error:  # other people's code raises anything
            left_out.append(f"{candidate.name}: {excuse(candidate, error)}")
            continue
        found.append(candidate)
    return found, [*(f"{each['name']}: {each['reason']}" for each in results.skipped), *left_out]


def _subject(bench: Workbench) -> Static:
    """The directory that was asked for, or a random table."""
    if bench.model is None:
        tokenizer, path = load_tokenizer(load_model(DEFAULT).encoder), bench.folder / "table"
        shape = (tokenizer.get_vocab_size(), WIDTH)
        write_static(path, tokenizer, np.random.default_rng(0).normal(0, 0.1, shape), max_length=None)
        return Static(f"a random table of {shape[0]} x {shape[1]}", path)
    path = load_model(bench.model).encoder
    if not is_model2vec(path):
        raise UsageError(f"{bench.model} is no directory of model2vec, which the static suite needs")
    return Static("the model given: a table of {} x {}".format(*open_table(path).rows.shape), path)


def _known(subject: Static, texts: Sequence[str]) -> list[str]:
    """The texts that have tokens, all known, and are not cut."""
    tokenize, raw = load_model(subject.path).tokenizer(), load_tokenizer(subject.path)
    lengths = np.diff(tokenize(texts).offsets)
    plain = [len(raw.encode(text, add_special_tokens=False)) for text in texts]
    return [text for text, ours, all_of_them in zip(texts, lengths, plain, strict=True) if ours == all_of_them > 0]


def _compare(
    subject: Static, texts: list[str], source: str, families: Sequence[str], threads: int, sizes: Sizes,
    limits: Ceilings, say: Say, results: Results,
) -> None:  # fmt: skip
    """Check everybody on the texts, then time them on the whole list and on single texts; adds to ``results``."""
    exact = Runtime(subject.path, backend="reference", dtype="float64").encode(texts)
    tokens, few = len(load_model(subject.path).tokenizer()(texts).ids), texts[: sizes.texts.alone]
    results.subjects.append({"subject": subject.label, "inputs": f"{source}: {len(texts)} texts, {tokens} tokens"})
    alone: dict[str, list[float]] = {}

    def admit(candidate: TextCandidate) -> tuple[Call, Agreement]:
        return candidate.prepare(texts), agreement(candidate, np.asarray(candidate.prepare(texts)()), exact)

    def timer(calls: Mapping[str, Call]) -> dict[str, Timing]:
        say(f"static: {subject.label}: {len(texts)} texts, {len(calls)} candidates")
        alone.update(_singly({key: each.prepare for key, each in everybody.items() if key in calls}, few))
        return alternate(calls, BULK)

    def leave_out(candidate: TextCandidate, reason: str) -> None:
        results.skipped.append({"subject": subject.label, "name": candidate.key, "reason": reason})

    everybody = {each.key: each for each in _candidates(subject, families, threads, results)}
    traffic = _traffic(subject, texts, tokens)
    floor, bulk, single = limits.floor_ms(0.0, traffic, traffic), [], []
    for found in compare(list(everybody.values()), admit, timer, excuse, leave_out):
        who = {"suite": "static", "subject": subject.label, "name": found.candidate.name, "dtype": "float32",
               "backend": found.candidate.backend, "threads": threads, **found.accuracy._asdict()}  # fmt: skip
        times, seconds = found.timing, alone[found.candidate.key]
        bulk.append(
            Row.timed(
                times, **who, batch=len(texts), tokens=tokens, texts_per_s=len(texts) / times.median_ms * 1e3,
                floor_ms=floor, times_floor=times.median_ms / floor,
            )
        )  # fmt: skip
        each, quantile = round(tokens / len(texts)), float(np.quantile(seconds, 0.99)) * 1e3
        single.append(Row.timed(summarise(seconds, 1), **who, batch=1, tokens=each, p99_ms=quantile))
    results.add([*bulk, *single])


def _traffic(subject: Static, texts: Sequence[str], tokens: int) -> float:
    """The bytes that are read and written at least: each token's row, the texts, the vectors."""
    rows = open_table(subject.path).rows
    given = sum(len(text.encode()) for text in texts)
    return float(tokens * rows.shape[1] * rows.itemsize + given + 4 * len(texts) * rows.shape[1])


def _singly(prepare: Mapping[str, Callable[[Sequence[str]], Call]], texts: Sequence[str]) -> dict[str, list[float]]:
    """Seconds of each text alone, everybody in turn."""
    found: dict[str, list[float]] = {key: [] for key in prepare}
    for i, text in enumerate(texts):
        for key in list(prepare)[:: -1 if i % 2 else 1]:
            call = prepare[key]([text])
            call()  # wakes the threads, refills the caches
            began = perf_counter()
            call()
            found[key].append(perf_counter() - began)
    return found


def _candidates(subject: Static, families: Sequence[str], threads: int, results: Results) -> list[TextCandidate]:
    """fastflow and the peers that can be opened."""
    runtime = Runtime(subject.path, "cpu", "float32", threads, backend="cpu")
    out = [of_texts("fastflow", "float32", "cpu", runtime.encode)]
    opens = {"model2vec": _model2vec, "sentence-transformers": _sentence, "tokenizers-numpy": _numpy}
    for name in families:
        try:
            out.append(of_texts(name, "float32", name.partition("-")[0], opens[name](subject.path)))
        except Exception as error:  # other people's code raises anything
            reason = f"it cannot be opened: {said(error)}"
            results.skipped.append({"subject": subject.label, "name": f"{name} float32", "reason": reason})
    return out


def _model2vec(path: Path) -> Callable[[Sequence[str]], Array]:
    from model2vec import StaticModel

    return StaticModel.from_pretrained(path).encode


def _sentence(path: Path) -> Callable[[Sequence[str]], Array]:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(path), device="cpu", local_files_only=True).encode


def _numpy(path: Path) -> Callable[[Sequence[str]], Array]:
    """The least that a user would write: no limit, no unknown tokens, no weights."""
    table, tokenizer, head = open_table(path), load_tokenizer(path), load_model(path).head
    if table.scales is not None or table.mapping is not None or table.rows.dtype == np.int8:
        raise UsageError("it averages a plain table, and this one has weights, a mapping or int8")

    def embed(texts: Sequence[str]) -> Array:
        found = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        means = np.stack([table.rows[each.ids].mean(axis=0, dtype=np.float32) for each in found])
        return means / np.linalg.norm(means, axis=1, keepdims=True) if head else means

    return embed


def _starts(subject: Static, families: Sequence[str], threads: int, sizes: Sizes, say: Say, results: Results) -> None:
    """A new process to its first vector, everybody in turn; adds to ``results``."""

    say(f"static: {subject.label}: starts")
    exact = Runtime(subject.path, backend="reference", dtype="float64").encode([TEXT])
    samples: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in ("fastflow", *families)}
    for _ in range(1 + sizes.starts):  # the first, which fills the page cache, is not kept
        for name in list(samples):
            command = [sys.executable, "-c", CODE[name] + REPORT, str(subject.path), "float32", str(threads), TEXT]
            try:
                samples[name].append(start(name, "float32", command, exact))
            except Exception as error:  # as in _candidates
                if name == "fastflow":
                    raise
                results.skipped.append({"subject": subject.label, "name": f"{name} start", "reason": said(error)})
                del samples[name]
    for name, taken in samples.items():
        timing, memory = summarise([seconds for seconds, _ in taken[1:]], 1), memory_of(taken[1:])
        results.add(
            [
                Row.timed(
                    timing, suite="static", subject=subject.label, name=name, backend=name.partition("-")[0],
                    dtype="float32", threads=threads, batch=1, tokens=None, resident_mb=memory.get("VmRSS"),
                    anonymous_mb=memory.get("RssAnon"),
                )
            ]
        )  # fmt: skip
