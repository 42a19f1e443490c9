"""The method groups: what it removes, that folding is applying, a table's rows, and what is refused."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import fastflow
from fastflow import Runtime
from fastflow.commands.train import train as main
from fastflow.errors import CannotFit, UsageError
from fastflow.evaluation.labelled import read_labelled_texts, v_measure
from fastflow.files.read import InputFormat
from fastflow.kernels.flow import execute
from fastflow.model.static.table import open_table
from fastflow.plan import fold
from fastflow.train.data.corpus import key_of, note_groups, read_groups
from fastflow.train.methods.closed_forms import fit_groups
from fastflow.train.options import Method, parse_method
from fastflow.transforms.calibration import apply_wide

from support.builders import make_sentences
from support.places import ROOT
from support.static_dirs import model2vec_dir

GROUPS, ROWS, DIM = 5, 300, 24
LABELS = [f"group {row % GROUPS}" for row in range(ROWS)]
TICKETS = ROOT / "examples" / "tickets.tsv"


def make_rows(seed=0):
    """Rows (ROWS, DIM) about a mean of their own for each group."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(GROUPS, DIM)) + 2
    return (rng.normal(size=(ROWS, DIM)) + means[np.arange(ROWS) % GROUPS]).astype(np.float32)


def average(x, labels=LABELS):
    """The mean (G, D) of each group."""
    return np.array([x[np.array(labels) == name].mean(axis=0) for name in sorted(set(labels))])


def read_tickets():
    rows = [line.split("\t") for line in TICKETS.read_text(encoding="utf-8").splitlines()[1:]]
    return [row[3] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def train(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert "Traceback" not in result.stderr
    assert result.exit_code == code, result.stderr
    return result.stderr


# ---- the law: after all directions are removed, groups have one mean, through every chain behind it


CHAINS = ["auto", "groups", "groups:4", "groups,whiten", "groups+nullspace:3,whiten:8", "groups,whiten,recolour"]


@pytest.mark.parametrize("method", CHAINS)
def test_groups_have_one_mean(method):
    x = make_rows()
    fit = fastflow.fit(x, method=method, groups=LABELS)
    assert np.ptp(average(x), axis=0).max() > 1
    z = fit.runtime().transform(x.astype(np.float32), normalize_embeddings=False)
    assert np.std(z) > 0.01
    assert np.ptp(average(z), axis=0).max() < 1e-4 * np.abs(z).max()
    assert fit.report["measures"]["groups"] == dict.fromkeys(sorted(set(LABELS)), ROWS // GROUPS)
    assert fastflow.fit(x, method=method, groups=LABELS).stages[0].params["directions"].shape == (GROUPS - 1, DIM)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_directions_are_those_of_lsar(k):
    """Xie et al. 2022, algorithm 1: the means are a common vector and a part of rank k, at right angles."""
    x = make_rows().astype(np.float64)
    means = average(x).T
    shared = means.mean(axis=1, keepdims=True)
    left, scale, right = np.linalg.svd(means - shared, full_matrices=False)
    low = (left[:, :k] * scale[:k]) @ right[:k] + shared
    found = np.linalg.pinv(low).T @ np.ones(GROUPS)
    common = (found / (found @ found))[:, None]
    wanted = np.linalg.svd(low - common, full_matrices=False)[0][:, :k]
    stage = fit_groups(x, LABELS, k)
    directions = stage.params["directions"]
    assert np.allclose(directions.T @ directions, wanted @ wanted.T, atol=1e-9)
    assert np.abs(directions @ common).max() < (1e-9 if k == GROUPS - 1 else np.inf)
    assert np.allclose(apply_wide([stage], x), x - x @ wanted @ wanted.T, atol=1e-9)
    assert not stage.params["mean"].any()


def test_small_groups_count_as_much_as_large_ones():
    x = make_rows()
    kept = np.array([row for row in range(ROWS) if row % GROUPS or row < 20])
    labels = [LABELS[row] for row in kept]
    means = average(x[kept].astype(np.float64), labels)
    wanted = np.linalg.svd(means - means.mean(axis=0))[2][:2]
    directions = fit_groups(x[kept], labels, 2).params["directions"]
    assert np.allclose(np.abs(directions @ wanted.T), np.eye(2), atol=1e-6)


# ---- folding is applying: in a plan, in the rows of a table


@pytest.mark.parametrize("method", ["groups", "groups,standardize", "groups,whiten:8", "groups,whiten,recolour"])
def test_folded_is_applied(method):
    x = make_rows()
    stages = fastflow.fit(x, method=method, groups=LABELS).stages
    exact, folded = apply_wide(stages, x), x.astype(np.float64)
    for plan in fold(stages, DIM):
        folded = execute(plan, folded)
    assert np.abs(folded - exact).max() < 1e-9 * np.abs(exact).max()


TABLES = [
    ({}, 1e-5),
    ({"dtype": np.float16}, 2e-3),
    ({"dtype": np.int8}, 2e-2),
    ({"weights": np.float32}, 1e-5),
    ({"clusters": 40, "weights": np.float32, "dtype": np.float16}, 2e-3),
]


@pytest.mark.parametrize("weights", ["none", "sif"])
@pytest.mark.parametrize(("form", "close"), TABLES, ids=[str(list(form.values())) for form, _ in TABLES])
def test_a_table_takes_the_stage_into_its_rows(tmp_path, form, close, weights):
    texts = make_sentences(96)
    labels = ["abcd"[row % 4] for row in range(96)]
    table = model2vec_dir(tmp_path / "table", **form)
    fit = fastflow.fit(texts, str(table), groups=labels, token_weights=weights, stop="budget")
    fit.save(tmp_path / "m")
    wanted = apply_wide(fit.stages, fit.pooled)
    with Runtime(tmp_path / "m") as runtime:
        found = runtime.encode(texts)
        assert runtime.info()["calibration"] == "none"
    assert np.abs(found - wanted).max() < close * np.abs(wanted).max()
    assert np.ptp(average(found, labels), axis=0).max() < close * np.abs(found).max()
    assert open_table(tmp_path / "m" / "0_Transformer").rows.dtype == form.get("dtype", np.float32)
    if weights == "none":
        fastflow.export(tmp_path / "m", "model2vec", tmp_path / "m2v")
        with Runtime(tmp_path / "m2v") as runtime:
            assert np.allclose(runtime.encode(texts), found, atol=1e-6)


def test_a_stage_that_is_not_linear_stays_behind_the_table(tmp_path):
    texts = make_sentences(96)
    labels = ["abcd"[row % 4] for row in range(96)]
    fit = fastflow.fit(
        texts, str(model2vec_dir(tmp_path / "table")), "groups,standardize", groups=labels, stop="budget"
    )
    fit.save(tmp_path / "m")
    with Runtime(tmp_path / "m") as runtime:
        assert "standardize" in runtime.info()["calibration"]


# ---- where groups come from


def test_a_text_has_its_first_group_and_its_sentences_share_it(tmp_path):
    rows = [{"text": " One. Two.", "of": 1}, {"text": "One.", "of": "b"}, {"text": " ", "of": "b"}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "y.csv").write_text("text,of\nThree.,b\n")
    (tmp_path / "z.txt").write_text("Four.\n")
    paths = [str(tmp_path / name) for name in ("x.jsonl", "y.csv")]
    for cut, wanted in ((False, {"One. Two.": "1", "One.": "b", "Three.": "b"}), (True, {"One.": "1", "Two.": "1"})):
        found: dict[bytes, str] = {}
        assert len(list(note_groups(read_groups(paths, InputFormat(), "of"), cut, found))) == 4
        assert wanted.items() <= {text: found[key_of(text, 0)] for text in wanted}.items()
        assert len(found) == 3
    files = [str(tmp_path / "z.txt"), paths[1]]
    assert list(read_groups(files, InputFormat(), None)) == [("Four.", files[0]), ("Three.", files[1])]


@pytest.mark.slow
def test_a_column_files_and_python_give_one_model(tmp_path):
    texts, _, languages = read_tickets()
    names = [tmp_path / f"{name}.txt" for name in dict.fromkeys(languages)]
    for path in names:
        own = (text for text, name in zip(texts, languages, strict=True) if name == path.stem)
        path.write_text("\n".join(own) + "\n", encoding="utf-8")
    common = ("--encoder", "multilingual", "--cache-folder", tmp_path / "cache")
    train(TICKETS, "--groups", "fine_label", "-o", tmp_path / "column", *common)
    train(*names, "--method", "groups", "-o", tmp_path / "files", *common)
    fastflow.fit(iter(texts), "multilingual", groups=iter(languages)).save(tmp_path / "python")
    np.save(tmp_path / "v.npy", Runtime("multilingual").encode(texts))
    (tmp_path / "groups.txt").write_text("\n".join(languages) + "\n")
    train(tmp_path / "v.npy", "--groups", tmp_path / "groups.txt", "-o", tmp_path / "vectors")
    column, files, python = (Runtime(tmp_path / name).encode(texts) for name in ("column", "files", "python"))
    assert np.array_equal(column, python)
    assert np.allclose(files, column, atol=2e-2)  # other texts first, and int8
    assert np.allclose(Runtime(tmp_path / "vectors").transform(np.load(tmp_path / "v.npy")), column, atol=2e-2)


# ---- what it is good for, and when it harms


def measure_v(x, labels):
    from sklearn.cluster import KMeans

    of = np.unique(labels, return_inverse=True)[1]
    found = [KMeans(of.max() + 1, n_init=1, random_state=seed).fit_predict(x) for seed in range(5)]
    return np.mean([v_measure(of, each, np.ones(len(of))) for each in found])


@pytest.mark.slow
def test_clusters_of_tickets_in_three_languages_are_topics():
    texts, topics, languages = read_tickets()
    with Runtime("multilingual") as runtime:
        x = runtime.encode(texts, normalize_embeddings=True)
    assert measure_v(x, topics) > 2 * measure_v(x, languages)


@pytest.mark.data
@pytest.mark.slow
def test_groups_that_are_the_topics_take_the_topics_away(shared_data):
    task = read_labelled_texts(shared_data / "tasks" / "classes" / "agnews.tsv")
    texts, labels = (np.array(task.texts)[task.clustered].tolist(), task.labels[task.clustered])
    with Runtime("static") as runtime:
        x = runtime.encode(texts)
    z = apply_wide(fastflow.fit(x, groups=labels).stages, x)
    assert measure_v(x, labels) > 40
    assert measure_v(z, labels) < 5


# ---- refusals


def test_groups_comes_first_in_a_chain():
    assert parse_method("groups:3,whiten") == [Method("groups", 3), Method("whiten")]
    for text, said in (("whiten,groups", "groups comes first"), ("groups,groups", "groups comes first")):
        with pytest.raises(UsageError, match=said):
            parse_method(text)


REFUSED = [
    ({"groups": ["a"] * ROWS}, "groups: the means of 1 groups differ in 0 directions"),
    ({"groups": LABELS, "method": "groups:5"}, "of 5 groups differ in 4 directions; give other groups or K"),
    ({"groups": LABELS, "method": "groups:0"}, "groups:0 is out of range"),
    ({"groups": LABELS[1:]}, "groups= has 299 groups for 300 rows: give one each"),
    ({"groups": LABELS, "method": "whiten"}, "groups= is of the method groups, which method=whiten does not begin"),
    ({"method": "groups"}, "method=groups needs the group of each text: give groups="),
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_a_refusal_in_python(given, said):
    with pytest.raises((UsageError, CannotFit), match=said):
        fastflow.fit(make_rows(), **given)


def test_refusals_of_the_command(empty):
    (empty / "a.txt").write_text("One.\nTwo.\n")
    (empty / "b.jsonl").write_text('{"text": "One.", "of": "a"}\n{"text": "Two.", "of": null}\n')
    np.save(empty / "v.npy", make_rows())
    for code, said, *arguments in (
        (2, "--groups names a field, and a.txt has none", "a.txt", "--groups", "of"),
        (1, "b.jsonl, line 2: field 'of' is empty; fill it", "b.jsonl", "--groups", "of"),
        (1, "no field 'absent'", "b.jsonl", "--groups", "absent"),
        (2, "--groups is of the method groups", "b.jsonl", "--groups", "of", "--method", "flow"),
        (2, "--method groups needs the group of each text", "a.txt", "--method", "groups"),
        (2, "and --method groups needs them", "b.jsonl", "--groups", "of", "--stream"),
        (2, "--groups has 2 groups for 300 rows", "v.npy", "--groups", "a.txt"),
    ):
        encoder = () if arguments[0] == "v.npy" else ("--encoder", "static")
        assert said in train(*arguments, *encoder, "-o", "m", code=code)
        assert not (empty / "m").exists()
