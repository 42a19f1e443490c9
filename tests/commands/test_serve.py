"""``fastflow serve`` as a process: what it says, how it ends, and whom it lets in."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import threading
import time

import pytest

from support.commands import assert_one_sentence, run
from support.servers import WAIT, serving_process

TEXTS = {"inputs": ["a secret sentence of some words"] * 1500}


@pytest.mark.slow
def test_it_says_where_it_serves_and_ends_with_success(tmp_path):
    with serving_process(folder=tmp_path) as server:
        assert "serving default at http://127.0.0.1:" in server.said[-1]
        assert server.post("/embed", TEXTS).status == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WAIT) == 0
        rest = server.process.stderr.read()
    assert rest == "fastflow: stopped\n"
    assert "secret" not in "".join(server.said)


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
def test_ctrl_c_ends_it_too(tmp_path):
    with serving_process(folder=tmp_path) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(WAIT) == 0


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
def test_a_key_from_the_environment_and_a_warning_without_one(tmp_path):
    with serving_process("--host", "0.0.0.0", folder=tmp_path, env={"FASTFLOW_API_KEY": "k"}) as server:
        server.host = "127.0.0.1"
        assert not any("warning" in line for line in server.said)
        assert server.get("/info").status == 401
        assert server.get("/info", authorization="Bearer k").status == 200
    with serving_process("--host", "0.0.0.0", folder=tmp_path) as server:
        assert any("warning" in line and "API key" in line for line in server.said)


class UnixConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


@pytest.mark.slow
def test_a_unix_socket(tmp_path):
    path = tmp_path / "serve.sock"
    with serving_process("--uds", path, folder=tmp_path) as server:
        connection = UnixConnection(str(path), timeout=WAIT)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WAIT) == 0
    assert not path.exists()


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("fastflow.commands.serve.find_spec", lambda name: None)
    assert_one_sentence(run("serve"), 1, "pip install -e '.[serve]'")


def test_the_key_is_no_option(tmp_path):
    assert "--api-key " not in run("serve", "--help").stdout
    assert os.environ.get("FASTFLOW_API_KEY") is None
