"""The start-up suite: a new process, from its start to its first vector, and its memory then.

Memory is resident, its peak, and without mapped files. The files and int8's quality check are cached.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from time import perf_counter
from typing import NamedTuple

import numpy as np

from fastflow.bench.measure.compare import check_cosine
from fastflow.bench.measure.row import KEYS, Array, Results, Subject, make_row
from fastflow.bench.measure.timing import summarise
from fastflow.bench.peers.encoder import choose, first_line, missing, open_reference
from fastflow.bench.report.ratios import compute_startup_ratios
from fastflow.bench.suites.encoder import DTYPES, find_instructions
from fastflow.bench.suites.texts import embed_padded
from fastflow.bench.suites.workbench import SuiteRun
from fastflow.errors import FastflowError
from fastflow.model.tokenizer import Tokenizer
from fastflow.runtime import Runtime

TEXT = "The river was quiet that morning."
TIMEOUT_S = 120
PEERS = (("sentence-transformers", "float32"), ("onnxruntime", "float32"), ("onnxruntime", "int8"))
# engine -> the lines that make embed(texts)
OPENING = {
    "fastflow": """
from fastflow import Runtime
embed = Runtime(model or None, 'cpu', dtype, int(threads)).encode
""",
    "sentence-transformers": """
from sentence_transformers import SentenceTransformer
import torch
torch.set_num_threads(int(threads))
embed = SentenceTransformer(model, device='cpu', local_files_only=True, model_kwargs={'dtype': dtype}).encode
""",
    "onnxruntime": """
import numpy, onnxruntime, tokenizers
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = int(threads), 1
session = onnxruntime.InferenceSession(model, options, providers=['CPUExecutionProvider'])
def embed(texts):
    ids = numpy.array([tokenizers.Tokenizer.from_file(more[0]).encode(texts[0]).ids])
    return session.run(None, {'input_ids': ids, 'attention_mask': numpy.ones_like(ids)})[0]
""",
    "model2vec": """
from model2vec import StaticModel
embed = StaticModel.from_pretrained(model).encode
""",
    "tokenizers-numpy": """
import numpy, safetensors.numpy, tokenizers
table = safetensors.numpy.load_file(model + '/model.safetensors')['embeddings']
def embed(texts):
    tokenizer = tokenizers.Tokenizer.from_file(model + '/tokenizer.json')
    return [table[tokenizer.encode(texts[0], add_special_tokens=False).ids].mean(axis=0)]
""",
    "fastembed": """
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
TextEmbedding.add_custom_model(model='own/model', pooling=PoolingType.DISABLED, normalization=False,
    sources=ModelSource(url='file:///nowhere'), dim=int(more[0]), model_file='model.onnx')
engine = TextEmbedding('own/model', threads=int(threads), specific_model_path=model, local_files_only=True)
def embed(texts):
    return list(engine.embed(texts, batch_size=32))
""",
}
PROGRAM = """
import os, sys
model, dtype, threads, *more = sys.argv[1:]
{opening}
vector = embed([{text!r}])[0]
print(flush=True)
import json
{report}
"""
MEMORY = """
lines = [line.split() for line in open('/proc/self/status')] if os.path.exists('/proc/self/status') else []
names = {'VmHWM:': 'peak_mb', 'VmRSS:': 'resident_mb', 'RssAnon:': 'anonymous_mb'}
memory = {names[line[0]]: int(line[1]) for line in lines if line[0] in names}
print(json.dumps({'vector': [float(v) for v in vector], 'memory': memory}), flush=True)
"""


class ColdStart(NamedTuple):
    """A process to start, and the vector (1, D) that it must agree with."""

    name: str
    dtype: str
    backend: str
    command: list[str]
    exact: Array


def make_command(
    engine: str, model: str, dtype: str, threads: int, *more: str, python: str = sys.executable, report: str = MEMORY
) -> list[str]:
    """Return the command of a process that prints an empty line after its first vector, then ``report``."""
    program = PROGRAM.format(opening=OPENING[engine], text=TEXT, report=report)
    return [python, "-c", program, model, dtype, str(threads), *more]


def start(name: str, command: Sequence[str], cwd: Path | None = None, seconds: float = TIMEOUT_S) -> tuple[float, str]:
    """Return the seconds from the start of ``command`` to its first line, and its last line.

    Raises a FastflowError with the process's last message if it fails or is too slow.
    """
    environment = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    # lets the first round write bytecode
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as messages:
        began = perf_counter()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=messages, text=True, env=environment, cwd=cwd
        ) as process:
            if process.stdout is None:
                raise FastflowError("bench: the process has no standard output")
            guard = Timer(seconds, process.kill)
            guard.start()
            try:
                process.stdout.readline()
                taken = perf_counter() - began
                out = process.stdout.read()
                process.wait()
            finally:
                guard.cancel()
                process.kill()
        messages.seek(0)
        last = (messages.read().strip().splitlines() or [f"no message; it is given {seconds} s"])[-1]
    if process.returncode:
        raise FastflowError(f"bench: the process of {name} failed: {last}")
    return taken, out.strip().splitlines()[-1]


def start_once(job: ColdStart) -> tuple[float, dict[str, float]]:
    """Return the seconds to the first vector, which is checked, and the memory in MB."""
    seconds, answer = start(f"{job.name} {job.dtype}", job.command)
    found = json.loads(answer)
    check_cosine(job.name, job.dtype, np.asarray([found["vector"]]), job.exact)
    return seconds, {key: kib * 1024 / 1e6 for key, kib in found["memory"].items()}


def time_starts(suite: str, label: str, jobs: Sequence[ColdStart], request: SuiteRun, results: Results) -> None:
    """Start every job by turns and add its row; leave out a peer that fails."""
    samples: dict[int, list[tuple[float, dict[str, float]]]] = {i: [] for i in range(len(jobs))}
    for _ in range(1 + request.sizes.starts):
        for i in list(samples):
            try:
                samples[i].append(start_once(jobs[i]))
            except (FastflowError, OSError, ValueError, LookupError) as error:
                if jobs[i].name == "fastflow":
                    raise
                results.leave_out(label, f"{jobs[i].name} {jobs[i].dtype}", first_line(error))
                del samples[i]
    for i, taken in samples.items():
        times = summarise([seconds for seconds, _ in taken[1:]])._asdict()
        memory = {key: float(np.median([found[key] for _, found in taken[1:]])) for key in taken[1][1]}
        results.add([make_row(
            suite, subject=label, name=jobs[i].name, backend=jobs[i].backend, dtype=jobs[i].dtype,
            threads=request.threads, batch=1, **times, **{key: memory[key] for key in KEYS[suite] if key in memory},
        )])  # fmt: skip


def run_startup(request: SuiteRun) -> Results:
    """Run the suite on the model given, else the packaged one, and on BERT-base."""
    families, results = choose(request.against), Results()
    subjects = (request.bench.pick_subject(), request.bench.base())
    for subject in request.keep_judged(subjects, results):
        request.say(f"startup: {subject.label}")
        results.subjects.append({"subject": subject.label, "inputs": f"one sentence, {len(TEXT.split())} words"})
        jobs = [*list_jobs(subject, families, request.threads, results)]
        time_starts("startup", subject.label, jobs, request, results)
    results.ratios = compute_startup_ratios(results.rows)
    return results


def list_jobs(subject: Subject, families: Sequence[str], threads: int, results: Results) -> Iterator[ColdStart]:
    """Yield a Job for each candidate that embeds TEXT."""
    tokenize = Tokenizer(subject.encoder, subject.max_length)
    pooled = embed_padded(open_reference(subject), tokenize)([TEXT])
    calibrated = Runtime(subject.model, "cpu", "float32", threads, backend="cpu").transform(pooled)
    for dtype in DTYPES:
        command = make_command("fastflow", subject.model or "", dtype, threads)
        yield ColdStart("fastflow", dtype, f"cpu {find_instructions(dtype)}", command, calibrated)
    for name, dtype in PEERS:
        if name not in families:
            continue
        if reason := missing(name, dtype):
            results.leave_out(subject.label, f"{name} {dtype}", reason)
        elif name == "sentence-transformers":
            last = embed_padded(open_reference(subject, (subject.depth,)), tokenize)([TEXT])
            yield ColdStart(name, dtype, "sentence", make_command(name, str(subject.encoder), dtype, threads), last)
        else:
            try:
                from fastflow.bench.peers.engines import fuse, quantise

                path = fuse(subject) if dtype == "float32" else quantise(subject)
            except Exception as error:
                reason = f"no ONNX file could be made: {first_line(error)}"
                results.leave_out(subject.label, f"{name} {dtype}", reason)
                continue
            tokenizer = str(subject.encoder / "tokenizer.json")
            yield ColdStart(name, dtype, name, make_command(name, str(path), dtype, threads, tokenizer), pooled)
