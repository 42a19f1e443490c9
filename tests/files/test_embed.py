"""A run of embed below its command line: rows, windows, options, log-densities and warnings."""

from __future__ import annotations

import io
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.files import EmbedConfig, Run, Summary, parse_shard
from fastflow.files import embed as module
from fastflow.files import windows as windows_module
from fastflow.files.embed import embed_file
from fastflow.files.read import InputFormat
from fastflow.files.read.sources import Sources
from fastflow.files.windows import Pace, WindowEncoder, windows

from support.builders import make_model, make_sentences
from support.commands import run
from support.gpu_standin import use_standin
from support.refusals import refuses
from support.runs import before_block
from support.static_dirs import model2vec_dir
from support.triton_processes import NEEDS


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
    return embed_file(runtime, str(source), target, EmbedConfig(**settings), Run(resume, quiet=True))


def test_empty_lines_are_texts_and_counted(runtime, tmp_path, target):
    source = write(tmp_path / "in.txt", ["the dog", "", "  ", "a cat"])
    assert embed(runtime, source, target) == Summary(texts=4, empty=2)
    assert np.array_equal(np.load(target), runtime.encode(["the dog", "", "  ", "a cat"]))


def test_no_lines_and_float64_have_the_width_and_type(runtime, model, corpus, tmp_path, target, sentences):
    embed(runtime, write(tmp_path / "in.txt", []), target, precision="float16", dim=6)
    assert (np.load(target).shape, np.load(target).dtype) == ((0, 6), np.float16)
    exact = Runtime(model, dtype="float64")
    embed(exact, corpus, target)
    assert np.load(target).dtype == np.float32
    assert np.array_equal(np.load(target), exact.encode(sentences).astype(np.float32))


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
    embed_file(runtime, str(corpus), target, EmbedConfig())
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
        embed_file(runtime, str(tmp_path / "in.txt"), out, EmbedConfig())
    assert "48 finished rows" in stopped.value.__notes__[0]  # 16 and 32
    monkeypatch.undo()
    assert embed_file(runtime, str(tmp_path / "in.txt"), out, EmbedConfig(), Run(True)).resumed == 48
    assert np.array_equal(np.load(out), runtime.encode(lines))


@pytest.mark.slow
@NEEDS
def test_windows_of_a_device_that_overlaps_have_its_vectors(model, tmp_path, target, monkeypatch):
    use_standin(monkeypatch)
    monkeypatch.setattr(module, "WINDOW", 200)
    lines = make_sentences(256, 5)
    (tmp_path / "in.txt").write_text("\n".join(lines))
    plain = target.with_suffix(".npy")
    embed_file(Runtime(model, backend="triton"), str(tmp_path / "in.txt"), plain, EmbedConfig())
    expected = Runtime(model, backend="triton").encode(lines)  # the stand-in's products round by the rows beside them
    np.testing.assert_allclose(np.load(plain), expected, rtol=1e-5, atol=1e-6)


def test_the_size_of_a_window_follows_its_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(windows_module.time, "monotonic", lambda: now[0])
    pace, sizes = Pace(1000, varies=True), []
    for seconds in (0.1, 0.1, 0.1, 0.9, 5.0, 0.1, 0.1, 0.1, 0.1):
        sizes.append(pace.size)
        now[0] += seconds
        pace.done(pace.size)
    assert sizes == [16, 32, 64, 128, 128, 64, 128, 256, 512]
    pace.done(3)  # the reader had no more for now
    assert pace.size == 1000
    assert (Pace(1000).size, Pace(10, varies=True).size) == (1000, 10)


def test_truncate_error_names_the_text(runtime, tmp_path, target):
    long = " ".join(["dog"] * 63)  # 65 tokens, if the model takes 64
    source = write(tmp_path / "in.txt", ["a cat", long.removeprefix("dog "), long])
    with pytest.raises(FastflowError, match=r"in\.txt, line 3: longer than the model's 64 tokens"):
        embed(runtime, source, target, truncate="error")
    with pytest.raises(FastflowError, match="line 2: longer"):  # the prompt counts
        embed(runtime, source, target, truncate="error", prompt="the ")
    (tmp_path / "in.txt").write_text(f"a\0{long}\0")
    with pytest.raises(FastflowError, match=r"in\.txt, text 2: longer"):
        embed(runtime, source, target, layout=InputFormat(null=True), truncate="error")
    assert list(target.parent.iterdir()) == []
    with pytest.warns(UserWarning, match="longer than 64 tokens are cut"):
        assert embed(runtime, source, target).cut == 1


def test_patterns_fields_and_texts_that_end_with_nul(model, tmp_path, monkeypatch, sentences):
    monkeypatch.chdir(tmp_path)
    for name, texts in {"b": sentences[:2], "a": sentences[2:5]}.items():
        rows = [{"id": i, "text": text, "url": f"u{i}", "n": [i]} for i, text in enumerate(texts)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "x.csv").write_text("text,a b\nhello,1\n")
    (tmp_path / "nul").write_bytes(b"two\nlines\r\n\0\0last\r")

    def rows_of(*words):
        return [json.loads(line) for line in run("embed", *words, "-m", model, "--quiet").stdout.splitlines()]

    found = rows_of("[ab].jsonl", "--keep", "url,n", "--keep", "id")
    assert [row["text"] for row in found] == sentences[2:5] + sentences[:2]
    assert list(found[0]) == ["index", "text", "url", "n", "id", "embedding"]
    assert [found[1][name] for name in ("url", "n", "id")] == ["u1", [1], 1]
    assert rows_of("x.csv", "--keep", "a b")[0]["a b"] == "1"
    for option in ("-0", "--null"):
        assert [row["text"] for row in rows_of("nul", option)] == ["two\nlines\r\n", "", "last\r"]


@pytest.mark.slow
def test_fit_reads_all_files_twice(model, tmp_path, sentences):
    paths = [write(tmp_path / f"{name}.txt", sentences[at : at + 25]) for name, at in (("a", 0), ("b", 25))]
    result = run("embed", *paths, "-m", model, "--fit", "-o", tmp_path / "out.npy")
    assert result.exit_code == 0, result.stderr
    assert "50 distinct texts of a.txt and 1 more input" in result.stderr
    assert np.load(tmp_path / "out.npy").shape[0] == 50


def test_texts_of_a_table_take_one_call_a_window(tmp_path, monkeypatch, sentences):
    table = model2vec_dir(tmp_path / "t", width=32)
    runtime = Runtime(make_model(tmp_path / "m", table, sentences, pooling="words", max_length=None), "cpu")
    whole, calls, texts = runtime.session._fused, [], ["the dog", "a cat", "the dog"]
    monkeypatch.setattr(runtime.session, "_fused", lambda *given: calls.append(given[0]) or whole(*given))
    made = WindowEncoder(runtime, EmbedConfig(prompt="so "), 2)(texts)
    assert calls == [["so the dog", "so a cat"], ["so the dog"]]
    assert np.array_equal(made, runtime.encode(texts, prompt="so "))


def list_windows(runtime, paths, settings, size):
    with Sources([str(path) for path in paths]) as sources:
        rows = sources.rows(settings.layout)
        return [window.texts for window in windows(rows, runtime, sources, settings, Pace(size))]


def test_long_rows_end_a_window_and_the_end_of_a_file_does_not(runtime, tmp_path, monkeypatch):
    monkeypatch.setattr("fastflow.options.CHARACTERS", 20)
    rows = [("a", ""), ("b" * 19, ""), ("c" * 25, ""), ("d", "e" * 18), ("f" * 4, ""), ("g", "")]
    lines = [json.dumps({"text": text, "note": note}) for text, note in rows]
    paths = [write(tmp_path / "a.jsonl", lines[:4]), write(tmp_path / "b.jsonl", lines[4:])]
    texts = list_windows(runtime, paths, EmbedConfig(InputFormat(keep=("note",))), 4)
    assert [[text[0] for text in window] for window in texts] == [["a", "b"], ["c"], ["d", "f"], ["g"]]


def test_pairs_are_named_by_their_file(runtime, tmp_path):
    heads = "sentence1\tsentence2"
    paths = [write(tmp_path / "a.tsv", [heads]), write(tmp_path / "b.tsv", [heads, "a\tb"])]
    with pytest.raises(UsageError, match=r"/b\.tsv holds pairs of texts"):
        list_windows(runtime, paths, EmbedConfig(), 2)


def test_a_shard_is_one_of_so_many():
    for text, shard in {"1/1": (1, 1), "1/4": (1, 4), "4/4": (4, 4), "03/10": (3, 10)}.items():
        assert parse_shard(text) == shard
    for text in ("", "1", "/", "1/", "/4", "0/4", "5/4", "-1/4", "1/0", "0/0", "1.0/4", "1/4/4", "a/b"):
        refuses(parse_shard, text, f"--shard {text}: must be I/N with I from 1 to N, such as 1/3")


def test_every_option_tells_two_runs_apart():
    other = {"layout": InputFormat("txt"), "precision": "int8", "dim": 8, "normalize": True, "batch_tokens": 9,
             "dedupe": True, "shard": (1, 2), "truncate": "left", "prompt": "query: ",
             "only_new": True}  # fmt: skip
    assert set(other) == {field.name for field in fields(EmbedConfig)}
    for name, value in other.items():
        assert EmbedConfig(**{name: value}).to_record() != EmbedConfig().to_record(), name
