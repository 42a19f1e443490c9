"""Sockets, signals and lines of the log."""

from __future__ import annotations

import logging
import socket
import stat

import pytest

from fastflow.errors import FastflowError
from fastflow.serve.server import Lines, listen, notify


def test_a_port_that_is_taken_is_one_sentence():
    with listen("127.0.0.1", 0, None) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(FastflowError, match=rf"cannot listen at 127\.0\.0\.1 port {port}: Address already in use"):
            listen("127.0.0.1", port, None)


def test_a_host_that_is_none_is_one_sentence():
    with pytest.raises(FastflowError, match="cannot listen at no host"):
        listen("no host", 0, None)


def test_a_unix_socket_is_for_user_and_group(tmp_path):
    path = tmp_path / "s"
    with listen("", 0, path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(FastflowError, match="Address already in use"):
            listen("", 0, path)
    assert path.exists()
    with listen("", 0, path):  # its server was killed
        assert path.exists()


def test_a_file_is_not_taken_for_a_socket(tmp_path):
    (tmp_path / "file").write_text("data")
    with pytest.raises(FastflowError, match="cannot listen"):
        listen("", 0, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "data"


def test_systemd_is_told(tmp_path, monkeypatch):
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        notify("READY=1")
        assert systemd.recv(100) == b"READY=1"


def test_lines_for_a_journal_carry_their_priority(monkeypatch):
    record = logging.LogRecord("fastflow.serve", logging.ERROR, "", 0, "it failed", (), None)
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    assert Lines().format(record) == "fastflow: it failed"
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    assert Lines().format(record) == "<3>fastflow: it failed"
