"""Runs with --dedupe, --cache and --only-new: outputs keep their bytes, and no text is computed twice."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.files import EmbedConfig, Run, Summary
from fastflow.files import embed as module
from fastflow.files.embed import embed_file
from fastflow.session import Session

from support.commands import assert_one_sentence, run
from support.runs import stopped_at

HOWS = ["dedupe", "cache"]
WINDOW = 16


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(module, "WINDOW", WINDOW)


@pytest.fixture(scope="module")
def runtime(model):
    pytest.importorskip("fastflow.kernels._cpu", reason="only compiled kernels promise bits")
    return Runtime(model)


@pytest.fixture
def lines(sentences):
    long = "dog " * 200
    return [*sentences[:20], *sentences[:20], "", *sentences[40:60], long, *sentences[5:9] * 3, "", long]


@pytest.fixture
def source(tmp_path, lines) -> str:
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in lines))
    return str(tmp_path / "in.txt")


@pytest.fixture
def out(tmp_path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def computed_by(monkeypatch) -> list[str]:
    found: list[str] = []
    pool = Session.pool
    monkeypatch.setattr(Session, "pool", lambda self, texts, *a, **o: pool(self, found.extend(texts) or texts, *a, **o))
    return found


def embed(runtime, source, target: Path, how: str, **settings) -> Summary:
    cache = target.parent.parent / "c.db" if how == "cache" else None
    given = EmbedConfig(dedupe=how == "dedupe", **settings)
    return embed_file(runtime, source, target, given, Run(quiet=True, cache=cache))


@pytest.mark.parametrize("how", HOWS)
def test_a_text_is_computed_once(runtime, source, lines, out, how, monkeypatch):
    plain = embed(runtime, source, out / "a.npy", "plain")
    computed = computed_by(monkeypatch)
    done = embed(runtime, source, out / "b.npy", how)
    assert (out / "b.npy").read_bytes() == (out / "a.npy").read_bytes()
    assert sorted(computed) == sorted(set(lines))
    assert (done.reused, done.cut, plain.cut) == (len(lines) - len(set(lines)), 2, 2)


@pytest.mark.slow
def test_a_cache_serves_every_run_of_its_model(runtime, source, lines, sentences, out, monkeypatch):
    embed(runtime, source, out / "a.npy", "cache")
    computed = computed_by(monkeypatch)
    for options in ({}, {"precision": "int8", "dim": 7, "normalize": True}, {"dim": 3}):
        done = embed(runtime, source, out / "b.jsonl", "cache", **options)
        assert (done.reused, done.cut) == (len(lines), 2)
    assert computed == []
    with pytest.raises(FastflowError, match="longer than the model's 64 tokens"):
        embed(runtime, source, out / "b.npy", "cache", truncate="error")
    (out / "more.txt").write_text("".join(line + "\n" for line in [*lines, *sentences[100:103]]))
    embed(runtime, str(out / "more.txt"), out / "b.npy", "cache")
    assert computed == sentences[100:103]


@pytest.mark.slow
def test_another_model_or_setting_finds_nothing(runtime, model, bert, source, lines, out, monkeypatch):
    embed(runtime, source, out / "a.npy", "cache")
    others = [(Runtime(bert), {}), (runtime, {"prompt": "so "}), (Runtime(model, backend="reference"), {})]
    if "bfloat16" in Runtime(model, dtype="bfloat16").info()["dtype"]:
        others.append((Runtime(model, dtype="bfloat16"), {}))
    for other, options in others:
        computed = computed_by(monkeypatch)
        done = embed(other, source, out / "b.npy", "cache", **options)
        assert set(computed) == set(lines)
        assert done.reused == len(lines) - len(set(lines))
        embed(other, source, out / "plain.npy", "plain", **options)
        assert np.allclose(np.load(out / "b.npy"), np.load(out / "plain.npy"), atol=1e-5)
        monkeypatch.undo()
        monkeypatch.setattr(module, "WINDOW", WINDOW)
    assert f"holds {(1 + len(others)) * len(set(lines)):,} vectors" in done.cache


@pytest.mark.slow
def test_a_cut_that_a_model_orders_has_its_own_bits(sentences, source, out):
    """The model in the package folds the cut into its calibration: only pooled vectors give the same bits."""
    runtime = Runtime()
    for how in ("plain", *HOWS):
        embed(runtime, source, out / f"{how}.npy", how, dim=9, normalize=True)
    assert (out / "dedupe.npy").read_bytes() == (out / "cache.npy").read_bytes() == (out / "plain.npy").read_bytes()


def test_the_summary_counts_and_the_size_is_reported(model, source, lines, out):
    arguments = ("embed", source, "-m", model, "-o", out / "a.npy")
    known = len(lines) - len(set(lines))
    first = run(*arguments, "--cache", out / "c.db").stderr
    assert f"c.db holds {len(set(lines))} vectors, " in first
    assert f"{len(lines)} texts (2 empty, 2 cut at 64 tokens; {known} not computed again), " in first
    assert f"; {len(lines)} not computed again), " in run(*arguments, "--cache", out / "c.db").stderr
    assert f"; {known} not computed again), " in (done := run(*arguments, "--dedupe")).stderr
    assert "holds" not in done.stderr
    shown = run("cache", out / "c.db").stdout.splitlines()
    assert shown[0].startswith(f"{out / 'c.db'}: {len(set(lines))} vectors, ")
    assert f"{len(set(lines)):>12} of model {Runtime(model).fingerprint[:12]}, cpu " in shown[1]
    result = run("cache", out / "c.db", "--clear")
    assert_one_sentence(result, 2, "c.db is one file: remove it as such; --clear is for the cache of fastflow-train")
    assert (out / "c.db").exists()


class Daily:
    """Runs of ``fastflow embed`` with one cache, which give the texts that they wrote."""

    def __init__(self, model, folder):
        self.model, self.folder = model, folder

    def run(self, lines, out, *options):
        source, content = self.folder / f"{out}.txt", "".join(f"{line}\n" for line in lines)
        if not source.exists():
            source.write_text(content)
        words = [source, "-m", self.model, "-q", "--cache", self.folder / "c.cache"]
        done = run("embed", *words, "-o", self.folder / f"{out}.jsonl", *options)
        return done, [json.loads(line)["text"] for line in self.written(out)]

    def written(self, out):
        path = self.folder / f"{out}.jsonl"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def daily(model, tmp_path):
    return Daily(model, tmp_path)


def test_only_rows_that_no_finished_run_had_are_written(daily, sentences):
    old, new = sentences[:40], [*sentences[40:45], sentences[40]]
    assert daily.run(old, "a")[1] == old
    mixed = [*old[:20], *new, *old[20:]]
    assert daily.run(mixed, "b", "--only-new")[1] == new
    assert [json.loads(line)["index"] for line in daily.written("b")] == list(range(20, 26))
    assert daily.run(mixed, "c", "--only-new")[1] == []
    assert daily.run(mixed, "c", "--only-new", "--resume")[0].exit_code == 0
    assert daily.run(mixed, "d", "--only-new", "--prompt", "so ")[1] == mixed, "with another prompt none is known"


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_rows_that_an_interrupted_run_has_computed_are_not_lost(daily, sentences, between, options):
    daily.run(sentences[:20], "a")
    with stopped_at(2):
        assert daily.run(sentences[:100], "b", "--only-new")[1] == []
    if between:
        daily.run(sentences[:5], "c")
    assert daily.run(sentences[:100], "b", "--only-new", *options)[1] == sentences[20:100]


def test_the_texts_of_a_cache_of_an_earlier_version_are_known(daily, sentences):
    daily.run(sentences[:20], "a")
    with closing(sqlite3.connect(daily.folder / "c.cache")) as db, db:
        db.execute("DROP TABLE known")
    assert daily.run(sentences[:25], "b", "--only-new")[1] == sentences[20:25]
