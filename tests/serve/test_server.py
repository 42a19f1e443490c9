"""Sockets, signals, lines of the log; many requests at once and large ones: memory stays flat."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import socket
import stat
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import uvicorn

from fastflow import Index
from fastflow.bench.measure.load import Load, generate
from fastflow.errors import FastflowError
from fastflow.serve import ServerSettings
from fastflow.serve.server import LogFormatter, Server, allow_files, listen, notify

from support.commands import run
from support.servers import WAIT, in_parallel, serving_process

TAKEN = "Address already in use; stop the server there, or choose another"


@pytest.mark.parametrize("kind", ["port", "socket"])
def test_an_address_that_is_taken_names_its_option_and_the_way_out(tmp_path, kind):
    path = tmp_path / "s" if kind == "socket" else None
    with listen("127.0.0.1", 0, path) as bound:
        port = 0 if path else bound.getsockname()[1]
        place, option = (path, "--uds") if path else (f"127.0.0.1 port {port}", "--port")
        done = run("serve", option, path or port)
        with pytest.raises(FastflowError, match=f"cannot listen at {place}: {TAKEN} {option}"):
            listen("127.0.0.1", port, path)
        if path:  # it is left to the server that answers there
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                assert client.connect_ex(str(path)) == 0
    assert done.exit_code == 1
    assert done.stderr.endswith(f"cannot listen at {place}: {TAKEN} {option}\n")


def test_as_many_files_may_be_open_as_connections_are_allowed():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(300, before[0]), before[1]))
        allow_files(400)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (400, before[1])
        allow_files(350)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (400, before[1])
        if before[1] != resource.RLIM_INFINITY:
            allow_files(before[1] + 1)
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_of_open_files_that_macos_does_not_report_is_found(monkeypatch):
    now = [256]

    def refuse_many(which, limits):
        if limits[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        now[0] = limits[0]

    monkeypatch.setattr(resource, "getrlimit", lambda which: (now[0], resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse_many)
    for count, allowed in ((100, 256), (4352, 4352), (40_000, 10_000), (100_000_000, 10_000)):
        allow_files(count)
        assert now[0] == allowed


def test_a_unix_socket_is_for_user_and_group_and_outlives_a_killed_server(tmp_path):
    path = tmp_path / "s"
    for _ in range(2):
        with listen("", 0, path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert path.exists()


def test_a_file_is_not_taken_for_a_socket(tmp_path):
    (tmp_path / "file").write_text("data")
    with pytest.raises(FastflowError, match=r"cannot listen at .*/file: Address already in use; choose another --uds$"):
        listen("", 0, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "data"


@pytest.mark.parametrize(
    ("host", "name", "message"),
    [
        ("no host", None, "cannot listen at no host"),
        ("192.0.2.1", None, r"; choose another --host or --port$"),  # of another machine
        ("", "absent/s", r"; choose another --uds$"),
        ("", "s" * 200, r"; choose another --uds$"),
    ],
)
def test_an_address_that_cannot_be(tmp_path, host, name, message):
    with pytest.raises(FastflowError, match=message):
        listen(host, 0, tmp_path / name if name else None)


def test_systemd_is_told(tmp_path, monkeypatch):
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        notify("READY=1")
        assert systemd.recv(100) == b"READY=1"


@pytest.mark.parametrize(("active", "seconds", "ends"), [(0, 1.0, True), (1, 1.0, False), (1, 11.0, True)])
def test_a_signal_ends_the_server_if_nothing_runs_or_its_time_is_over(monkeypatch, caplog, active, seconds, ends):
    caplog.set_level(logging.WARNING, "uvicorn.error")  # the second signal silences it; restored after the test
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=5.0)
    monkeypatch.setattr("fastflow.serve.server.time", clock)
    service = SimpleNamespace(draining=False, active=active, settings=ServerSettings(drain=10.0))
    server = Server(uvicorn.Config(app=""), service, lambda: None)
    assert asyncio.run(server.on_tick(1)) is False
    server.handle_exit(signal.SIGTERM, None)
    assert service.draining
    clock.now += seconds
    assert asyncio.run(server.on_tick(1)) is ends
    assert not server.force_exit
    server.handle_exit(signal.SIGTERM, None)
    assert server.force_exit


def test_lines_for_a_journal_carry_their_priority(monkeypatch):
    record = logging.LogRecord("fastflow.serve", logging.ERROR, "", 0, "it failed", (), None)
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    assert LogFormatter().format(record) == "fastflow: it failed"
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    assert LogFormatter().format(record) == "<3>fastflow: it failed"


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_without_a_traceback(tmp_path):
    with serving_process(folder=tmp_path) as server:
        for _ in range(2):
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.005)
        assert server.process.stderr.read() == "fastflow: stopped\n"
        assert server.process.wait(WAIT) == 0


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


def flood(port: int, count: int, rate: float) -> None:
    texts = [f"request number {i} of very many" + " and more" * (i % 17) for i in range(97)]
    bodies = tuple(json.dumps({"inputs": [text] * (1 + i % 3)}) for i, text in enumerate(texts))
    asyncio.run(generate(Load(port, "/embed", bodies, rate, count, 64)))


@pytest.mark.slow
@pytest.mark.skipif(not PROC, reason="memory is counted as Linux counts it")
@pytest.mark.parametrize(("before_it", "count"), [(1500, 2000), pytest.param(40_000, 50_000, marks=pytest.mark.whole)])
def test_memory_is_flat(tmp_path, before_it, count):
    with serving_process(folder=tmp_path) as server:
        flood(server.port, before_it, 2000.0)  # threads, histograms, and the allocator's pools, which take the longest
        before = resident(server.process.pid)
        flood(server.port, count, 2000.0)
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
