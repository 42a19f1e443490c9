"""What the quality benchmarks compute besides calibrations: ways to cut, storage, splits and pages."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from fastflow.bench.research import (
    layers,
    published,
    quality,
    study_data,
    supervised,
    token_weights,
    token_weights_page,
    truncation,
)
from fastflow.bench.research.study_data import FIT
from fastflow.bench.research.tune_nli import BATCH, LABELS, batches, split
from fastflow.evaluation.evaluate import HEADER, LABELLED, SEVEN, Labelled
from fastflow.train.cli import main as train
from fastflow.train.data.embeddings import Embedder, open_encoder
from fastflow.train.data.token_weights import weigh


def test_pivots_take_what_varies_most_given_those_before():
    # channel 1 repeats channel 0 but for little: 0 first, then 2, and 1 last though it varies more than 2
    covariance = np.array([[4.0, 3.9, 0.0], [3.9, 3.9, 0.0], [0.0, 0.0, 1.0]])
    assert truncation.pivots(covariance, 3).tolist() == [0, 2, 1]


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    pooled = rng.normal(size=(400, 16)) * np.linspace(3, 0.5, 16)
    return truncation.Fit(pooled @ np.linalg.qr(rng.normal(size=(16, 16)))[0], pooled)


@pytest.mark.parametrize("rule", [*truncation.CUTS, "spread"])
def test_every_cut_has_its_width(fitted, rule):
    assert fitted.cut(rule, 4)(fitted.sample).shape == (400, 4)


@pytest.mark.parametrize("rule", ["rotate", "cross", "spread"])
def test_rotations_keep_lengths_and_lead_with_what_varies(fitted, rule):
    z = fitted.sample
    assert np.abs(np.linalg.norm(fitted.cut(rule, 16)(z), axis=1) - np.linalg.norm(z, axis=1)).max() <= 1e-10
    kept = [np.var(fitted.cut(rule, k)(z), axis=0).sum() for k in (2, 4, 8)]
    assert all(share >= truncation_share for share, truncation_share in zip(kept, best_shares(z), strict=True))


def best_shares(z):
    """99 % of the most that 2, 4 and 8 directions can hold."""
    values = np.linalg.eigvalsh(np.cov(z, rowvar=False, ddof=0))[::-1]
    return [0.99 * values[:k].sum() for k in (2, 4, 8)]


def test_storage_is_what_reading_back_gives(fitted):
    z = fitted.sample
    assert truncation.stored("float32", z)(z) is z
    assert set(np.unique(truncation.stored("ubinary", z)(z))) == {-1.0, 1.0}
    levels = truncation.stored("int8", z)(z)
    assert np.abs(levels - levels.round()).max() == 0
    assert np.abs(levels).max() <= 127
    assert np.abs(levels / (127 / (4 * np.sqrt(np.square(z).mean(axis=0).max()))) - z).max() <= 0.1


def test_split_and_batches_lose_no_pair():
    pairs = Labelled("n", ["neutral"] * 100, [f"{'a ' * (i % 7)}{i}" for i in range(100)], ["b"] * 100)
    first, last = split(pairs, 0.1)
    assert (len(first.labels), last.first[0]) == (90, pairs.first[90])
    drawn = list(batches(pairs, 2, seed=3))
    assert [len(rows) for rows in drawn] == [BATCH] * 6
    assert all(len(set(np.concatenate(drawn[i : i + 3]))) == 96 for i in (0, 3))
    again = list(batches(pairs, 2, seed=3))
    assert all(np.array_equal(a, b) for a, b in zip(drawn, again, strict=True))
    assert not np.array_equal(drawn[0], next(batches(pairs, 1, seed=4)))


@pytest.fixture(scope="module")
def data(tmp_path_factory, sentences):
    """The seven sets, a corpus, NLI and QNLI pairs, all tiny."""
    folder, rng = tmp_path_factory.mktemp("sets"), np.random.default_rng(0)
    for name in SEVEN:
        rows = [f"a\t{s:.2f}\t{sentences[i]}\t{sentences[-i - 1]}" for i, s in enumerate(rng.uniform(0, 5, 40))]
        (folder / f"{name}.tsv").write_text("\n".join([HEADER, *rows]) + "\n")
    (folder / "corpus.txt").write_text("\n".join(sentences) + "\n")
    rows = [f"{LABELS[i % 3]}\t{sentences[i]}\t{sentences[i + 1]}" for i in range(120)]
    (folder / "nli.txt").write_text("\n".join([LABELLED, *rows]) + "\n")
    rows = [f"{('not_' if i % 2 else '') + 'entailment'}\t{sentences[i]}\t{sentences[i + 9]}" for i in range(80)]
    (folder / "qnli.txt").write_text("\n".join([LABELLED, *rows]) + "\n")
    return folder


def test_truncation_page(bert, data, tmp_path, monkeypatch):
    monkeypatch.setattr(truncation, "SEEDS", (0, 1))
    monkeypatch.setattr(truncation, "FRACTIONS", (4,))
    monkeypatch.setattr(truncation, "METHODS", ("raw", "flow"))
    arguments = ["--encoder", bert, "--sts", data, "--corpus", data / "corpus.txt", "--cache", tmp_path]
    done = CliRunner().invoke(truncation.main, [str(a) for a in [*arguments, "--out", tmp_path / "t"]])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "t.json").read_text())
    wanted = [(r, k, p) for r, k, p, _ in truncation.variants(32)]
    assert len(result["rows"]) == 2 * 2 * len(wanted)
    whole = next(r for r in result["rows"] if r["method"] == "flow" and r["dim"] == 32)
    assert len(whole["runs"]) == 2
    page = (tmp_path / "t.md").read_text()
    assert page == truncation.markdown(result)
    assert page.count("| 8 | cross | float32 |") == 2
    assert str(tmp_path) not in page


def test_supervised_page(bert, data, tmp_path, monkeypatch):
    """All but the tuning itself, which needs Sentence Transformers: the encoder stays as it is."""
    monkeypatch.setattr(supervised, "tune", lambda encoder, pairs, rate, epochs, seed: (encoder, rate))
    monkeypatch.setattr(supervised, "accuracy", lambda model, rate, pairs: rate)

    def save(model, directory):
        for path in model.iterdir():
            (directory / path.name).write_bytes(path.read_bytes())

    monkeypatch.setattr(supervised, "save", save)
    arguments = ["--encoder", bert, "--nli", data / "nli.txt", "--qnli", data / "qnli.txt", "--sts", data]
    done = CliRunner().invoke(supervised.main, [str(a) for a in [*arguments, "--out", tmp_path / "s"]])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "s.json").read_text())
    assert result["pairs"] == 108
    assert [row["lr"] for row in result["tuned"]] == list(supervised.RATES)
    assert [row["accuracy"] for row in result["tuned"]] == [[round(100 * r, 2)] * 3 for r in supervised.RATES]
    rows = {row["name"]: row["runs"] for row in result["rows"]}
    assert len(rows) == len(result["rows"]) == (1 + len(supervised.RATES)) * (2 + 2 * len(supervised.METHODS))
    assert rows["tuned at 0.0001, flow (NLI)"] == rows["untuned, flow (NLI)"] != rows["untuned, first-last"]
    page = (tmp_path / "s.md").read_text()
    assert page == supervised.markdown(result)
    assert str(tmp_path) not in page


def test_published_figures_stand_apart_and_have_their_own_means():
    lines = published.section([*SEVEN, "mean"])
    assert "Not measured here" in lines[2]
    row = next(line for line in lines if line.startswith("| BERT-base, flow, target (a)"))
    assert row.endswith("| 63.1 | 69.6 |")
    assert {mark for _, mark, _ in published.ROWS} == set(published.SOURCES)


@pytest.fixture
def small(data, sentences, tmp_path, monkeypatch):
    """A data directory of the seven sets and two corpora, and a quality.json beside the results."""
    (tmp_path / "data" / "corpora").mkdir(parents=True)
    (tmp_path / "data" / "sts").symlink_to(data)
    (tmp_path / "data" / "corpora" / "some.txt").write_text("\n".join(sentences) + "\n")
    monkeypatch.setattr(study_data, "CORPORA", {"snli": ("some.txt", None), "part": ("some.txt", 100)})
    monkeypatch.setattr(study_data, "LARGE", {})
    monkeypatch.setattr(token_weights, "CORPORA", study_data.CORPORA)
    monkeypatch.setattr(token_weights, "LARGE", {})
    monkeypatch.setattr(token_weights, "SEEDS", (0, 1))
    rows = [("flow, target", 1.0), ("whiten, corpus", 100.0), ("standardize, target", 100.0)]
    means = [{"name": name, "runs": [{"mean": {"all": m, "wmean": m}}] * 2} for name, m in rows]
    (tmp_path / "quality.json").write_text(json.dumps({"rows": means}))
    return tmp_path


def test_token_weights_page(bert, small):
    arguments = ["--encoder", bert, "--data", small / "data", "--cache", small / "cache", "--out", small / "t"]
    done = CliRunner().invoke(token_weights.main, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    result = json.loads((small / "t.json").read_text())
    assert len(result["candidates"]) == 3 * 2 * len(token_weights.METHODS)
    assert all(set(row["spearman"]) == set(SEVEN) for row in result["candidates"] + result["default"])
    runs = [(run["fitted_on"], run["seed"]) for run in result["default"]]
    assert runs == [(where, seed) for where in ("target", "snli", "part") for seed in (0, 1)]
    assert scored(result, "snli", "plain", "none") == scored(result, "part", "plain", "none")
    assert scored(result, "snli", "sif", "none") != scored(result, "part", "sif", "none")
    assert [row["better_of_flow_and_whitening"] for row in result["defaults"][:2]] == [[1, 1], [100, 100]]
    assert [c["holds"] for c in result["claims"] if "leads" in c["claim"]][1] is False
    page = (small / "t.md").read_text()
    assert page == token_weights_page.markdown(result)
    assert page.count("**NO**") == sum(not c["holds"] for c in result["claims"]) >= 1
    assert not any(str(small / private) in page for private in ("data", "cache"))
    assert result["default"][-2]["spearman"] == trained(bert, small)


def test_other_layers(bert, small, monkeypatch):
    monkeypatch.setattr(layers, "POOLINGS", ("first-last", "mean-of-layers:2,3"))
    monkeypatch.setattr(layers, "FITS", ("snli",))
    arguments = ["--encoder", bert, "--data", small / "data", "--cache", small / "cache", "--out", small / "l"]
    done = CliRunner().invoke(layers.main, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    poolings = json.loads((small / "l.json").read_text())["poolings"]
    found = {name: token_weights_page.Candidates({"candidates": rows}) for name, rows in poolings.items()}
    gains = [
        one.mean(where, "sif", "components:1") - one.mean(where, *other)
        for other in (("plain", "none"), ("sif", "none"))
        for one in found.values()
        for where in ("target", "snli")
    ]
    page = (small / "l.md").read_text()
    assert f"Least gain of the default: {min(gains[:4]):+.1f} over raw pooling, {min(gains[4:]):+.1f} over" in page
    assert gains[0] != gains[2]  # the layers are others
    assert page.count("| mean-of-layers:2,3 | ") == 2


def trained(bert, small):
    """The scores of what fastflow-train makes by default of the corpus ``part``."""
    corpus, out = small / "data" / "corpora" / "some.txt", small / "model"
    arguments = [corpus, "--sample", 100, "--encoder", bert, "--out", out, "--cache", small / "cache"]
    done = CliRunner().invoke(train, [str(a) for a in [*arguments, "--eval", small / "data" / "sts"]])
    assert done.exit_code == 0, done.output
    rows = json.loads((out / "fastflow.json").read_text())["training"]["spearman"]["after"]["rows"]
    return {row["set"]: [row["all"], row["wmean"]] for row in rows}


def scored(result, *key):
    """The scores of one candidate."""
    return next(r["spearman"] for r in result["candidates"] if (r["fitted_on"], r["weights"], r["method"]) == key)


def test_the_cache_is_filled_with_what_each_pooling_gives(bert, small, sentences):
    plain = open_encoder(str(bert), "first-last", 64)
    weighted = weigh(plain, sentences)
    bench = token_weights.Bench(plain, {"snli": weighted}, {"snli": sentences}, small / "data", small / "cache")
    bench.fill("snli", [plain, weighted])
    for counted, encoder in ((None, plain), ("snli", weighted)):
        expected = Embedder(encoder, "cpu")(sentences)
        found = bench.pooled("snli", counted)
        assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()
    assert len(list((small / "cache").glob("*.npy"))) == 2  # found there, not computed again


def run_of(where, seed, gain):
    """A default run that is ``gain`` above a raw score of 50 on every set but the first, where it is 1 below that."""
    spearman = {name: [50 + gain - (name == SEVEN[0])] * 2 for name in SEVEN}
    return {"fitted_on": where, "seed": seed, "choices": {"a": {"chosen": "flow"}}, "spearman": spearman}


def candidate(where, weights, method, fit, rest=50.0):
    """A method that scores ``fit`` on STS12-14 and ``rest`` on the other sets."""
    spearman = {name: [fit if name in FIT else rest] * 2 for name in SEVEN}
    return {"fitted_on": where, "weights": weights, "method": method, "spearman": spearman}


def test_the_choice_reads_three_sets_and_takes_the_simplest_of_equals():
    """Target and the mean of the corpora count alike; what the other four sets say decides nothing."""
    scores = {"none": (50, 50), "components:1": (54, 51.9), "nullspace:3": (56, 50), "flow": (50, 50.5)}
    rows = [
        candidate(where, weights, method, values[where != "target"] - (weights == "plain"), 90.0 * (method == "flow"))
        for weights in ("plain", "sif")
        for method, values in scores.items()
        for where in ("target", "snli", "news")
    ]
    found = token_weights_page.blind_choice({"candidates": rows})
    assert found["sif"] == {"method": "components:1", "middle": pytest.approx(52.95), "best": pytest.approx(53)}
    assert found["plain"]["best"] == pytest.approx(52)
    (changed,) = (row for row in rows if list(row.values())[:3] == ["snli", "sif", "components:1"])
    changed["spearman"] = {name: [51.0, 51.0] for name in SEVEN}  # 0.275 behind the best, no longer near
    assert token_weights_page.blind_choice({"candidates": rows})["sif"]["method"] == "nullspace:3"


def test_claims_are_decided_by_the_worst_run():
    candidates = [candidate("snli", weights, "none", 50.0) for weights in ("plain", "sif")]
    result = {"candidates": candidates, "plain_flow": []}
    result["published"] = [{"fitted_on": "snli", "mean": mean} for mean in ([50.0, 49.0], [49.0, 51.0])]
    result["choice"] = {"sif": {"method": "flow", "middle": 51.0}, "plain": {"best": 50.0}}

    def claims(*runs):
        result["defaults"] = token_weights_page.defaults(result | {"default": list(runs)})
        return [claim["holds"] for claim in token_weights_page.claims(result)]

    assert claims(run_of("snli", 0, 3.0), run_of("snli", 1, 0.0)) == [True, False, False, False]
    (row,) = result["defaults"]
    assert row["chosen"] == {"flow": 2}
    assert row["least_gain_of_the_mean"] == pytest.approx(-1 / 7)
    assert (row["least_gain_on_a_set"], row["least_on"]) == (-1.0, SEVEN[0])
    assert row["over_weights_alone"] == pytest.approx([1.5 - 1 / 7] * 2)
    assert row["lead"] == pytest.approx([1.5 - 1 / 7, 0.5 - 1 / 7])
    assert claims(run_of("snli", 0, 3.0)) == [True, True, True, True]
    result["choice"]["sif"]["method"] = "components:1"
    assert claims(run_of("snli", 0, 3.0)) == [False, True, True, True]


def test_the_default_stands_in_the_quality_table():
    scores = {name: [50.0 + i, 60.0 + i] for i, name in enumerate(SEVEN)}
    alone = [{"fitted_on": w, "weights": "sif", "method": "none", "spearman": scores} for w in ("target", "snli")]
    default = [{"fitted_on": w, "seed": s, "spearman": scores} for w in ("target", "snli", "news") for s in (0, 1)]
    rows = quality.weighted_rows({"candidates": alone, "default": default})
    assert [row["name"].split(", ")[1] for row in rows] == ["target", "target", "corpus", "corpus"]
    assert [len(row["runs"]) for row in rows] == [1, 2, 1, 2]
    assert quality.summary(rows[1], "mean", "all") == "53.0"
    assert quality.summary(rows[1], SEVEN[6], "wmean") == "66.0"
