"""``fastflow report``: the page stands alone, says what was left out, and agrees with the other commands."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from click.testing import CliRunner

import fastflow
from fastflow import Runtime
from fastflow.cli import main
from fastflow.evaluation.analyses import isoscore, mean_cosine
from fastflow.evaluation.evaluate import HEADER, LABELLED, evaluate, evaluate_tasks, find_sets, find_tasks, measure
from fastflow.evaluation.labelled import LABELLED_PAIRS
from fastflow.model.artifact import load_model
from fastflow.report.verdict import FEW_PAIRS, FEWER_PAIRS, NO_PROOF, judge
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import open_encoder
from fastflow.transforms.pooling import parse_pooling

from support.builders import make_model, make_sentences
from support.places import ROOT
from support.tasks import retrieval

VOID = {"meta", "path", "use", "rect", "stop"}
SECTIONS = ["similarity", "tasks", "qnli", "lexical", "isotropy", "words"]
SENTENCES = str(ROOT / "examples" / "sentences.txt")


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.ids, self.attributes = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def data(tmp_path_factory, sentences):
    """Scored pairs, labelled pairs and a corpus; one text would be markup if it were not escaped."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    other = make_sentences(60, seed=1)
    rows = [f"{'ab'[i % 2]}\t{rng.uniform(0, 5):.2f}\t{sentences[i]}\t{other[i]}" for i in range(40)]
    rows += [f"a\t4.5\t{sentences[i]}\t{sentences[i][:-1]}" for i in range(20)]
    (folder / "pairs.tsv").write_text("\n".join([HEADER, *rows]) + "\n")
    rows = [f"{('not_' if i % 3 else '') + 'entailment'}\t{sentences[i]}\t{other[i]}" for i in range(30)]
    (folder / "q.tsv").write_text("\n".join([LABELLED, *rows]) + "\n")
    rows = [f"all\t{i % 2}\t{sentences[i]}\t{sentences[i + i % 2 * 7 - 3]}" for i in range(3, 30)]
    (folder / "same.tsv").write_text("\n".join([LABELLED_PAIRS.replace("[votes]\t", ""), *rows]) + "\n")
    marked = "<script>alert(1)</script> the dog & the cat sleeps under the tree."
    (folder / "corpus.txt").write_text("\n".join([marked] * 2 + sentences[:120]) + "\n")
    return folder


def report(*arguments):
    result = CliRunner().invoke(main, ["report", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "please report it" not in result.stderr, result.stderr
    return result


def read_report(*arguments):
    done = report(*arguments, "--json", "-")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def average(found, name):
    return found["sections"]["similarity"][name]["average"]["all"]


@pytest.fixture(scope="module")
def whole(model, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    result = report(
        model, "--against", "raw,standardize,whiten:8", "--sts", data / "pairs.tsv", "--qnli", data / "q.tsv",
        "--corpus", data / "corpus.txt", "-o", folder / "r.html", "--json", folder / "r.json",
        "--eval", data / "same.tsv",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert sorted(p.name for p in folder.iterdir()) == ["r.html", "r.json"]
    return (folder / "r.html").read_text(), json.loads((folder / "r.json").read_text())


@pytest.mark.slow
def test_page_stands_alone_and_fits_a_phone(whole):
    page = Page(whole[0])
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    tags = {tag for tag, _, _ in page.attributes}
    assert not tags & {"script", "link", "iframe", "img", "object"}
    for tag, name, value in page.attributes:
        if name in ("href", "src", "xlink:href"):
            assert value[1:] in page.ids or value.startswith("data:image/png;base64,"), (tag, name)
        assert not name.startswith("on"), name
    assert all(name in page.ids for name in re.findall(r"url\(#([^)]*)\)", whole[0]))
    assert ("meta", "content", "width=device-width, initial-scale=1") in page.attributes
    assert whole[0].count("<table>") == whole[0].count('<div class="scroll" tabindex="0"><table>') == 1
    assert "@import" not in whole[0]


@pytest.mark.slow
def test_no_path_of_this_machine_is_in_page_or_json(model, model_copy, bert, data, tmp_path, sentences, monkeypatch):
    other = make_model(tmp_path / "white", bert, sentences, "whiten")
    shown, written = tmp_path / "r.html", tmp_path / "r.json"
    monkeypatch.chdir(model_copy)
    (tmp_path / "sts").mkdir()
    (tmp_path / "sts" / "pairs.tsv").write_bytes((data / "pairs.tsv").read_bytes())
    whole = ["--corpus", data / "corpus.txt", "--qnli", data / "q.tsv"]
    for options in (whole, []):
        named = ["--against", f"raw,{other}", "--sts", tmp_path / "sts", *options]
        done = report(".", "-o", shown, "--json", written, "--overwrite", *named)
        assert done.exit_code == 0, done.stderr
        for text in (shown.read_text(), written.read_text()):
            for folder in {str(tmp_path), str(data), str(bert), str(model), str(model_copy), str(tmp_path.parents[1])}:
                assert folder not in text
    assert json.loads(written.read_text())["model"] == model_copy.name
    assert f"<title>fastflow report: {model_copy.name}</title>" in shown.read_text()
    assert "distinct sentences of sts, without their scores" in shown.read_text()


def test_the_verdict_stands_before_any_section_with_the_figures_of_the_table(whole):
    text, result = whole
    assert text.index('id="verdict"') < text.index("<dl>") < text.index("<table>") < text.index("<section")
    means = {name: found["average"]["all"] for name, found in result["sections"]["similarity"].items()}
    pairs = result["sections"]["similarity"]["model"]["rows"][0]["pairs"]
    low, high = result["sections"]["similarity"]["raw"]["average"]["model_leads_by"]
    assert low < means["model"] - means["raw"] < high
    assert result["verdict"] == (
        judge(f"Spearman ×100 with human scores, over one set of {pairs} pairs", means)
        + f" With other pairs of the same kind the lead of the model over raw would be {low:.1f} to {high:.1f} (95 %)."
        + (FEWER_PAIRS if pairs < NO_PROOF else FEW_PAIRS)
    )
    assert f'<p class="verdict" id="verdict">{result["verdict"]}</p>' in text


def test_letters_of_figures_are_legible_on_a_phone(whole):
    drawings = re.findall(r"<svg.*?</svg>", whole[0], re.DOTALL)
    assert len(drawings) == 3
    for drawn in drawings:
        width = float(re.search(r'viewBox="0 0 ([\d.]+) ', drawn)[1])
        letters = [100 * float(scale) for scale in re.findall(r"scale\(([\d.]+) -[\d.]+\)", drawn)]
        assert letters
        assert min(letters) * (360 - 32) / width >= 11  # pixels, between the page's margins


def test_the_table_has_every_measure_of_every_subject_with_the_model_first(whole):
    heads = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', whole[0])
    assert heads == ["model", "raw", "standardize", "whiten:8"]
    rows = re.findall(r'<th scope="row">(.*?)</th>', whole[0])
    people = whole[1]["sections"]["lexical"]["pairs"]["gold"]
    assert rows == [  # all, and wmean of its two subsets, without a mean of one set
        "pairs, 60 pairs", "pairs, wmean", "same, ap", "q, AUC", f"pairs, edit distance (people: {people:.1f})",
        "mean cosine", "IsoScore", "largest&#x27;s share, %",
    ]  # fmt: skip
    assert [i for i in Page(whole[0]).ids if i in SECTIONS] == SECTIONS
    assert "left-out" not in whole[0]
    assert "<small>" in whole[0]


@pytest.mark.slow
def test_columns_are_other_models_methods_and_the_models_of_the_package(
    model, weighted_model, bert, data, tmp_path, sentences
):
    pairs, sets = data / "pairs.tsv", find_sets([data / "pairs.tsv"])
    other = make_model(tmp_path / "white", bert, sentences, "whiten")
    found = read_report(model, "--against", f"{other},whiten:8+standardize,flow", "--sts", pairs)
    assert list(found["subjects"]) == ["model", "white", "whiten:8+standardize", "flow"]
    assert average(found, "white") == evaluate(Runtime(other).encode, sets)["average"]["all"]

    fastflow.fit(sentences[:120], "untuned", "whiten:8", token_weights="none").save(tmp_path / "m")
    found = read_report(tmp_path / "m", "--sts", pairs)
    assert list(found["subjects"]) == ["model", "raw", "package", "static"]
    for name, runtime in (("package", Runtime("untuned")), ("static", Runtime("static"))):
        assert average(found, name) == evaluate(runtime.encode, sets)["average"]["all"]
    assert list(read_report("untuned", "--sts", pairs)["subjects"]) == ["model", "raw"]

    found = read_report(weighted_model, "--against", "raw,weights", "--dtype", "float32", "--sts", pairs)
    assert found["subjects"]["raw"] == "masked mean of layers 1 and 3, uncalibrated"
    assert found["subjects"]["weights"] == "weighted masked mean of layers 0, 1 and 3, uncalibrated"
    plain = Embedder(open_encoder(str(bert), "first-last", 64), "cpu")
    for name, embed in (("raw", plain), ("weights", Runtime(weighted_model, dtype="float32").pool)):
        assert abs(average(found, name) - evaluate(embed, sets)["average"]["all"]) <= 0.02
    assert average(found, "raw") != average(found, "weights")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give -o OUT.html, --json, or both"),
        (["--json", "-", "--against", "wisdom"], 2, "has to be fitted on text"),
        (["--json", "-", "--against", "model"], 2, "not the model itself"),
        (["-o", "absent/r.html", "--corpus", SENTENCES, "--sample", "4"], 1, "cannot be written"),
        (["--json", "-", "--against", "wisdom", "--sts", "pairs.tsv"], 2, "unknown method 'wisdom'"),
        (["--json", "-", "--against", "weights", "--sts", "pairs.tsv"], 2, "has no token weights"),
        *(
            (["--json", "-", "--against", f"of/{name}", "--sts", "pairs.tsv"], 2, f"columns would be called '{name}'")
            for name in ("model", "raw", "weights")
        ),
    ],
)
def test_wrong_use_is_one_sentence(model, data, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").symlink_to(data / "pairs.tsv")
    (tmp_path / "of").mkdir()
    for name in ("model", "raw", "weights"):
        (tmp_path / "of" / name).symlink_to(model)
    done = report(model, *arguments)
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["of", "pairs.tsv"]


def test_json_agrees_with_eval_and_the_analyses(whole, model, data):
    result, runtime = whole[1], Runtime(model)
    assert result["fingerprint"] == runtime.fingerprint
    assert list(result["subjects"]) == ["model", "raw", "standardize", "whiten:8"]
    assert list(result["sections"]) == SECTIONS
    assert result["left_out"] == []
    sets = find_sets([data / "pairs.tsv"])
    plain = Runtime(replace(load_model(model), pooling=parse_pooling("first-last", 3))).pool
    for name, encode in (("model", runtime.encode), ("raw", plain)):
        found, wanted = result["sections"]["similarity"][name], evaluate(encode, sets)
        for row, want in zip([*found["rows"], found["average"]], [*wanted["rows"], wanted["average"]], strict=True):
            assert row | want == row
            for key, (low, high) in row["intervals"].items():
                assert low < row[key] < high
    tasks, section = find_tasks([data / "same.tsv"]), result["sections"]["tasks"]
    assert section["model"] == evaluate_tasks(runtime, tasks)
    raw = measure(tasks[0], plain(tasks[0].texts))["ap"]
    assert section["raw"][0]["measures"]["ap"]["value"] == round(raw, 2)
    texts = list(dict.fromkeys((data / "corpus.txt").read_text().splitlines()))
    z = runtime.encode(texts).astype(np.float64)
    shape = result["sections"]["isotropy"]["model"]
    assert abs(shape["mean_cosine"] - mean_cosine(z)) <= 1e-6
    assert abs(shape["isoscore"] - isoscore(z)) <= 1e-6
    white = result["sections"]["isotropy"]["whiten:8"]
    assert len(white["singular_values"]) == 8
    assert np.abs(np.array(white["singular_values"]) - 1).max() <= 1e-4
    assert sum(band["words"] for band in result["sections"]["words"]) > 40


@pytest.mark.slow
def test_same_seed_same_bytes_and_another_seed_another_choice(model, data, tmp_path):
    options = ["--sts", data / "pairs.tsv", "-o", tmp_path / "r.html", "--sample", 50, "--seed"]
    found = [
        (read_report(model, *options, seed, "--overwrite"), (tmp_path / "r.html").read_bytes()) for seed in (3, 3, 4)
    ]
    assert found[0] == found[1]
    assert found[0][0]["sections"]["isotropy"] != found[2][0]["sections"]["isotropy"]


def test_sections_without_data_are_named(model, data, tmp_path):
    done = report(model, "-o", tmp_path / "r.html", "--json", "-", "--qnli", data / "q.tsv")
    assert done.exit_code == 0, done.stderr
    names = ["Similarity", "Tasks", "Lexical bias", "Isotropy", "Word frequency"]
    assert [entry["section"] for entry in json.loads(done.stdout)["left_out"]] == names
    assert all(f"left out: {name}: " in done.stderr for name in names)
    assert 'id="left-out"' in (tmp_path / "r.html").read_text()


@pytest.mark.slow
def test_scored_pairs_of_a_task_folder_are_similarity_and_search_has_bm25(model, data, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "scored.tsv").symlink_to(data / "pairs.tsv")
    retrieval(tmp_path / "own" / "search", ["d1\t-\tthe red apple", "d2\t-\tblue sky"], ["q\tred"], ["q\td1\t1"])
    done = report(model, "--eval", tmp_path / "own", "-o", tmp_path / "r.html", "--json", tmp_path / "r.json")
    assert done.exit_code == 0, done.stderr
    sections = json.loads((tmp_path / "r.json").read_text())["sections"]
    assert [row["set"] for row in sections["similarity"]["model"]["rows"]] == ["scored"]
    assert sections["tasks"]["model"][0]["measures"]["ndcg@10"]["bm25"] == 100
    assert "search, ndcg@10 (BM25: 100.00)" in (tmp_path / "r.html").read_text()
