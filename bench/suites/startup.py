"""The start-up suite: a new process, from its start to its first vector, and the memory that it then has.

For a directory without thresholds of int8, the trial of a first opening is kept: users see later openings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastflow.bench.measure.row import Results, make_row
from fastflow.bench.measure.subject import Subject
from fastflow.bench.peers.encoder import choose, first_line, missing
from fastflow.bench.peers.pooled import open_reference
from fastflow.bench.report.ratios import compute_startup_ratios
from fastflow.bench.suites.encoder import DTYPES, find_instructions
from fastflow.bench.suites.starts import TEXT, Job, make_command, time_starts
from fastflow.bench.suites.texts import embed_padded
from fastflow.bench.suites.workbench import Request
from fastflow.model.tokenizer.encode import Tokenizer
from fastflow.runtime import Runtime

PEERS = (("sentence-transformers", "float32"), ("onnxruntime", "float32"), ("onnxruntime", "int8"))


def run_startup(request: Request) -> Results:
    """Run the suite on the model given, else the one in the package, and on BERT-base with random weights."""
    families, results = choose(request.against), Results()
    base = request.bench.base()
    for subject in (request.bench.named(), base):
        request.say(f"startup: {subject.label}")
        results.subjects.append({"subject": subject.label, "inputs": f"one sentence, {len(TEXT.split())} words"})
        jobs = [*list_jobs(subject, families, request.threads, results)]

        def leave_out(job: Job, reason: str, label: str = subject.label) -> None:
            results.leave_out(label, f"{job.name} {job.dtype}", reason)

        for job, fields in time_starts(jobs, request.sizes.starts, leave_out):
            ours = job.name == "fastflow"
            backend = f"cpu {find_instructions(job.dtype)}" if ours else job.name.partition("-")[0]
            row = {"name": job.name, "backend": backend, "dtype": job.dtype, "threads": request.threads, "batch": 1}
            results.add([make_row("startup", subject=subject.label, **row, **fields)])
    results.ratios = compute_startup_ratios(results.rows)
    return results


def list_jobs(subject: Subject, families: Sequence[str], threads: int, results: Results) -> Iterator[Job]:
    """Yield the process of each candidate with its own vector of TEXT; leave the others out of ``results``."""
    tokenize = Tokenizer(subject.encoder, subject.max_length)
    pooled = embed_padded(open_reference(subject), tokenize)([TEXT])
    calibrated = Runtime(subject.model, "cpu", "float32", threads, backend="cpu").transform(pooled)
    for dtype in DTYPES:
        yield Job("fastflow", dtype, make_command("fastflow", subject.model or "", dtype, threads), calibrated)
    for name, dtype in PEERS:
        if name not in families:
            continue
        if reason := missing(name, dtype):
            results.leave_out(subject.label, f"{name} {dtype}", reason)
        elif name == "sentence-transformers":
            last = embed_padded(open_reference(subject, (subject.depth,)), tokenize)([TEXT])
            yield Job(name, dtype, make_command(name, str(subject.encoder), dtype, threads), last)
        else:
            try:
                from fastflow.bench.peers.engines import fuse, quantise

                path = fuse(subject) if dtype == "float32" else quantise(subject)
            except Exception as error:  # somebody else's exporter raises anything; the run continues
                reason = f"no ONNX file could be made: {first_line(error)}"
                results.leave_out(subject.label, f"{name} {dtype}", reason)
                continue
            tokenizer = str(subject.encoder / "tokenizer.json")
            yield Job(name, dtype, make_command(name, str(path), dtype, threads, tokenizer), pooled)
