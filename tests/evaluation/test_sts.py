"""The converter of STS sets: SentEval's folders and downloads of the Hub become files of ``fastflow eval``."""

import gzip
import json

import pytest
from click.testing import CliRunner
from convert_sts import main

from fastflow.evaluation.evaluate import find_sets

PAIRS = [("A dog ran.", "A  dog\truns."), ("It rains.", "The sun shines."), ("We paid.", "They paid.")]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def senteval(tmp_path):
    """A year with two subsets, one unscored pair; the benchmark; SICK."""
    root = tmp_path / "downstream"
    for subset, golds in (("MSRpar", "4.5\n\n1\n"), ("news", "2\n3\n0\n")):
        write(root / f"STS/STS16-en-test/STS.gs.{subset}.txt", golds)
        write(root / f"STS/STS16-en-test/STS.input.{subset}.txt", "A dog ran.\tA dog runs.\na\tb\nc\td\n")
    rows = [
        f"main-captions\tMSRvid\t2012test\t{i}\t{i}.5\t{a}\t{b}" for i, (a, b) in enumerate([("x", "y"), ("u", "v")])
    ]
    write(root / "STS/STSBenchmark/sts-dev.csv", "\n".join(rows) + "\n")
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    write(root / "SICK/SICK_test_annotated.txt", f"{head}\n1\ta b\tc d\t3.3\tNEUTRAL\n2\te\tf\t4\tENTAILMENT\n")
    write(root / "MR/rt-polarity.pos", "not a set\n")
    return root


@pytest.fixture
def hub(tmp_path):
    """The layouts of mteb/sts13-sts and sentence-transformers/stsb, in folders of any name above."""
    root = tmp_path / "hub"
    lines = [json.dumps({"sentence1": a, "sentence2": b, "score": i}) for i, (a, b) in enumerate(PAIRS)]
    path = root / "datasets--mteb--sts13-sts/snapshots/abc/test.jsonl.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    columns = {"sentence1": ["p", "q"], "sentence2": ["r", "s"], "score": [0.25, 1.0]}
    target = root / "stsb/data/validation-00000-of-00001.parquet"
    target.parent.mkdir(parents=True)
    pyarrow.parquet.write_table(arrow.table(columns), target)
    return root


def run(source, out, code=0):
    done = CliRunner().invoke(main, [str(source), str(out)])
    assert done.exit_code == code, done.output
    return done.output


def test_the_folders_of_senteval(senteval, tmp_path):
    run(senteval, tmp_path / "sts")
    sick, year, dev = find_sets([tmp_path / "sts"])
    assert (sick.name, year.name, dev.name) == ("SICK-R-test", "STS16", "STSb-dev")
    assert list(zip(year.subsets, year.scores, year.first, strict=True)) == [
        ("MSRpar", 4.5, "A dog ran."), ("MSRpar", 1, "c"),
        ("news", 2, "A dog ran."), ("news", 3, "a"), ("news", 0, "c"),
    ]  # fmt: skip
    assert (dev.subsets, list(dev.scores), dev.second) == (["main-captions"] * 2, [0.5, 1.5], ["y", "v"])
    assert (list(sick.scores), sick.first, sick.second) == ([3.3, 4], ["a b", "e"], ["c d", "f"])


def test_the_files_of_the_hub(hub, tmp_path):
    assert "STS13.tsv: 3 pairs of 1 subsets" in run(hub, tmp_path / "sts")
    year, dev = find_sets([tmp_path / "sts"])
    assert (year.name, dev.name) == ("STS13", "STSb-dev")
    assert (year.first[0], year.second[0]) == ("A dog ran.", "A dog runs."), "tabs are not kept"
    assert (list(dev.scores), dev.first) == ([0.25, 1.0], ["p", "q"])


def test_refusals_name_the_file_and_the_remedy(senteval, tmp_path):
    (tmp_path / "none").mkdir()
    assert "holds no STS set; give SentEval's data/downstream" in run(tmp_path / "none", tmp_path / "out", 1)
    run(senteval, tmp_path / "sts")
    assert "STSb-dev.tsv exists; name another folder" in run(senteval / "STS/STSBenchmark", tmp_path / "sts", 1)
    write(senteval / "STS/STS16-en-test/STS.gs.news.txt", "2\n")
    assert "STS.gs.news.txt: 1 scores, and STS.input.news.txt has 3 pairs" in run(senteval, tmp_path / "new", 1)
    write(tmp_path / "hub/sts12/test.jsonl", '{"sentence1": "a", "score": 1}\n')
    assert "row 1: has no sentence2; a set has sentence1" in run(tmp_path / "hub", tmp_path / "new", 1)
    write(tmp_path / "odd/STSBenchmark/sts-test.csv", "a\tb\n")
    assert "sts-test.csv, line 1: must have 7 fields" in run(tmp_path / "odd", tmp_path / "new", 1)
