"""``fastflow duplicates``: what is printed and written, inputs of every format, resume, and refusals."""

from __future__ import annotations

import csv
import io
import json
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest

from fastflow import Runtime, duplicates
from fastflow.files.database import find_foreign
from fastflow.search.pairs import Comparison

from support.builders import make_sentences
from support.commands import assert_one_sentence, run

LIMIT = 0.97


@pytest.fixture(scope="module")
def texts(sentences):
    return [*sentences[:60], sentences[3], *(text.upper() for text in sentences[5:9]), sentences[3]]


@pytest.fixture(scope="module")
def wanted(model, texts):
    return duplicates(texts, Runtime(model), above=LIMIT)


def write_input(path, texts):
    """The texts in the format of the suffix, with an id ``k`` and their length ``n``."""
    rows = [{"k": f"k{at}", "text": text, "n": len(text)} for at, text in enumerate(texts)]
    if path.suffix == ".txt":
        path.write_bytes(b"\r\n".join(text.encode() for text in texts))
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        out = io.StringIO()
        table = csv.DictWriter(out, ["k", "text", "n"], delimiter="\t" if path.suffix == ".tsv" else ",")
        table.writeheader()
        table.writerows(rows)
        path.write_text(out.getvalue())
    return path


def read_rows(path):
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".db":
        with closing(sqlite3.connect(path)) as db:
            names = [each[1] for each in db.execute("PRAGMA table_info(duplicates)")]
            return [dict(zip(names, row, strict=True)) for row in db.execute("SELECT * FROM duplicates")]
    return [{name: json.loads(v) if name != "id" and name != "kept_id" else v for name, v in row.items()}
            for row in csv.DictReader(path.open())]  # fmt: skip


def assert_rows(rows, wanted, ids=False):
    assert [row["row"] for row in rows] == wanted.removed.tolist()
    assert [row["kept_row"] for row in rows] == wanted.of.tolist()
    assert np.allclose([row["cosine"] for row in rows], wanted.cosine, atol=1e-12)
    assert [bool(row["exact"]) for row in rows] == wanted.exact.tolist()
    assert len(rows) > 3
    if ids:
        assert [(row["id"], row["kept_id"]) for row in rows] == [
            (f"k{row['row']}", f"k{row['kept_row']}") for row in rows
        ]


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".tsv", ".parquet"])
@pytest.mark.parametrize("out", [".csv", ".jsonl", ".parquet", ".db"])
def test_every_input_and_output(model, texts, wanted, tmp_path, suffix, out):
    path = write_input(tmp_path / f"in{suffix}", texts)
    target, kept = tmp_path / f"out{out}", tmp_path / f"kept{suffix}"
    ids = [] if suffix == ".txt" else ["--id-field", "k"]
    done = run("duplicates", path, "-m", model, "--above", LIMIT, "-o", target, "--kept", kept, "--quiet", *ids)
    assert done.exit_code == 0, done.stderr
    assert_rows(read_rows(target), wanted, bool(ids))
    assert not list(tmp_path.glob("*.partial*"))
    if suffix == ".parquet":
        assert read_rows(kept) == [row for at, row in enumerate(read_rows(path)) if at in wanted.kept]
        return
    lines, header = path.read_bytes().splitlines(keepends=True), suffix in (".csv", ".tsv")
    want = lines[:header] + [line for at, line in enumerate(lines[header:]) if at in wanted.kept]
    assert kept.read_bytes() == b"".join(want)


def test_a_record_of_several_lines_stays_whole(tmp_path):
    path = tmp_path / "in.csv"
    path.write_text('t\n"one\ntwo"\nother words\n"one\ntwo"\n\nthe last')
    done = run("duplicates", path, "-m", "static", "--above", "0.99", "--kept", tmp_path / "k.csv", "--text-field", "t")
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "k.csv").read_text() == 't\n"one\ntwo"\nother words\n\nthe last'


def test_files_follow_each_other(model, texts, wanted, tmp_path):
    first, second = write_input(tmp_path / "a.csv", texts[:30]), write_input(tmp_path / "b.csv", texts[30:])
    done = run("duplicates", first, second, "-m", model, "--above", LIMIT, "-o", tmp_path / "o.jsonl",
               "--kept", tmp_path / "k.csv")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert_rows(read_rows(tmp_path / "o.jsonl"), wanted)
    kept = list(csv.DictReader((tmp_path / "k.csv").open()))
    assert [row["text"] for row in kept] == [texts[row] for row in wanted.kept]
    said = f"{len(wanted.removed)} texts of {len(texts)} removed at {LIMIT}, {len(wanted.kept)} stay; written to "
    assert f"{said}{tmp_path / 'o.jsonl'} and {tmp_path / 'k.csv'}" in done.stderr


@pytest.mark.parametrize("precision", ["float32", "int8", "ubinary"])
def test_a_db_names_its_model_and_gets_a_table(model, texts, wanted, tmp_path, precision):
    path, db = write_input(tmp_path / "in.jsonl", texts), tmp_path / "x.db"
    embed = [
        "embed",
        path,
        "-m",
        model,
        "-o",
        db,
        "--id-field",
        "k",
        "--keep",
        "n",
        "--precision",
        precision,
        "--quiet",
    ]
    assert run(*embed).exit_code == 0
    for _ in range(2):  # the own table is replaced
        done = run("duplicates", db, "--above", LIMIT, "-o", db, "--quiet")
        assert done.exit_code == 0, done.stderr
    rows = read_rows(db)
    if precision == "float32":
        assert_rows(rows, wanted, True)
    assert {(60, 3), (65, 3)} <= {(row["row"], row["kept_row"]) for row in rows}
    assert find_foreign(db) is None
    assert run("search", db, texts[3], "-m", model, "-k", 1).stdout.splitlines()[1].split()[-3:] != []
    assert run(*embed).exit_code == 0  # its own file, replaced as before
    assert run("duplicates", db, "--above", LIMIT, "--order", "-n", "--groups").exit_code == 0
    with closing(sqlite3.connect(db)) as other, other:
        other.execute("CREATE TABLE duplicates (mine)")
    refused = run("duplicates", db, "--above", LIMIT, "-o", db, "--quiet")
    assert_one_sentence(refused, 2, "table duplicates of another program")


def test_vectors_with_and_without_their_texts(model, texts, wanted, tmp_path):
    path, npy = write_input(tmp_path / "in.jsonl", texts), tmp_path / "x.npy"
    assert run("embed", path, "-m", model, "-o", npy, "--quiet").exit_code == 0
    for options in ([], ["--texts", path]):
        done = run("duplicates", npy, *options, "--above", LIMIT, "-o", tmp_path / "o.csv", "--groups")
        assert done.exit_code == 0, done.stderr
        assert [row["row"] for row in read_rows(tmp_path / "o.csv")] == wanted.removed.tolist()
        assert (texts[3][:20] in done.stdout) == bool(options)
    short = write_input(tmp_path / "short.jsonl", texts[1:])
    assert_one_sentence(
        run("duplicates", npy, "--texts", short, "--above", LIMIT), 1, "give the file that was embedded"
    )


@pytest.mark.parametrize("order", ["longest", "n", "-n", "k"])
def test_the_order_decides_which_text_is_kept(model, texts, tmp_path, order):
    path = write_input(tmp_path / "in.csv", texts)
    done = run("duplicates", path, "-m", model, "--above", "0.9", "--order", order, "-o", tmp_path / "o.jsonl")
    assert done.exit_code == 0, done.stderr
    sizes = [len(text) for text in texts]
    keys = {
        "longest": lambda row: -sizes[row],
        "n": sizes.__getitem__,
        "-n": lambda row: -sizes[row],
        "k": "k{}".format,
    }
    places = sorted(range(len(texts)), key=keys[order])
    want = duplicates([texts[row] for row in places], Runtime(model), above=0.9)
    found = {row["row"]: row["kept_row"] for row in read_rows(tmp_path / "o.jsonl")}
    assert found == {places[row]: places[of] for row, of in zip(want.removed, want.of, strict=True)}
    assert len(found) > 5


def test_another_file(model, texts, tmp_path):
    path, other = write_input(tmp_path / "in.csv", texts), write_input(tmp_path / "other.txt", texts[3:9])
    want = duplicates(texts, Runtime(model), above=LIMIT, against=texts[3:9])
    done = run("duplicates", path, "--against", other, "-m", model, "--above", LIMIT, "-o", tmp_path / "o.csv",
               "--json", tmp_path / "r.json")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert_rows(read_rows(tmp_path / "o.csv"), want)
    assert json.loads((tmp_path / "r.json").read_text())["kept"] == len(want.kept)
    assert run("duplicates", path, "--against", other, "-m", model).stdout.startswith("0.95  ")
    db = tmp_path / "x.db"
    assert run("embed", other, "-m", "static", "-o", db, "--quiet").exit_code == 0
    refused = run("duplicates", path, "--against", db, "-m", model, "--above", LIMIT)
    assert_one_sentence(refused, 2, "made with different models")


def test_without_a_limit_nothing_is_written(model, texts, tmp_path):
    path = write_input(tmp_path / "in.txt", texts)
    done = run("duplicates", path, "-m", model, "-o", tmp_path / "o.csv", "--json")
    limits = json.loads(done.stdout)["limits"]
    assert [row["limit"] for row in limits] == [0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6]
    for row in limits:
        assert row["removed"] == len(duplicates(texts, Runtime(model), above=row["limit"]).removed)
        assert all(row["limit"] <= pair["cosine"] < row["limit"] + 0.05 for pair in row["pairs"])
        assert all(set(pair["texts"]) <= set(texts) for pair in row["pairs"])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.txt"]
    assert (
        run("duplicates", path, "-m", model).stdout.splitlines()[0]
        == f"0.95  {limits[0]['removed']} texts of 66 would be removed"
    )


@pytest.mark.parametrize("wanted", [58, 61])
def test_a_number_of_texts_that_stay(model, texts, tmp_path, wanted):
    path = write_input(tmp_path / "in.txt", texts)
    done = run("duplicates", path, "-m", model, "--to", wanted, "--json")
    found = json.loads(done.stdout)
    assert found["kept"] <= wanted
    above = float(np.nextafter(found["above"], 2))
    assert found["above"] == 1 or len(duplicates(texts, Runtime(model), above=above).kept) > wanted
    assert_one_sentence(run("duplicates", path, "-m", model, "--to", 10), 1, "give that number or more")


def test_groups_are_printed_with_the_kept_text_first(model, texts, tmp_path):
    path = write_input(tmp_path / "in.txt", texts)
    lines = run("duplicates", path, "-m", model, "--above", LIMIT, "--groups").stdout.splitlines()
    assert lines[0].split() == ["3", *texts[3].split()]
    assert lines[1].split() == ["1.000", *texts[3].split()]
    groups = json.loads(run("duplicates", path, "-m", model, "--above", LIMIT, "--groups", "--json").stdout)["groups"]
    assert groups[0]["row"] == 3
    assert [one["row"] for one in groups[0]["removed"]] == [60, 65]


def test_an_interrupted_run_goes_on(model, texts, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr("fastflow.search.pairs.WORK", 1)
    monkeypatch.setattr("fastflow.search.pairs.TILE", 8)
    path, out = write_input(tmp_path / "in.txt", texts), tmp_path / "o.csv"
    command = ["duplicates", path, "-m", model, "--above", LIMIT, "-o", out]
    strips, compare = [], Comparison.compare_strip

    def compare_three(self, number):
        if len(strips) == 3:
            raise KeyboardInterrupt
        strips.append(number)
        return compare(self, number)

    monkeypatch.setattr(Comparison, "compare_strip", compare_three)
    done = run(*command)
    assert done.exit_code == 130
    assert "--resume continues" in done.stderr
    folder = tmp_path / "o.csv.partial"
    assert len(list(folder.glob("strip-*.npy"))) == 3
    other = run(*command[:-4], "--above", "0.5", "-o", out, "--resume")
    assert_one_sentence(other, 1, "is from a run with another set of options (above)")
    monkeypatch.setattr(
        Comparison, "compare_strip", lambda self, number: [strips.append(number), compare(self, number)][1]
    )
    assert run(*command, "--resume").exit_code == 0
    assert strips == list(range(8))  # of 63 different texts
    assert_rows(read_rows(out), wanted)
    assert not folder.exists()
    assert "nothing to do" in run(*command, "--resume").stderr
    other = run(*(each if each != model else "static" for each in command), "--resume")
    assert_one_sentence(other, 2, "another set of options (model)")
    assert run(*command, "--resume", "--kept", tmp_path / "k.txt").exit_code == 0
    assert len((tmp_path / "k.txt").read_text().splitlines()) == len(wanted.kept)


def test_strips_on_a_cluster(model, texts, wanted, tmp_path, monkeypatch):
    """The tasks are run in this process; tests/integrations has a real cluster."""
    monkeypatch.setattr("fastflow.search.pairs.WORK", 1)
    monkeypatch.setattr("fastflow.search.pairs.TILE", 8)

    def run_here(task, place, numbers, address, threads):
        for number in numbers:
            yield task(place, number, threads)

    monkeypatch.setattr("fastflow.integrations.ray.run_on_cluster", run_here)
    path, out = write_input(tmp_path / "in.csv", texts), tmp_path / "o.csv"
    done = run("duplicates", path, "-m", model, "--above", LIMIT, "-o", out, "--ray", "local", "--order", "n")
    assert done.exit_code == 0, done.stderr
    assert (
        run("duplicates", path, "-m", model, "--above", LIMIT, "-o", tmp_path / "p.csv", "--order", "n").exit_code == 0
    )
    assert out.read_bytes() == (tmp_path / "p.csv").read_bytes()
    against = ["duplicates", path, "--against", path, "-m", model, "--above", LIMIT, "-o"]
    assert run(*against, tmp_path / "q.csv", "--ray", "local").exit_code == 0
    assert {row["cosine"] for row in read_rows(tmp_path / "q.csv")} == {1.0}


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(text + "\n" for text in make_sentences(20_000)))
    main = "from fastflow.cli import main; main()"
    command = [sys.executable, "-c", main, "duplicates", str(path), "-m", "static", "--above", "0.9", "-o"]
    begun = time.monotonic()
    want = subprocess.run([*command, str(tmp_path / "want.csv")], capture_output=True, check=False)
    assert want.returncode == 0, want.stderr
    killed = 0
    for wait in (time.monotonic() - begun) * np.linspace(0.2, 1.1, 10):
        process = subprocess.Popen([*command, str(tmp_path / "o.csv"), "--resume"], stderr=subprocess.PIPE)
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate()
        if process.returncode == 0:
            assert (tmp_path / "o.csv").read_bytes() == (tmp_path / "want.csv").read_bytes()
            (tmp_path / "o.csv").unlink()
    assert subprocess.run([*command, str(tmp_path / "o.csv"), "--resume"], check=False).returncode == 0
    assert killed > 1
    assert (tmp_path / "o.csv").read_bytes() == (tmp_path / "want.csv").read_bytes()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--above", "0.9", "--to", "3"], 2, "leave out one of them"),
        (["--kept", "k.txt"], 2, "--kept needs a limit"),
        (["--groups"], 2, "--groups needs a limit"),
        (["--resume"], 2, "--resume needs an output file"),
        (["--above", "0.9", "-o", "o.npy"], 2, "unknown suffix '.npy'"),
        (["--above", "0"], 2, "0"),
        (["--above", "0.9", "--texts", "in.txt"], 2, "has texts itself"),
        (["--above", "0.9", "--order", "n"], 2, "a txt file has no fields"),
        (["--above", "0.9", "--against", "none.txt"], 1, "none.txt cannot be opened"),
        (["--above", "0.9", "--kept", "k.txt", "--encoding", "utf-16"], 2, "end by several bytes"),
        (["--above", "0.9", "-o", "in.txt.csv"], 2, "exists"),
        (["--above", "0.9", "--kept", "in.txt.csv"], 2, "name a file that ends in .txt"),
        (["--above", "0.9", "--kept", "in.txt", "--overwrite"], 2, "names another file of this command"),
        (["--above", "0.9", "--kept", "mine.txt"], 2, "exists"),
        (["--above", "0.9", "--kept", "-"], 2, "is no file"),
    ],
)
def test_refusals(model, tmp_path, monkeypatch, options, code, message):
    monkeypatch.chdir(tmp_path)
    write_input(tmp_path / "in.txt", ["a b", "c d"])
    (tmp_path / "in.txt.csv").write_text("mine")
    (tmp_path / "mine.txt").write_text("mine")
    before = sorted(tmp_path.iterdir())
    assert_one_sentence(run("duplicates", "in.txt", "-m", model, *options), code, message)
    assert sorted(tmp_path.iterdir()) == before


def test_inputs_whose_records_cannot_be_kept(model, tmp_path):
    (tmp_path / "in.json").write_text('["a", "b"]')
    refused = run("duplicates", tmp_path / "in.json", "-m", model, "--above", "0.9", "--kept", tmp_path / "k.json")
    assert_one_sentence(refused, 2, "make a .jsonl of it")
    assert run("embed", tmp_path / "in.json", "-m", model, "-o", tmp_path / "x.db", "--quiet").exit_code == 0
    for inputs, message in (
        ([tmp_path / "x.db"], "give the file it was made of"),
        ([tmp_path / "x.db"] * 2, "given twice"),
    ):
        refused = run("duplicates", *inputs, "-m", model, "--above", "0.9", "--kept", tmp_path / "k.db")
        assert_one_sentence(refused, 2, message)
