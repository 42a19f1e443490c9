"""``fastflow embed --log-prob`` below its command line, and the warning about texts unlike the fitted corpus."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fastflow import Runtime
from fastflow.errors import UsageError
from fastflow.files import embed as module
from fastflow.files.embed import embed_file
from fastflow.files.read.records import Layout
from fastflow.files.run import Run
from fastflow.files.settings import Settings
from fastflow.files.write.printing import Block, Terminal
from fastflow.model.likelihood import Likelihood

from support.builders import make_sentences
from support.gpu_standin import use_standin
from support.triton_processes import NEEDS

SUFFIXES = [".npz", ".jsonl", ".safetensors"]


@pytest.fixture(scope="module")
def runtime(model):
    return Runtime(model)


@pytest.fixture
def target(tmp_path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "out"


def load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if path.suffix == ".safetensors":
        found = load_file(path)
    elif path.suffix == ".npz":
        found = np.load(path)
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return np.array([row["embedding"] for row in rows], np.float32), np.array([row["log_prob"] for row in rows])
    return found["embeddings"], found["log_prob"]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dedupe", [False, True])
@pytest.mark.parametrize("options", [{}, {"precision": "float16", "dim": 7, "prompt": "so "}, {"precision": "ubinary"}])
def test_both_are_written_and_the_embedding_keeps_its_bits(
    runtime, sentences, tmp_path, target, suffix, dedupe, options, monkeypatch
):
    monkeypatch.setattr(module, "WINDOW", 50)
    lines = [*sentences[:90], *sentences[30:60], ""]
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in lines))
    target = target.with_suffix(suffix)
    settings = Settings(dedupe=dedupe, log_prob=True, **options)
    embed_file(runtime, str(tmp_path / "in.txt"), target, settings, Run(quiet=True))
    vectors, log_probs = load(target)
    prompt = options.pop("prompt", "")
    want = runtime.encode(
        lines, prompt=prompt, precision=options.get("precision", "float32"), truncate_dim=options.get("dim")
    )
    assert np.array_equal(vectors.astype(want.dtype), want)
    assert np.array_equal(log_probs, runtime.log_prob([prompt + line for line in lines]))
    assert log_probs.dtype == np.float64
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_resumed_run_gives_the_bytes_of_a_whole_one(model, corpus, target, monkeypatch, suffix):
    monkeypatch.setattr(module, "WINDOW", 16)
    target = target.with_suffix(suffix)

    class Interrupt(Runtime):
        def stream_with_log_prob(self, texts, **options):
            for number, found in enumerate(super().stream_with_log_prob(texts, **options)):
                if number == 3:
                    raise KeyboardInterrupt
                yield found

    embed_file(Runtime(model), str(corpus), target, Settings(log_prob=True), Run(quiet=True))
    whole = target.read_bytes()
    target.unlink()
    with pytest.raises(KeyboardInterrupt):
        embed_file(Interrupt(model), str(corpus), target, Settings(log_prob=True), Run(quiet=True))
    with pytest.raises(Exception, match="from a run with another set of options"):
        embed_file(Runtime(model), str(corpus), target, Settings(), Run(resume=True, quiet=True))
    done = embed_file(Runtime(model), str(corpus), target, Settings(log_prob=True), Run(resume=True, quiet=True))
    assert done.resumed == 48
    assert target.read_bytes() == whole
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_lines_give_no_log_densities(runtime, tmp_path, target, suffix):
    (tmp_path / "in.txt").write_text("")
    embed_file(runtime, str(tmp_path / "in.txt"), target.with_suffix(suffix), Settings(log_prob=True), Run(quiet=True))
    vectors, log_probs = load(target.with_suffix(suffix))
    assert (len(vectors), log_probs.shape) == (0, (0,))


def test_what_has_no_place_or_no_density_is_refused(runtime, bert, corpus, target):
    with pytest.raises(UsageError, match=r"a \.npy file has no place for log_prob; write \.npz, \.safe"):
        embed_file(runtime, str(corpus), target.with_suffix(".npy"), Settings(log_prob=True), Run(quiet=True))
    with pytest.raises(UsageError, match="log_prob needs a flow"):
        embed_file(Runtime(bert), str(corpus), target.with_suffix(".npz"), Settings(log_prob=True), Run(quiet=True))
    assert list(target.parent.iterdir()) == []


def test_a_terminal_shows_it_behind_the_numbers(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    block = Block([3], ["a text"], None, np.zeros((1, 5), np.float32), np.array([-12.34]))
    (line,) = Terminal().encode(block).splitlines()
    assert line.endswith("5 numbers] -12.3")
    assert len(line) <= 80


class Knowing(Runtime):
    """A Runtime whose model says that half of the sentences are unlike its corpus."""

    likelihood = Likelihood(0.0, 0.01)

    @classmethod
    def of(cls, model, log_prob, **options):
        cls.likelihood = Likelihood(log_prob, 0.01)
        return cls(model, **options)


SAID = "of these texts are unlike the corpus the model was fitted on; consider --fit"


@pytest.mark.slow
def test_embed_says_once_that_texts_are_unlike(model, runtime, tmp_path, target, monkeypatch, capsys):
    monkeypatch.setattr(module, "WINDOW", 50)
    lines = make_sentences(256, 5)
    (tmp_path / "in.txt").write_text("\n\n".join(lines))
    log_probs, source = runtime.log_prob(lines), str(tmp_path / "in.txt")
    half, plain = float(np.median(log_probs)), target.with_suffix(".npy")
    embed_file(Knowing.of(model, half), source, plain, Settings())
    assert capsys.readouterr().err.count(f"fastflow: 50% {SAID}") == 1
    assert np.array_equal(np.load(plain)[::2], runtime.encode(lines))
    for options in ({"quiet": True}, {"judge": False}):
        embed_file(Knowing.of(model, half), source, plain, Settings(), Run(**options))
        assert SAID not in capsys.readouterr().err
    embed_file(Knowing.of(model, float(log_probs.min())), source, plain, Settings())
    embed_file(runtime, source, plain, Settings())
    assert SAID not in capsys.readouterr().err
    embed_file(Knowing.of(model, half), source, target.with_suffix(".npz"), Settings(log_prob=True))
    assert capsys.readouterr().err.count(f"50% {SAID}") == 1
    embed_file(Knowing.of(model, half), source, target.with_suffix(".jsonl"), Settings(Layout("txt")))
    assert "log_prob" not in target.with_suffix(".jsonl").read_text()


@pytest.mark.slow
@NEEDS
def test_where_a_device_overlaps_only_the_first_window_is_judged(model, runtime, tmp_path, target, monkeypatch, capsys):
    use_standin(monkeypatch)
    monkeypatch.setattr(module, "WINDOW", 200)
    lines = make_sentences(256, 5)
    (tmp_path / "in.txt").write_text("\n".join(lines))
    share = np.mean(runtime.log_prob(lines[:200]) < (half := float(np.median(runtime.log_prob(lines)))))
    opened, plain = Knowing.of(model, half, backend="triton"), target.with_suffix(".npy")
    embed_file(opened, str(tmp_path / "in.txt"), plain, Settings())
    assert f"fastflow: {share:.0%} {SAID}" in capsys.readouterr().err
    assert np.array_equal(np.load(plain), Runtime(model, backend="triton").encode(lines))
