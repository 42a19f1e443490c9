"""What the quality benchmarks compute besides calibrations: ways to cut, storage, splits and pages."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from fastflow.bench.research import published, quality, supervised, truncation
from fastflow.bench.research.tune_nli import BATCH, LABELS, batches, split
from fastflow.evaluation.evaluate import HEADER, LABELLED, SEVEN, Labelled


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


def test_the_default_stands_in_the_quality_table():
    def scores(start: float) -> dict:
        return {name: [start + i, start + 10 + i] for i, name in enumerate(SEVEN)}

    runs = [{"place": w, "seed": 0, "scores": {"raw": scores(0), "weights": scores(40), "default": scores(50)}}
            for w in ("target", "snli", "news")]  # fmt: skip
    runs += [{"place": w, "seed": 1, "scores": {"default": scores(52)}} for w in ("target", "snli", "news")]
    rows = quality.weighted_rows({"runs": runs})
    assert [row["name"] for row in rows] == [
        f"{name}, {where}" for where in ("target", "corpus")
        for name in ("token weights alone", "the default of fastflow-train")
    ]  # fmt: skip
    assert [len(row["runs"]) for row in rows] == [1, 2, 1, 2]
    assert quality.summary(rows[0], "mean", "all") == "43.0"
    assert quality.summary(rows[1], "mean", "all") == "54.0±1.4"
    assert quality.summary(rows[3], SEVEN[6], "wmean") == "67.0±1.4"
