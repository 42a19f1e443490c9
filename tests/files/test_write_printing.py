"""Rows as lines: JSON to the last digit, UTF-8, and short ones for a terminal."""

from __future__ import annotations

import io
import json
import math
import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fastflow.files.write.printing import Block, StandardOutput, Terminal, json_lines

from support.outputs import block


@settings(deadline=None, derandomize=True)
@given(arrays.arrays(np.float32, (3, 4), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_nine_digits_give_float32_back_exactly(vectors):
    rows = [json.loads(line)["embedding"] for line in json_lines(block(vectors)).splitlines()]
    assert np.array_equal(np.array(rows, np.float32), vectors)


def test_json_lines_hold_index_id_text_and_numbers():
    odd = 'quote " backslash \\ tab \t é \u2028 \U0001f600 \x00'
    lines = json_lines(Block([4, 6], [odd, ""], ["k", 7], np.array([[1.5, -0.25], [0, 3e-9]], np.float32)))
    first, second = (json.loads(line) for line in lines.removesuffix("\n").split("\n"))
    assert first == {"index": 4, "id": "k", "text": odd, "embedding": [1.5, -0.25]}
    assert second == {"index": 6, "id": 7, "text": "", "embedding": [0, 3.00000003e-09]}
    assert json.loads(json_lines(Block([4], ["a"], None, np.zeros((1, 1))))) == {
        "index": 4,
        "text": "a",
        "embedding": [0],
    }
    assert lines.startswith('{"index": 4, "id": "k", "text": ')


def test_standard_output_is_utf8_whatever_the_locale(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    StandardOutput().write(Block([0], ["é\u4e2d"], None, np.array([[math.pi]], np.float32)))
    assert json.loads(raw.getvalue().decode("utf-8")) == {"index": 0, "text": "é\u4e2d", "embedding": [3.14159274]}


def test_a_terminal_gets_a_short_line_a_row(monkeypatch, capsys):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="utf-8"))
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((80, 24)))
    vectors = np.linspace(-9, 9, 3 * 256, dtype=np.float32).reshape(3, 256)
    out = Terminal()
    out.write(Block([0, 1, 2], ["short", "long " * 40, "tab\tbell\x07"], None, vectors))
    out.finish()
    lines = raw.getvalue().decode().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[:2] for line in lines] == [["0", "short"], ["1", "long"], ["2", "tab"]]
    assert "[ -9.00  -8.98  -8.95 … 256 numbers]" in lines[0]
    assert "\x07" not in lines[2]
    assert "-o FILE, or a pipe, gets whole vectors" in capsys.readouterr().err


def test_a_terminal_shows_the_log_density_after_the_numbers(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    (line,) = Terminal().encode(Block([3], ["a text"], None, np.zeros((1, 5)), np.array([-12.34]))).splitlines()
    assert line.endswith("5 numbers] -12.3")
    assert len(line) <= 80
