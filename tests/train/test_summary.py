"""What is said of a fit: the card, measures before and after, warnings and the verdict."""

import json
import re

import numpy as np
import pytest

import fastflow
from fastflow import Runtime
from fastflow.evaluation.evaluate import evaluate, find_sets
from fastflow.train.export import summary as report
from fastflow.train.export.result import write_vector_card
from fastflow.train.methods import fit_named
from fastflow.train.methods.chain import Fitted
from fastflow.train.pipeline import fit as fitting
from fastflow.transforms.calibration import Stage

from support import stages
from support.builders import LAYERED


def test_the_card_names_the_vectors_and_their_hash():
    stages = [Stage("standardize", {}, {"mean": np.zeros(4), "deviation": np.ones(4)})]
    training = {"vectors_sha256": "0123456789abcdef" + 48 * "f", "source": "v.npy", "vectors": 99, "reasons": ["asked"]}
    isotropy = {"mean_cosine": 0.9, "isoscore": 0.1, "top_share": 0.5}
    card = write_vector_card(stages, training, {"isotropy": {"before": isotropy, "after": isotropy}}, 4)
    lines = ("| input | vectors of 4 numbers |", "| calibration | standardize |", "- asked\n", "embeds no text")
    lines += ("| fitted on | v.npy: 99 vectors (sha256 0123456789abcdef) |", "Of others its output is void")
    assert [line for line in lines if line not in card] == []
    (row,) = (line for line in card.splitlines() if line.startswith("| IsoScore"))
    assert row.count("0.1") == 2


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, sentences):
    directory = tmp_path_factory.mktemp("pairs")
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        rows = [f"{i % 3}\t{rng.uniform(0, 5):.1f}\t{sentences[i]}\t{sentences[-i - 1]}" for i in range(30)]
        (directory / f"{name}.tsv").write_text("\n".join(["subset\tscore\tsentence1\tsentence2", *rows]) + "\n")
    return directory


@pytest.mark.slow
def test_a_budget_keeps_without_views_what_the_rule_refuses_and_worse_isotropy_is_said_loudly(
    train, tmp_path, monkeypatch, read_training
):
    monkeypatch.setattr(fitting, "make_views", None)
    result = train("--init", "glorot", "--lr", "1e-9", "--epochs", "0.01", "--stop", "budget", "--latent")
    assert result.exit_code == 0
    assert "separability" not in read_training(tmp_path / "m")
    assert Runtime(tmp_path / "m").info()["calibration"] != "none"
    assert "WARNING: calibrated embeddings are LESS isotropic than the pooled ones" in result.stderr
    assert "WARNING: the flow fits the corpus WORSE than a plain Gaussian" in result.stderr
    assert "WARNING" not in result.stdout


def test_a_kept_mean_is_no_loss_of_isotropy():
    x = np.random.default_rng(0).normal(size=(500, 16)) * np.r_[9, np.ones(15)] + np.r_[0, np.full(15, 2.0)]
    (stage,) = fit_named("components:1", x)
    measures = report.measure_change(Fitted([stage]), x)
    before, after = measures["isotropy"]["before"], measures["isotropy"]["after"]
    assert after["mean_cosine"] > before["mean_cosine"] + 0.2
    assert after["isoscore"] > before["isoscore"] + 0.2
    assert report.write_warnings(measures, [stage]) == []
    assert "LESS isotropic" in report.write_warnings(measures, fit_named("nullspace:1", x))[0]


@pytest.mark.slow
def test_evaluation_before_and_after(train, pairs, tmp_path, model):
    result = train("--eval", pairs, "--method", "standardize")
    assert result.exit_code == 0
    assert re.split(r" {2,}", result.stdout.splitlines()[0].strip()) == ["raw pooling", "weights only", "calibrated"]
    lines = {line[:34].strip(): line.split()[-3:] for line in result.stdout.splitlines()[1:]}
    assert [name for name in lines if name.startswith("Spearman")] == [
        f"Spearman {name}, {kind}" for name in ("a", "b", "average of 2") for kind in ("all", "wmean")
    ]
    runtime = Runtime(tmp_path / "m", backend="torch")
    plain = ("--method", "none", "--token-weights", "none", "--pooling", "first-last")
    assert train(*plain, "--eval", pairs, out=tmp_path / "raw").exit_code == 0
    raw = Runtime(tmp_path / "raw", backend="torch")
    assert "| measured | unweighted pooling | calibrated |" in (tmp_path / "raw" / "README.md").read_text()
    for column, encode in enumerate((raw.encode, runtime.pool, runtime.encode)):
        expected = evaluate(encode, find_sets([pairs]))
        for row in expected["rows"]:
            for kind in ("all", "wmean"):
                assert float(lines[f"Spearman {row['set']}, {kind}"][column]) == pytest.approx(row[kind], abs=0.02)
    gain, other = r" The calibration gains [+-][\d.]+ over weights only\.", "(?:raw pooling|weights only)"
    figures = rf"Spearman \S+ calibrated(?:[;,] \S+ {other}){{2}}\.{gain} So few pairs cannot decide\."
    assert re.fullmatch(
        rf"(?:Better|Worse than {other}|Level), perhaps by chance with 60 pairs: {figures}",
        result.stdout.splitlines()[-1],
    )
    one = train("--eval", pairs / "a.tsv", out=tmp_path / "one")
    assert "Spearman a, all" in one.stdout
    assert "Spearman average" not in one.stdout  # it would repeat the row of the set
    manifest = json.loads((tmp_path / "m" / "fastflow.json").read_text())
    assert manifest["training"]["spearman"]["before"]["rows"][0]["set"] == "a"
    card = (tmp_path / "m" / "README.md").read_text()
    assert "| measured | raw pooling | weights only | calibrated |" in card
    assert f"| Spearman a, all | {' | '.join(lines['Spearman a, all'])} |" in card


@pytest.mark.slow
def test_the_mean_cosine_that_rises_is_explained_beneath_the_table(train, tmp_path):
    result = train("--method", "components:1", "--token-weights", "none", "--pooling", LAYERED)
    before, after = (float(cell) for cell in result.stdout.splitlines()[1].split()[-2:])
    assert after > before
    last = result.stdout.splitlines()[-2]
    assert last.startswith("The mean cosine rises on purpose: components(1) keeps a mean that all texts share")
    assert "IsoScore" in last
    assert last in (tmp_path / "m" / "README.md").read_text()
    other = train("--method", "nullspace:1", out=tmp_path / "other")
    assert "on purpose" not in other.stdout


def test_what_is_spread_out_already_is_warned_of():
    for cosine, said in ((0.5, 0), (0.21, 0), (0.19, 1), (-0.05, 1)):
        isotropy = {when: {"isoscore": 0.5, "mean_cosine": cosine} for when in ("before", "after")}
        found = report.write_warnings({"isotropy": isotropy}, [stages.standardize(np.random.default_rng(0), 2)])
        assert report.write_warnings({"isotropy": isotropy}, []) == []  # nothing is done, so nothing can harm
        assert len(found) == said
        assert all("compare --token-weights none --method none" in warning for warning in found)


def test_a_model_worse_than_what_it_was_made_of_is_said_so():
    fell = "Spearman FELL from 50.0 to 49.0; use --method none"
    isotropy = {when: {"isoscore": 0.5, "mean_cosine": 0.5} for when in ("before", "after")}
    for raw, before, after, said in (
        (None, 50.0, 51.0, []),
        (None, 50.0, 49.0, [fell]),
        (40.0, 50.0, 49.0, [fell]),
        (52.0, 50.0, 51.0, ["Spearman is 51.0, and 52.0 by raw pooling; use --pooling first-last"]),
        (52.0, 51.0, 50.0, ["Spearman FELL from 51.0 to 50.0", "Spearman is 50.0, and 52.0 by"]),
    ):
        scores = {"before": before, "after": after} | ({} if raw is None else {"raw": raw})
        found = report.write_warnings({"isotropy": isotropy, **make_scores(60, **scores)}, [])
        assert [text[: len(start)] for text, start in zip(found, said, strict=True)] == said


def make_scores(pairs, **scores):
    return {
        "spearman": {name: {"rows": [{"pairs": pairs}], "average": {"all": score}} for name, score in scores.items()}
    }


@pytest.mark.parametrize(
    ("scores", "said", "others", "gained"),
    [
        ((50.0, 52.0, 55.0), "Better", "52 weights only, 50 raw pooling", "+3.0"),
        ((56.2, 52.0, 51.0), "Worse than raw pooling", "56.2 raw pooling, 52 weights only", "-1.0"),
        ((None, 52.0, 52.0), "Level", "52 weights only", "+0.0"),
        ((4.0, 5.0, 61.0, 60.0, 93.8), "Worse than static in the package",
         "93.8 static in the package, 60 model in the package, 5 weights only, 4 raw pooling", "+56.0"),
    ],
)  # fmt: skip
def test_the_verdict_is_better_worse_or_level_than_the_best_other_which_it_names(scores, said, others, gained):
    names = ("raw", "before", "after", "packaged", "static")
    given = {name: score for name, score in zip(names, scores, strict=False) if score is not None}
    rest = f": Spearman {given['after']:.4g} calibrated; {others}. The calibration gains {gained} over weights only."
    for pairs, line in (
        (500, f"{said}{rest}"),
        (499, f"{said}, perhaps by chance with 499 pairs{rest}"),
        (100, f"{said}, perhaps by chance with 100 pairs{rest}"),
        (99, f"{said}, perhaps by chance with 99 pairs{rest} So few pairs cannot decide."),
    ):
        assert report.write_verdict(make_scores(pairs, **given), "weights only") == line


def test_without_scores_the_verdict_is_unknown_and_names_the_rival_in_the_package():
    assert report.write_verdict({}, "raw vectors").startswith(
        "Better or worse: unknown. Compare cosines of pairs of your own"
    )
    plain, rival = (report.write_verdict({}, "weights only", packaged) for packaged in (False, True))
    assert plain.endswith("compare with the pooling by fastflow eval.")
    assert "and with the models in the package, default, static and multilingual, by fastflow eval" in rival


@pytest.mark.slow
def test_a_fit_on_the_encoder_of_the_package_has_its_model_in_a_column_of_its_own(pairs, sentences):
    sets = find_sets([pairs])
    fit = fastflow.fit(sentences[:60], encoder="untuned", method="standardize", eval=[pairs])
    assert fit.measures["spearman"]["packaged"] == evaluate(Runtime("untuned").encode, sets)
    assert fit.measures["spearman"]["static"] == evaluate(Runtime("static").encode, sets)
    heads, *lines = report.make_cells(fit.measures, report.name_source(fit.encoder))
    packaged = ["model in the package", "static in the package"]
    assert heads == ["", "raw pooling", "weights only", "calibrated", *packaged]
    assert [bool(line[4] and line[5]) for line in lines] == [line[0].startswith("Spearman") for line in lines]
    assert fit.report["verdict"] == fit.verdict
    assert re.match(r"(Better|Level|Worse than [\w ]+)[,:]", fit.verdict)
