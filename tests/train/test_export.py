"""What a fit is shipped as: a directory that is proved, a runtime in memory, measures, warnings and the card."""

import gc
import hashlib
import json
import re

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import normalizers

import fastflow
from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.evaluation.evaluate import evaluate, find_sets
from fastflow.model.artifact import load_model
from fastflow.model.encoder.weights import encoder_hash
from fastflow.model.tokenizer import Tokenizer
from fastflow.model.verify import verify
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import open_encoder
from fastflow.train.export import export as exporting
from fastflow.train.export import summary as report
from fastflow.train.export.export import TEXTS, measure_precision
from fastflow.train.export.result import write_vector_card
from fastflow.train.methods import fit_named
from fastflow.train.methods.chain import Fitted
from fastflow.train.pipeline import fit as fitting
from fastflow.transforms.calibration import Stage, apply

from support import stages
from support.builders import LAYERED
from support.calibrations import SHAPE, fitted_by, write
from support.tolerances import EMBEDDING

METHODS = ["none", "flow", "flow,recolour", "whiten,recolour", "standardize", "nullspace:2", "whiten"]
METHODS += ["whiten:16,flow", "flow,whiten:8"]
LINEAR = {  # in PyTorch
    "standardize": lambda x, p: (x - p["mean"]) / p["deviation"],
    "whiten": lambda x, p: (x - p["mean"]) @ p["matrix"],
    "recolour": lambda x, p: (x - p["mean"]) @ p["matrix"] + p["shift"],
    "nullspace": lambda x, p: (x - p["mean"]) @ (torch.eye(32) - p["directions"].T @ p["directions"]),
}


def test_directory_is_as_documented(tmp_path, encoder, pooled, sentences):
    out = tmp_path / "deep" / "m"
    mark = write(out, encoder, fitted_by("whiten:16,flow", pooled), sentences)
    inside = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    files = {str(path.relative_to(out)): path for path in out.rglob("*") if path.is_file()}
    assert set(files) == {
        *("fastflow.json", "calibration.safetensors", "int8.safetensors", "README.md"),
        *(f"0_Transformer/{name}" for name in inside),
    }
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    manifest = json.loads(files["fastflow.json"].read_text())
    wanted = {
        "format_version": 1, "pooling": {"mode": "mean", "layers": [1, 3]}, "max_length": 64, "dim": 16,
        "fingerprint": mark, "calibration": [{"kind": "whiten"}, {"kind": "flow", "dim": 16, **SHAPE}],
        "encoder": {"sha256": encoder_hash(out / "0_Transformer")},
        "files": {name: digest for name, digest in digests.items() if name != "fastflow.json"},
    }  # fmt: skip
    assert {name: manifest[name] for name in wanted} == wanted
    with safe_open(str(files["calibration.safetensors"]), "np") as handle:
        assert all(name.startswith(("0.", "1.levels.")) for name in handle.keys())  # noqa: SIM118
        assert handle.get_tensor("0.matrix").shape == (32, 16)
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {files["README.md"].stat().st_mode & 0o777}
    assert verify(out)[-1] == f"fingerprint {mark}"
    assert [path.name for path in out.parent.iterdir()] == ["m"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_saved_model_embeds_as_pytorch_does(tmp_path, encoder, pooled, sentences, method):
    fitted = fitted_by(method, pooled)
    write(tmp_path / "m", encoder, fitted, sentences)
    x = torch.from_numpy(pooled.astype(np.float64))
    for index, stage in enumerate(fitted.stages):
        if stage.kind == "flow":
            x = fitted.flows[index].double()(x)[0].detach()
        else:
            x = LINEAR[stage.kind](x, {name: torch.from_numpy(np.array(a, float)) for name, a in stage.params.items()})
    expected = torch.nn.functional.normalize(x, dim=1).numpy()
    for backend in ("reference", "torch"):
        runtime = Runtime(tmp_path / "m", backend=backend)
        assert np.abs(runtime.encode(sentences, normalize_embeddings=True) - expected).max() <= 5 * EMBEDDING
        assert runtime.dim == expected.shape[1]
    assert (tmp_path / "m" / "calibration.safetensors").exists() == (method != "none")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failing_to_write_leaves_nothing(tmp_path, encoder, pooled, sentences, monkeypatch, error):
    def fail(*unused):
        raise error

    monkeypatch.setattr(safetensors.numpy, "save", fail)
    expected = (FastflowError, KeyboardInterrupt)
    with pytest.raises(expected, match=r"m cannot be written: No space left on device|^$"):
        write(tmp_path / "m", encoder, fitted_by("standardize", pooled), sentences)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_vocabulary_file_becomes_a_tokenizer(tmp_path, bert_copy, sentences):
    whole = Embedder(open_encoder(str(bert_copy), "first-last", 64), "cpu")(sentences)
    vocabulary = json.loads((bert_copy / "tokenizer.json").read_text())["model"]["vocab"]
    (bert_copy / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)) + "\n")
    (bert_copy / "tokenizer.json").unlink()
    encoder = open_encoder(str(bert_copy), "first-last", 64)
    pooled = Embedder(encoder, "cpu")(sentences)
    assert np.array_equal(pooled, whole)
    write(tmp_path / "m", encoder, fitted_by("standardize", pooled), sentences)
    inside = tmp_path / "m" / "0_Transformer"
    assert not (inside / "vocab.txt").exists()
    saved = json.loads((inside / "tokenizer.json").read_text())
    assert (saved["truncation"], saved["padding"]) == (None, None)
    assert np.abs(Runtime(tmp_path / "m", backend="reference").pool(sentences) - whole).max() <= EMBEDDING * 10


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("flow", "0.levels.0.0.actnorm.shift"),
        ("flow", "0.levels.1.1.actnorm.logscale"),
        ("flow", "0.levels.1.0.coupling.net.bias3"),
        ("standardize", "0.deviation"),
        ("nullspace:2", "0.directions"),
        ("whiten:16,flow", "0.matrix"),
        ("whiten:16,flow", "1.levels.0.1.actnorm.logscale"),
    ],
)
def test_proof_catches_a_changed_parameter(tmp_path, encoder, pooled, sentences, monkeypatch, method, name):
    """Hashes are taken after the change, so only the proof can notice."""
    fitted, changed, save = fitted_by(method, pooled), [], safetensors.numpy.save

    def spoil(arrays):
        arrays = {name: np.array(array) for name, array in arrays.items()}
        if name in arrays:  # not in the file of int8's trial
            changed.append(name)
            arrays[name].flat[3] *= 1.001
            arrays[name].flat[3] += 1e-5
        return save(arrays)

    monkeypatch.setattr(safetensors.numpy, "save", spoil)
    with pytest.raises(FastflowError, match=r"export stopped: .* of stage \d of the saved model differs"):
        write(tmp_path / "m", encoder, fitted, sentences)
    assert changed == [name]
    assert list(tmp_path.iterdir()) == []


def spoil_flow(monkeypatch, output, log_det):
    right = exporting.calibration.apply_with_log_det

    def wrong(stage, x):
        z, density = right(stage, x)
        return z + output * max(1, np.abs(z).max()), density + log_det * max(1, np.abs(density).max())

    monkeypatch.setattr(exporting.calibration, "apply_with_log_det", wrong)


def spoil_backend(monkeypatch, name):
    def open_wrong(*args):
        backend = proof_opens(*args)
        right = getattr(backend, name)

        def wrong(rows):
            vectors = np.array(right(rows))
            vectors[:, 0] += 1e-4 * np.linalg.norm(vectors, axis=1)
            return vectors

        monkeypatch.setattr(backend, name, wrong)
        return backend

    proof_opens = exporting.open_backend
    monkeypatch.setattr(exporting, "open_backend", open_wrong)


def change_weights(monkeypatch):
    def spoil(source, target):
        if source.suffix != ".safetensors":
            return target.write_bytes(source.read_bytes())
        tensors = load_file(source)
        tensors["encoder.layer.0.output.dense.bias"][3] += 1e-2
        return save_file(tensors, target, {"format": "pt"})

    monkeypatch.setattr(exporting.shutil, "copyfile", spoil)


def change_tokenizer(monkeypatch):
    load = exporting.load_tokenizer

    def spoil(directory):
        tokenizer = load(directory)
        tokenizer.normalizer = normalizers.NFC()  # no longer lower-cased
        return tokenizer

    monkeypatch.setattr(exporting, "load_tokenizer", spoil)


DEVIATIONS = [  # ten times the tolerance: 1e-9 relative in float64, 1e-5 of a unit vector in float32
    ("the log-determinant of stage 0", lambda patch: spoil_flow(patch, 0, 1e-8)),
    ("the output of stage 0", lambda patch: spoil_flow(patch, 1e-8, 0)),
    ("the pooled embedding", lambda patch: spoil_backend(patch, "pool")),
    ("the embedding", lambda patch: spoil_backend(patch, "calibrate")),
    ("the pooled embedding", change_weights),
    ("the pooled embedding", change_tokenizer),
]


@pytest.mark.parametrize(("part", "change"), DEVIATIONS)
def test_proof_catches_a_deviation(tmp_path, encoder, pooled, sentences, monkeypatch, part, change):
    fitted = fitted_by("flow", pooled)
    change(monkeypatch)
    with pytest.raises(FastflowError, match=f"export stopped: {part} of the saved model differs"):
        write(tmp_path / "m", encoder, fitted, sentences)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("start", [0, 20, 140])
def test_proof_accepts_a_whitening_that_amplifies_noise(tmp_path, encoder, pooled, sentences, start):
    """Hardly more texts than dimensions: float32 is inexact there, in PyTorch as much as here."""
    rows = slice(start, start + 33)
    fitted = fitted_by("whiten", pooled[rows])
    exact, plain = (apply([fitted.stages[0].astype(d)], pooled[rows].astype(d)) for d in (np.float64, np.float32))
    unit = [z / np.linalg.norm(z, axis=1, keepdims=True) for z in (exact, plain)]
    assert np.abs(unit[0] - unit[1]).max() > exporting.AGREEMENT
    write(tmp_path / "m", encoder, fitted, sentences[rows])
    assert verify(tmp_path / "m")


@pytest.mark.slow
def test_the_runtime_needs_no_saved_model_and_leaves_nothing(bert, sentences, empty, tmp_path):
    fit = fastflow.fit(sentences, bert, "whiten:8")
    mark = fit.save(tmp_path / "saved")
    runtime = fit.runtime(backend="reference")
    assert (runtime.fingerprint, runtime.backend, runtime.dim) == (mark, "reference", 8)
    saved = fastflow.Runtime(tmp_path / "saved", backend="reference")
    assert np.array_equal(runtime.encode(sentences[:9]), saved.encode(sentences[:9]))
    assert len(list(empty.iterdir())) == 1
    del runtime
    gc.collect()
    assert list(empty.iterdir()) == []
    with pytest.raises(FastflowError, match="tpu"):
        fit.runtime(device="tpu")
    assert list(empty.iterdir()) == []
    with pytest.raises(UsageError, match=r"exists already; remove it or choose another directory$"):
        fit.save(tmp_path / "saved")
    with pytest.raises(UsageError, match="is for an encoder from the Hub"):
        fit.save(tmp_path / "light", reference_encoder=True)
    assert not (tmp_path / "light").exists()


FORKED = """
import gc, os, pickle, sys, tempfile
import fastflow
tempfile.tempdir = sys.argv[2]
texts = [line.strip() for line in open(sys.argv[3])]
runtime = fastflow.fit(texts, sys.argv[1], "standardize").runtime()
if os.fork() == 0:
    del runtime
    gc.collect()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
again = pickle.loads(pickle.dumps(runtime))
assert (again.encode("the dog") == runtime.encode("the dog")).all()
"""


@pytest.mark.slow
def test_a_fork_leaves_the_folder_of_a_runtime_alone_and_the_end_of_the_process_removes_it(
    bert, corpus, empty, run_python
):
    done = run_python(FORKED, bert, empty, corpus)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert list(empty.glob("fastflow-*")) == []  # PyTorch may leave a folder of its own


def test_int8_is_measured_on_texts_of_the_whole_corpus(model, monkeypatch):
    asked, tokenize = [], Tokenizer.tokenize_prompted

    def keep(self, texts, *rest):
        asked.append([int(text.split()[1]) for text in texts])
        return tokenize(self, texts, *rest)

    monkeypatch.setattr(Tokenizer, "tokenize_prompted", keep)
    measure_precision(load_model(model), [f"dog {i}" for i in range(10 * TEXTS + 7)])
    assert (len(asked[0]), asked[0][0], asked[0][-1] > 9 * TEXTS) == (TEXTS, 0, True)
    monkeypatch.setattr(exporting, "pick_backend", lambda encoder, device: "torch")  # no kernels for the encoder
    assert measure_precision(load_model(model), ["a dog"]) == ({}, None)


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
    assert re.split(r" {2,}", result.stdout.splitlines()[0].strip()) == [
        "raw pooling",
        "weights only",
        "calibrated",
    ]
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
