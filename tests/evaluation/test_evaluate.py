"""Tasks found by their headers, measured and shown; scored and labelled pairs; files that are refused."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pytest
import scipy.stats
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.evaluation.evaluate import (
    HEADER,
    LABELLED,
    SEVEN,
    Pairs,
    embed,
    evaluate,
    evaluate_tasks,
    find_sets,
    find_tasks,
    format_scores,
    format_tasks,
    measure,
    read_labelled,
    read_pairs,
    score,
    similarities,
)
from fastflow.evaluation.labelled import (
    LABELLED_PAIRS,
    average_precision,
    read_bitext,
    read_labelled_pairs,
    read_labelled_texts,
)
from fastflow.evaluation.retrieval import read_retrieval

from support.builders import make_model
from support.refusals import refuses
from support.tasks import bitext, retrieval, write

PARAPHRASES, VOTED = LABELLED_PAIRS.replace("[votes]\t", ""), LABELLED_PAIRS.replace("[votes]", "votes")
TEXTS = "split\tlabel\ttext"

# ---- scored pairs


def pairs(name: str, subsets: str, scores: list[float]) -> Pairs:
    n = len(scores)
    return Pairs(name, list(subsets), np.array(scores, float), [f"a{i}" for i in range(n)], [f"b{i}" for i in range(n)])


def test_all_and_wmean_by_hand():
    # subset x: perfectly ranked; y: reversed; each by itself +1 and -1, weights 2/5 and 3/5; together ranks
    # (1, 2, 3, 4, 5) against (4, 5, 3, 2, 1), rho = 1 - 6 * (9 + 9 + 0 + 4 + 16) / (5 * 24)
    for name, wmean in (("STS13", -20.0), ("STSb-test", -90.0), ("SICK-R-test", -90.0)):  # two are published whole
        row = score(pairs(name, "xxyyy", [1, 2, 3, 4, 5]), np.array([0.8, 0.9, 0.3, 0.2, 0.1]))
        assert row == {"set": name, "pairs": 5, "all": -90.0, "wmean": wmean}


class Encoder:
    """Vectors drawn from a text's letters and its prompt."""

    def encode(self, texts, prompt=""):
        return np.stack([np.random.default_rng(list((prompt + text).encode())).normal(size=3) for text in texts])

    def encode_query(self, texts):
        return self.encode(texts, "query: ")

    def encode_document(self, texts):
        return self.encode(texts, "document: ")


encode = Encoder().encode


def test_evaluate_embeds_each_text_once_and_scores_the_cosine():
    given_set = Pairs("x", ["s"] * 4, np.array([1.0, 2.0, 0.5, 3.0]), ["a", "b", "a", "c"], ["b", "b", "d", "a"])
    seen = []
    result = evaluate(lambda texts: (seen.extend(texts), encode(texts))[1], [given_set])
    assert sorted(seen) == ["a", "b", "c", "d"]
    first, second = encode(given_set.first), encode(given_set.second)
    cosines = [u @ v / np.linalg.norm(u) / np.linalg.norm(v) for u, v in zip(first, second, strict=True)]
    want = round(100 * scipy.stats.spearmanr(cosines, given_set.scores).statistic, 2)
    assert result["rows"] == [{"set": "x", "pairs": 4, "all": want, "wmean": want}]
    assert result["average"] == {"sets": ["x"], "all": want, "wmean": want}


def test_the_average_is_over_the_papers_seven_when_they_are_all_there():
    rng = np.random.default_rng(0)
    sets = [pairs(name, "xy" * 5, list(rng.normal(size=10))) for name in ("STSb-dev", *SEVEN, "STSb-train")]
    result = evaluate(encode, sets)
    rows = {row["set"]: row for row in result["rows"]}
    assert list(rows) == [s.name for s in sets]
    assert result["average"]["sets"] == list(SEVEN)
    for key in ("all", "wmean"):
        assert abs(result["average"][key] - np.mean([rows[name][key] for name in SEVEN])) <= 0.005
        assert abs(result["average"][key] - np.mean([row[key] for row in rows.values()])) > 0.005
    assert evaluate(encode, sets[:4])["average"]["sets"] == [s.name for s in sets[:4]]


def test_the_table_holds_every_figure():
    constant = pairs("mine", "zzzz", [4, 4, 4, 4])
    lines = format_scores(evaluate(encode, [pairs("STS12", "xxyy", [1, 2, 3, 5]), constant])).split("\n")
    assert lines[0].split() == ["set", "pairs", "all", "wmean"]
    assert lines[1].split()[:2] == ["STS12", "4"]
    assert lines[2].split() == ["mine", "4", "nan", "nan"]
    assert lines[3].startswith("average of 2")
    assert format_scores(evaluate(encode, [constant])).count("\n") == 1


def test_pairs_files_have_no_quoting_and_either_line_end(tmp_path):
    lines = (HEADER, "x\t1.5\t\"stray\tit's", "x\t-2\t\ta\u2028b", "y\t1e1\tc \td")
    for end in ("\n", "\r\n"):
        (tmp_path / "mine.tsv").write_bytes("".join(line + end for line in lines).encode())
        found = read_pairs(tmp_path / "mine.tsv")
        assert (found.name, found.subsets, found.scores.tolist()) == ("mine", ["x", "x", "y"], [1.5, -2, 10])
        assert (found.first, found.second) == (['"stray', "", "c "], ["it's", "a\u2028b", "d"])


def test_folders_give_their_tsv_files_in_order(tmp_path):
    for name in ("b.tsv", "a.tsv", "notes.txt"):
        write(tmp_path / name, HEADER, "x\t1\ta\tb", "x\t2\ta\tb")
    (tmp_path / "empty").mkdir()
    assert [found.name for found in find_sets([tmp_path, tmp_path / "b.tsv"])] == ["a", "b", "b"]
    for find in (find_sets, find_tasks):
        with pytest.raises(FastflowError, match=r"empty: holds no \.tsv file"):
            find([tmp_path / "empty"])


@pytest.mark.slow
@pytest.mark.data
def test_the_small_encoders_published_figure(shared_data, tmp_path):
    """STS16, mean of layers 1 and L, uncalibrated: 58.6 all, 59.5 wmean, measured with independent code."""
    texts = ["a proof text", "and another one"]
    encoder = shared_data / "models" / "mini-mlm-uncased"
    directory = make_model(tmp_path / "m", encoder, texts, "none", max_length=128, pooling="first-last")
    result = evaluate(Runtime(directory).encode, find_sets([shared_data / "sts" / "STS16.tsv"]))
    assert result["rows"][0]["pairs"] == 1186
    assert abs(result["rows"][0]["all"] - 58.6) <= 0.1
    assert abs(result["rows"][0]["wmean"] - 59.5) <= 0.1


# ---- labelled pairs


def test_labelled_pairs_are_read_and_embedded_once(tmp_path):
    lines = ('entailment\tIs "it"?\tIt is.', "not_entailment\tWho?\tIt is.")
    found = read_labelled(write(tmp_path / "q.tsv", LABELLED, *lines))
    assert (found.labels, found.first) == (["entailment", "not_entailment"], ['Is "it"?', "Who?"])
    calls = []
    assert similarities(lambda texts: (calls.append(texts), np.eye(len(texts)))[1], found).tolist() == [0, 0]
    assert calls == [['Is "it"?', "Who?", "It is."]]


def test_average_precision_by_hand():
    # ranks of the positive pairs 1, 3 and 4: (1/1 + 2/3 + 3/4) / 3
    positive, similarity = np.array([True, False, True, True, False]), np.array([0.9, 0.8, 0.7, 0.6, 0.5])
    assert average_precision(positive, similarity).value == pytest.approx(100 * (1 + 2 / 3 + 3 / 4) / 3)
    # a tie of one positive and one negative pair is one step, whatever their order
    assert average_precision(np.array([True, False]), np.array([0.5, 0.5])).value == 50
    assert np.isnan(average_precision(np.array([True, False]), np.array([0.1, 0.2])).at(np.array([0, 2])))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3), st.integers(0, 3)), min_size=1, max_size=20))
@pytest.mark.slow
def test_average_precision_of_a_draw_is_scikit_learns(rows):
    positive, counts = np.array([row[0] for row in rows]), np.array([row[2] for row in rows])
    similarity = np.array([float(row[1]) for row in rows])
    assume(counts[positive].sum())
    want = average_precision_score(np.repeat(positive, counts), np.repeat(similarity, counts))
    assert average_precision(positive, similarity).at(counts) == pytest.approx(100 * want)


def test_paraphrases_are_read_and_measured(tmp_path):
    for header, votes in ((PARAPHRASES, ""), (VOTED, "(2, 3)\t")):
        lines = [f"train\t1\t{votes}a\tb", f"val\t0\t{votes}a\tc"]
        found = read_labelled_pairs(write(tmp_path / "x.tsv", header, *lines))
        assert (found.name, found.texts, found.positive.tolist()) == ("x", ["a", "b", "c"], [True, False])
        assert measure(found, np.array([[1.0, 0], [1, 1], [0, 1]])) == {"ap": 100}
        assert measure(found, np.array([[1.0, 0], [0, 1], [1, 1]])) == {"ap": 50}


# ---- tasks of every kind


@pytest.fixture
def folder(tmp_path):
    """One task of each kind, at several depths."""
    write(tmp_path / "sts.tsv", HEADER, "x\t1\ta\tb", "x\t2\ta\tc", "x\t3\tb\tc")
    write(tmp_path / "own" / "pairs.tsv", PARAPHRASES, "all\t1\ta\tb", "all\t0\ta\tc")
    write(tmp_path / "own" / "texts.tsv", TEXTS, *(f"all\t{i % 2}\tt{i}" for i in range(6)))
    retrieval(tmp_path / "own" / "search", ["d1\t-\ta", "d2\ttwo\tb"], ["q1\tc"], ["q1\td1\t1"])
    write(tmp_path / "own" / "notes.txt", "not a task")
    return tmp_path


def test_a_folder_is_searched_for_tasks_of_every_kind(folder):
    (folder / "own" / "back").symlink_to(folder)  # neither links to folders nor hidden folders are searched
    write(folder / ".checkpoints" / "sts.tsv", HEADER, "x\t1\ta\tb", "x\t2\ta\tc")
    found = find_tasks([folder])
    assert [task.name for task in found] == ["sts", "pairs", "texts", "search"]
    assert [getattr(task, "kind", "scored") for task in found] == ["scored", "pairs", "classes", "retrieval"]
    assert [task.name for task in find_tasks([folder / "own" / "search", folder / "sts.tsv"])] == ["search", "sts"]
    assert [task.name for task in find_tasks([folder / "own" / "back" / "own"])] == ["pairs", "texts", "search"]


def test_measure_takes_the_vectors_of_the_texts(folder):
    scored, labelled, texts, search = find_tasks([folder])
    want = score(scored, similarities(encode, scored))["all"]
    assert measure(scored, encode(scored.texts)) == {"all": want, "wmean": want}
    assert labelled.texts == ["a", "b", "c"]
    assert list(measure(labelled, encode(labelled.texts))) == ["ap"]
    assert list(measure(texts, encode(texts.texts))) == ["v_measure", "knn", "logistic"]
    assert search.texts == ["a", "two b", "c"]
    assert list(measure(search, encode(search.texts))) == ["ndcg@10", "recall@100"]
    assert np.array_equal(embed(Encoder(), search), encode(["document: a", "document: two b", "query: c"]))


def test_rows_and_table_hold_value_interval_and_bm25(folder):
    rows = evaluate_tasks(Encoder(), find_tasks([folder])[1:])
    sizes = [{"pairs": 2}, {"texts": 6, "labels": 2}, {"queries": 1, "documents": 2}]
    for row, size in zip(rows, sizes, strict=True):
        assert size.items() <= row.items()
        for found in row["measures"].values():
            low, high = found["interval"]
            assert 0 <= low <= found["value"] <= high <= 100
    assert rows[2]["measures"]["recall@100"]["bm25"] == 0  # no word in common: nothing retrieved
    lines = format_tasks(rows).split("\n")
    assert lines[0].split() == ["set", "measure", "value", "95", "%", "interval", "BM25"]
    assert [line.split()[:2] for line in lines[1:]] == [[row["set"], name] for row in rows for name in row["measures"]]
    assert lines[-1].split()[-1] == "0.00"


def test_all_txt_files_are_one_bitext_and_the_first_is_its_pivot(folder):
    english, german, french = bitext(folder, en=["a", "b", "b"], de=["a", "c", "d"], fr=["b", "\ufeffe", " f"])
    french.write_bytes(b"\xef\xbb\xbfb\r\nc\r\n\xc2\xa0 f")
    task, scored, *_ = find_tasks([folder, english, folder / "sts.tsv", german, english, french])
    assert (scored.name, task.kind, task.languages) == ("sts", "bitext", ["en", "de", "fr"])
    assert task.texts == ["a", "b", "c", "d", "\xa0 f"]  # each once
    assert task.rows.tolist() == [[0, 1, 1], [0, 2, 3], [1, 2, 4]]
    assert find_tasks([german, english])[0].languages == ["de", "en"]
    (folder / "d.txt").mkdir()
    write(folder / "d.txt" / "one.tsv", HEADER, "x\t1\ta\tb", "x\t2\ta\tc")
    assert [found.name for found in find_tasks([folder / "d.txt"])] == ["one"]


@pytest.mark.parametrize("pack", [gzip, zstandard], ids=[".gz", ".zst"])
def test_packed_task_files_are_read(folder, pack):
    files = bitext(folder, en=["a", "b"], de=["c", "a"])
    before = find_tasks([folder, *files])
    for path in (path for path in folder.rglob("*.t*") if path.suffix in (".tsv", ".txt")):
        path.with_name(path.name + {gzip: ".gz", zstandard: ".zst"}[pack]).write_bytes(pack.compress(path.read_bytes()))
        path.unlink()
    names = [next(folder.glob(f"{name}.txt.*")) for name in ("en", "de")]
    found = find_tasks([folder, *names])
    assert [(task.name, task.texts) for task in found] == [(task.name, task.texts) for task in before]
    names[0].write_bytes(names[0].read_bytes()[:-9])
    refuses(lambda paths: find_tasks(paths), names, "cannot be opened: the file is cut short; fetch it again")


def test_rows_and_table_hold_every_way_of_a_bitext(tmp_path):
    files = bitext(tmp_path, en=["a", "b"], german=["c", "a"], fr=["a", "b"])
    rows = evaluate_tasks(Encoder(), find_tasks(files))
    assert {"set": "bitext", "kind": "bitext", "languages": 3, "lines": 2}.items() <= rows[0].items()
    pairs = ["en and german", "en and fr"]
    means = ["accuracy", "mixed", "share", "languages"]
    assert list(rows[0]["measures"]) == [*means, *pairs, *(f"{pair}, mixed" for pair in pairs)]
    assert rows[0]["measures"]["en and fr"] == {"value": 100, "interval": [34.24, 100.0]}
    assert rows[0]["ways"] == find_tasks(files)[0].compare_all(encode(["a", "b", "c"]))
    table, ways = (part.split("\n") for part in format_tasks(rows).split("\n\n"))
    assert [line.split("  ")[0] for line in table[1:]] == ["bitext"] * 8
    assert len({line.index(value) + len(value) for line in table[1:] for value in [line.split()[-4]]}) == 1
    assert ways[0].split() == ["from\\to", "en", "german", "fr"]
    assert [line.split()[0] for line in ways[1:]] == ["en", "german", "fr"]
    assert ways[1].split()[1:] == ["-", f"{rows[0]['ways']['en']['german']:.1f}", "100.0"]
    two = format_tasks(evaluate_tasks(Encoder(), find_tasks(files[:2])))
    assert [line.split("  ")[0] for line in two.split("\n")] == ["set", *["bitext"] * 8]  # no table of ways


# ---- files that are refused: reader, lines of the file, and the sentence

GOOD = "x\t1\ta\tb"
REFUSED = [
    (read_pairs, [HEADER, GOOD, "x\t2\ta"], "line 3: must be subset, finite score, sentence1, sentence2"),
    (read_pairs, [HEADER, "x\t1\ta\tb\tc", GOOD], "line 2: must be"),
    (read_pairs, [HEADER, GOOD, "x\thigh\ta\tb"], "line 3: must be"),
    (read_pairs, [HEADER, "x\tnan\ta\tb", GOOD], "line 2: must be"),
    (read_pairs, [HEADER, "x\tinf\ta\tb", GOOD], "line 2: must be"),
    (read_pairs, [HEADER, GOOD, "", GOOD], "line 3: must be"),
    (read_pairs, [HEADER, GOOD], "holds 1 pairs; a rank correlation needs at least two"),
    (read_pairs, [HEADER], "holds 0 pairs"),
    (read_pairs, [HEADER, GOOD, "x\t1\ta\t\xff"], "line 3: byte 7 is not UTF-8"),
    (read_pairs, ["subset\tscore\tsentence1", GOOD], "line 1: the header must be"),
    (read_pairs, ["subset,score", GOOD], "must be 'subset score sentence1 sentence2', separated by tabs, not 'sub"),
    (read_pairs, ["", GOOD], "line 1: the header must be"),
    (read_labelled, [LABELLED, "entailment\tone"], "line 2: must be label, sentence1, sentence2"),
    (read_labelled, [LABELLED, "\tone\ttwo"], "line 2: must be label"),
    (read_labelled_pairs, [PARAPHRASES, "s\t1\ta\tb", "s\t0\ta"], "line 3: must be split, .*, with label 0 or 1"),
    (read_labelled_pairs, [PARAPHRASES, "s\tyes\ta\tb"], "line 2: must be"),
    (read_labelled_pairs, [PARAPHRASES, "s\t1\ta\tb"], "holds 1 pairs of label 1 and 0 of label 0; average precision"),
    (read_labelled_pairs, [PARAPHRASES], "holds 0 pairs of label 1 and 0 of label 0"),
    (read_labelled_texts, [TEXTS, "s\ta\tx", "s\tb"], "line 3: must be split, label, text, with label not empty"),
    (read_labelled_texts, [TEXTS, "s\ta\tx", "s\t\tb"], "line 3: must be split, label, text, with label not empty"),
    (read_labelled_texts, [TEXTS, "s\t\tx"], "line 2: must be"),
    (read_labelled_texts, [TEXTS, "s\ta\tx", "s\ta\ty"], "holds 1 labels; classes need at least two"),
    (read_labelled_texts, [TEXTS, "s\ta\tx", "s\ta\ty", "s\tb\tz"], "label 'b' has one text, and training and test"),
    (read_labelled_texts, [TEXTS, "train\ta\tx", "test\ta\ty", "test\tb\tz"], "label 'b' has no text in the split"),
]


def check_refused(read, path, message, file):
    with pytest.raises(FastflowError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(str(file))


def test_a_malformed_file_is_named_with_its_line(tmp_path):
    path = tmp_path / "mine.tsv"
    for read, lines, message in REFUSED:
        path.write_bytes("".join(f"{line}\n" for line in lines).encode("latin1"))
        check_refused(read, path, message, path)
        check_refused(read, tmp_path / "absent.tsv", r"absent\.tsv cannot be opened: No such file", tmp_path)


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("corpus.tsv", "d5\ttext", "line 4: must be id, title, text, with id not empty"),
        ("corpus.tsv", "d1\t-\ttext", "line 4: the id 'd1' occurs twice"),
        ("queries.tsv", "\ttext", "line 3: must be id, text"),
        ("qrels.tsv", "q9\td1\t1", "line 3: the query 'q9' is not in queries.tsv"),
        ("qrels.tsv", "q1\td9\t1", "line 3: the document 'd9' is not in corpus.tsv"),
        ("qrels.tsv", "q1\td1\thigh", "line 3: the grade must be a number, not 'high'"),
        ("qrels.tsv", "q1\td1\tnan", "line 3: the grade must be a number"),
    ],
)
def test_a_malformed_folder_is_named_with_file_and_line(tmp_path, file, line, message):
    folder = retrieval(tmp_path / "search", ["d1\t-\ta", "d2\ttwo\tb"], ["q1\tb c"], ["q1\td1\t1"])
    with (folder / file).open("a") as out:
        out.write(line + "\n")
    check_refused(read_retrieval, folder, message, folder / file)
    (folder / file).unlink()
    check_refused(read_retrieval, folder, rf"{file} cannot be opened: No such file", folder / file)


UNPAIRED = [  # the bytes of each file, the file that is named, and the sentence
    ({"en": b"a\nb\n"}, "en", "is one .txt file of sentences; name another with the same sentences in another lang"),
    ({"en": b"a\nb\n", "de": b"a\n\nb\n"}, "de", "line 2: is empty; fill it, or remove this line from every file"),
    ({"en": b"a\n \t\r\n", "de": b"a\nb\n"}, "en", "line 2: is empty"),
    ({"en": b"a\nb\n\n", "de": b"a\nb\n"}, "en", "line 3: is empty"),
    ({"en": b"", "de": b"a\nb\n"}, "en", "line 1: is empty"),
    ({"en": b"a\nb\n", "de": b"a\nb\n", "fr": b"a\nb\nc"}, "fr", "line 3: {en} has no such line; give files with"),
    ({"en": b"a\nb\nc\n", "de": b"a\nb\n"}, "en", "line 3: {de} has no such line; give files with the same sentence"),
    ({"en": b"a\n", "de": b"b\n"}, "en", "holds one line; accuracy needs at least two"),
    ({"en": b"a\nb\n", "more/en": b"a\nb\n"}, "more/en", "another file is called en as well; rename one of them"),
    ({"en": b"a\nb\n", "de": b"a\nb\xff\n"}, "de", "line 2: byte 2 is not UTF-8; convert the file"),
    ({"en": b"a\nb\n", "absent": None}, "absent", "cannot be opened: No such file"),
]


@pytest.mark.parametrize(("files", "named", "message"), UNPAIRED, ids=[row[2][:30] for row in UNPAIRED])
def test_a_malformed_bitext_is_named_with_file_and_line(tmp_path, files, named, message):
    places = {name: tmp_path / f"{name}.txt" for name in files}
    (tmp_path / "more").mkdir()
    for name, data in files.items():
        if data is not None:
            places[name].write_bytes(data)
    check_refused(
        lambda _: read_bitext(list(places.values())), None, re.escape(message.format(**places)), places[named]
    )
