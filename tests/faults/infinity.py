"""``fastflow serve`` and infinity-emb with one model under the same load, in turns.

    python tests/faults/infinity.py MODEL --python VENV/bin/python   # of an environment with infinity-emb[server,torch]

MODEL is a directory of Sentence Transformers. Single texts arrive at a constant rate (bench/measure/load.py), whether
or not the ones before were answered; the rate rises until 99 of 100 offered texts no longer have their answer within
the largest bound. Of each server: the highest rate within each bound, by the median of the rounds; the seconds of the
processor until it answers and for 1,000 texts, which other work on the machine disturbs least; and memory at the end.
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

from fastflow.bench.measure.load import Load, Outcome, generate

from support.builders import make_sentences

THEIRS = "from infinity_emb.cli import cli; cli()"
OURS = "from fastflow.cli import main; main()"
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 1200  # seconds until a server answers
SHARE = 0.99
LEAST = 20  # texts of a load
CONNECTIONS = 128  # so few that the server takes those of two loads at once


def command(name: str, given: argparse.Namespace, port: int) -> list[str]:
    if name == "fastflow":
        return [sys.executable, "-c", OURS, "serve", "-m", given.model, "--threads", str(given.threads), "--dtype",
                "float32", "--port", str(port), "--any-model"]  # fmt: skip
    return [given.python, "-c", THEIRS, "v2", "--model-id", given.model, "--served-model-name", "m", "--device", "cpu",
            "--engine", given.engine, "--pooling-method", given.pooling, "--dtype", "float32",
            "--port", str(port)]  # fmt: skip


def processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def server(name: str, given: argparse.Namespace) -> Iterator[tuple[int, int, float, float]]:
    """(port, process, seconds, seconds of processor time until /health answered)."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = os.environ | {"OMP_NUM_THREADS": str(given.threads), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command(name, given, port), env=env, stdout=log, stderr=log)
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
    count = max(LEAST, int(rate * seconds))
    return asyncio.run(generate(Load(port, path, bodies, rate, count, CONNECTIONS)))


def percentile(outcome: Outcome) -> float:
    """Milliseconds within which 99 of 100 texts have their answer, of all that were offered."""
    offered = len(outcome.late_ms) + outcome.unsent
    share = SHARE * offered / max(1, outcome.count())
    return float("inf") if share > 1 else outcome.quantile(share) or float("inf")


def measured(name: str, running: tuple[int, int, float, float], rate: float, seconds: float) -> tuple[float, float]:
    """``percentile`` of a load, and the seconds of the processor for 1,000 answers; a line tells more."""
    port, pid, _, _ = running
    before = processor(pid)
    outcome = load(name, port, rate, seconds)
    used = (processor(pid) - before) / max(1, outcome.count()) * 1000
    print(f"  {name}, {rate:g} a second: p99 {percentile(outcome):.0f} ms, median {outcome.quantile(0.5) or 0:.0f} ms, "
          f"{used:.2f} s of the processor for 1,000 texts, {dict(outcome.ended)}; load {os.getloadavg()[0]:.1f}",
          flush=True)  # fmt: skip
    return percentile(outcome), used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with infinity-emb")
    parser.add_argument("--engine", default="torch", help="of infinity-emb")
    parser.add_argument(
        "--pooling", default="auto", help="of infinity-emb, whose engine optimum takes the first token else"
    )
    parser.add_argument("--rates", default="2,5,10,20,40,60,80,120,160,240,320,480,640", help="texts a second")
    parser.add_argument("--bounds", default="300,1000", help="milliseconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8, help="of each load")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    bounds = [float(bound) for bound in given.bounds.split(",")]
    with server("fastflow", given) as ours, server("infinity", given) as theirs:
        running = {"fastflow": ours, "infinity": theirs}
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in running}
        for name, (port, _, taken, used) in running.items():
            print(f"{name}: answers after {taken:.1f} s, {used:.1f} s of the processor", flush=True)
            load(name, port, 5, 4)
        for rate in map(float, given.rates.split(",")):
            still = [name for name, rows in found.items() if not rows or rows[-1][1] <= max(bounds)]
            rounds = [{name: measured(name, running[name], rate, given.seconds) for name in still}
                      for _ in range(given.rounds)]  # fmt: skip
            for name in still:
                late, used = (median(each[name][i] for each in rounds) for i in (0, 1))
                found[name].append((rate, late, used))
                print(f"{name}, {rate:g} a second: p99 {late:.0f} ms, {used:.2f} s of the processor", flush=True)
        for name, (_, pid, _, _) in running.items():
            memory = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096 / 2**20
            best = [max((rate for rate, late, _ in found[name] if late <= bound), default=0) for bound in bounds]
            within = ", ".join(
                f"{rate:g} a second within {bound:g} ms" for rate, bound in zip(best, bounds, strict=True)
            )
            print(f"{name}: {within}; {memory:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
