"""The progress line: its words, where it is repainted, and where it keeps quiet."""

from __future__ import annotations

import io
import sys
import types
from contextlib import suppress

import numpy as np
import pytest

from fastflow import Runtime, progress
from fastflow.console import say
from fastflow.progress import Progress

from support.commands import run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class OutStream(io.StringIO):
    __module__ = "ipykernel.iostream"  # not a terminal, but repainted


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("total", "done", "seconds", "line"),
    [
        (None, 5000, 2.0, "embed: 5,000 texts, 2,500/s"),
        (10_000, 2500, 10.0, "embed: 2,500 of 10,000 texts (25 %), 250/s, 0:30 left"),
        (100_000, 1, 1.0, "embed: 1 of 100,000 texts (0 %), 1/s, 27:46:39 left"),
        (10, 0, 0.0, "embed: 0 of 10 texts (0 %), 0/s"),
        (0, 0, 1.0, "embed: 0 of 0 texts (100 %), 0/s"),
        (1, 1, 1.0, "embed: 1 of 1 text (100 %), 1/s, 0:00 left"),
    ],
)
def test_the_line(total, done, seconds, line):
    progress = Progress("embed", total, "texts")
    progress.advance(done)
    assert progress.line(seconds) == line


def paint(stream, seconds, total=20, notes=("loss 0.5",) * 20, **options):
    """All that ``stream`` gets of a run of one step for each of ``notes``."""
    clock = Clock()
    with Progress("embed", total, "texts", stream=stream, clock=clock, **options) as progress:
        for note in notes:
            clock.now += seconds / len(notes)
            progress.advance(1, note)
    return stream.getvalue()


def test_a_terminal_is_repainted_at_first_at_last_and_five_times_a_second():
    painted = paint(Terminal(), 2.0)
    assert painted.startswith("\rembed: 0 of 20 texts (0 %), 0/s\rembed: ")
    assert painted.endswith("embed: 20 of 20 texts (100 %), 10/s, 0:00 left  loss 0.5\n")
    assert 8 <= painted.count("\r") <= 13
    assert painted.count("\n") == 1
    assert "embed: 20 texts" in paint(Terminal(), 0.01, total=None), "the last count, of an unknown total"
    _, first, second = paint(Terminal(), 2, None, ("a long note", ""))[1:-1].split("\r")
    assert len(second) >= len(first), "a shorter line wipes the longer one before"


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_a_log_gets_a_plain_line_every_ten_seconds_and_one_at_the_end(error):
    stream, clock = io.StringIO(), Clock()
    with suppress(KeyboardInterrupt), Progress("embed", 50, "texts", True, stream, clock) as progress:
        for _ in range(25):
            clock.now += 1
            progress.advance(1)
        if error:
            raise error
    assert stream.getvalue().splitlines() == [
        f"embed: {done} of 50 texts ({2 * done} %), 1/s, 0:{50 - done} left" for done in (10, 20, 25)
    ]


def test_a_short_run_and_a_quiet_one_leave_a_log_alone():
    assert paint(io.StringIO(), 9.9) == ""
    for stream in (io.StringIO(), Terminal(), OutStream()):
        assert paint(stream, 1000, shown=False) == ""
    said = paint(io.StringIO(), 200.0)
    assert len(said.splitlines()) == 20
    assert said.count("20 of 20") == 1, "the end is not said twice"


def test_a_notebook_is_repainted_without_a_terminals_codes(monkeypatch):
    assert paint(OutStream(), 1.0) == ""  # the class alone, if no kernel runs, is a file like any other
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    painted = paint(OutStream(), 1.0)
    assert painted.startswith("\rembed: 0 of 20")
    assert "\x1b" not in painted
    assert paint(io.StringIO(), 1.0) == ""  # stderr sent to a file from inside a kernel
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw
    with Progress("embed", 20, "texts") as progress:
        progress.advance(20)
    assert Progress.painted is None


def test_encode_and_the_embed_command_use_it(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)  # lines are due at once
    runtime, counts = Runtime(model), []
    runtime.encode(["a dog", "a cat"])
    assert capsys.readouterr().err == ""
    runtime.encode(["a dog", "a cat"], show_progress_bar=True)
    assert capsys.readouterr().err.startswith("embed: 2 of 2 texts (100 %)")
    (tmp_path / "in.txt").write_text("a dog\na cat\n")
    for quiet in ([], ["--quiet"]):
        done = run("embed", tmp_path / "in.txt", "-m", model, "-o", tmp_path / "o.npy", *quiet)
        assert done.exit_code == 0
        assert ("embed: 2 of 2 texts" in done.stderr) == (not quiet)
        assert not (quiet and done.stderr)
    monkeypatch.setattr(Progress, "advance", lambda self, count: counts.append(count))
    runtime.encode(["a dog"] * 10, batch_size=4, show_progress_bar=True)
    assert counts == [4, 4, 2], "every batch counts"


def test_a_resumed_run_counts_the_whole_and_its_own_rate():
    stream, clock = Terminal(), Clock()
    with Progress("flow", 1000, "steps", True, stream, clock, done=500) as progress:
        clock.now += 30  # the rows of an earlier run are passed over
        progress.begin()
        clock.now += 10
        progress.advance(100)
    assert stream.getvalue().endswith("flow: 600 of 1,000 steps (60 %), 10/s, 0:40 left\n")


def test_a_total_that_is_an_estimate_says_so_until_the_end():
    stream, clock = Terminal(), Clock()
    with Progress("embed", 20, "texts", True, stream, clock, about=True) as progress:
        for seen in ("0 of about 20 texts (0 %)", "15 of about 20 texts (75 %)", "30 texts, 2/s"):
            clock.now += 10
            assert f"embed: {seen}" in stream.getvalue()
            progress.advance(15)
    assert stream.getvalue().endswith("embed: 45 of 45 texts (100 %), 2/s, 0:00 left\n")
    progress = Progress("embed", 20, "texts", True, stream, clock, about=True)
    progress.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert progress.line(1.0) == "embed: 0 of about 20 texts (0 %), 0/s"


def test_batches_show_before_their_window_is_done():
    progress = Progress("embed", 100, "texts")
    progress.advance(10)
    progress.within(4)
    progress.within(6)
    assert progress.line(2.0) == "embed: 20 of 100 texts (20 %), 10/s, 0:08 left"
    progress.advance(20)
    assert progress.line(2.0).startswith("embed: 30 of 100 texts")


def test_another_line_takes_the_place_of_the_painted_one(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("embed", 20, "texts"):
        say("fastflow: model m")
    line = "embed: 0 of 20 texts (0 %), 0/s"
    assert stream.getvalue().startswith(f"\r{line}\r{' ' * len(line)}\rfastflow: model m\n")
    assert Progress.painted is None


def test_parts_give_the_whole_and_count(monkeypatch):
    texts, counts = [str(i) for i in range(1000)], []
    found = progress.in_parts(lambda part: np.array([[float(text)] for text in part]), texts, counts.append)
    assert found[:, 0].tolist() == list(range(1000))
    assert counts == [64, 128, 256, 512, 40]
    monkeypatch.setattr(progress, "PART_S", -1.0)  # every part takes too long to grow
    counts.clear()
    progress.in_parts(lambda part: np.zeros((len(part), 1)), texts, counts.append)
    assert set(counts[:-1]) == {64}
    assert progress.in_parts(lambda part: np.zeros((len(part), 3)), [], counts.append).shape == (0, 3)
