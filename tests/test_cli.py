"""The ``fastflow`` command, run in this process: what goes to standard output, what to standard error, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from builders import make_sentences
from click.testing import CliRunner, Result
from places import ROOT

from fastflow import Runtime, __version__
from fastflow.cli import main
from fastflow.evaluation.evaluate import HEADER
from fastflow.files import embed as embed_module


def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)


def rows(result: Result) -> list[dict]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.removesuffix("\n").split("\n")]


def assert_one_sentence(result: Result, code: int, message: str) -> None:
    """One plain line on standard error, said by us or by click's usage check; nothing on standard output."""
    assert result.exit_code == code
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "please report it" not in result.stderr
    last = result.stderr.rstrip("\n").split("\n")[-1]
    assert last.startswith(("fastflow: ", "Error: "))
    assert message in last
    if code == 1:
        assert sum(not line.startswith("fastflow: model ") for line in result.stderr.splitlines()) <= 3


def test_help_and_version():
    result = run("--help")
    assert result.exit_code == 0
    assert {"embed", "eval", "info", "verify"} <= set(result.stdout.split())
    assert run("--version").stdout.strip().endswith(__version__)
    for command in ("embed", "eval", "info", "verify"):
        assert run(command, "-h").exit_code == 0


def test_embed_prints_json_lines_and_says_the_rest_on_stderr(model, corpus, sentences):
    result = run("embed", corpus, "-m", model)
    found = rows(result)
    assert [row["index"] for row in found] == list(range(256))
    assert [row["text"] for row in found] == sentences
    assert all(list(row) == ["index", "text", "embedding"] for row in found)
    vectors = np.array([row["embedding"] for row in found], np.float32)
    assert np.array_equal(vectors, Runtime(model).encode(sentences))  # nine digits give float32 back exactly
    first, last = result.stderr.splitlines()  # details of the processor are for info
    assert first.startswith(f"fastflow: model {model}, flow(2x2, width 8, additive, reversal), 32 dimensions")
    assert last.startswith("fastflow: 256 texts (none empty or cut), ")
    assert run("embed", corpus, "-m", model, "--quiet").stderr == ""


def test_embed_reads_standard_input(model):
    result = run("embed", "-", "-m", model, stdin="the dog\n\n" + "a " * 80 + "\n")
    assert [row["text"] for row in rows(result)] == ["the dog", "", "a " * 80]
    assert "3 texts (1 empty, 1 cut at 64 tokens)" in result.stderr


def test_embed_options_reach_the_vectors(model, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("key,body\nk1,the dog\nk2,a cat\n")
    options = ("--text-field", "body", "--id-field", "key", "--dim", 10, "--normalize", "--prompt", "so ")
    found = rows(run("embed", source, "-m", model, "--quiet", *options))
    assert [(row["id"], row["text"]) for row in found] == [("k1", "the dog"), ("k2", "a cat")]
    want = Runtime(model).encode(["the dog", "a cat"], None, True, prompt="so ", truncate_dim=10)
    assert np.array_equal(np.array([row["embedding"] for row in found], np.float32), want)


@pytest.mark.parametrize("precision", ["float16", "int8", "ubinary"])
def test_embed_precisions_are_numbers_in_json(model, corpus, sentences, precision):
    found = rows(run("embed", corpus, "-m", model, "--quiet", "--precision", precision))
    want = Runtime(model).encode(sentences, precision=precision)
    assert np.array_equal(np.array([row["embedding"] for row in found]).astype(want.dtype), want)


def test_embed_reads_tables_without_a_header_by_column_number(model, tmp_path):
    (tmp_path / "in.csv").write_text("k1;the dog\nk2;a cat\n")
    options = ("--no-header", "--text-field", 2, "--id-field", 1)
    found = rows(run("embed", tmp_path / "in.csv", "-m", model, "--quiet", *options))
    assert [(row["id"], row["text"]) for row in found] == [("k1", "the dog"), ("k2", "a cat")]


def test_default_is_the_model_in_the_package_wherever_a_model_is_named(corpus):
    assert run("info", "default").stdout == run("info").stdout
    assert run("verify", "default").exit_code == 0
    assert run("embed", corpus, "-m", "default", "--quiet").stdout == run("embed", corpus, "--quiet").stdout


def test_embed_format_shard_batches_and_threads(model, tmp_path, sentences):
    source = tmp_path / "data.bin"
    source.write_text("".join(json.dumps(text) + "\n" for text in sentences[:10]))
    options = ("--format", "jsonl", "--shard", "2/3", "--batch-tokens", 20, "--threads", 1, "--dedupe")
    found = rows(run("embed", source, "-m", model, *options))
    assert [(row["index"], row["text"]) for row in found] == [(i, sentences[i]) for i in (1, 4, 7)]


def test_embed_writes_a_file_and_prints_nothing(model, corpus, sentences, tmp_path):
    result = run("embed", corpus, "-m", model, "-o", tmp_path / "out.npy")
    assert (result.exit_code, result.stdout) == (0, "")
    assert np.array_equal(np.load(tmp_path / "out.npy"), Runtime(model).encode(sentences))


def test_the_first_command_of_the_readme():
    source = ROOT / "examples" / "sentences.txt"
    result = run("embed", source)
    assert [row["text"] for row in rows(result)] == source.read_text(encoding="utf-8").splitlines()
    assert result.stderr.startswith("fastflow: model default, components(1), 256 dimensions")


def test_embed_writes_a_file_from_standard_input(model, tmp_path):
    result = run("embed", "-", "-m", model, "-o", tmp_path / "out.jsonl", stdin="the dog\n\n")
    assert (result.exit_code, result.stdout) == (0, "")
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["the dog", ""]
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_an_empty_input_is_no_error(model, tmp_path):
    (tmp_path / "in.txt").write_text("")
    result = run("embed", tmp_path / "in.txt", "-m", model)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "fastflow: 0 texts" in result.stderr


def test_a_plain_encoder_says_that_it_is_uncalibrated(bert, corpus):
    result = run("embed", corpus, "-m", bert)
    assert len(rows(result)) == 256
    assert "is a plain encoder: no calibration, masked mean of the last layer" in result.stderr


def test_undecodable_bytes_can_be_replaced(model):
    assert_one_sentence(
        run("embed", "-", "-m", model, "--quiet", stdin=b"a\xff\n"), 1, "-, line 1: byte 2 is not UTF-8"
    )
    found = rows(run("embed", "-", "-m", model, "--quiet", "--errors", "replace", stdin=b"a\xff\n"))
    assert found[0]["text"] == "a\ufffd"


WRONG = [
    (["absent.txt"], 1, "absent.txt cannot be opened: No such file or directory"),
    (["."], 1, ". cannot be opened: Is a directory"),
    (["absent.docx"], 1, "absent.docx cannot be opened: No such file"),
    (
        ["in.docx"],
        2,
        "unknown suffix .docx; texts are read from txt, tsv, csv, jsonl: if it is one of these, add --format",
    ),
    (["in.npy"], 2, "in.npy holds vectors, not texts"),
    (["in.csv"], 1, "in.csv, line 1: is this the header or the first text"),
    (["in.csv", "--no-header", "--delimiter", ";;"], 2, "--delimiter ';;': must be one character"),
    (["in.txt", "--no-header"], 2, "--no-header is for csv and tsv"),
    (["in.txt", "-o", "out.parquet"], 2, "unknown suffix '.parquet'; the output can be .npy, .npz"),
    (["in.txt", "-o", "folder"], 2, "is a directory"),
    (
        ["in.txt", "-o", "absent/out.npy"],
        1,
        "cannot be written: No such file or directory; make the folder absent or choose",
    ),
    (["in.txt", "-o", "in.txt"], 2, "unknown suffix '.txt'"),
    (["in.jsonl", "-o", "in.jsonl"], 2, "is the input"),
    (["in.txt", "--dim", "33"], 2, "truncate_dim must be 1 to 32"),
    (["in.txt", "--precision", "int4"], 2, "'int4' is not one of"),
    (["in.txt", "--shard", "5/4"], 2, "--shard 5/4: must be I/N"),
    (["in.txt", "--resume"], 2, "--resume needs an output file"),
    (["-", "--resume", "-o", "out.npy"], 2, "cannot reread standard input"),
    (["in.txt", "--format", "xml"], 2, "unknown format 'xml'"),
    (["in.txt", "--id-field", "id"], 2, "a txt file has no fields"),
    (["in.jsonl", "--text-field", "body"], 1, "in.jsonl, line 1: no field 'body'; the fields are text"),
    (["in.txt", "--truncate", "error"], 1, "in.txt, line 2: longer than the model's 64 tokens"),
    (["in.txt", "--threads", "0"], 2, "threads must be a whole number of at least 1"),
    (["in.txt", "--batch-tokens", "0"], 2, "0 is not in the range"),
    (["in.txt", "--device", "tpu"], 2, "unknown device 'tpu'"),
    (
        ["in.txt", "--dtype", "float16"],
        2,
        "dtype 'float16' runs on a GPU alone (device cuda); on the CPU use auto, float32",
    ),
    (["The dog runs."], 1, "a text itself is given through standard input"),
    (["in.txt", "--dtype", "int3"], 2, "unknown dtype 'int3'; known are auto, float32"),
    (["in.txt", "-m", "absent"], 1, "absent: no such model directory"),
    (["in.txt", "-m", "folder"], 1, "is not a model"),
    ([], 2, "Missing argument"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), WRONG)
def test_wrong_calls_are_one_sentence_and_an_exit_code(model, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "in.txt").write_text("the dog\n" + "a " * 80 + "\n")
    (tmp_path / "in.jsonl").write_text('{"text": "the dog"}\n')
    (tmp_path / "in.csv").write_text("the dog\n")
    for name in ("in.docx", "in.npy"):
        (tmp_path / name).write_bytes(b"")
    before = sorted(p.name for p in tmp_path.iterdir())
    given = [] if "-m" in arguments else ["-m", model]
    assert_one_sentence(run("embed", *arguments, *given), code, message)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_debug_shows_where_an_error_came_from(model):
    shown = run("--debug", "embed", "absent.txt", "-m", model)
    assert type(shown.exception).__name__ == "FastflowError"
    assert shown.exc_info[2] is not None


def test_even_the_unexpected_is_one_sentence(model, corpus, monkeypatch):
    monkeypatch.setattr(embed_module, "embed_file", lambda *_: 1 / 0)
    result = run("embed", corpus, "-m", model, "--quiet")
    assert result.exit_code == 1
    assert result.stderr == (
        "fastflow: unexpected ZeroDivisionError: division by zero; please report it with what --debug shows\n"
    )
    monkeypatch.setattr(embed_module, "embed_file", lambda *_: (_ for _ in ()).throw(MemoryError))
    assert_one_sentence(run("embed", corpus, "-m", model, "--quiet"), 1, "out of memory; use a smaller --batch-tokens")


def write_pairs(path: Path, count: int = 30, constant: bool = False) -> tuple[list[str], list[str], list[float]]:
    first, second = make_sentences(count, seed=3), make_sentences(count, seed=4)
    scores = [1.0] * count if constant else np.random.default_rng(0).normal(size=count).round(3).tolist()
    lines = [f"s{i % 2}\t{score}\t{a}\t{b}" for i, (a, b, score) in enumerate(zip(first, second, scores, strict=True))]
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return first, second, scores


def test_eval_prints_a_table_and_writes_json(model, tmp_path):
    first, second, scores = write_pairs(tmp_path / "mine.tsv")
    result = run("eval", tmp_path, "-m", model, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["model", "fingerprint", "rows", "average"]
    assert (found["model"], found["fingerprint"]) == (str(model), Runtime(model).fingerprint)
    a, b = (Runtime(model).encode(side, normalize_embeddings=True) for side in (first, second))
    want = scipy.stats.spearmanr((a * b).sum(axis=1), scores).statistic
    assert [list(row) for row in found["rows"]] == [["set", "pairs", "all", "wmean"]]
    assert found["rows"][0]["pairs"] == 30
    assert abs(found["rows"][0]["all"] - 100 * want) <= 0.01
    assert result.stdout.split()[:8] == ["set", "pairs", "all", "wmean", "mine", "30"] + [
        f"{found['rows'][0][key]:.2f}" for key in ("all", "wmean")
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.tsv", "out.json"]
    printed = run("eval", tmp_path / "mine.tsv", "-m", model, "--json", "-")
    assert json.loads(printed.stdout) == found


def test_eval_of_constant_scores_is_null_in_json(model, tmp_path):
    write_pairs(tmp_path / "mine.tsv", constant=True)
    printed = run("eval", tmp_path / "mine.tsv", "-m", model, "--json", "-")
    found = json.loads(printed.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found["rows"] == [{"set": "mine", "pairs": 30, "all": None, "wmean": None}]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["eval", "absent.tsv"], 2, "does not exist"),
        (["eval", "bad.tsv"], 1, "bad.tsv, line 1: the header must be"),
        (["eval", "."], 1, "bad.tsv, line 1"),
        (["eval", "good.tsv", "--json", "absent/out.json"], 1, "absent/out.json cannot be written: No such file"),
        (["info", "absent"], 1, "absent: no such model directory"),
        (["verify", "absent"], 1, "fastflow.json cannot be read: No such file"),
        (["verify", "."], 1, "fastflow.json cannot be read: No such file"),
        (["nothing"], 2, "No such command 'nothing'"),
    ],
)
def test_other_commands_called_wrongly(model, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.tsv").write_text("a\tb\n")
    write_pairs(tmp_path / "good.tsv")
    result = run(*arguments, *(["-m", model] if arguments[0] == "eval" else []))
    if "good.tsv" in arguments:  # the table is out before the file fails
        assert (result.exit_code, result.stderr.count(message)) == (1, 1)
    else:
        assert_one_sentence(result, code, message)
