"""``fastflow embed`` below its command line: rows, formats, precisions, shards, repeats and interrupted runs."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from fastflow import Runtime, streaming
from fastflow.errors import FastflowError, UsageError
from fastflow.files import embed as module
from fastflow.files.embed import embed_file
from fastflow.files.read.records import Layout
from fastflow.files.run import Run
from fastflow.files.settings import Settings, Summary, parse_shard
from fastflow.stages.vectors import PRECISIONS

from support.builders import make_sentences
from support.databases import vectors_in


@pytest.fixture(scope="module")
def runtime(model):
    return Runtime(model)


@pytest.fixture
def target(tmp_path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "out.npy"


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def embed(runtime: Runtime, source: str, target: Path, resume: bool = False, **settings: object) -> np.ndarray:
    layout = Layout(**{name: settings.pop(name) for name in Layout._fields if name in settings})
    embed_file(runtime, source, target, Settings(layout, **settings), Run(resume, quiet=True))
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    return load(target)


def load(path: Path) -> np.ndarray:
    if path.suffix == ".safetensors":
        return load_file(path)["embeddings"]
    if path.suffix == ".jsonl":
        return np.array([json.loads(line)["embedding"] for line in path.read_text().splitlines()], np.float32)
    if path.suffix == ".db":
        return vectors_in(path)
    if path.suffix == ".parquet":
        column = pq.read_table(path)["embedding"].combine_chunks()
        return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
    loaded = np.load(path)
    return loaded if path.suffix == ".npy" else loaded["embeddings"]


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".jsonl", ".safetensors", ".db"])
def test_rows_are_the_lines_in_order(runtime, corpus, sentences, target, suffix):
    found = embed(runtime, str(corpus), target.with_suffix(suffix))
    assert np.array_equal(found, runtime.encode(sentences))


def test_empty_lines_are_texts_and_counted(runtime, tmp_path, target):
    source = write(tmp_path / "in.txt", ["the dog", "", "  ", "a cat"])
    summary = embed_file(runtime, source, target, Settings(), Run(quiet=True))
    assert summary == Summary(texts=4, empty=2)
    assert np.array_equal(np.load(target), runtime.encode(["the dog", "", "  ", "a cat"]))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("dim", "normalize"), [(None, False), (12, True)])
def test_precisions_after_cutting_and_normalising(runtime, corpus, sentences, target, precision, dim, normalize):
    found = embed(runtime, str(corpus), target, precision=precision, dim=dim, normalize=normalize)
    want = runtime.encode(sentences, None, normalize, precision=precision, truncate_dim=dim)
    assert found.dtype == want.dtype == {"ubinary": "uint8", "binary": "int8"}.get(precision, precision)
    assert np.array_equal(found, want)


def test_precision_says_what_is_stored_even_of_float64_arithmetic(model, corpus, target, sentences):
    exact = Runtime(model, dtype="float64")
    found = embed(exact, str(corpus), target)
    assert found.dtype == np.float32
    assert np.array_equal(found, exact.encode(sentences).astype(np.float32))


def test_no_lines_give_a_file_of_the_right_width(runtime, tmp_path, target):
    source = write(tmp_path / "in.txt", [])
    assert embed(runtime, source, target, precision="float16", dim=6).shape == (0, 6)
    assert np.load(target).dtype == np.float16


def test_csv_with_ids(runtime, tmp_path, target):
    (tmp_path / "in.csv").write_text('key,text\nk1,"the dog,\nagain"\nk2,a cat\n')
    embed(runtime, str(tmp_path / "in.csv"), target.with_suffix(".npz"), id_field="key")
    with np.load(target.with_suffix(".npz")) as found:
        assert found["ids"].tolist() == ["k1", "k2"]
        assert json.loads(str(found["meta"]))["fingerprint"] == runtime.fingerprint
        assert np.array_equal(found["embeddings"], runtime.encode(["the dog,\nagain", "a cat"]))


def test_a_prompt_goes_before_every_text(runtime, corpus, sentences, target):
    found = embed(runtime, str(corpus), target, prompt="the old ")
    assert np.array_equal(found, runtime.encode(sentences, prompt="the old "))
    assert not np.array_equal(found, runtime.encode(sentences))


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 3, 7, 30])
def test_shards_together_are_the_whole(runtime, tmp_path, target, sentences, parts):
    source, target = write(tmp_path / "in.txt", sentences[:20]), target.with_suffix(".npz")
    whole = embed(runtime, source, target)
    rows, vectors = [], []
    for part in range(1, parts + 1):
        embed_file(runtime, source, target, Settings(shard=(part, parts)), Run(quiet=True))
        with np.load(target) as found:
            rows += found["index"].tolist()
            vectors.append(found["embeddings"])
    assert rows == list(range(20))
    assert np.array_equal(np.concatenate(vectors), whole)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3", "", "1.5/2"])
def test_a_shard_that_is_none(text):
    with pytest.raises(UsageError, match="must be I/N"):
        parse_shard(text)
    assert parse_shard("2/5") == (2, 5)


def test_truncate_error_names_the_line(model, tmp_path, target):
    runtime = Runtime(model)
    long = " ".join(["dog"] * 63)  # 65 tokens, if the model takes 64
    source = write(tmp_path / "in.txt", ["a cat", long.removeprefix("dog "), long])
    with pytest.raises(FastflowError, match=r"in\.txt, line 3: longer than the model's 64 tokens"):
        embed_file(runtime, source, target, Settings(truncate="error"), Run(quiet=True))
    with pytest.raises(FastflowError, match="line 2: longer"):  # the prompt counts
        embed_file(runtime, source, target, Settings(truncate="error", prompt="the "), Run(quiet=True))
    assert list(target.parent.iterdir()) == []
    with pytest.warns(UserWarning, match="longer than 64 tokens are cut"):
        assert embed_file(runtime, source, target, Settings(), Run(quiet=True)).cut == 1


def test_pairs_need_a_choice(runtime, tmp_path, target):
    (tmp_path / "in.tsv").write_text("sentence1\tsentence2\na dog\ta cat\n")
    with pytest.raises(UsageError, match="pairs of texts; choose one with --text-field"):
        embed_file(runtime, str(tmp_path / "in.tsv"), target, Settings(), Run(quiet=True))
    found = embed(runtime, str(tmp_path / "in.tsv"), target, field="sentence2")
    assert np.array_equal(found, runtime.encode(["a cat"]))


@pytest.mark.parametrize("settings", [{"dim": 33}, {"dim": 0}, {"precision": "int4"}, {"layout": Layout("xml")}])
def test_wrong_settings_leave_no_file(runtime, corpus, target, settings):
    with pytest.raises(UsageError):
        embed_file(runtime, str(corpus), target, Settings(**settings), Run(quiet=True))
    assert list(target.parent.iterdir()) == []


def test_the_input_is_never_the_output(runtime, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a dog"}\n')
    with pytest.raises(UsageError, match="is the input"):
        embed_file(runtime, str(source), source, Settings(), Run(quiet=True))
    assert source.read_text() == '{"text": "a dog"}\n'


def watched(seen) -> type[Runtime]:
    """A Runtime whose every block of embeddings is shown to ``seen(number)`` before it is given."""

    class Watched(Runtime):
        def stream(self, texts, **options):
            for number, block in enumerate(super().stream(texts, **options)):
                seen(number)
                yield block

    return Watched


def interrupting(error: type[BaseException] = KeyboardInterrupt, after: int = 3) -> type[Runtime]:
    """A Runtime that raises ``error`` after that many windows."""

    def seen(number: int) -> None:
        if number == after:
            raise error("late")

    return watched(seen)


Interrupt = interrupting()


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".jsonl", ".safetensors", ".db"])
@pytest.mark.parametrize("shard", [None, (2, 2)])
def test_a_resumed_run_gives_the_bytes_of_a_whole_one(model, tmp_path, target, sentences, monkeypatch, suffix, shard):
    monkeypatch.setattr(module, "WINDOW", 16)
    target = target.with_suffix(suffix)
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(sentences[:128])))
    settings = Settings(Layout(id_field="id" if suffix in (".npz", ".jsonl", ".db") else None), shard=shard)
    embed_file(Runtime(model), str(source), target, settings, Run(quiet=True))
    whole = target.read_bytes()
    target.unlink()
    with pytest.raises(KeyboardInterrupt):
        embed_file(Interrupt(model), str(source), target, settings, Run(resume=True, quiet=True))
    assert not target.exists()
    partial = target.with_name(target.name + ".partial")
    with partial.open("ab") as handle:
        handle.write(b"rows that the state does not know of" * 10_000)
    summary = embed_file(Runtime(model), str(source), target, settings, Run(resume=True, quiet=True))
    assert summary.resumed == 48
    assert summary.texts == (128 if shard is None else 64) - 48
    assert target.read_bytes() == whole
    beside = [target.name + ".shard.json"] * (shard is not None)
    assert sorted(path.name for path in target.parent.iterdir()) == [target.name, *beside]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["uint8", "binary"])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".jsonl", ".parquet", ".safetensors", ".db"])
def test_every_format_holds_every_precision_resumed_or_not(
    model, runtime, corpus, sentences, target, monkeypatch, suffix, precision
):
    monkeypatch.setattr(module, "WINDOW", 16)
    target, options = target.with_suffix(suffix), {"precision": precision, "dim": 12, "normalize": True}
    found = embed(runtime, str(corpus), target, **options)
    want = runtime.encode(sentences, None, True, precision=precision, truncate_dim=12)
    assert found.dtype == (np.float32 if suffix == ".jsonl" else want.dtype)
    assert np.array_equal(found, want)
    whole = target.read_bytes()
    target.unlink()
    interrupted(model, str(corpus), target, **options)
    other = Settings(precision="int8" if precision == "uint8" else "ubinary", dim=12, normalize=True)
    with pytest.raises(FastflowError, match=r"from a run with another .*; give the same again"):
        embed_file(runtime, str(corpus), target, other, Run(resume=True, quiet=True))
    assert embed_file(runtime, str(corpus), target, Settings(**options), Run(resume=True, quiet=True)).resumed == 48
    assert target.read_bytes() == whole


def interrupted(model, source, target, **settings) -> None:
    with pytest.raises(KeyboardInterrupt):
        embed_file(Interrupt(model), source, target, Settings(**settings), Run(resume=True, quiet=True))


@pytest.mark.parametrize("other", ["input", "option", "model", "absent", "shorter", "damaged"])
def test_resume_refuses_what_is_not_the_same_run(model, bert, tmp_path, target, sentences, monkeypatch, other):
    monkeypatch.setattr(module, "WINDOW", 16)
    source = write(tmp_path / "in.txt", sentences)
    interrupted(model, source, target)
    partial = target.with_name("out.npy.partial")
    before = partial.read_bytes()
    runtime, settings = Runtime(model), Settings()
    message = r"from a run with another .*; give the same again, or remove .*out\.npy\.partial"
    if other == "input":
        write(tmp_path / "in.txt", [*sentences, "one more"])
    elif other == "option":
        settings = Settings(normalize=True)
    elif other == "model":
        runtime = Runtime(bert)
    elif other == "absent":
        Path(source).unlink()
        message = r"in\.txt cannot be opened: No such file"
    elif other == "shorter":
        before = before[:-1]
        partial.write_bytes(before)
    else:
        partial.with_name("out.npy.partial.json").write_text('{"rows": ')
        message = r"out\.npy\.partial\.json is damaged; remove it"
    with pytest.raises(FastflowError, match=message):
        embed_file(runtime, source, target, settings, Run(resume=True, quiet=True))
    assert partial.read_bytes() == before


def test_a_resumed_run_may_have_another_size_of_batch(model, tmp_path, target, sentences, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 16)
    source = write(tmp_path / "in.txt", sentences)
    interrupted(model, source, target, batch_tokens=512)
    summary = embed_file(Runtime(model), source, target, Settings(batch_tokens=64), Run(resume=True, quiet=True))
    assert summary.resumed == 48
    assert np.array_equal(np.load(target), Runtime(model).encode(sentences))


def test_long_texts_are_embedded_in_windows_of_fewer(model, tmp_path, target, sentences, monkeypatch):
    monkeypatch.setattr(streaming, "CHARACTERS", 200)
    source = write(tmp_path / "in.txt", sentences)
    embed_file(Runtime(model), source, target, Settings(), Run(quiet=True))
    assert np.array_equal(np.load(target), Runtime(model).encode(sentences))


@pytest.mark.parametrize("late", [KeyboardInterrupt, FastflowError])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".jsonl", ".safetensors", ".db"])
def test_finished_rows_outlive_any_late_error_without_resume(model, corpus, target, monkeypatch, capsys, suffix, late):
    monkeypatch.setattr(module, "WINDOW", 16)
    target = target.with_suffix(suffix)
    with pytest.raises(late):
        embed_file(interrupting(late)(model), str(corpus), target, Settings(), Run(quiet=True))
    assert "48 finished rows are in " in (said := capsys.readouterr().err)
    assert "the same command with --resume continues after them" in said
    assert embed_file(Runtime(model), str(corpus), target, Settings(), Run(resume=True, quiet=True)).resumed == 48
    assert list(target.parent.iterdir()) == [target]
    assert np.array_equal(load(target), Runtime(model).encode(corpus.read_text().splitlines()))


def test_an_error_before_the_first_row_leaves_nothing(model, corpus, target):
    with pytest.raises(KeyboardInterrupt):
        embed_file(interrupting(KeyboardInterrupt, after=0)(model), str(corpus), target, Settings(), Run(quiet=True))
    assert list(target.parent.iterdir()) == []


def test_a_run_without_resume_replaces_what_an_earlier_one_left(model, runtime, tmp_path, target, monkeypatch, capsys):
    monkeypatch.setattr(module, "WINDOW", 16)
    source = write(tmp_path / "in.txt", ["the dog"] * 100)
    interrupted(model, source, target)
    capsys.readouterr()
    assert embed_file(runtime, source, target, Settings(), Run(quiet=True)) == Summary(texts=100)
    assert "starts again and replaces 48 finished rows in " in capsys.readouterr().err
    assert np.load(target).shape == (100, 32)
    assert list(target.parent.iterdir()) == [target]


def test_a_second_run_with_the_same_output_is_refused_and_changes_nothing(model, runtime, corpus, sentences, target):
    started = []

    class Slow(Runtime):
        def stream(self, texts, **options):
            if not started:
                started.append(True)
                for shard in ((1, 1), (2, 2)):
                    with pytest.raises(FastflowError, match=r"out\.npy\.partial is being written by another run"):
                        embed_file(runtime, str(corpus), target, Settings(shard=shard), Run(quiet=True))
                with pytest.raises(FastflowError, match="is being written by another run"):
                    embed_file(runtime, str(corpus), target, Settings(), Run(resume=True, quiet=True))
            return super().stream(texts, **options)

    embed_file(Slow(model), str(corpus), target, Settings(), Run(quiet=True))
    assert started
    assert np.array_equal(np.load(target), runtime.encode(sentences))
    assert list(target.parent.iterdir()) == [target]


def test_an_input_that_is_replaced_during_the_run_is_not_joined_with_its_successor(
    model, tmp_path, target, sentences, monkeypatch
):
    """The open file is what was read: the run's rows belong to it, whatever its name names now."""
    monkeypatch.setattr(module, "WINDOW", 16)
    source, other = tmp_path / "in.txt", tmp_path / "other.txt"
    write(source, sentences)
    write(other, [text.upper() for text in sentences])

    def replace(number: int) -> None:
        if number == 1:
            other.replace(source)
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_file(watched(replace)(model), str(source), target, Settings(), Run(quiet=True))
    with pytest.raises(FastflowError, match="from a run with another input; give"):
        embed_file(Runtime(model), str(source), target, Settings(), Run(resume=True, quiet=True))


@pytest.mark.parametrize("how", ["replaced", "moved", "deleted"])
def test_an_input_that_is_replaced_moved_or_deleted_while_open_is_read_to_its_end(
    model, tmp_path, target, sentences, monkeypatch, how
):
    monkeypatch.setattr(module, "WINDOW", 16)
    source = tmp_path / "in.txt"
    write(source, sentences)
    want = Runtime(model).encode(sentences)

    def change(number: int) -> None:
        if number == 1 and how == "replaced":
            write(tmp_path / "other.txt", ["the dog"])
            (tmp_path / "other.txt").replace(source)
        elif number == 1:
            source.rename(tmp_path / "moved.txt") if how == "moved" else source.unlink()

    embed_file(watched(change)(model), str(source), target, Settings(), Run(quiet=True))
    assert np.array_equal(np.load(target), want)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["truncated", "grown", "overwritten"])
@pytest.mark.parametrize("compressed", [False, True])
def test_an_input_that_is_changed_while_it_is_read_is_an_error(model, tmp_path, target, monkeypatch, how, compressed):
    monkeypatch.setattr(module, "WINDOW", 16)
    lines = [f"the {word} dog" for word in make_sentences(2000)]  # more than one read
    source = tmp_path / ("in.txt.gz" if compressed else "in.txt")
    data = "".join(line + "\n" for line in lines).encode()
    source.write_bytes(gzip.compress(data) if compressed else data)

    def change(number: int) -> None:
        if number != 1:
            return
        with source.open("r+b") as handle:
            if how == "truncated":
                handle.truncate(100)
            else:
                handle.seek(0, 2 if how == "grown" else 0)
                handle.write(b"another\n")

    with pytest.raises(FastflowError, match=r"in\.txt(\.gz)? was changed while it was read"):
        embed_file(watched(change)(model), str(source), target, Settings(), Run(quiet=True))
    assert not target.exists()


@pytest.mark.parametrize("name", ["out.npy.partial", "out.npy.partial.json", "out.npz.partial.zip"])
def test_a_file_that_is_written_on_the_way_is_never_the_input(runtime, tmp_path, name):
    source = tmp_path / name
    source.write_text("the dog\n")
    target = tmp_path / ("out.npz" if name.endswith(".zip") else "out.npy")
    with pytest.raises(UsageError, match=rf"{name} is the input; choose another output with -o"):
        embed_file(runtime, str(source), target, Settings(Layout("txt")), Run(quiet=True))
    assert source.read_text() == "the dog\n"


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_ids_are_refused_where_the_output_has_no_place_for_them(runtime, tmp_path, target, suffix):
    (tmp_path / "in.csv").write_text("key,text\nk1,the dog\n")
    with pytest.raises(UsageError, match=r"has no place for ids; write \.npz, \.jsonl, \.parquet or \.db"):
        embed_file(runtime, str(tmp_path / "in.csv"), target.with_suffix(suffix), Settings(Layout(id_field="key")))
    assert list(target.parent.iterdir()) == []


def test_json_ids_keep_their_type(runtime, tmp_path, target):
    source = tmp_path / "in.jsonl"
    values = [7, "7", 1.5, True, None]
    source.write_text("".join(json.dumps({"id": value, "text": "the dog"}) + "\n" for value in values))
    embed(runtime, str(source), target.with_suffix(".jsonl"), id_field="id")
    found = [json.loads(line)["id"] for line in target.with_suffix(".jsonl").read_text().splitlines()]
    assert [(type(value), value) for value in found] == [(type(value), value) for value in values]
    target.with_suffix(".jsonl").unlink()
    embed(runtime, str(source), target.with_suffix(".npz"), id_field="id")
    with np.load(target.with_suffix(".npz")) as found:
        assert found["ids"].tolist() == ["7", "7", "1.5", "true", "null"]
    source.write_text('{"id": 7, "text": "the dog"}\n{"id": -8, "text": "the dog"}\n')
    embed(runtime, str(source), target.with_suffix(".npz"), id_field="id")
    with np.load(target.with_suffix(".npz")) as found:
        assert found["ids"].dtype == np.int64
        assert found["ids"].tolist() == [7, -8]


def test_resume_with_nothing_to_resume_starts(runtime, corpus, sentences, target):
    assert np.array_equal(embed(runtime, str(corpus), target, resume=True), runtime.encode(sentences))


def test_what_cannot_be_resumed(runtime, corpus, target, monkeypatch):
    with pytest.raises(UsageError, match="--resume needs an output file"):
        embed_file(runtime, str(corpus), None, Settings(), Run(resume=True, quiet=True))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    with pytest.raises(UsageError, match="cannot reread standard input"):
        embed_file(runtime, "-", target, Settings(), Run(resume=True, quiet=True))
    assert list(target.parent.iterdir()) == []
