"""Many requests at once, and large ones: each gets its own answer, and memory stays flat."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from fastflow import Index
from fastflow.bench.measure.load import Plan, generate

from support.servers import in_parallel, serving_process

MIB = 2**20
PROC = Path("/proc/self/status").exists()


@pytest.mark.slow
def test_large_bodies_and_answers_are_whole(server, runtime):
    texts = [f"text number {i} of a long list of them" for i in range(1500)]
    answer = server.post("/embed", {"inputs": texts})
    assert np.array_equal(np.array(answer.json, np.float32), runtime.encode(texts, normalize_embeddings=True))


def test_many_clients_of_several_routes_get_their_own_answers(librarian, library, runtime):
    """Raw and normalized vectors of one batch, and queries: none is taken for another."""
    texts = [f"chapter {i} of a book" for i in range(24)]
    asked = []
    for text in texts:
        asked += [("/embed", {"inputs": text}), ("/search", {"query": text, "k": 3})]
        asked += [
            ("/similarity", {"inputs": {"source_sentence": text, "sentences": texts[:1]}}),
            ("/embed", {"inputs": [text], "normalize": False}),
        ]
    answers = [answer.json for answer in in_parallel([lambda each=each: librarian.post(*each) for each in asked])]
    vectors, plain = np.array(answers[::4], np.float32)[:, 0], np.array(answers[3::4], np.float32)[:, 0]
    assert np.array_equal(vectors, runtime.encode(texts, normalize_embeddings=True))
    assert np.array_equal(plain, runtime.encode(texts))
    np.testing.assert_allclose([answer[0] for answer in answers[2::4]], vectors @ vectors[0], atol=1e-5)
    with Index(library, runtime) as index:
        for text, answer in zip(texts, answers[1::4], strict=True):
            assert [hit["row"] for hit in answer["hits"][0]] == [hit.row for hit in index.search(text, 3)]
    queue = librarian.service.engine.queue
    assert (queue.jobs, queue.work, queue.turns) == (0, 0, 0)


def resident(pid: int, what: str = "VmRSS") -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:"))


def run(port: int, count: int, rate: float) -> None:
    texts = [f"request number {i} of very many" + " and more" * (i % 17) for i in range(97)]
    bodies = tuple(json.dumps({"inputs": [text] * (1 + i % 3)}) for i, text in enumerate(texts))
    asyncio.run(generate(Plan(port, "/embed", bodies, rate, count, 64)))


@pytest.mark.slow
@pytest.mark.skipif(not PROC, reason="memory is counted as Linux counts it")
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
@pytest.mark.skipif(not PROC, reason="memory is counted as Linux counts it")
def test_texts_as_long_as_a_body_may_be_take_little_more_than_their_bytes(tmp_path):
    body = json.dumps({"inputs": "the dog sleeps near it. " * 650_000}).encode()
    with serving_process(folder=tmp_path) as server:
        assert server.post("/embed", {"inputs": "a"}).status == 200
        before = resident(server.process.pid, "VmHWM")
        answers = in_parallel([lambda: server.ask("POST", "/embed", raw=body)] * 2)
        assert [answer.status for answer in answers] == [200, 200]
        assert answers[0].json == server.post("/embed", {"inputs": "the dog sleeps near it. " * 400}).json
        assert resident(server.process.pid, "VmHWM") - before < 200 * MIB  # two bodies, each decoded and parsed
