"""fastflow embed, run in this process: what goes to standard output, what to standard error, exit codes."""

from __future__ import annotations

import json
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import Result

from fastflow import Index, Runtime

from support.builders import read_languages
from support.commands import assert_one_sentence, run
from support.places import ROOT
from support.runs import check_parts
from support.sentence_dirs import NORMALIZE, expected, make_directory, pooling
from support.written import read_back


def rows(result: Result) -> list[dict]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.removesuffix("\n").split("\n")]


def test_embed_prints_json_lines_and_says_the_rest_on_stderr(model, corpus, sentences):
    result = run("embed", corpus, "-m", model)
    found = rows(result)
    assert [row["index"] for row in found] == list(range(256))
    assert [row["text"] for row in found] == sentences
    assert all(list(row) == ["index", "text", "embedding"] for row in found)
    vectors = np.array([row["embedding"] for row in found], np.float32)
    assert np.array_equal(vectors, Runtime(model).encode(sentences))  # nine digits give float32 back exactly
    first, last = result.stderr.splitlines()  # details of the processor are for info
    assert first.startswith(f"fastflow: model {model}, calibrated by flow, 32 dimensions")
    assert last.startswith("fastflow: 256 texts (none empty or cut), ")
    assert run("embed", corpus, "-m", model, "--quiet").stderr == ""


def test_embed_reads_standard_input(model, tmp_path):
    text = "the dog\n\n" + "a " * 80 + "\n"
    result = run("embed", "-", "-m", model, stdin=text)
    assert [row["text"] for row in rows(result)] == ["the dog", "", "a " * 80]
    assert "3 texts (1 empty, 1 cut at 64 tokens)" in result.stderr
    done = run("embed", "-", "-m", model, "-o", tmp_path / "out.jsonl", stdin=text)
    assert (done.exit_code, done.stdout) == (0, "")
    assert (tmp_path / "out.jsonl").read_text() == result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.run.json"]
    empty = run("embed", "-", "-m", model, stdin="")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert "fastflow: 0 texts" in empty.stderr


def test_embed_says_the_text_field_that_line_1_chooses(model, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"url": "x"}\n{"url": "y", "text": "a dog"}\n')
    result = run("embed", tmp_path / "in.jsonl", "-m", model)
    assert [row["text"] for row in rows(result)] == ["x", "y"]
    assert result.stderr.splitlines()[1] == "fastflow: text field: url"
    assert run("embed", tmp_path / "in.jsonl", "-m", model, "--quiet").stderr == ""


def test_embed_format_shard_batches_and_threads(model, tmp_path, sentences):
    source = tmp_path / "data.bin"
    source.write_text("".join(json.dumps(text) + "\n" for text in sentences[:10]))
    options = ("--format", "jsonl", "--shard", "2/3", "--batch-tokens", 20, "--threads", 1, "--dedupe")
    assert run("embed", source, "-m", model, "-o", tmp_path / "out.jsonl", *options).exit_code == 0
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["index"], row["text"]) for row in found] == [(i, sentences[i]) for i in (3, 4, 5)]


NAMED = [("ticket", ()), ("ticket", ("--keep", "ticket,lang")), ("id", ())]


@pytest.mark.parametrize(("name", "options"), NAMED)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".db"])
def test_an_id_keeps_the_name_of_its_column_in_one_run_and_in_joined_parts(
    model, tmp_path, monkeypatch, suffix, name, options
):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({name: f"T-{i}", "text": f"the dog {i}", "lang": "en"}) for i in range(5)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    check_parts(suffix, 2, "embed", "in.jsonl", "-m", model, "--id-field", name, *options)
    columns = read_back(tmp_path / f"out{suffix}")[1]
    assert columns[name] == [f"T-{i}" for i in range(5)]
    if suffix == ".db":
        hits = Index(tmp_path / "out.db", Runtime(model)).search("the dog 3", k=1, where=f"{name} = 'T-3'")
        assert [(hit.id, hit.fields) for hit in hits] == [("T-3", {"lang": "en"} if options else {})]


def test_the_rate_is_without_the_start(model, corpus, tmp_path, monkeypatch):
    hours = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * len(hours))
    monkeypatch.setattr("fastflow.commands.embed.time", clock)
    monkeypatch.setattr("fastflow.commands.embed.introduce", hours.append)
    said = run("embed", corpus, "-m", model, "-o", tmp_path / "o.npy").stderr
    assert float(re.search(r"([\d,]+) a second", said)[1].replace(",", "")) > 0, said


def test_the_first_command_of_the_readme():
    source = ROOT / "examples" / "sentences.txt"
    result = run("embed", source)
    assert [row["text"] for row in rows(result)] == source.read_text(encoding="utf-8").splitlines()
    assert result.stderr.startswith("fastflow: model default (English only), calibrated by flow -> recolour, 256")
    assert ", 256 dimensions" in result.stderr
    assert "; also in the package: " in result.stderr.splitlines()[0]


def test_undecodable_bytes_can_be_replaced(model):
    assert_one_sentence(
        run("embed", "-", "-m", model, "--quiet", stdin=b"a\xff\n"), 1, "-, line 1: byte 2 is not UTF-8"
    )
    found = rows(run("embed", "-", "-m", model, "--quiet", "--errors", "replace", stdin=b"a\xff\n"))
    assert found[0]["text"] == "a\ufffd"


def test_no_calibration_and_an_empty_prompt_are_said(model, bert, tmp_path):
    (tmp_path / "in.txt").write_text("a dog\n")

    def said(encoder, *options):
        return run("embed", tmp_path / "in.txt", "-m", encoder, *options).stderr

    plain, empty = said(bert), "fastflow: the prompt is empty: nothing is put before a text\n"
    assert ", no calibration, 32 dimensions" in plain
    assert "is a plain encoder: no calibration, masked mean of the last layer" in plain
    assert "no calibration" not in said(model)
    assert [empty in said(model, *options) for options in ((), ("--prompt", "so "), ("--prompt", ""))] == [0, 0, 1]


PROMPTED = ["the dog sings", "a cat", "seven rivers"]


@pytest.fixture(scope="module")
def prompted(tmp_path_factory, bert):
    settings = {"prompts": {"query": "the old ", "title": "a red "}, "default_prompt_name": "title"}
    return make_directory(tmp_path_factory.mktemp("st") / "m", bert, [pooling("mean"), NORMALIZE], **settings)


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ([], "a red "),
        (["--prompt-name", "query"], "the old "),
        (["--prompt-name", "document"], ""),
        (["--prompt", "so "], "so "),
        (["--prompt", ""], ""),
        (["--prompt-name", "query", "--dedupe"], "the old "),
    ],
)
def test_the_prompt_that_applies(prompted, tmp_path, options, prompt):
    out = tmp_path / "out.npy"
    done = run("embed", "-", "-m", prompted, "-o", out, *options, stdin="\n".join(PROMPTED) + "\n")
    assert done.exit_code == 0, done.stderr
    assert np.abs(np.load(out) - expected(prompted, PROMPTED, prompt)).max() <= 2e-6


def test_a_run_has_json_and_says_that_it_replaced_a_file(model, corpus, tmp_path):
    out = tmp_path / "o.npy"
    assert "replaced" not in run("embed", corpus, "-m", model, "-o", out).stderr
    again = run("embed", corpus, "-m", model, "-o", out, "--json")
    assert again.stderr.rstrip().endswith(f"written to {out}, which was replaced")
    found = json.loads(again.stdout)
    rows = len(np.load(out))
    assert (found["texts"], found["output"], found["model"]) == (rows, str(out), str(model))
    assert (found["fingerprint"], found["precision"]) == (Runtime(model).fingerprint, "float32")


def test_the_model_is_named_once_nothing_of_the_input_is_wrong(model, tmp_path):
    for text, wrong in (("b\xe9\n", True), ("the dog\n", False)):
        (tmp_path / "in.txt").write_bytes(text.encode("latin-1"))
        result = run("embed", tmp_path / "in.txt", "-m", model)
        assert (result.exit_code, f"fastflow: model {model}" in result.stderr) == (int(wrong), not wrong)
    np.save(tmp_path / "v.npy", np.eye(40, dtype=np.float32))
    result = run("search", tmp_path / "v.npy", "the dog", "-m", model)
    assert (result.exit_code, "fastflow: model" in result.stderr) == (1, False)


@pytest.mark.parametrize("command", ["embed", "eval", "search"])
def test_texts_of_another_language_are_named_once_with_the_model_to_take(tmp_path, command):
    text = read_languages()["French"]
    (tmp_path / "in.txt").write_text(f"{text}\n" * 9, encoding="utf-8")
    pairs = "".join(f"a\t{i}\t{text}\t{text[i:]}\n" for i in range(9))
    (tmp_path / "in.tsv").write_text(f"subset\tscore\tsentence1\tsentence2\n{pairs}", encoding="utf-8")
    if command == "search":
        assert run("embed", tmp_path / "in.txt", "-o", tmp_path / "in.db", "--quiet").exit_code == 0
    query = {"embed": ["in.txt", "-o", "out.npy"], "eval": ["in.tsv"], "search": ["in.db"]}[command]
    words = [tmp_path / word if "." in word else word for word in query]
    done = run(command, *words, *[text] * (command == "search"))
    assert done.exit_code == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert line.startswith("fastflow: WARNING: the texts look like French, and the vocabulary was not ")
    assert line.endswith("for French, such as -m multilingual (the model default is English only)")
