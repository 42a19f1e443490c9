"""``fastflow embed`` below its command line: rows, formats, precisions, shards, repeats and interrupted runs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tolerances import COMPANY

from fastflow import Runtime
from fastflow import embed as module
from fastflow.embed import Settings, Summary, embed_file, parse_shard
from fastflow.errors import FastflowError, UsageError


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
    embed_file(runtime, source, target, Settings(**settings), resume, quiet=True)
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    return load(target)


def load(path: Path) -> np.ndarray:
    if path.suffix == ".safetensors":
        return load_file(path)["embeddings"]
    if path.suffix == ".jsonl":
        return np.array([json.loads(line)["embedding"] for line in path.read_text().splitlines()], np.float32)
    loaded = np.load(path)
    return loaded if path.suffix == ".npy" else loaded["embeddings"]


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".jsonl", ".safetensors"])
def test_rows_are_the_lines_in_order(runtime, corpus, sentences, target, suffix):
    found = embed(runtime, str(corpus), target.with_suffix(suffix))
    assert np.array_equal(found, runtime.encode(sentences))


def test_empty_lines_are_texts_and_counted(runtime, tmp_path, target):
    source = write(tmp_path / "in.txt", ["the dog", "", "  ", "a cat"])
    summary = embed_file(runtime, source, target, Settings(), quiet=True)
    assert summary == Summary(texts=4, empty=2)
    assert np.array_equal(np.load(target), runtime.encode(["the dog", "", "  ", "a cat"]))


@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "ubinary"])
@pytest.mark.parametrize(("dim", "normalize"), [(None, False), (12, True)])
def test_precisions_after_cutting_and_normalising(runtime, corpus, sentences, target, precision, dim, normalize):
    found = embed(runtime, str(corpus), target, precision=precision, dim=dim, normalize=normalize)
    want = runtime.encode(sentences, None, normalize, precision=precision, truncate_dim=dim)
    assert found.dtype == want.dtype == {"ubinary": "uint8"}.get(precision, precision)
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


@pytest.mark.parametrize("remembered", [5, 100_000])
def test_dedupe_computes_a_repeated_text_once(runtime, tmp_path, target, sentences, monkeypatch, remembered):
    monkeypatch.setattr(module, "WINDOW", 16)
    monkeypatch.setattr(module, "REMEMBERED", remembered)
    lines = sentences[:20] * 3 + sentences[5:9]
    source = write(tmp_path / "in.txt", lines)
    plain = embed(runtime, source, target)
    computed = []
    stream = Runtime.stream
    monkeypatch.setattr(Runtime, "stream", lambda self, texts, **o: stream(self, computed.extend(texts) or texts, **o))
    assert np.abs(embed(runtime, source, target, dedupe=True) - plain).max() <= COMPANY["float32"] * np.abs(plain).max()
    assert len(computed) == 20 if remembered > 20 else 20 < len(computed) < len(lines)


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_shards_together_are_the_whole(runtime, tmp_path, target, sentences, parts):
    source = write(tmp_path / "in.txt", sentences[:20])
    whole = embed(runtime, source, target.with_suffix(".npz"))
    rows, vectors = [], []
    for part in range(1, parts + 1):
        embed(runtime, source, target.with_suffix(".npz"), shard=(part, parts))
        with np.load(target.with_suffix(".npz")) as found:
            rows += found["index"].tolist()
            vectors.append(found["embeddings"])
    assert sorted(rows) == list(range(20))
    assert np.abs(np.concatenate(vectors)[np.argsort(rows)] - whole).max() <= COMPANY["float32"] * np.abs(whole).max()


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3", "", "1.5/2"])
def test_a_shard_that_is_none(text):
    with pytest.raises(UsageError, match="must be I/N"):
        parse_shard(text)
    assert parse_shard("2/5") == (2, 5)


def test_truncate_error_names_the_line(model, tmp_path, target):
    runtime = Runtime(model)
    long = " ".join(["dog"] * 63)  # 65 tokens, where the model takes 64
    source = write(tmp_path / "in.txt", ["a cat", long.removeprefix("dog "), long])
    with pytest.raises(FastflowError, match=r"in\.txt, line 3: longer than the model's 64 tokens"):
        embed_file(runtime, source, target, Settings(truncate="error"), quiet=True)
    with pytest.raises(FastflowError, match="line 2: longer"):  # the prompt counts
        embed_file(runtime, source, target, Settings(truncate="error", prompt="the "), quiet=True)
    assert list(target.parent.iterdir()) == []
    with pytest.warns(UserWarning, match="longer than 64 tokens are cut"):
        assert embed_file(runtime, source, target, Settings(), quiet=True).cut == 1


def test_pairs_need_a_choice(runtime, tmp_path, target):
    (tmp_path / "in.tsv").write_text("sentence1\tsentence2\na dog\ta cat\n")
    with pytest.raises(UsageError, match="pairs of texts; choose one with --text-field"):
        embed_file(runtime, str(tmp_path / "in.tsv"), target, Settings(), quiet=True)
    found = embed(runtime, str(tmp_path / "in.tsv"), target, text_field="sentence2")
    assert np.array_equal(found, runtime.encode(["a cat"]))


@pytest.mark.parametrize("settings", [{"dim": 33}, {"dim": 0}, {"precision": "int4"}, {"format": "xml"}])
def test_wrong_settings_leave_no_file(runtime, corpus, target, settings):
    with pytest.raises(UsageError):
        embed_file(runtime, str(corpus), target, Settings(**settings), quiet=True)
    assert list(target.parent.iterdir()) == []


def test_the_input_is_never_the_output(runtime, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a dog"}\n')
    with pytest.raises(UsageError, match="is the input"):
        embed_file(runtime, str(source), source, Settings(), quiet=True)
    assert source.read_text() == '{"text": "a dog"}\n'


class Interrupt(Runtime):
    """A Runtime that is interrupted after three windows."""

    def stream(self, texts, **options):
        for number, block in enumerate(super().stream(texts, **options)):
            if number == 3:
                raise KeyboardInterrupt
            yield block


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".jsonl", ".safetensors"])
@pytest.mark.parametrize("shard", [(1, 1), (2, 2)])
def test_a_resumed_run_gives_the_bytes_of_a_whole_one(model, tmp_path, target, sentences, monkeypatch, suffix, shard):
    monkeypatch.setattr(module, "WINDOW", 16)
    target = target.with_suffix(suffix)
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(sentences[:128])))
    settings = Settings(id_field="id", shard=shard)
    embed_file(Runtime(model), str(source), target, settings, quiet=True)
    whole = target.read_bytes()
    target.unlink()
    with pytest.raises(KeyboardInterrupt):
        embed_file(Interrupt(model), str(source), target, settings, resume=True, quiet=True)
    assert not target.exists()
    partial = target.with_name(target.name + ".partial")
    with partial.open("ab") as handle:
        handle.write(b"rows that the state does not know of" * 10_000)
    summary = embed_file(Runtime(model), str(source), target, settings, resume=True, quiet=True)
    assert summary.resumed == 48
    assert summary.texts == 128 // shard[1] - 48
    assert target.read_bytes() == whole
    assert list(target.parent.iterdir()) == [target]


def interrupted(model, source, target, **settings) -> None:
    with pytest.raises(KeyboardInterrupt):
        embed_file(Interrupt(model), source, target, Settings(**settings), resume=True, quiet=True)


@pytest.mark.parametrize("other", ["input", "option", "model", "absent", "shorter", "damaged"])
def test_resume_refuses_what_is_not_the_same_run(model, bert, tmp_path, target, sentences, monkeypatch, other):
    monkeypatch.setattr(module, "WINDOW", 16)
    source = write(tmp_path / "in.txt", sentences)
    interrupted(model, source, target)
    partial = target.with_name("out.npy.partial")
    before = partial.read_bytes()
    runtime, settings = Runtime(model), Settings()
    message = "from a run with another input, model or options; remove it"
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
        embed_file(runtime, source, target, settings, resume=True, quiet=True)
    assert partial.read_bytes() == before


def test_an_interrupted_run_without_resume_leaves_nothing(model, corpus, target, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 16)
    with pytest.raises(KeyboardInterrupt):
        embed_file(Interrupt(model), str(corpus), target, Settings(), quiet=True)
    assert list(target.parent.iterdir()) == []


def test_resume_with_nothing_to_resume_starts(runtime, corpus, sentences, target):
    assert np.array_equal(embed(runtime, str(corpus), target, resume=True), runtime.encode(sentences))


def test_what_cannot_be_resumed(runtime, corpus, target, monkeypatch):
    with pytest.raises(UsageError, match="--resume needs an output file"):
        embed_file(runtime, str(corpus), None, Settings(), resume=True, quiet=True)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    with pytest.raises(UsageError, match="cannot reread standard input"):
        embed_file(runtime, "-", target, Settings(), resume=True, quiet=True)
    assert list(target.parent.iterdir()) == []
