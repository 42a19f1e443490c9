"""``fastflow serve`` as a process: what it says, how it ends, whom it lets in, and the commands of docs/serve.md."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time

import pytest

from fastflow.serve import MIB, ServerSettings
from fastflow.serve.app import FILES
from fastflow.serve.service import COUNTERS

from support.commands import assert_one_sentence, run
from support.places import ROOT, USERS
from support.processes import run_limited
from support.servers import WAIT, request, serving, serving_process

TEXTS = {"inputs": ["a secret sentence of some words"] * 1500}
NO_COUNTERS = (
    "fastflow_request_duration",
    "fastflow_queue_seconds",
    "fastflow_tokens_per_second",
    "fastflow_search_duration",
)
PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
ASKED = request("/embed", b'{"inputs": "a"}').replace(b"host: a", b"host: localhost")


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_serves_and_ends_with_success(tmp_path, sent):
    with serving_process(folder=tmp_path) as server:
        said = r"fastflow: serving default at http://127\.0\.0\.1:\d+, up to [\d,]+ tokens in a batch\n?"
        assert re.fullmatch(said, server.said[-1]), server.said
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
    monkeypatch.setattr("fastflow.errors.find_spec", lambda name: None)
    assert_one_sentence(run("serve"), 1, "pip install starlette uvicorn httptools prometheus-client")


def test_the_key_is_no_option(tmp_path):
    assert "--api-key " not in run("serve", "--help").stdout
    assert os.environ.get("FASTFLOW_API_KEY") is None


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.S | re.M)


def answers(lines, server, folder):
    """Run commands of a page, of which ``curl`` may not fail, on the port that the server has here."""
    for line in lines:
        assert "127.0.0.1:8080" in line
        line = line.replace("curl -s", "curl -sf").replace("127.0.0.1:8080", f"{server.host}:{server.port}")
        done = run_limited(["bash", "-c", line], cwd=folder, env=USERS, seconds=60)
        assert done.returncode == 0, line
        yield line, done.stdout


@pytest.mark.slow
def test_every_curl_of_the_page_is_answered(tmp_path):
    commands = [line for block in blocks(PAGE, "console") for line in block.splitlines()]
    with serving_process(folder=tmp_path) as server:
        assert len(list(answers(commands, server, tmp_path))) >= 6
    assert (tmp_path / "vector.f32").stat().st_size == 256 * 4


def test_the_page_has_the_program_the_limits_and_the_metrics():
    programs, settings = blocks(PAGE, "py"), ServerSettings()
    assert programs
    assert all(compile(program, "docs/serve.md", "exec").co_names for program in programs)
    for words in (
        f"| {settings.max_queue:g} s | 429", f"| {settings.timeout:g} s | 503", f"| {settings.max_inputs} |",
        f"| {settings.max_body // MIB} MiB | 413", f"| {settings.max_bodies // MIB} MiB | 429",
        f"| {settings.max_connections} | 503", f"| {settings.receive:g} s | 408",
        f"| {settings.max_header // 1024} KiB | 431", f"| {settings.send:g} s |", f"up to {settings.drain:g} s",
    ):  # fmt: skip
        assert words in PAGE, words
    metrics = {name for name in re.findall(r"`(fastflow_\w+)`", PAGE) if not name.isupper()}
    assert metrics - set(NO_COUNTERS) <= set(COUNTERS)
    assert metrics & set(COUNTERS)


@pytest.fixture(scope="module")
def novels(tmp_path_factory):
    """The file of docs/search.md."""
    path = tmp_path_factory.mktemp("novels") / "novels.db"
    assert run("embed", ROOT / "examples" / "novels.txt", "-o", path, "--quiet").exit_code == 0
    return path


@pytest.mark.slow
def test_it_says_what_it_searches_and_answers_the_curl_of_the_page(novels):
    (block,) = blocks((ROOT / "docs" / "search.md").read_text(encoding="utf-8"), "console")
    started, *asked = block.splitlines()
    with serving_process(*started.removeprefix("fastflow serve ").split(), folder=novels.parent) as server:
        rows = server.get("/info").json["search"]["rows"]
        assert f"fastflow: searching {rows:,} rows of novels.db\n" in server.said
        found = list(answers(asked, server, novels.parent))
    assert found
    assert all('"hits":[[' in said for _, said in found)


@pytest.mark.slow
def test_the_help_names_every_route_and_the_page(novels):
    with serving(rate=50_000.0, search=novels) as server:
        files = set(FILES) - {"/", "/docs"}  # of the pages
        paths = [route.path.replace("{name:path}", "NAME") for route in server.app.routes if route.path not in files]
    said = " ".join(run("serve", "--help").stdout.split())
    for path in paths:
        assert re.search(rf"(?<![\w/]){re.escape(path)}(?![\w/])", said), path


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_at_a_loopback_address_a_foreign_name_is_refused(tmp_path, host):
    with serving_process("--host", host, folder=tmp_path) as server:
        server.host = server.host.strip("[]")
        for name, status in ((None, 200), ("localhost:1", 200), ("evil.example", 403)):
            assert server.get("/info", **({"host": name} if name else {})).status == status, name
