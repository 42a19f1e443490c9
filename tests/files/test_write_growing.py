"""``--resume`` on an output that is finished, and the share of a file that has been embedded."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import UsageError
from fastflow.files import embed as embedding
from fastflow.files import transform
from fastflow.files.embed import Settings, embed_file
from fastflow.files.read.inputs import Input
from fastflow.files.run import Run
from fastflow.progress import Progress


@pytest.fixture(scope="module")
def runtime(model: Path) -> Runtime:
    return Runtime(model)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".jsonl", ".safetensors", ".db"])
def test_a_finished_output_is_not_made_again(runtime, corpus, tmp_path, suffix):
    target = tmp_path / f"out{suffix}"
    embed_file(runtime, str(corpus), target, Settings(), Run(quiet=True))
    before = (target.read_bytes(), target.stat().st_mtime_ns, sorted(tmp_path.iterdir()))
    with pytest.raises(UsageError, match=r"out\..* is finished, and nothing is left to resume: leave out --resume to"):
        embed_file(runtime, str(corpus), target, Settings(), Run(resume=True, quiet=True))
    assert before == (target.read_bytes(), target.stat().st_mtime_ns, sorted(tmp_path.iterdir()))


def test_a_finished_transform_is_not_made_again(runtime, sentences, tmp_path):
    np.save(tmp_path / "in.npy", runtime.pool(sentences[:40]))
    arguments = (str(tmp_path / "in.npy"), tmp_path / "out.npy", transform.Settings())
    transform.transform_file(runtime, *arguments, quiet=True)
    before = (tmp_path / "out.npy").stat().st_mtime_ns
    with pytest.raises(UsageError, match=r"out\.npy is finished, and nothing is left to resume"):
        transform.transform_file(runtime, *arguments, resume=True, quiet=True)
    assert (tmp_path / "out.npy").stat().st_mtime_ns == before


def test_a_second_run_that_was_interrupted_is_resumed_beside_the_first_ones_output(
    model, runtime, corpus, tmp_path, monkeypatch
):
    target = tmp_path / "out.npy"
    embed_file(runtime, str(corpus), target, Settings(), Run(quiet=True))
    whole = target.read_bytes()
    monkeypatch.setattr(embedding, "WINDOW", 16)

    class Interrupted(Runtime):
        def stream(self, *arguments, **options):
            for number, block in enumerate(super().stream(*arguments, **options)):
                if number == 3:
                    raise KeyboardInterrupt
                yield block

    with pytest.raises(KeyboardInterrupt):
        embed_file(Interrupted(model), str(corpus), target, Settings(), Run(quiet=True))
    assert embed_file(runtime, str(corpus), target, Settings(), Run(resume=True, quiet=True)).resumed == 48
    assert target.read_bytes() == whole


def test_the_share_of_a_file_grows_to_one(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a line of text\n" * 20_000)
    packed = tmp_path / "in.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with Input(str(path)) as source:
        shares = [source.share() for _ in source.lines()]
    assert shares == sorted(shares)
    assert shares[0] < 0.3 < 0.4 < shares[len(shares) // 2] < 0.8
    assert shares[-1] == 1
    with Input(str(packed)) as source:
        assert list(source.lines())
        assert source.share() == 1


def test_a_pipe_and_an_empty_file_have_no_share(tmp_path, monkeypatch):
    (tmp_path / "empty.txt").write_text("")
    with Input(str(tmp_path / "empty.txt")) as source:
        assert source.share() is None
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    with Input("-") as source:
        assert list(source.lines()) == ["a", "b"]
        assert source.share() is None


def test_progress_with_a_share_says_per_cent_and_time_left():
    progress = Progress("embed", None, "texts")
    progress.advance(500, share=0.25)
    assert progress.line(10.0) == "embed: 500 texts (25 %), 50/s, 0:30 left"
    resumed = Progress("embed", None, "texts", share=0.5)
    resumed.advance(500, share=0.75)
    assert resumed.line(10.0) == "embed: 500 texts (75 %), 50/s, 0:10 left"
    nothing = Progress("embed", None, "texts", share=0.5)
    nothing.advance(1, share=0.5)
    assert nothing.line(10.0) == "embed: 1 texts (50 %), 0/s"


def test_embedding_a_file_shows_its_share(runtime, corpus, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr("fastflow.progress.EVERY", 0.0)
    monkeypatch.setattr(embedding, "WINDOW", 64)
    embed_file(runtime, str(corpus), tmp_path / "out.npy", Settings())
    assert "256 texts (100 %), " in shown.getvalue()
