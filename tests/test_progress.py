"""The progress line: what it says, and that it keeps quiet where nobody watches."""

from __future__ import annotations

import io
import sys

import pytest

from fastflow.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("total", "done", "seconds", "line"),
    [
        (None, 5000, 2.0, "embed: 5,000 texts, 2,500/s"),
        (10_000, 2500, 10.0, "embed: 2,500/10,000 texts (25 %), 250/s, 0:30 left"),
        (100_000, 1, 1.0, "embed: 1/100,000 texts (0 %), 1/s, 27:46:39 left"),
        (10, 0, 0.0, "embed: 0/10 texts (0 %), 0/s"),
        (0, 0, 1.0, "embed: 0/0 texts (100 %), 0/s"),
    ],
)
def test_the_line(total, done, seconds, line):
    progress = Progress("embed", total, "texts")
    progress.advance(done)
    assert progress.line(seconds) == line


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), True), (io.StringIO(), True), (Terminal(), False)])
def test_only_a_terminal_sees_it_and_only_when_asked(monkeypatch, stream, shown):
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("embed", 20, "texts", shown) as progress:
        for _ in range(20):
            progress.advance(1, "loss 0.5")
    if stream.isatty() and shown:
        painted = stream.getvalue().split("\r\x1b[K")
        assert 2 <= len(painted) <= 4  # at first, at last, and no more often than five times a second
        assert painted[-1].startswith("embed: 20/20 texts (100 %)")
        assert painted[-1].endswith("  loss 0.5\n")
    else:
        assert stream.getvalue() == ""
