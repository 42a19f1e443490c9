"""``fastflow embed`` below its command line: options that change the rows, and inputs that move during a run.

What holds for every run is in test_run.py, what every format holds in test_write_writers.py.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from fastflow import Runtime, options
from fastflow.errors import FastflowError
from fastflow.files import embed as module
from fastflow.files.embed import embed_file
from fastflow.files.run import Run, Settings, Summary

from support.builders import make_sentences
from support.runs import before_block


@pytest.fixture(scope="module")
def runtime(model):
    return Runtime(model)


@pytest.fixture
def target(tmp_path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "out.npy"


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def embed(runtime: Runtime, source: object, target: Path, resume: bool = False, **settings: object) -> Summary:
    return embed_file(runtime, str(source), target, Settings(**settings), Run(resume, quiet=True))


def test_empty_lines_are_texts_and_counted(runtime, tmp_path, target):
    source = write(tmp_path / "in.txt", ["the dog", "", "  ", "a cat"])
    assert embed(runtime, source, target) == Summary(texts=4, empty=2)
    assert np.array_equal(np.load(target), runtime.encode(["the dog", "", "  ", "a cat"]))


def test_precision_says_what_is_stored_even_of_float64_arithmetic(model, corpus, target, sentences):
    exact = Runtime(model, dtype="float64")
    embed(exact, corpus, target)
    assert np.load(target).dtype == np.float32
    assert np.array_equal(np.load(target), exact.encode(sentences).astype(np.float32))


def test_no_lines_give_a_file_of_the_right_width(runtime, tmp_path, target):
    embed(runtime, write(tmp_path / "in.txt", []), target, precision="float16", dim=6)
    assert (np.load(target).shape, np.load(target).dtype) == ((0, 6), np.float16)


def test_truncate_error_names_the_line(model, tmp_path, target):
    runtime = Runtime(model)
    long = " ".join(["dog"] * 63)  # 65 tokens, if the model takes 64
    source = write(tmp_path / "in.txt", ["a cat", long.removeprefix("dog "), long])
    with pytest.raises(FastflowError, match=r"in\.txt, line 3: longer than the model's 64 tokens"):
        embed(runtime, source, target, truncate="error")
    with pytest.raises(FastflowError, match="line 2: longer"):  # the prompt counts
        embed(runtime, source, target, truncate="error", prompt="the ")
    assert list(target.parent.iterdir()) == []
    with pytest.warns(UserWarning, match="longer than 64 tokens are cut"):
        assert embed(runtime, source, target).cut == 1


def test_long_texts_are_embedded_in_windows_of_fewer(runtime, corpus, target, sentences, monkeypatch):
    monkeypatch.setattr(options, "CHARACTERS", 200)
    embed(runtime, corpus, target)
    assert np.array_equal(np.load(target), runtime.encode(sentences))


@pytest.fixture
def during(monkeypatch):
    """``during(act)``: call ``act`` before the second block of 16 rows, and end the run at the fourth if asked."""
    monkeypatch.setattr(module, "WINDOW", 16)

    def set_up(act, stop=False):
        def seen(number: int) -> None:
            if number == 1:
                act()
            if number == 3 and stop:
                raise KeyboardInterrupt

        before_block(monkeypatch, seen)

    return set_up


def test_a_resumed_run_may_have_another_size_of_batch(runtime, corpus, target, sentences, during):
    during(lambda: None, stop=True)
    with pytest.raises(KeyboardInterrupt):
        embed(runtime, corpus, target, batch_tokens=512)
    assert embed(runtime, corpus, target, resume=True, batch_tokens=64).resumed == 48
    assert np.array_equal(np.load(target), runtime.encode(sentences))


def test_an_input_that_is_replaced_is_not_joined_with_its_successor(runtime, tmp_path, target, sentences, during):
    """The open file is what was read: the run's rows belong to it, whatever its name names now."""
    source, other = tmp_path / "in.txt", tmp_path / "other.txt"
    write(source, sentences)
    write(other, [text.upper() for text in sentences])
    during(lambda: other.replace(source), stop=True)
    with pytest.raises(KeyboardInterrupt):
        embed(runtime, source, target)
    with pytest.raises(FastflowError, match="from a run with another input; give"):
        embed(runtime, source, target, resume=True)


@pytest.mark.parametrize("how", ["replaced", "moved", "deleted"])
def test_an_input_that_loses_its_name_while_open_is_read_to_its_end(runtime, tmp_path, target, sentences, during, how):
    source, other = tmp_path / "in.txt", tmp_path / "other.txt"
    write(source, sentences)
    write(other, ["the dog"])
    act = {"replaced": lambda: other.replace(source), "moved": lambda: source.rename(other), "deleted": source.unlink}
    during(act[how])
    embed(runtime, source, target)
    assert np.array_equal(np.load(target), runtime.encode(sentences))


def test_embedding_a_file_shows_its_count_from_the_start(runtime, corpus, target, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr("fastflow.progress.EVERY", 0.0)
    monkeypatch.setattr(module, "WINDOW", 64)
    embed_file(runtime, str(corpus), target, Settings())
    assert shown.getvalue().startswith("\rembed: 0 of 256 texts (0 %), 0/s\r")
    assert "embed: 256 of 256 texts (100 %), " in shown.getvalue()


def test_an_interruption_within_the_usual_window_keeps_what_is_done(model, tmp_path, monkeypatch):
    lines = make_sentences(300, 3)
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    runtime, out = Runtime(model, "cpu", backend="cpu"), tmp_path / "o.npy"
    embed, calls = runtime.session._embed, []

    def interrupted(*batch):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(embed(*batch))
        return calls[-1]

    monkeypatch.setattr(runtime.session, "_embed", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        embed_file(runtime, str(tmp_path / "in.txt"), out, Settings())
    assert "48 finished rows" in stopped.value.__notes__[0]  # 16 and 32
    monkeypatch.undo()
    assert embed_file(runtime, str(tmp_path / "in.txt"), out, Settings(), Run(True)).resumed == 48
    assert np.array_equal(np.load(out), runtime.encode(lines))
