"""The time from the start of a process to its first vector, and the memory that it then has.

Each sample is a fresh interpreter, with the files in the page cache. The clock stops when the process reports its first
vector. Memory is as Linux counts it then: resident, its peak, and the anonymous part (without mapped files).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from time import perf_counter
from typing import Any

import numpy as np

from fastflow.bench.measure.compare import check_cosine
from fastflow.bench.measure.subject import Array
from fastflow.bench.measure.timing import summarise
from fastflow.bench.peers.encoder import first_line
from fastflow.errors import FastflowError

TEXT = "The river was quiet that morning."
TIMEOUT_S = 120
# engine -> the lines that make embed(texts) of ``model``, ``dtype``, ``threads`` and ``more``
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
memory = {line[0][:-1]: int(line[1]) for line in lines if line[0] in ('VmHWM:', 'VmRSS:', 'RssAnon:')}
print(json.dumps({'vector': [float(v) for v in vector], 'memory': memory}), flush=True)
"""


@dataclass(frozen=True)
class Job:
    """A process to start, and the vector (1, D) that its first one must agree with."""

    name: str
    dtype: str
    command: list[str]
    exact: Array


def make_command(
    engine: str, model: str, dtype: str, threads: int, *more: str, python: str = sys.executable, report: str = MEMORY
) -> list[str]:
    """Return the command of a process that prints an empty line after its first vector, then runs ``report``."""
    program = PROGRAM.format(opening=OPENING[engine], text=TEXT, report=report)
    return [python, "-c", program, model, dtype, str(threads), *more]


def start(name: str, command: Sequence[str], cwd: Path | None = None, seconds: float = TIMEOUT_S) -> tuple[float, str]:
    """Return the seconds from the start of ``command`` to its first line, and its last line.

    Raises a FastflowError with the last message of a process that fails or takes more than ``seconds``.
    """
    environment = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    # the first round writes everybody's bytecode, as an installation does
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
            finally:  # Ctrl-C or SIGTERM too: the process ends with the bench
                guard.cancel()
                process.kill()
        messages.seek(0)
        last = (messages.read().strip().splitlines() or [f"no message; it is given {seconds} s"])[-1]
    if process.returncode:
        raise FastflowError(f"bench: the process of {name} failed: {last}")
    return taken, out.strip().splitlines()[-1]


def start_once(job: Job) -> tuple[float, dict[str, float]]:
    """Return the seconds to the first vector of ``job``, which is checked, and the process's memory in MB."""
    seconds, answer = start(f"{job.name} {job.dtype}", job.command)
    found = json.loads(answer)
    check_cosine(job.name, job.dtype, np.asarray([found["vector"]]), job.exact)
    return seconds, {key: kib * 1024 / 1e6 for key, kib in found["memory"].items()}


def time_starts(
    jobs: Sequence[Job], starts: int, leave_out: Callable[[Job, str], None]
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Start every job ``starts`` times in turn; yield it with the fields of its row, times and memory.

    A first round fills the page cache and does not count. A peer that fails is left out; fastflow's error is raised.
    """
    samples: dict[int, list[tuple[float, dict[str, float]]]] = {i: [] for i in range(len(jobs))}
    for _ in range(1 + starts):
        for i in list(samples):
            try:
                samples[i].append(start_once(jobs[i]))
            except (FastflowError, OSError, ValueError, LookupError) as error:
                if jobs[i].name == "fastflow":
                    raise
                leave_out(jobs[i], first_line(error))
                del samples[i]
    for i, taken in samples.items():
        median = {key: float(np.median([memory[key] for _, memory in taken[1:]])) for key in taken[1][1]}
        yield jobs[i], summarise([seconds for seconds, _ in taken[1:]]).as_fields() | {
            "peak_mb": median.get("VmHWM"), "resident_mb": median.get("VmRSS"), "anonymous_mb": median.get("RssAnon"),
        }  # fmt: skip
