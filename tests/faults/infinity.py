"""``fastflow serve`` and infinity-emb with one model under the same load, in turns.

    pip install infinity-emb; python tests/faults/infinity.py MODEL --rates 5,20,80 --rounds 3

MODEL is a directory of Sentence Transformers. Single texts arrive at a constant rate (bench/measure/load.py), whether
or not the ones before were answered. Of each server: the seconds of the processor until it answers and for 1,000
texts, which other work on the machine disturbs least; the 99th percentile of an answer; and memory at the end.
infinity 0.0.78 calls a method of tokenizers that transformers 5 no longer has; it is given back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

from fastflow.bench.measure.load import Outcome, Plan, generate

from support.builders import make_sentences

INFINITY = """
import sys, transformers
kept = transformers.PreTrainedTokenizerBase
if not hasattr(kept, "batch_encode_plus"):
    kept.batch_encode_plus = lambda self, *given, **named: self(*given, **named)
from infinity_emb.cli import cli
cli()
"""
OURS = "from fastflow.cli import main; main()"
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 300  # seconds until a server answers


def command(name: str, model: str, threads: int, port: int) -> list[str]:
    if name == "fastflow":
        return [sys.executable, "-c", OURS, "serve", "-m", model, "--threads", str(threads), "--dtype", "float32",
                "--port", str(port), "--any-model"]  # fmt: skip
    return [sys.executable, "-c", INFINITY, "v2", "--model-id", model, "--served-model-name", "m", "--device", "cpu",
            "--engine", "torch", "--dtype", "float32", "--port", str(port)]  # fmt: skip


def processor(pid: int) -> float:
    """Seconds of the processor that a process took so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def server(name: str, model: str, threads: int) -> Iterator[tuple[int, int, float, float]]:
    """(port, process, seconds, seconds of the processor until /health answered) of a server that runs meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command(name, model, threads, port), env=env, stdout=log, stderr=log)
        began = time.monotonic()
        try:
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() - began > PATIENCE:
                        log.seek(0)
                        raise SystemExit(f"{name} did not start: {log.read()[-500:].decode()}") from None
                    time.sleep(0.05)
            yield port, process.pid, time.monotonic() - began, processor(process.pid)
        finally:
            process.kill()
            process.wait()


def load(name: str, port: int, rate: float, seconds: float) -> Outcome:
    path = "/v1/embeddings" if name == "fastflow" else "/embeddings"
    bodies = tuple(json.dumps({"model": "m", "input": text}) for text in make_sentences(256))
    count = max(20, int(rate * seconds))
    return asyncio.run(generate(Plan(port, path, bodies, rate, count, 256)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rates", default="5,20,80", help="texts a second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6, help="of each load")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    names = ("fastflow", "infinity")
    with server(names[0], given.model, given.threads) as one, server(names[1], given.model, given.threads) as other:
        running = dict(zip(names, (one, other), strict=True))
        for name, (port, _, taken, used) in running.items():
            print(f"{name}: answers after {taken:.1f} s, {used:.1f} s of the processor", flush=True)
            load(name, port, 5, 4)
        for rate in map(float, given.rates.split(",")):
            found: dict[str, list[tuple[float, float, int, int]]] = {name: [] for name in names}
            for _ in range(given.rounds):
                for name, (port, pid, _, _) in running.items():
                    before = processor(pid)
                    outcome = load(name, port, rate, given.seconds)
                    answered = outcome.count()
                    per_thousand = (processor(pid) - before) / max(1, answered) * 1000
                    late = outcome.quantile(0.99) or float("nan")
                    found[name].append((late, per_thousand, answered, sum(outcome.ended.values()) - answered))
            for name, rows in found.items():
                late, used = (median(row[i] for row in rows) for i in (0, 1))
                answered, others = (sum(row[i] for row in rows) for i in (2, 3))
                print(f"{name}, {rate:g} a second: p99 {late:.0f} ms, {used:.2f} s of the processor for 1,000 texts, "
                      f"{answered} answered, {others} not", flush=True)  # fmt: skip
        for name, (_, pid, _, _) in running.items():
            memory = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096 / 2**20
            print(f"{name}: {memory:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
