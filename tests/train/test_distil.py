"""A distillation as a whole: the model that it becomes, its choices, its report; from Python and by the command."""

import json
import re
import shutil

import numpy as np
import pytest

import fastflow
from fastflow import Runtime
from fastflow.errors import UsageError
from fastflow.model.verify import verify
from fastflow.train.distil import gathering, ridge
from fastflow.train.distil import run as module
from fastflow.train.distil.deep import READING
from fastflow.train.distil.run import DistilOptions
from fastflow.transforms.vectors import shorten

from support.builders import VOCABULARY, make_model, make_sentences
from support.commands import assert_one_sentence, run

pytestmark = pytest.mark.slow
TEXTS = [*make_sentences(1500), *["A dogsing dogsing cat.", "The x1y2 x1y2 runs."] * 30]
NEW = make_sentences(40, seed=9)


def cosines(a, b):
    return np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.fixture(scope="module")
def teacher(bert, tmp_path_factory):
    """A model whose pooled state depends on the company of a token, calibrated by a flow."""
    return make_model(tmp_path_factory.mktemp("teacher") / "flow", bert, make_sentences(256), weighted=True)


@pytest.fixture(scope="module")
def plain(bert):
    return fastflow.distill(bert, TEXTS)


def test_it_follows_its_teacher(bert, plain):
    with plain.runtime() as made, Runtime(bert) as teacher:
        ours, theirs = made.encode(NEW), teacher.encode(NEW, normalize_embeddings=True)
    middle = theirs.mean(axis=0)  # a small BERT with drawn weights gives all texts nearly the same vector
    assert cosines(ours - middle, theirs - middle).mean() > 0.6
    assert abs(cosines(ours - middle, theirs[::-1] - middle).mean()) < 0.2
    found = plain.report
    assert found["follows"]["held_out"] == pytest.approx(found["tables"][0]["cosine"], abs=2e-4)
    assert found["tables"][0]["cosine"] > found["tables"][0]["prior"]
    assert found["tables"][0]["cosine"] >= max(found["tables"][0]["tried"].values()) - 1e-3
    assert set(found["follows"]) == {"held_out", "other", "words"}


def test_the_saved_model_is_whole_and_equal_runs_give_equal_bits(bert, plain, tmp_path):
    mark = plain.save(tmp_path / "m")
    assert fastflow.distill(bert, iter(TEXTS)).save(tmp_path / "again") == mark
    assert verify(tmp_path / "m")[0].endswith("match their sha256")
    card = (tmp_path / "m" / "README.md").read_text()
    assert f"| {plain.report['held_out']} held-out sentences of the corpus | 0." in card
    assert "also opens in model2vec" in card
    found = Runtime(tmp_path / "m").encode(NEW)
    np.testing.assert_array_equal(found, plain.runtime().encode(NEW))
    np.testing.assert_allclose(Runtime(tmp_path / "m" / "0_Transformer").encode(NEW), found, atol=1e-6)
    with pytest.raises(UsageError, match="exists already"):
        plain.save(tmp_path / "m")
    model2vec = pytest.importorskip("model2vec")
    theirs = model2vec.StaticModel.from_pretrained(tmp_path / "m" / "0_Transformer").encode(NEW)
    np.testing.assert_allclose(shorten(theirs, True, None), shorten(found, True, None), atol=1e-5)


def test_a_calibrated_teacher_s_state_or_vectors(teacher):
    made = fastflow.distill(teacher, TEXTS)
    cosine = {table["target"]: table["cosine"] for table in made.report["tables"]}
    assert set(cosine) == {"vectors", "pooled"}
    assert made.report["target"] == max(cosine, key=cosine.get)
    assert f"pooled {cosine['pooled']:.4f}" in made.report["reasons"][0]
    assert (made.stages != ()) == (made.report["target"] == "pooled")
    found = made.runtime().encode(made.texts)
    assert cosines(found, Runtime(teacher).encode(made.texts)).mean() == pytest.approx(max(cosine.values()), abs=1e-3)


def test_a_table_of_words_is_its_teacher(bert, tmp_path):
    teacher = make_model(tmp_path / "t", bert, make_sentences(256), weighted=True, pooling="words")
    made = fastflow.distill(teacher, TEXTS)
    assert made.report["target"] == "pooled"
    assert made.report["follows"]["held_out"] > 0.99
    assert made.report["tables"][1]["prior"] > made.report["tables"][0]["prior"]
    made.save(tmp_path / "m")
    assert Runtime(tmp_path / "m").info()["calibration"] == Runtime(teacher).info()["calibration"]


def test_a_prior_that_is_kept_is_named(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(ridge, "PENALTIES", (1e9, 1e8, 1e7, 1e6, 1e5))  # none moves the prior to a sentence
    monkeypatch.setattr(ridge.HeldOut, "measure", lambda self, table: -float(np.abs(table).sum()))
    made = fastflow.distill(bert, TEXTS[:300])
    assert made.report["penalty"] is None
    assert made.report["reasons"][1].startswith("the prior is kept: no penalty of the regression follows")
    made.save(tmp_path / "m")
    assert "| penalty | none, the prior alone, chosen on" in (tmp_path / "m" / "README.md").read_text()


def test_fewer_dimensions_keep_the_widest(bert, plain):
    with pytest.raises(UsageError, match="dim= must be at most 32, the width of the teacher's vectors, not 33"):
        fastflow.distill(bert, TEXTS, dim=33)
    made = fastflow.distill(bert, TEXTS, dim=24)
    found = made.runtime().encode(NEW)
    assert found.shape == (40, 24)
    full = plain.runtime().encode(NEW)
    full, found = full - full.mean(axis=0), found - found.mean(axis=0)
    assert np.trace(found.T @ found) > 0.97 * np.trace(full.T @ full)
    assert "24 directions" in made.report["reasons"][-1]
    assert made.report["follows"]["held_out"] > plain.report["follows"]["held_out"] - 0.05


@pytest.mark.parametrize(("dtype", "near"), [("float16", 1e-5), ("int8", 1e-3)])
def test_smaller_dtypes(bert, plain, tmp_path, dtype, near):
    made = fastflow.distill(bert, TEXTS, dtype=dtype)
    assert cosines(made.runtime().encode(NEW), plain.runtime().encode(NEW)).min() > 1 - near
    made.save(tmp_path / "m")
    plain.save(tmp_path / "whole")
    weights = "0_Transformer/model.safetensors"
    assert (tmp_path / "m" / weights).stat().st_size < 0.7 * (tmp_path / "whole" / weights).stat().st_size


def test_words_get_rows(bert, teacher):
    for name in (bert, teacher):
        made = fastflow.distill(name, TEXTS, words=1)
        with made.runtime() as runtime:
            ids = runtime.tokenizer(["dogsing cat", "x1y2 cat", "dogsings cat"])
            assert ids.ids[0] == len(VOCABULARY)
            one, several, longer = np.diff(ids.offsets)
            assert (one, several, longer > 3) == (2, 5, True)
            assert runtime.encode(NEW).shape == (40, 32)
        assert made.report["table"]["words"] == 1


def test_options_of_python_are_arguments(bert):
    for options, message in (
        ({"dtype": "int4"}, "dtype= must be float32, float16 or int8, not 'int4'"),
        ({"words": -1}, "words= must be a whole number of at least 0, not -1"),
        ({"penalty": 0}, "penalty= must be a number above 0, not 0"),
        ({"dim": 0}, "dim= must be a whole number of at least 1, not 0"),
    ):
        with pytest.raises(UsageError, match=f"^{message}"):
            fastflow.distill(bert, TEXTS, **options)
    with pytest.raises(UsageError, match="distill takes texts as a list"):
        fastflow.distill(bert, "a text")
    assert DistilOptions(penalty=0.5).penalty == 0.5


def test_the_command(bert, tmp_path, monkeypatch):
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done = run("distill", bert, "corpus.txt", "-o", "made", "--dtype", "int8", "--penalty", "0.1")
    assert done.exit_code == 0, done.output
    line = re.compile(
        r"([\d,]+) (held-out sentences of the corpus|sentences of other subjects|single words): mean cosine 0\.\d+"
    )
    found = [line.fullmatch(text) for text in done.stdout.splitlines()]
    assert [int(each[1]) > 0 for each in found] == [True] * 3
    assert found[1][1] == "32"
    assert "made: " in done.stderr.splitlines()[-1]
    assert done.stderr.startswith(f"teacher: {bert}, no calibration\n")
    assert READING in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "made"]
    manifest = json.loads((tmp_path / "made" / "fastflow.json").read_text())
    assert manifest["training"]["penalty"] == 0.1
    assert manifest["training"]["corpus"] == ["corpus.txt"]
    quiet = run("distill", bert, "corpus.txt", "-o", "quiet", "--dtype", "int8", "--penalty", "0.1", "-q")
    assert (quiet.stdout, quiet.stderr) == (done.stdout, "")
    shutil.rmtree(tmp_path / "quiet")
    own = fastflow.distill(bert, TEXTS, dtype="int8", penalty=0.1)
    np.testing.assert_array_equal(Runtime("made").encode(NEW), own.runtime().encode(NEW))
    for arguments, code, message in (
        (("corpus.txt", "-o", "made"), 2, "made exists already"),
        (("-", "-o", "new", "--words", "3"), 2, "--words and --resume read the corpus again"),
        (("corpus.txt", "-o", "new", "--dim", "99"), 2, "--dim must be at most 32"),
        (("absent.txt", "-o", "new"), 1, "absent.txt cannot be opened"),
    ):
        assert_one_sentence(run("distill", bert, *arguments), code, message)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "made"]
    assert_one_sentence(run("distill", tmp_path / "none", "corpus.txt", "-o", "new"), 1, "none")


def test_a_run_that_is_interrupted_while_it_solves_keeps_the_pass_of_the_teacher(bert, tmp_path, monkeypatch):
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    words = ("distill", bert, tmp_path / "corpus.txt", "--penalty", "0.1", "-o")
    monkeypatch.setattr(gathering, "WORTH", 0.0)
    monkeypatch.setattr(gathering, "SHARD", 128)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "fit_tables", interrupt)
        stopped = run(*words, tmp_path / "made")
    assert stopped.exit_code == 130
    *_, fault, hint = stopped.stderr.splitlines()
    assert fault == "fastflow: interrupted"
    assert f"texts are gathered in {tmp_path / 'made'}.distilling; the same command with --resume" in hint
    assert run(*words, tmp_path / "made", "--resume").exit_code == 0
    assert run(*words, tmp_path / "whole").exit_code == 0
    files = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*") if path.is_file()]
    assert all((tmp_path / "made" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "made", "whole"]
