"""``fastflow embed --fit``: one command that calibrates on its input and embeds it, run in this process."""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import fastflow
from fastflow import Runtime
from fastflow.cli import main
from fastflow.files import embed as embed_module
from fastflow.files import windows
from fastflow.model import Model
from fastflow.session import Session
from fastflow.train import command as fit_input
from fastflow.train.data.corpus import corpus_hash
from fastflow.transforms.pooling import parse_pooling

from support.builders import make_encoder, make_model, make_sentences
from support.written import read_back


@pytest.fixture
def lines() -> list[str]:
    return [*make_sentences(40, 9), "", "  ", *make_sentences(3, 9)]


@pytest.fixture
def source(tmp_path, lines) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(line + "\n" for line in lines))
    return path


@pytest.fixture
def embed(tmp_path, source, weighted_model):
    def embed(*options: object, source: object = source, model: object = weighted_model, **given) -> Result:
        done = CliRunner().invoke(main, ["embed", *map(str, (source, "--fit", "-m", model, *options))], **given)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert "please report it" not in done.stderr
        return done

    return embed


def refuses(done: Result, message: str, code: int = 2) -> None:
    assert done.exit_code == code, done.stderr
    assert message in done.stderr.splitlines()[-1]


def succeeds(done: Result) -> str:
    assert done.exit_code == 0, done.stderr
    return done.stderr


@pytest.mark.slow
def test_it_is_a_fit_on_the_distinct_texts_and_then_an_embedding_of_every_line(
    embed, tmp_path, lines, weighted_model, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    said = succeeds(embed("-o", tmp_path / "out.npy"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = fastflow.fit(lines, encoder=weighted_model, pooling="mean-of-layers:0,1,3", max_length=64)
        want = fit.runtime().encode(lines)
    assert np.array_equal(np.load(tmp_path / "out.npy"), want)
    assert fit.runtime().info()["calibration"] == "none"
    assert (
        "fastflow: fitted no calibration to 40 distinct texts of in.txt; --save-model DIR would keep the model" in said
    )
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.slow
def test_a_saved_model_is_that_of_the_embeddings(embed, tmp_path, lines, weighted_model):
    done = embed("-o", tmp_path / "out.parquet", "--save-model", tmp_path / "m")
    assert f"reuse it with -m {tmp_path / 'm'}" in done.stderr
    saved, given = Runtime(tmp_path / "m"), Runtime(weighted_model)
    recorded = json.loads(pq.read_schema(tmp_path / "out.parquet").metadata[b"fastflow"])
    assert recorded["fingerprint"] == saved.fingerprint
    assert np.array_equal(read_back(tmp_path / "out.parquet")[0], saved.encode(lines))
    for name in ("pooling", "max_length"):
        assert saved.info()[name] == given.info()[name]
    assert embed("-o", tmp_path / "again.parquet", "--quiet").stderr == ""
    assert (tmp_path / "again.parquet").read_bytes() == (tmp_path / "out.parquet").read_bytes()
    again = embed("-o", tmp_path / "b.parquet", "--save-model", tmp_path / "m")
    refuses(again, "m exists already; remove it or choose")
    assert "--save-model" in again.stderr


@pytest.mark.slow
def test_tokens_are_weighed_unless_the_model_has_no_weights(embed, tmp_path, bert, model):
    weighed, plain = "weighted masked mean of word embeddings without positions", "masked mean of layers 0, 1 and 3"
    for given, pooling in ((bert, weighed), (model, plain)):
        out = tmp_path / given.name
        succeeds(embed("-o", out.with_suffix(".npy"), "--save-model", out, model=given))
        assert Runtime(out).info()["pooling"] == pooling


@pytest.mark.slow
def test_the_fit_reads_the_column_and_the_prompt_of_the_embedding(embed, tmp_path, lines):
    table, seen = tmp_path / "in.csv", [line or "a dog" for line in lines]
    table.write_text("key,body\n" + "".join(f"{i},{line}\n" for i, line in enumerate(seen)))
    options = ("--text-field", "body", "--id-field", "key", "--prompt", "so ")
    succeeds(embed(*options, "-o", tmp_path / "out.parquet", "--save-model", tmp_path / "m", source=table))
    vectors, columns = read_back(tmp_path / "out.parquet")
    assert np.array_equal(vectors, Runtime(tmp_path / "m").encode(seen, prompt="so "))
    assert columns["key"] == list(map(str, range(len(lines))))
    assert Runtime(tmp_path / "m").session.model.manifest["training"]["corpus_sha256"] == corpus_hash(
        list(dict.fromkeys(("so " + line).strip() for line in seen if line.strip()))
    )
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\na dog\ta cat\n")
    refuses(embed(source=tmp_path / "pairs.tsv"), "pairs of texts; choose one with --text-field")


@pytest.mark.slow
def test_standard_input_is_read_twice(embed, lines, source, tmp_path):
    done = embed("--quiet", source="-", input=source.read_text())
    succeeds(done)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["text"] for row in rows] == lines
    embed("-o", tmp_path / "out.npy")
    assert np.array_equal(np.array([row["embedding"] for row in rows], np.float32), np.load(tmp_path / "out.npy"))


def test_texts_that_are_too_few_are_one_sentence(embed, tmp_path):
    for text, message in (("", "no text"), ("\n \n", "no text"), ("a\na\n", "a single")):
        (tmp_path / "in.txt").write_text(text)
        refuses(embed("-o", tmp_path / "out.npy", "--save-model", tmp_path / "m"), message, 1)
        assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_options_that_clash_are_refused_by_name_before_anything_is_read(embed, tmp_path, vector_model, monkeypatch):
    monkeypatch.setattr(fit_input, "fit_texts", None)
    monkeypatch.setattr(fit_input, "open_encoder", None)
    out, stdin = tmp_path / "o.npy", {"source": "-", "input": "a\n"}
    for options, given, code, message in (
        (("--shard", "1/2"), {}, 2, "--fit and --shard: every shard needs one and the same model, so fit once with"),
        (("--resume",), {}, 2, "--resume needs an output file"),
        (("--resume", "-o", out), stdin, 2, "--resume cannot reread standard input"),
        (("-o", tmp_path / "o.xyz"), {}, 2, "unknown suffix '.xyz'"),
        ((), {"model": vector_model}, 2, "calibrates vectors and has no encoder"),
        ((), {"model": tmp_path / "none"}, 1, "no such model directory"),
        (("--save-model", tmp_path / "in.txt" / "m"), {}, 1, "choose another --save-model"),
    ):
        refuses(embed(*options, **given), message, code)
    done = CliRunner().invoke(main, ["embed", str(tmp_path / "in.txt"), "--save-model", str(tmp_path / "m")])
    refuses(done, "--save-model keeps the model that --fit makes: add --fit, or leave out --save-model")
    monkeypatch.setitem(sys.modules, "torch", None)
    refuses(embed(), "fastflow embed --fit needs torch, which is not installed: run pip install torch transformers", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def interrupt(monkeypatch) -> None:
    """Stop the next run after its first window of 16 texts."""
    stream, made = Session.blocks, []

    def stopping(self, *given):
        for block in stream(self, *given):
            if made:
                monkeypatch.setattr(Session, "blocks", stream)
                raise KeyboardInterrupt
            made.append(block)
            yield block

    monkeypatch.setattr(embed_module, "WINDOW", 16)
    monkeypatch.setattr(windows, "FEWEST", 16)
    monkeypatch.setattr(Session, "blocks", stopping)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [False, True])
def test_an_interrupted_run_is_continued_with_the_same_model(embed, tmp_path, monkeypatch, keep):
    out, saved = tmp_path / "out.parquet", ("--save-model", tmp_path / "m") if keep else ()
    embed("-o", tmp_path / "whole.parquet")
    interrupt(monkeypatch)
    assert embed("-o", out, *saved).exit_code == 130
    if keep:
        monkeypatch.setattr(fit_input, "fit_texts", None)  # not needed again
    said = succeeds(embed("-o", out, *saved, "--resume"))
    assert "16 done before" in said
    assert (f"continues with the model in {tmp_path / 'm'}" in said) is keep
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


@pytest.mark.slow
def test_a_model_of_another_run_is_not_continued(embed, tmp_path, monkeypatch, source, model, vector_model):
    interrupt(monkeypatch)
    assert embed("-o", tmp_path / "out.npy", "--save-model", tmp_path / "m").exit_code == 130
    again = ("-o", tmp_path / "new.npy", "--resume", "--save-model")
    encoder = make_encoder(tmp_path / "encoder", seed=1)
    other = make_model(tmp_path / "other", encoder, make_sentences(64), "none", weighted=True)
    message = "is not the model of an interrupted run on in.txt with this encoder: remove it, or choose"
    for given in ({"model": other}, {"model": model}):  # another encoder, another pooling
        refuses(embed(*again, tmp_path / "m", **given), message, 1)
    source.write_text(source.read_text() + "one more\n")
    refuses(embed(*again, tmp_path / "m"), message, 1)
    refuses(embed(*again, vector_model), "has no encoder")


def test_a_file_that_grows_during_the_fit_is_an_error(embed, tmp_path, source, monkeypatch):
    run = fit_input.fit_texts

    def growing(encoder, options, texts, *given):
        fit = run(encoder, options, list(texts), *given)
        source.write_text(source.read_text() + "one more\n")
        return fit

    monkeypatch.setattr(fit_input, "fit_texts", growing)
    refuses(embed("-o", tmp_path / "out.npy"), "in.txt was changed while it was read", 1)
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.slow
def test_a_large_input_is_sampled(embed, tmp_path, monkeypatch, lines):
    monkeypatch.setattr(fit_input, "SAMPLE", 20)
    for name in "mn":
        done = embed("-o", tmp_path / f"{name}.npy", "--save-model", tmp_path / name)
        assert "to 20 distinct texts of in.txt" in done.stderr
        assert len(np.load(tmp_path / f"{name}.npy")) == len(lines)
    assert Runtime(tmp_path / "m").fingerprint == Runtime(tmp_path / "n").fingerprint


def test_a_fit_asks_for_the_pooling_of_the_model(bert):
    for name in ("mean-of-layers:words,1,3", "mean-of-layers:words", "mean-of-layers:3*words,1,3", "cls"):
        assert fit_input._name_pooling(Model(bert, bert, parse_pooling(name, 3), 64)) == name
