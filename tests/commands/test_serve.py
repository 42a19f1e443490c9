"""``fastflow serve`` as a process: what it says, how it ends, and whom it lets in."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time

import pytest

from support.commands import assert_one_sentence, run
from support.servers import WAIT, request, serving_process

TEXTS = {"inputs": ["a secret sentence of some words"] * 1500}
ASKED = request("/embed", b'{"inputs": "a"}').replace(b"host: a", b"host: localhost")


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_serves_and_ends_with_success(tmp_path, sent):
    with serving_process(folder=tmp_path) as server:
        assert "serving default at http://127.0.0.1:" in server.said[-1]
        assert server.post("/embed", TEXTS).status == 200
        server.process.send_signal(sent)
        assert server.process.wait(WAIT) == 0
        rest = server.process.stderr.read()
    assert rest == "fastflow: stopped\n"
    assert "secret" not in "".join(server.said)


def answers_of(connections):
    """The first line of what each connection gets; the error of one that is reset."""
    found = []
    for connection in connections:
        try:
            found.append(connection.recv(1 << 16).partition(b"\r\n")[0])
        except ConnectionResetError as error:
            found.append(error)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", ASKED])
def test_connections_that_wait_when_the_signal_comes_are_answered(tmp_path, sent):
    """The system has taken them and the server has not. One that asks only after the signal is answered too."""
    with serving_process(folder=tmp_path) as server, contextlib.ExitStack() as stack:
        os.kill(server.process.pid, signal.SIGSTOP)
        connections = [stack.enter_context(server.connect()) for _ in range(100)]
        for connection in connections:
            connection.sendall(sent)
        os.kill(server.process.pid, signal.SIGTERM)
        os.kill(server.process.pid, signal.SIGCONT)
        for connection in connections:
            connection.sendall(ASKED.removeprefix(sent))
        assert set(answers_of(connections)) == {b"HTTP/1.1 503 Service Unavailable"}
        assert server.process.wait(WAIT) == 0


@pytest.mark.slow
def test_a_running_request_is_finished_after_sigterm(tmp_path):
    answers = []
    with serving_process(folder=tmp_path) as server:
        thread = threading.Thread(target=lambda: answers.append(server.post("/embed", TEXTS)))
        thread.start()
        end = time.monotonic() + WAIT
        while b"te_queue_size 1.0" not in server.get("/metrics").body and thread.is_alive():
            assert time.monotonic() < end
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WAIT) == 0
        thread.join(WAIT)
    assert [answer.status for answer in answers] == [200]
    assert len(answers[0].json) == 1500


@pytest.mark.slow
def test_one_that_a_script_started_in_the_background_ignores_ctrl_c(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a child inherits it
    try:
        with serving_process(folder=tmp_path) as server:
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            assert server.get("/health").status == 200
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(WAIT) == 0
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_at_a_public_address_a_key_is_wanted_and_any_name_taken(tmp_path):
    key, name = {"authorization": "Bearer k"}, {"host": "desk.example"}
    with serving_process("--host", "0.0.0.0", folder=tmp_path, env={"FASTFLOW_API_KEY": "k"}) as server:
        server.host = "127.0.0.1"
        assert not any("warning" in line for line in server.said)
        assert server.get("/info").status == 401
        assert server.get("/info", **key, **name).status == 200
    with serving_process("--host", "0.0.0.0", folder=tmp_path) as server:
        server.host = "127.0.0.1"
        assert any("warning" in line and "API key" in line for line in server.said)
        assert server.get("/info", **name).status == 200
    with serving_process(folder=tmp_path, env={"FASTFLOW_API_KEY": "k"}) as server:
        assert server.get("/info", **key, **name).status == 200


@pytest.mark.slow
def test_a_unix_socket_takes_any_name_and_is_removed(tmp_path):
    path = tmp_path / "s"
    with serving_process("--uds", path, folder=tmp_path) as server, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /info HTTP/1.1\r\nhost: any.example\r\nconnection: close\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WAIT) == 0
    assert not path.exists()


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("fastflow.commands.serve.find_spec", lambda name: None)
    assert_one_sentence(run("serve"), 1, "pip install starlette uvicorn httptools prometheus-client")


def test_the_key_is_no_option(tmp_path):
    assert "--api-key " not in run("serve", "--help").stdout
    assert os.environ.get("FASTFLOW_API_KEY") is None
