"""An address that is taken: the message names the option of it, and the way out."""

from __future__ import annotations

import socket

import pytest

from fastflow.errors import FastflowError
from fastflow.serve.server import listen

from support.commands import run


def test_a_socket_of_a_running_server(tmp_path):
    path = tmp_path / "s"
    with listen("", 0, path):
        done = run("serve", "--uds", path)
    said = f"cannot listen at {path}: Address already in use; stop the server there, or choose another --uds\n"
    assert done.exit_code == 1
    assert done.stderr.endswith(said)


def test_a_file_that_is_no_socket(tmp_path):
    (tmp_path / "file").write_text("data")
    with pytest.raises(FastflowError, match=r"/file: Address already in use; choose another --uds$"):
        listen("", 0, tmp_path / "file")


@pytest.mark.parametrize("name", ["absent/s", "s" * 200], ids=["no folder", "too long"])
def test_a_path_that_can_hold_no_socket(tmp_path, name):
    with pytest.raises(FastflowError, match=r"; choose another --uds$"):
        listen("", 0, tmp_path / name)


def test_a_port():
    with listen("127.0.0.1", 0, None) as bound:
        port = bound.getsockname()[1]
        done = run("serve", "--port", port)
    said = f"127.0.0.1 port {port}: Address already in use; stop the server there, or choose another --port\n"
    assert done.exit_code == 1
    assert done.stderr.endswith(said)


def test_an_address_of_another_machine():
    with pytest.raises(FastflowError, match=r"; choose another --host or --port$"):
        listen("192.0.2.1", 0, None)


def test_a_socket_is_left_to_the_server_that_answers_there(tmp_path):
    with listen("", 0, tmp_path / "s"):
        with pytest.raises(FastflowError):
            listen("", 0, tmp_path / "s")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            assert client.connect_ex(str(tmp_path / "s")) == 0
