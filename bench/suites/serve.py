"""The serve suite: single texts at a constant rate to a server, in shares of the kernel's rate.

Server and generator share the processors; a row has the generator's share and lateness.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec

import numpy as np

from fastflow.bench.measure.load import Load, Outcome
from fastflow.bench.measure.machine import read_text
from fastflow.bench.measure.row import Results, Row, Subject, make_row
from fastflow.bench.measure.timing import take_turns
from fastflow.bench.report.ratios import compute_serve_ratios
from fastflow.bench.suites.sizes import ServeSizes
from fastflow.bench.suites.texts import real_texts
from fastflow.bench.suites.workbench import SuiteRun
from fastflow.errors import FastflowError, missing_extra
from fastflow.runtime import Runtime

LIST = 32  # texts of a request that has a list
FULL_SHARE = 1.3  # share of the capacity that saturates the server
TIMEOUT_S, START_S = 90, 300


def run_serve(request: SuiteRun) -> Results:
    """Run the suite on the model given, else on the packaged model and BERT-base."""
    for module in ("starlette", "uvicorn", "httptools", "prometheus_client"):
        if find_spec(module) is None:
            raise missing_extra("serve", module, "fastflow bench --suite serve")
    results = Results()
    texts, source = real_texts(request.sizes.serve.texts)
    random.Random(0).shuffle(texts)  # STSb has its long texts together
    for subject in request.bench.subjects():
        run_subject(request, subject, texts, source, results)
    results.ratios = compute_serve_ratios(results.rows)
    return results


def run_subject(request: SuiteRun, subject: Subject, texts: list[str], source: str, results: Results) -> None:
    """Measure the Runtime, then the server at every load."""
    sizes, threads, say = request.sizes.serve, request.threads, request.say
    say(f"serve: {subject.label}: the Runtime alone")
    with Runtime(subject.model, "cpu", "auto", threads, backend="cpu") as runtime:
        dtype = runtime.info()["dtype"]
        who = {"subject": subject.label, "backend": "cpu", "dtype": dtype, "threads": threads}
        alone = [make_row("serve", name="Runtime alone", **who, **_time_runtime(runtime, texts, size))
                 for size in (len(texts), 1)]  # fmt: skip
    results.add(alone)
    capacity = alone[0]["texts_per_s"]
    inputs = f"{source}: {len(texts)} texts; loads are shares of {capacity:.0f} texts a second, the Runtime's own"
    results.subjects.append({"subject": subject.label, "inputs": inputs})

    command = [sys.executable, "-c", "from fastflow.cli import main; main()", "serve", "--port", "{port}"]
    command += ["--max-connections", str(2 * sizes.connections), "--threads", str(threads)]
    command += ["-m", subject.model] if subject.model else []
    with run_server(command) as (port, pid):
        ours = who | {"name": "fastflow", "batch_ms": _read_batch_ms(port)}
        for share in sizes.shares:
            say(f"serve: {subject.label}: fastflow, {share:.0%} of the capacity")
            outcome = _send_load(port, texts, share * capacity, 1, sizes)
            add_load(outcome, ours | {"batch": 1, "share": share}, results)
        say(f"serve: {subject.label}: fastflow, lists")
        outcome = _send_load(port, texts, FULL_SHARE * capacity / LIST, LIST, sizes)
        more = {"batch": LIST, "share": FULL_SHARE, "resident_mb": _read_memory(pid)}
        add_load(outcome, ours | more, results)


def _time_runtime(runtime: Runtime, texts: list[str], size: int) -> Row:
    batches = [texts] * 5 if size == len(texts) else [[text] for text in texts[:200]]
    (taken,) = take_turns({"": partial(runtime.encode, normalize_embeddings=True)}, batches).values()
    low, middle, high, most = (np.quantile(taken, [0.2, 0.5, 0.8, 0.99]) * 1e3).tolist()
    times = {"median_ms": middle, "p20_ms": low, "p80_ms": high, "p99_ms": most, "runs": len(taken)}
    return times | {"batch": size, "texts_per_s": size / middle * 1e3}


@contextmanager
def run_server(command: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Run a server at ``{port}``; yield port and process id once /health answers, or raise its messages."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        words = [word.replace("{port}", str(port)) for word in command]
        process = subprocess.Popen(words, stdout=log, stderr=log)
        end = time.monotonic() + START_S
        try:
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise FastflowError(f"bench: the server did not start: {log.read()[-500:].decode()}")
                time.sleep(0.1)
            yield port, process.pid
        finally:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
    except OSError:
        return False
    return True


def _send_load(port: int, texts: list[str], rate: float, size: int, sizes: ServeSizes) -> Outcome:
    groups = [texts[i : i + size] for i in range(0, len(texts) - size + 1, size)]
    bodies = tuple(json.dumps({"inputs": group if size > 1 else group[0]}) for group in groups)
    lead = int(rate * sizes.lead)
    count = lead + int(min(sizes.most, max(10, rate * sizes.seconds)))
    plan = Load(port, "/embed", bodies, rate, count, sizes.connections, lead)
    done = subprocess.run(
        [sys.executable, "-m", "fastflow.bench.measure.load"], input=json.dumps(asdict(plan)),
        capture_output=True, text=True, timeout=TIMEOUT_S + sizes.lead + sizes.seconds, check=False,
    )  # fmt: skip
    if done.returncode:
        raise FastflowError(f"bench: the generator failed: {done.stderr.strip()[-300:]}")
    return Outcome(**json.loads(done.stdout))


def add_load(outcome: Outcome, who: Row, results: Results) -> None:
    """Add the row of a load, without times if no request was answered."""
    low, middle, high, most = (outcome.quantile(q) for q in (0.2, 0.5, 0.8, 0.99))
    other = sum(len(found) for status, found in outcome.answered_ms.items() if status not in ("200", "429"))
    results.add([make_row(
        "serve", **who, median_ms=middle, p20_ms=low, p80_ms=high, p99_ms=most, runs=outcome.count(),
        texts_per_s=outcome.ended.get("200", 0) * who["batch"] / outcome.seconds, refused=outcome.count("429"),
        refused_p99_ms=outcome.quantile(0.99, "429"), failed=outcome.unsent + outcome.lost + other,
        lag_p99_ms=float(np.quantile(outcome.late_ms, 0.99)) if outcome.late_ms else None,
        generator_cpu=outcome.cpu_seconds / outcome.seconds,
    )])  # fmt: skip


def _read_batch_ms(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/info", timeout=TIMEOUT_S) as answer:
        info = json.load(answer)
    return float(info["max_batch_tokens"] / info["tokens_per_second"] * 1e3)


def _read_memory(pid: int) -> float | None:
    status = read_text(f"/proc/{pid}/status").splitlines()
    return next((int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("VmRSS:")), None)
