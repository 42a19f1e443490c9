"""The address of a cluster without one: it is read, and its port is tried, before Ray is."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from fastflow import FastflowError
from fastflow.errors import UsageError
from fastflow.integrations.ray_cluster import check_address, cluster, refusal

ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")  # of Ray's package


@pytest.mark.parametrize("address", ["local", "auto", "127.0.0.1:6379", "head:1", "[::1]:6379"])
def test_addresses_that_are_known(address):
    check_address(address)


@pytest.mark.parametrize("address", ["", "head", "127.0.0.1", ":6379", "head:", "-o", "--out:1", "http://head:8265"])
def test_addresses_that_are_refused(address):
    with pytest.raises(UsageError, match=r"^--ray .*: "):
        check_address(address)


@pytest.fixture
def closed(monkeypatch):
    """HOST:PORT where nobody listens, and a Ray that must not try it."""
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray tries a closed port for minutes"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{free.getsockname()[1]}"


def refused(address: str, sentence: str) -> None:
    with pytest.raises(FastflowError, match=f"^--ray {sentence}"), cluster(address, quiet=True):
        pass


def test_a_closed_port_is_refused_at_once(closed):
    refused(closed, f"{closed}: no cluster of Ray answers there: .*refused")


def test_what_auto_leads_to_is_named(closed, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", closed)
    refused("auto", f"auto: no cluster of Ray answers at {closed}: .*refused")
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    refused("auto", "ray://head:10001: Ray Client")


def test_ray_that_does_not_start_here_is_no_cluster_elsewhere(monkeypatch):
    def init(*_, **__):
        raise Exception("the node timed out\nand more")

    monkeypatch.setattr(ray, "init", init)
    refused("local", "local: Ray did not start on this machine: the node timed out$")


CHILD = "import sys, time; print(flush=True); time.sleep(600)"
PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {CHILD!r}]); time.sleep(600)"


@pytest.mark.slow
def test_a_start_that_fails_leaves_no_process_of_it(monkeypatch):
    """Ray knows its processes only after a whole start; others of this process stay."""
    began = []

    def start(*words):
        began.append(subprocess.Popen([sys.executable, "-c", PARENT, *words], stdout=subprocess.PIPE))
        began[-1].stdout.readline()  # its own child runs

    def init(*_, **__):
        start(ray.__file__)
        start()
        raise Exception("the node timed out")

    start(ray.__file__)
    monkeypatch.setattr(ray, "init", init)
    try:
        refused("local", "local: Ray did not start on this machine: the node timed out$")
        assert [process.poll() is None for process in began] == [True, False, True]
        assert began[1].stdout.read() == b""  # its child held the pipe too
    finally:
        for process in began:
            for child in psutil.Process(process.pid).children() if process.poll() is None else []:
                child.kill()
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (None, "without its token: set RAY_AUTH_MODE=token"),
        ("disabled", "without its token: set RAY_AUTH_MODE=token"),
        ("token", "this client's token: copy ~/.ray/auth_token from its head, or set RAY_AUTH_TOKEN"),
    ],
)
def test_a_cluster_that_refuses_the_client_answers(monkeypatch, mode, message):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    error = ConnectionError("Failed to connect to Ray cluster at head:1")
    error.__cause__ = RuntimeError("ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken")
    assert refusal("head:1", error) == f"the cluster refuses {'this client ' * (mode != 'token')}{message}"
