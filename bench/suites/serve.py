"""The serve suite: single texts at a constant rate to a server, in shares of what the kernel alone can compute.

The server and the generator are processes on the same processors; the generator's share of one is in every row, and so
is how late it sent. Ours runs as ``fastflow serve``, the peer as ``peers.serve_onnx``, in sequence, with equal
threads and the same texts.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import numpy as np

from fastflow.bench.measure.load import Outcome, Plan
from fastflow.bench.measure.row import Results, Row
from fastflow.bench.measure.subject import Subject
from fastflow.bench.peers.encoder import chosen, left_out, missing, said
from fastflow.bench.report.ratios import serve_ratios
from fastflow.bench.suites.encoder import Say
from fastflow.bench.suites.sizes import ServeSizes, Sizes
from fastflow.bench.suites.texts import real_texts
from fastflow.bench.suites.workbench import Workbench
from fastflow.errors import FastflowError, missing_extra
from fastflow.runtime import Runtime

LIST = 32  # texts of a request if lists are sent
FULL_SHARE = 1.3  # of the capacity: the server is saturated
TIMEOUT_S = 90


def run_serve(bench: Workbench, against: Sequence[str] | None, sizes: Sizes, threads: int, say: Say) -> Results:
    """Run the suite on the model given; without one on that in the package and on BERT-base with random weights."""
    from importlib.util import find_spec

    for module in ("starlette", "uvicorn", "httptools", "prometheus_client"):
        if find_spec(module) is None:
            raise missing_extra("serve", module, "fastflow bench --suite serve")
    families, results = chosen(against), Results()
    texts, source = real_texts(sizes.serve.texts)
    random.Random(0).shuffle(texts)  # STSb has its long texts side by side: a share would be of the mean alone
    for subject in bench.subjects():
        run_subject(subject, texts, source, families, sizes.serve, threads, say, results)
    results.ratios = serve_ratios(results.rows)
    return results


def run_subject(
    subject: Subject, texts: list[str], source: str, families: Sequence[str], sizes: ServeSizes, threads: int,
    say: Say, results: Results,
) -> None:  # fmt: skip
    """Measure the Runtime alone, then every server at every load; adds to ``results``."""
    say(f"serve: {subject.label}: the Runtime alone")
    runtime = Runtime(subject.model, "cpu", "auto", threads, backend="cpu")
    alone = [_alone(runtime, texts, subject, threads, size) for size in (len(texts), 1)]
    results.add(alone)
    capacity = alone[0].texts_per_s or 0.0
    dtype = runtime.info()["dtype"]
    runtime.close()
    inputs = f"{source}: {len(texts)} texts; loads are shares of {capacity:.0f} texts a second, the Runtime's own"
    results.subjects.append({"subject": subject.label, "inputs": inputs})
    command = [sys.executable, "-c", "from fastflow.cli import main; main()", "serve", "--port", "0"]
    command += ["--max-connections", str(2 * sizes.connections)]
    command += ["--threads", str(threads), *(["-m", subject.model] if subject.model else [])]
    servers = {("fastflow", dtype): command}
    if "onnxruntime" in families:
        _add_peer(subject, threads, servers, results)
    for (name, served), line in servers.items():
        with _server(line) as (port, pid):
            batch = _batch_ms(port) if name == "fastflow" else None
            for share in sizes.shares:
                say(f"serve: {subject.label}: {name}, {share:.0%} of the capacity")
                outcome = _load(port, texts, share * capacity, 1, sizes)
                results.add([_row(subject, name, served, threads, share, 1, outcome, batch)])
            say(f"serve: {subject.label}: {name}, lists")
            outcome = _load(port, texts, FULL_SHARE * capacity / LIST, LIST, sizes)
            results.add([_row(subject, name, served, threads, FULL_SHARE, LIST, outcome, batch, _memory(pid))])


def _alone(runtime: Runtime, texts: list[str], subject: Subject, threads: int, size: int) -> Row:
    """The Runtime on ``texts``, ``size`` at a time."""
    batches = [texts] * 5 if size == len(texts) else [[text] for text in texts[:200]]
    runtime.encode(batches[0], normalize_embeddings=True)
    taken = []
    for batch in batches:
        start = time.perf_counter()
        runtime.encode(batch, normalize_embeddings=True)
        taken.append((time.perf_counter() - start) * 1e3)
    low, middle, high, most = np.quantile(taken, [0.2, 0.5, 0.8, 0.99]).tolist()
    return Row(
        suite="serve", subject=subject.label, name="Runtime alone", backend="cpu", dtype=runtime.info()["dtype"],
        threads=threads, batch=size, tokens=None, median_ms=middle, p20_ms=low, p80_ms=high, p99_ms=most,
        runs=len(taken), calls_per_run=1, max_abs_err=None, texts_per_s=size / middle * 1e3,
    )  # fmt: skip


def _add_peer(subject: Subject, threads: int, servers: dict[tuple[str, str], list[str]], results: Results) -> None:
    name = "starlette + onnxruntime"
    if reason := missing("onnxruntime", "float32"):
        results.skipped.append(left_out(subject, name, "float32", reason))
        return
    try:
        from fastflow.bench.peers.onnx import fused

        path = fused(subject)
    except Exception as error:  # somebody else's exporter raises anything; the run goes on without it
        results.skipped.append(left_out(subject, name, "float32", f"no ONNX file could be made: {said(error)}"))
        return
    tokenizer, length = str(subject.encoder / "tokenizer.json"), str(subject.max_length)
    module = [sys.executable, "-m", "fastflow.bench.peers.serve_onnx"]
    servers[name, "float32"] = [*module, str(path), tokenizer, str(threads), length]


@contextmanager
def _server(command: list[str]) -> Iterator[tuple[int, int]]:
    """(port, process id) of a server that runs meanwhile. Raises a FastflowError if it does not start."""
    ours = "serve" in command
    process = subprocess.Popen(
        command, stdout=None if ours else subprocess.PIPE, stderr=subprocess.PIPE if ours else None, text=True
    )
    try:
        stream = process.stderr if ours else process.stdout
        said_so_far = []
        for line in stream or ():
            said_so_far.append(line)
            if not ours or "serving" in line:
                break
        else:
            raise FastflowError(f"bench: the server did not start: {''.join(said_so_far)[-300:]}")
        found = said_so_far[-1]
        port = int(found.split("http://127.0.0.1:")[1].split(",")[0]) if ours else int(found)
        yield port, process.pid
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
        for each in (process.stdout, process.stderr):
            if each is not None:
                each.close()


def _load(port: int, texts: list[str], rate: float, size: int, sizes: ServeSizes) -> Outcome:
    """The measurements of the generator's process."""
    groups = [texts[i : i + size] for i in range(0, len(texts) - size + 1, size)]
    bodies = tuple(json.dumps({"inputs": group if size > 1 else group[0]}) for group in groups)
    lead = int(rate * sizes.lead)
    count = lead + int(min(sizes.most, max(10, rate * sizes.seconds)))
    plan = Plan(port, "/embed", bodies, rate, count, sizes.connections, lead)
    done = subprocess.run(
        [sys.executable, "-m", "fastflow.bench.measure.load"], input=json.dumps(asdict(plan)),
        capture_output=True, text=True, timeout=TIMEOUT_S + sizes.lead + sizes.seconds, check=False,
    )  # fmt: skip
    if done.returncode:
        raise FastflowError(f"bench: the generator failed: {done.stderr.strip()[-300:]}")
    return Outcome(**json.loads(done.stdout))


def _row(
    subject: Subject, name: str, dtype: str, threads: int, share: float, size: int,
    outcome: Outcome, batch_ms: float | None, memory: float | None = None,
) -> Row:  # fmt: skip
    low, middle, high, most = (outcome.quantile(q) or float("nan") for q in (0.2, 0.5, 0.8, 0.99))
    lag = float(np.quantile(outcome.late_ms, 0.99)) if outcome.late_ms else float("nan")
    return Row(
        suite="serve", subject=subject.label, name=name, backend="cpu", dtype=dtype, threads=threads, batch=size,
        tokens=None, median_ms=middle, p20_ms=low, p80_ms=high, p99_ms=most, runs=outcome.count(), calls_per_run=1,
        max_abs_err=None, texts_per_s=outcome.ended.get("200", 0) * size / outcome.seconds, share=share,
        refused=outcome.count("429"), refused_p99_ms=outcome.quantile(0.99, "429"),
        failed=outcome.unsent + outcome.lost + sum(
            len(found) for status, found in outcome.answered_ms.items() if status not in ("200", "429")
        ),
        lag_p99_ms=lag, generator_cpu=outcome.cpu_seconds / outcome.seconds, batch_ms=batch_ms, resident_mb=memory,
    )  # fmt: skip


def _batch_ms(port: int) -> float:
    """Milliseconds that the kernel takes for the server's own largest batch, by its own figures."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/info", timeout=TIMEOUT_S) as answer:
        info = json.load(answer)
    return float(info["max_batch_tokens"] / info["tokens_per_second"] * 1e3)


def _memory(pid: int) -> float | None:
    """Megabytes that the process holds; None outside Linux."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("VmRSS:"))
    except OSError:
        return None
