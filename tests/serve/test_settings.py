"""Keys come from a file and from the environment."""

from __future__ import annotations

import pytest

from fastflow.errors import FastflowError
from fastflow.serve.settings import KEY_VARIABLE, read_keys


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def test_no_file_and_no_variable_is_no_key():
    assert read_keys(None) == ()


def test_keys_of_both_places(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "from-env")
    (tmp_path / "keys").write_text("# ours\n\n one \ntwo\n")
    assert read_keys(tmp_path / "keys") == ("from-env", "one", "two")


@pytest.mark.parametrize("text", ["", "# none\n", "with space\n", "ключ\n", "\0\n"])
def test_a_file_without_a_usable_key_is_an_error(tmp_path, text):
    (tmp_path / "keys").write_text(text, encoding="utf-8")
    with pytest.raises(FastflowError, match="API key"):
        read_keys(tmp_path / "keys")


def test_an_empty_variable_is_no_open_server(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "")
    with pytest.raises(FastflowError, match="FASTFLOW_API_KEY is empty: set it to a key, or unset it"):
        read_keys(None)


def test_a_key_that_no_header_carries_is_named_by_its_line(tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("good\n\nwith space\n")
    with pytest.raises(FastflowError, match="keys, line 3: an API key must be"):
        read_keys(tmp_path / "keys")
    monkeypatch.setenv(KEY_VARIABLE, "with space")
    with pytest.raises(FastflowError, match="variable FASTFLOW_API_KEY: an API key must be"):
        read_keys(None)
