"""The memory of a server stays where it is, whatever number of requests it answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from fastflow.bench.measure.load import Plan, generate

from support.servers import in_parallel, serving_process

MIB = 2**20


def resident(pid: int, what: str = "VmRSS") -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:"))


def run(port: int, count: int, rate: float) -> None:
    texts = [f"request number {i} of very many" + " and more" * (i % 17) for i in range(97)]
    bodies = tuple(json.dumps({"inputs": [text] * (1 + i % 3)}) for i, text in enumerate(texts))
    asyncio.run(generate(Plan(port, "/embed", bodies, rate, count, 64)))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is counted as Linux counts it")
@pytest.mark.parametrize(("before_it", "count"), [(1500, 2000), pytest.param(40_000, 50_000, marks=pytest.mark.whole)])
def test_memory_is_flat(tmp_path, before_it, count):
    with serving_process(folder=tmp_path) as server:
        run(server.port, before_it, 2000.0)  # threads, histograms, and the allocator's pools, which take the longest
        before = resident(server.process.pid)
        run(server.port, count, 2000.0)
        assert resident(server.process.pid) - before < 8 * MIB
        assert server.get("/health").status == 200
        assert b"te_queue_size 0.0" in server.get("/metrics").body


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is counted as Linux counts it")
def test_texts_as_long_as_a_body_may_be_take_little_more_than_their_bytes(tmp_path):
    body = json.dumps({"inputs": "the dog sleeps near it. " * 650_000}).encode()
    with serving_process(folder=tmp_path) as server:
        assert server.post("/embed", {"inputs": "a"}).status == 200
        before = resident(server.process.pid, "VmHWM")
        answers = in_parallel([lambda: server.ask("POST", "/embed", raw=body)] * 2)
        assert [answer.status for answer in answers] == [200, 200]
        assert answers[0].json == server.post("/embed", {"inputs": "the dog sleeps near it. " * 400}).json
        assert resident(server.process.pid, "VmHWM") - before < 200 * MIB  # two bodies, each decoded and parsed
