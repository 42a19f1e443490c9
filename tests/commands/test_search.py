"""``fastflow search``: what is printed, queries of standard input, and refusals in one sentence."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from fastflow import Reranker
from fastflow.model.locate import PACKAGED
from fastflow.search import Hit

from support.commands import assert_one_sentence, run
from support.databases import make
from support.rerankers import make_reranker


@pytest.fixture(scope="module")
def desk(model, sentences, tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    lines = [{"ticket": f"k{i}", "text": text, "lang": "en" if i % 2 else "de"} for i, text in enumerate(sentences)]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ["-m", model, "--quiet", "--id-field", "ticket", "--keep", "lang"]
    assert run("embed", folder / "in.jsonl", *options, "-o", folder / "x.db").exit_code == 0
    assert run("embed", folder / "in.jsonl", "-m", model, "--quiet", "-o", folder / "x.npy").exit_code == 0
    return folder


def test_rows_are_printed_best_first(desk, model, sentences):
    result = run("search", desk / "x.db", sentences[7], "-m", model, "-k", 3)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "  #   cosine  row  ticket  text  fields"
    assert lines[1] == f"  1   1.0000  7  k7  {sentences[7]}  lang=en"
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3"]
    assert result.stderr.startswith("fastflow: model ")
    quiet = run("search", desk / "x.db", sentences[7], "-m", model, "-k", 3, "--quiet")
    assert (quiet.stdout.splitlines(), quiet.stderr) == (lines[1:], "")


def test_a_score_gets_a_meaning(tmp_path):
    (tmp_path / "in.txt").write_text("A ship in a storm.\nBread in an oven.\n")
    assert run("embed", tmp_path / "in.txt", "-m", "untuned", "-o", tmp_path / "x.db", "--quiet").exit_code == 0
    said = run("search", tmp_path / "x.db", "a boat", "--by", "vectors").stderr.splitlines()
    assert said[2:] == ["fastflow: two texts drawn at random have a cosine of about 0.1 with this model"]
    many = run("search", tmp_path / "x.db", "-", stdin="a boat\na cake\n").stdout.splitlines()
    assert [line.split()[0] for line in many] == ["#", "#", "1", "2", "#", "#", "1", "2"]
    assert many[:2] == ["# a boat", "  #    score   cosine  BM25  row  text"]
    ship, bread = run("search", tmp_path / "x.db", "ship", "--quiet").stdout.splitlines()
    assert (ship.split()[3], bread.split()[3]) == ("<0.1", "-")  # FTS5's idf of a word of half of the texts is 1e-6


def test_the_model_in_the_package_is_weak_on_paragraphs(model, tmp_path):
    (tmp_path / "in.txt").write_text(" ".join(["word"] * 60) + "\n" + " ".join(["other"] * 50) + "\n")
    for options in ([], ["-m", model]):
        assert run("embed", tmp_path / "in.txt", *options, "-o", tmp_path / "x.db", "--quiet").exit_code == 0
        result = run("search", tmp_path / "x.db", "Which word is it?", "--by", "vectors", *options)
        assert ("--by both, or a tuned model such as all-MiniLM-L6-v2" in result.stderr) == (options == [])
    quiet = run("search", tmp_path / "x.db", "Which word is it?", "-m", model, "--quiet")
    assert quiet.stderr == ""


def test_rows_are_ordered_by_a_reranker(desk, model, sentences, tmp_path):
    """Of 20 candidates the 5 best by the cross-encoder are printed; JSON has both scores."""
    judge, query = make_reranker(tmp_path / "judge"), sentences[7]
    given = ["search", desk / "x.db", query, "-m", model, "--json"]
    before = json.loads(run(*given, "-k", 20).stdout)["hits"]
    result = run(*given, "-k", 5, "--rerank", judge, "--candidates", 20)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["hits"]
    best = Reranker(judge).rank(query, [hit["text"] for hit in before], 5)
    assert [hit["row"] for hit in found] == [before[each["corpus_id"]]["row"] for each in best]
    assert [hit["score"] for hit in found] == [each["score"] for each in best]
    assert {hit["row"]: hit["search_score"] for hit in found}.items() <= {h["row"]: h["score"] for h in before}.items()
    table = run("search", desk / "x.db", query, "-m", model, "-k", 2, "--rerank", judge)
    assert table.stdout.splitlines()[0] == "  #   rerank  row  ticket  text  fields"
    assert "cosine" not in table.stderr
    texts = run("search", desk / "x.npy", query, "-m", model, "-k", 2, "--rerank", judge)
    assert_one_sentence(texts, 2, "--rerank reads texts, and the file has none: give --texts FILE")
    few = run(*given, "-k", 30, "--rerank", judge, "--candidates", 20)
    assert_one_sentence(few, 2, "-k 30 asks for more rows than the 20 of --candidates")
    assert "ranked by the reranker, among the best by vectors" in table.stderr
    least = run(*given, "-k", 5, "--rerank", judge, "--candidates", 20, "--min-score", found[1]["score"])
    assert json.loads(least.stdout)["hits"] == found[:2]
    assert_one_sentence(run(*given, "--candidates", 20), 2, "--candidates counts the rows of --rerank: give both")


def test_json_has_everything(desk, model, sentences):
    result = run("search", desk / "x.db", sentences[7], "-m", model, "-k", 2, "--json", "--where", "lang = 'de'")
    found = json.loads(result.stdout)
    assert list(found) == ["query", "hits"]
    assert [list(hit) for hit in found["hits"]] == [["rank", *Hit._fields]] * 2
    assert all((hit["similarity"], hit["words"], hit["rows"]) == (None, None, [hit["row"]]) for hit in found["hits"])
    for rank, hit in enumerate(found["hits"], 1):
        row = hit["row"]
        assert (hit["rank"], hit["text"], hit["id"], hit["fields"]) == (rank, sentences[row], f"k{row}", {"lang": "de"})
        assert row % 2 == 0


def test_queries_of_standard_input(desk, model, sentences):
    queries, words = [sentences[3], "", sentences[4]] * 50, ("search", desk / "x.db", "-", "-m", model, "-k", 1, "-q")
    found = [json.loads(line) for line in run(*words, "--json", stdin="\n".join(queries) + "\n").stdout.splitlines()]
    assert [each["query"] for each in found] == queries
    assert [each["hits"][0]["row"] for each in found[::3]] == [3] * 50
    assert [each["hits"][0]["row"] for each in found[2::3]] == [4] * 50
    table = run(*words, stdin=f"{sentences[3]}\n{sentences[4]}\n")
    assert [line.split()[0] for line in table.stdout.splitlines()] == ["#", "1", "#", "1"]
    assert run(*words, stdin="").stdout == ""


def test_vectors_of_an_npy(desk, model, sentences):
    words = ("search", desk / "x.npy", sentences[7], "-m", model, "-k", 1, "--quiet")
    assert run(*words).stdout == "  1   1.0000  7\n"
    want = {"rank": 1, **Hit(7, pytest.approx(1), rows=[7])._asdict()}
    assert json.loads(run(*words, "--json").stdout)["hits"] == [want]
    assert run(*words, "--texts", desk / "in.jsonl").stdout == f"  1   1.0000  7  {sentences[7]}\n"


def test_control_characters_do_not_reach_the_terminal(model, tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "a\x1b[31m dog\nand", "k": "\x07"}) + "\n")
    run("embed", tmp_path / "in.jsonl", "-m", model, "--quiet", "--keep", "k", "-o", tmp_path / "x.db")
    result = run("search", tmp_path / "x.db", "dog", "-m", model, "--quiet")
    assert result.stdout.count("\n") == 1
    assert not np.isin([ord(c) for c in result.stdout[:-1]], range(32)).any()


def test_a_condition_that_no_row_meets_is_said(desk, model):
    result = run("search", desk / "x.db", "a dog", "-m", model, "--where", "lang = 'fr'")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.splitlines()[-1] == "fastflow: no row meets \"lang = 'fr'\""
    assert run("search", desk / "x.db", "a dog", "-m", model, "--where", "lang = 'fr'", "--quiet").stderr == ""


def test_without_a_model_the_one_that_the_file_names_is_opened(desk, model, sentences, tmp_path, monkeypatch):
    monkeypatch.delenv("FASTFLOW_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("a dog\na storm at sea\n")
    (tmp_path / "static").mkdir()  # a directory of that name is not the model in the package
    for name in ("static", "default"):
        place = tmp_path / f"{name}.db"
        model_of_package = PACKAGED[name]
        assert run("embed", "in.txt", "-m", model_of_package, "-o", place, "-q").exit_code == 0
        found = run("search", place, "a storm at sea", "-k", 1)
        assert (found.exit_code, f"fastflow: model {name}" in found.stderr) == (0, True), found.stderr
    shutil.copytree(model, "copy")
    assert run("embed", "in.txt", "-m", "copy", "-o", "x.db", "-q").exit_code == 0
    assert run("search", "x.db", "a dog", "-q").exit_code == 0
    shutil.rmtree("copy")
    gone = f"x.db was made with the model {tmp_path / 'copy'}, which is not there: give the model that made it with -m"
    assert_one_sentence(run("search", "x.db", "a dog"), 1, gone)
    shutil.copytree(PACKAGED["static"], "copy")
    other = "x.db was made with another model, "
    assert_one_sentence(run("search", "x.db", "a dog"), 1, other)
    assert run("search", "x.db", "a dog", "-q", "-m", model).exit_code == 0


@pytest.mark.parametrize("name", ["relative", "someone/model", "static/../static", ""])
def test_a_name_in_a_file_is_looked_up_nowhere_else(model, tmp_path, name):
    place = make(tmp_path / "x.db", np.eye(3, 32, dtype=np.float32), {"model": name})
    assert_one_sentence(run("search", place, "a dog"), 1, "which is not there: give the model that made it with -m")
