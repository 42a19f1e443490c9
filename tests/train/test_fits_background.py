"""A fit with sentences of the language at large, and one of all modules of a directory."""

import json
import shutil
from itertools import product

import numpy as np
import pytest

import fastflow
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import load_model
from fastflow.model.verify import verify
from fastflow.stages.calibration import apply
from fastflow.train.data.background import draw_sentences, load_english
from fastflow.train.data.encoder import open_encoder
from fastflow.train.fits import corpus as settings

from support.commands import assert_one_sentence
from support.sentence_dirs import NORMALIZE, dense, expected, make_directory, pooling

FLOW = ("--method", "flow", "--stop", "budget")


def training(directory):
    return json.loads((directory / "fastflow.json").read_text())["training"]


@pytest.mark.slow
def test_a_flow_has_ten_thousand_sentences_with_a_small_corpus(bert, sentences, tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "VARIED", 1)
    lines = []
    fit = fastflow.fit(sentences[:70], bert, "flow", stop="budget", progress=lines.append)
    fit.save(tmp_path / "m")
    assert "background: 10000 sentences of the language at large, to which the method is fitted too" in lines
    assert any(line.startswith("flow: 157 steps of 64 texts") for line in lines)  # of 10,070
    assert (training(tmp_path / "m")["background"], training(tmp_path / "m")["texts"]) == (10_000, 70)
    assert fit.stages[0].settings["depth"] == 6  # the large one
    assert (
        ": 70 distinct texts, and 10000 sentences of the language at large |"
        in (tmp_path / "m" / "README.md").read_text()
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["flow", "whiten,recolour"])
def test_the_vectors_are_those_of_a_corpus_with_the_sentences_in_it(bert, sentences, method):
    options = {"stop": "budget", "token_weights": "none", "depth": 2, "width": 16}
    beside = fastflow.fit(sentences[:64], bert, method, background=20, **options)
    within = fastflow.fit([*sentences[:64], *draw_sentences(20, load_english())], bert, method, background=0, **options)
    alone = fastflow.fit(sentences[:64], bert, method, background=0, **options)
    for one, other in zip(beside.stages, within.stages, strict=True):
        assert all(np.allclose(one.params[name], other.params[name], rtol=1e-4, atol=1e-5) for name in one.params)
    last = [fit.stages[-1].params["matrix"] for fit in (beside, alone)]
    assert not np.allclose(*last, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_few_english_texts_of_a_small_vocabulary_are_fitted(bert, monkeypatch):
    """729 texts of three of nine words, between two tokens: each word is a 15th of the tokens, and [CLS] a 5th."""
    words = ["the", "a", "of", "and", "to", "was", "on", "it", "he"]
    texts = [" ".join(chosen) for chosen in product(words, repeat=3)]
    varied, lines = 15 ** (9 / 15) * 5 ** (2 / 5), []
    monkeypatch.setattr(settings, "VARIED", 4 * varied)
    fit = fastflow.fit(texts, bert, "whiten,recolour", stop="budget", progress=lines.append)
    assert (fit.training["texts"], fit.training["fitted"]) == (729, int(1250 / 4**3)) == (729, 19)
    said = "to them and to 19 of the texts, drawn at random, few because their vocabulary is small"
    assert any(line.endswith(said) for line in lines)
    monkeypatch.undo()
    assert fastflow.fit(texts, bert, "flow", stop="budget").training["fitted"] == 2  # as few as there can be


@pytest.fixture
def outweighed(monkeypatch):
    """Only 120 sentences of random words, so that 30 texts of a larger corpus are fitted."""
    monkeypatch.setattr(settings, "BACKGROUND", (40, 120))
    words = load_english()._replace(sentences=())
    monkeypatch.setattr(settings, "recognise_words", lambda texts, given: words)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["flow", "whiten,recolour"])
def test_a_larger_corpus_is_outweighed_by_the_sentences(bert, sentences, tmp_path, outweighed, method):
    given = {"stop": "budget", "token_weights": "none", "depth": 2, "width": 16, "batch_size": 16}
    lines = []
    fit = fastflow.fit(sentences[:200], bert, method, progress=lines.append, **given)
    to = "the method is fitted to them and to 30 of the texts, drawn at random"
    assert f"background: 120 sentences of the language at large; {to}" in lines
    rows = np.sort(np.random.default_rng((0, 1 << 35)).choice(200, 30, replace=False))
    part = fastflow.fit([sentences[row] for row in rows], bert, method, background=120, **given)
    for one, other in zip(fit.stages, part.stages, strict=True):
        assert all(np.allclose(one.params[name], other.params[name], rtol=1e-4, atol=1e-5) for name in one.params)
    counts = [fit.training[name] for name in ("texts", "fitted", "background")]
    assert counts == [200, 30, 120]
    fit.save(tmp_path / "m")
    card = (tmp_path / "m" / "README.md").read_text()
    assert ": 200 distinct texts, of which 30, and 120 sentences of the language at large |" in card
    whole = fastflow.fit(sentences[:200], bert, method, background=120, **given)
    assert whole.training["fitted"] == 200
    assert not np.allclose(whole.stages[-1].params["matrix"], fit.stages[-1].params["matrix"], rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_the_statistics_of_a_streamed_corpus_are_outweighed(bert, sentences, outweighed, monkeypatch):

    def mean(**more):
        fit = fastflow.fit(sentences, bert, "whiten,recolour", stream=True, stop="budget", token_weights="none", **more)
        return fit.stages[0].params["mean"], fit.training["fitted"]

    (usual, some), (both, every) = mean(), mean(background=120)
    assert (some, every) == (30, 256)
    monkeypatch.setattr(settings, "SHARE", 1000)  # no text counts
    alone, none = mean()
    assert none == 0
    assert np.abs(both - alone).max() > 1e-2
    assert np.allclose((usual - alone) / (30 / 150), (both - alone) / (256 / 376), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_token_weights_and_the_corpus_hash_are_those_of_the_corpus_alone(train, tmp_path):
    for count, out in ((0, "alone"), (50, "beside")):
        assert train(*FLOW, "--background", count, out=tmp_path / out).exit_code == 0
    one, other = (load_model(tmp_path / name) for name in ("alone", "beside"))
    assert np.array_equal(one.pooling.weights, other.pooling.weights)
    assert training(tmp_path / "alone")["corpus_sha256"] == training(tmp_path / "beside")["corpus_sha256"]
    assert not np.array_equal(one.calibration[-1].params["matrix"], other.calibration[-1].params["matrix"])


@pytest.mark.parametrize(
    "options",
    [("--method", "flow", "--latent"), ("--method", "components:1"), ("--method", "whiten"), ("--method", "none"),
     ("--method", "flow,whiten")],
)  # fmt: skip
def test_a_method_without_recolour_is_fitted_to_the_corpus_alone(train, tmp_path, bert, sentences, options):
    refused = train(*options, "--background", 10)
    method = options[1] + " with --latent" * ("--latent" in options)
    assert_one_sentence(refused, 2, f"goes with recolour, and method {method} has none behind it: leave it out")
    named = {"method": options[1], "latent": "--latent" in options}
    fit = fastflow.fit(sentences[:70], bert, stop="budget", **named)
    assert fit.training["background"] == 0


GERMAN = [f"Der Hund Nummer {i} läuft über die Wiese und das Kind sieht ihm zu" for i in range(70)]


def of_german(bert, **options):
    """(sentences of the background, lines about them) of a fit to GERMAN."""
    lines = []
    fit = fastflow.fit(GERMAN, bert, "flow", stop="budget", depth=1, width=8, progress=lines.append, **options)
    return fit.training["background"], [line for line in lines if line.startswith("background:")], fit


@pytest.mark.slow
def test_a_corpus_of_another_language_is_fitted_alone(bert):
    count, said, _ = of_german(bert)
    assert (count, said) == (
        0, ["background: none, because the corpus is not English; --background-words FILE gives one"],
    )  # fmt: skip
    assert of_german(bert, background=0)[:2] == (0, [])
    with pytest.raises(UsageError, match=r"^background draws English words, and the corpus is not English: give"):
        of_german(bert, background=5)


@pytest.mark.slow
def test_its_words_give_it_weights_and_sentences(bert, tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("der 3\nHund 1\nWiese 1\n", encoding="utf-8")
    count, said, fit = of_german(bert, background=9, background_words=str(path))
    assert (count, len(said)) == (9, 1)
    assert of_german(bert, background_words=str(path))[0] == 3000
    own = of_german(bert)[2]
    assert not np.array_equal(fit.encoder.pooling.weights, own.encoder.pooling.weights)


@pytest.mark.slow
def test_the_command_takes_the_words_too(train, tmp_path, corpus):
    path = tmp_path / "words.txt"
    path.write_text("the 3\ndog\n", encoding="utf-8")
    refused = train("--background-words", path)
    assert_one_sentence(refused, 1, f"{path}, line 2: must be a word, a space or tab, and how often it occurs")
    path.write_text("the 3\ndog 1\n", encoding="utf-8")
    for out, options in (("read", ()), ("streamed", ("--stream",))):
        made = train("--method", "whiten,recolour", "--background-words", path, *options, out=tmp_path / out)
        assert made.exit_code == 0, made.stderr
    one, other = (load_model(tmp_path / name).pooling.weights for name in ("read", "streamed"))
    assert np.array_equal(one, other)


def test_a_corpus_of_less_than_a_batch_stays_too_small(train):
    refused = train(*FLOW, "--batch-size", 257, "--background", 1000)
    assert_one_sentence(refused, 2, "the corpus has 256 distinct texts, fewer than one batch of 257")


@pytest.mark.slow
def test_the_encoder_runs_over_them_at_every_step_with_its_dropout(train, tmp_path):
    result = train(*FLOW, "--encoder-dropout", "--background", 100)
    assert result.exit_code == 0, result.stderr
    assert "flow: 5 steps of 64 texts" in result.stderr  # of 356
    assert training(tmp_path / "m")["background"] == 100


@pytest.mark.slow
def test_a_run_is_not_resumed_beside_other_sentences(train):
    interrupted = train(*FLOW, "--background", 100, "--save-steps", 1, "--lr", 1e30)  # diverges and leaves a checkpoint
    assert interrupted.exit_code == 1
    refused = train(*FLOW, "--background", 99, "--save-steps", 1, "--resume", "--lr", 1e30)
    assert (refused.exit_code, "another corpus, encoder or settings" in refused.stderr) == (2, True)


PROMPTS = {"prompts": {"query": "the old "}, "default_prompt_name": "query"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, bert):
    modules = [pooling("cls", "mean", include_prompt=False), dense(16), NORMALIZE]
    return make_directory(tmp_path_factory.mktemp("st") / "m", bert, modules, folder="0_Transformer", **PROMPTS)


@pytest.fixture(scope="module")
def model(directory, sentences, tmp_path_factory):
    out = tmp_path_factory.mktemp("saved") / "model"
    fastflow.fit(sentences, directory, "whiten:8", pooling="model", stop="budget").save(out)
    return out


def test_the_calibration_comes_behind_every_module(model, directory, sentences):
    opened = load_model(model)
    pooled = expected(directory, sentences[:20], "the old ")
    want = apply([stage.astype(np.float64) for stage in opened.calibration], pooled)
    for backend in ("cpu", "reference", "torch"):
        rt = fastflow.Runtime(model, backend=backend, dtype="float32")
        found = rt.encode(sentences[:20])
        assert found.shape == (20, 8)
        assert np.abs(found - want).max() <= 1e-4 * np.abs(want).max()  # whitening amplifies small deviations
        np.testing.assert_allclose(rt.pool(sentences[:20]), pooled, atol=2e-6)
    manifest = json.loads((model / "fastflow.json").read_text())
    assert (manifest["format_version"], manifest["pooling"]) == (3, {"mode": "modules", "calibration": "last"})
    assert opened.manifest["least_cosine"].keys() == {"bfloat16", "int8"}


@pytest.mark.slow
def test_it_was_fitted_on_texts_with_the_default_prompt(model, directory, sentences):
    mean = load_model(model).calibration[0].params["mean"]
    distinct = list(dict.fromkeys(sentences))
    np.testing.assert_allclose(mean, expected(directory, distinct, "the old ").mean(axis=0), atol=1e-5)


@pytest.mark.slow
def test_the_model_is_whole(model, directory, sentences, tmp_path):
    copy = shutil.copytree(model, tmp_path / "copy")
    assert verify(copy)[0].endswith("files match their sha256")
    assert fastflow.Runtime(copy).info()["modules"] == fastflow.Runtime(directory).info()["modules"]
    for name in ("modules.json", "2_Dense/model.safetensors", "0_Transformer/model.safetensors"):
        spoiled = shutil.copytree(model, tmp_path / name.replace("/", "-"))
        file = spoiled / "0_SentenceTransformer" / name
        file.write_bytes(file.read_bytes()[:-1] + b" ")
        with pytest.raises(FastflowError, match=r"is damaged|is not JSON"):
            fastflow.Runtime(spoiled)
    fastflow.fit(sentences, copy, "none", pooling="model").save(tmp_path / "again")  # auto may be bfloat16
    again, plain = (fastflow.Runtime(path, dtype="float32") for path in (tmp_path / "again", directory))
    np.testing.assert_array_equal(again.encode("a dog"), plain.encode("a dog"))


def refit(model, tmp_path, **changes):
    from fastflow.model.manifest import fingerprint

    copy = shutil.copytree(model, tmp_path / "m")
    manifest = json.loads((copy / "fastflow.json").read_text()) | changes
    manifest["fingerprint"] = fingerprint(manifest)
    (copy / "fastflow.json").write_text(json.dumps(manifest))
    return copy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": {"mode": "modules", "calibration": "first"}}, "field pooling: must be {'mode': 'modules'"),
        ({"max_length": 12}, "field max_length: must be 64, the limit of 0_SentenceTransformer"),
        ({"format_version": 1}, "0_Transformer is missing"),
        ({"dim": 9}, "field dim: says 9"),
    ],
)
def test_manifests_that_cannot_be(model, tmp_path, changes, message):
    with pytest.raises(FastflowError) as caught:
        load_model(refit(model, tmp_path, **changes))
    assert message in str(caught.value)


def test_a_file_that_no_hash_covers(model, tmp_path):
    manifest = json.loads((model / "fastflow.json").read_text())
    files = {name: h for name, h in manifest["files"].items() if "2_Dense/config" not in name}
    with pytest.raises(FastflowError, match=r"2_Dense/config\.json is not listed in fastflow\.json"):
        load_model(refit(model, tmp_path, files=files))


def test_choices_that_do_not_go_together(directory, bert, sentences, tmp_path):
    with pytest.raises(UsageError, match="--pooling model is for a directory of Sentence Transformers, and"):
        open_encoder(str(bert), "model", None)
    with pytest.raises(UsageError, match="--pooling model keeps the limit of 64 tokens: leave out --max-length"):
        open_encoder(str(directory), "model", 32)
    with pytest.raises(UsageError, match=r"^pooling model pools as the directory says: leave out token_weights$"):
        fastflow.fit(sentences, directory, "none", pooling="model", token_weights="sif")
    cut = make_directory(tmp_path / "cut", bert, [pooling("mean")], truncate_dim=4)
    with pytest.raises(UsageError, match="keeps 4 dimensions of its own"):
        open_encoder(str(cut), "model", None)


@pytest.mark.slow
def test_embed_fit_keeps_the_modules(directory, tmp_path, corpus):
    from click.testing import CliRunner

    from fastflow.cli import main

    out, kept = tmp_path / "x.npy", tmp_path / "kept"
    words = ["embed", str(corpus), "-m", str(directory), "--fit", "--save-model", str(kept), "-o", str(out)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.stderr
    assert load_model(kept).modules.names() == load_model(directory).modules.names()
    assert np.load(out).shape[1] == fastflow.Runtime(kept).dim
