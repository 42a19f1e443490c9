"""The start-up suite: a new process, from its start to its first vector, and the memory it then holds.

Each sample is a fresh interpreter with the files in the page cache and, for a directory without thresholds of int8, the
trial that a first opening kept: users see later openings. The clock stops when the process reports that it
has the vector; memory is what Linux counts for it then: resident, its peak, and the anonymous part (mapped files
excluded).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from tempfile import TemporaryFile
from threading import Timer
from time import perf_counter
from typing import Any

import numpy as np

from fastflow.bench.measure.compare import least_cosine
from fastflow.bench.measure.row import Results, Row
from fastflow.bench.measure.subject import Array, Subject
from fastflow.bench.measure.timing import summarise
from fastflow.bench.peers.encoder import chosen, left_out, missing, said
from fastflow.bench.peers.pooled import reference
from fastflow.bench.report.ratios_texts import startup_ratios
from fastflow.bench.suites.encoder import DTYPES, Say, body_of
from fastflow.bench.suites.sizes import Sizes
from fastflow.bench.suites.texts import padded
from fastflow.bench.suites.workbench import Workbench
from fastflow.errors import FastflowError
from fastflow.model.tokenizer.encode import Tokenizer
from fastflow.runtime import Runtime

TEXT = "The river was quiet that morning."
TIMEOUT_S = 120

REPORT = """
import json
lines = [line.split() for line in open('/proc/self/status')] if os.path.exists('/proc/self/status') else []
memory = {line[0][:-1]: int(line[1]) for line in lines if line[0] in ('VmHWM:', 'VmRSS:', 'RssAnon:')}
print(json.dumps({'vector': [float(v) for v in vector], 'memory': memory}), flush=True)
"""
CODE = {
    "fastflow": """
import os, sys
from fastflow import Runtime
model, dtype, threads, text = sys.argv[1:5]
runtime = Runtime(model or None, 'cpu', dtype, int(threads))  # kept: what it holds is measured below
vector = runtime.encode(text)
print(flush=True)
""",
    "sentence-transformers": """
import os, sys
from sentence_transformers import SentenceTransformer
model, dtype, threads, text = sys.argv[1:5]
import torch
torch.set_num_threads(int(threads))
encoder = SentenceTransformer(model, device='cpu', local_files_only=True, model_kwargs={'dtype': dtype})
vector = encoder.encode(text)
print(flush=True)
""",
    "onnxruntime": """
import os, sys
import numpy, onnxruntime, tokenizers
model, dtype, threads, text, tokenizer = sys.argv[1:6]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = int(threads), 1
session = onnxruntime.InferenceSession(model, options, providers=['CPUExecutionProvider'])
ids = numpy.array([tokenizers.Tokenizer.from_file(tokenizer).encode(text).ids])
vector = session.run(None, {'input_ids': ids, 'attention_mask': numpy.ones_like(ids)})[0][0]
print(flush=True)
""",
}


def run_startup(bench: Workbench, against: Sequence[str] | None, sizes: Sizes, threads: int, say: Say) -> Results:
    """Run the suite on the model given, else the one in the package, and on BERT-base with random weights."""
    families, results = ["fastflow", *chosen(against)], Results()
    base = bench.base()
    for subject in (bench.named(), base):
        say(f"startup: {subject.label}")
        results.subjects.append({"subject": subject.label, "inputs": f"one sentence, {len(TEXT.split())} words"})
        tokenize = Tokenizer(subject.encoder, subject.max_length)
        pooled = padded(reference(subject), tokenize)([TEXT])
        wanted = {
            "fastflow": Runtime(subject.model, "cpu", "float32", threads, backend="cpu").transform(pooled),
            "onnxruntime": pooled,  # its file holds the pooling
            "sentence-transformers": padded(reference(subject, (subject.depth,)), tokenize)([TEXT]),
        }
        jobs = jobs_of(subject, families, threads, results.skipped)
        samples: dict[tuple[str, str], list[tuple[float, dict[str, float]]]] = {}
        rounds = 1 + sizes.starts  # the first, which fills the page cache, is not kept
        for _ in range(rounds):
            for key, command in list(jobs.items()):
                try:
                    sample = start(*key, command, wanted[key[0]])
                except (FastflowError, OSError, ValueError) as error:
                    if key[0] == "fastflow":
                        raise
                    results.skipped.append(left_out(subject, *key, said(error)))
                    del jobs[key]
                    samples.pop(key, None)
                    continue
                samples.setdefault(key, []).append(sample)
        results.add(_row(subject, *key, threads, taken[1:]) for key, taken in samples.items())
    results.ratios = startup_ratios(results.rows)
    return results


def jobs_of(
    subject: Subject, families: Sequence[str], threads: int, skipped: list[dict[str, Any]]
) -> dict[tuple[str, str], list[str]]:
    """{(name, dtype): the command of its process}; what is missing is added to ``skipped``."""
    jobs = {("fastflow", dtype): _command("fastflow", subject.model or "", dtype, threads) for dtype in DTYPES}
    for name, dtype in (("sentence-transformers", "float32"), ("onnxruntime", "float32"), ("onnxruntime", "int8")):
        if name not in families:
            continue
        if reason := missing(name, dtype):
            skipped.append(left_out(subject, name, dtype, reason))
            continue
        if name == "sentence-transformers":
            jobs[name, dtype] = _command(name, str(subject.encoder), dtype, threads)
            continue
        try:
            from fastflow.bench.peers.onnx import fused, quantised

            path = fused(subject) if dtype == "float32" else quantised(subject)
        except Exception as error:  # somebody else's exporter raises anything; the run goes on without it
            skipped.append(left_out(subject, name, dtype, f"no ONNX file could be made: {said(error)}"))
            continue
        jobs[name, dtype] = [*_command(name, str(path), dtype, threads), str(subject.encoder / "tokenizer.json")]
    return jobs


def _command(name: str, model: str, dtype: str, threads: int) -> list[str]:
    return [sys.executable, "-c", CODE[name] + REPORT, model, dtype, str(threads), TEXT]


def start(name: str, dtype: str, command: Sequence[str], exact: Array) -> tuple[float, dict[str, float]]:
    """Seconds from the start of ``command`` to its first vector, and its memory in MB; the vector is checked."""
    environment = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    # the first round writes the bytecode of everybody, as an installation does: a checkout would be compiled each time
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as messages:
        began = perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True, env=environment) as process:
            if process.stdout is None:
                raise FastflowError("bench: the process has no standard output")
            guard = Timer(TIMEOUT_S, process.kill)
            guard.start()
            try:
                process.stdout.readline()
                seconds = perf_counter() - began
                out = process.stdout.read()
                process.wait()
            finally:  # Ctrl-C or SIGTERM too: the process ends with the bench
                guard.cancel()
                process.kill()
        messages.seek(0)
        last = (messages.read().strip().splitlines() or [f"no message; it is given {TIMEOUT_S} s"])[-1]
    if process.returncode:
        raise FastflowError(f"bench: the process of {name} {dtype} failed: {last}")
    answer = json.loads(out.strip().splitlines()[-1])
    least_cosine(name, dtype, np.asarray([answer["vector"]]), exact)
    return seconds, {key: kib * 1024 / 1e6 for key, kib in answer["memory"].items()}


def memory_of(samples: Sequence[tuple[float, dict[str, float]]]) -> dict[str, float]:
    """The median of each kind of memory, in MB."""
    return {key: float(np.median([taken[key] for _, taken in samples])) for key in samples[0][1]}


def _row(
    subject: Subject, name: str, dtype: str, threads: int, samples: Sequence[tuple[float, dict[str, float]]]
) -> Row:
    timing = summarise([seconds for seconds, _ in samples], 1)
    memory = memory_of(samples)
    return Row.timed(
        timing, suite="startup", subject=subject.label, name=name,
        backend=f"cpu {body_of(dtype)}" if name == "fastflow" else name.partition("-")[0], dtype=dtype,
        threads=threads, batch=1, tokens=None, max_abs_err=None,
        peak_mb=memory.get("VmHWM"), resident_mb=memory.get("VmRSS"), anonymous_mb=memory.get("RssAnon"),
    )  # fmt: skip
