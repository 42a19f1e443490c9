"""A fit with sentences of the language at large, and a fit of all modules of a directory."""

import json
import shutil

import numpy as np
import pytest

import fastflow
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import load_model
from fastflow.model.verify import verify
from fastflow.train.data.background import draw_sentences, load_english
from fastflow.train.data.encoder import open_encoder
from fastflow.train.pipeline import diagnosis, recipe
from fastflow.transforms.calibration import apply

from support.builders import read_languages
from support.commands import assert_one_sentence, run
from support.sentence_dirs import NORMALIZE, dense, expected, make_directory, pooling
from support.spoil import change_manifest

FLOW = ("--method", "flow", "--stop", "budget")
EQUAL = {"stop": "budget", "token_weights": "none"}
SMALL = EQUAL | {"depth": 2, "width": 16}


def are_close(one, other, rtol=1e-4, atol=1e-5):
    pairs = zip(one.stages, other.stages, strict=True)
    return all(np.allclose(a.params[name], b.params[name], rtol=rtol, atol=atol) for a, b in pairs for name in a.params)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["flow", "whiten,recolour"])
def test_the_vectors_are_of_a_corpus_with_the_sentences_in_it(bert, sentences, method):
    small = SMALL if method == "flow" else EQUAL
    beside = fastflow.fit(sentences[:64], bert, method, background=20, **small)
    within = fastflow.fit([*sentences[:64], *draw_sentences(20, load_english())], bert, method, background=0, **small)
    assert are_close(beside, within)
    assert not are_close(beside, fastflow.fit(sentences[:64], bert, method, background=0, **small), 1e-2, 1e-3)


@pytest.fixture
def outweighed(monkeypatch):
    """Only 120 sentences of random words, so that 30 texts of a larger corpus are fitted."""
    monkeypatch.setattr(recipe, "BACKGROUND", (40, 120))
    words = load_english()._replace(sentences=())
    monkeypatch.setattr(diagnosis, "recognise_words", lambda texts, *given: words)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["flow", "whiten,recolour"])
def test_a_larger_corpus_is_outweighed_by_the_sentences(bert, sentences, tmp_path, outweighed, method):
    given, lines = SMALL | {"batch_size": 16} if method == "flow" else EQUAL, []
    fit = fastflow.fit(sentences[:200], bert, method, progress=lines.append, **given)
    to = "the method is fitted to them and to 30 of the texts, drawn at random"
    assert f"background: 120 sentences of random words; {to}; --background-sentences FILE adds real ones" in lines
    rows = np.sort(np.random.default_rng((0, 1 << 35)).choice(200, 30, replace=False))
    assert are_close(fit, fastflow.fit([sentences[row] for row in rows], bert, method, background=120, **given))
    assert [fit.training[name] for name in ("texts", "fitted", "background")] == [200, 30, 120]
    fit.save(tmp_path / "m")
    card = (tmp_path / "m" / "README.md").read_text()
    assert ": 200 distinct texts, of which 30, and 120 sentences of the language at large |" in card
    whole = fastflow.fit(sentences[:200], bert, method, background=120, **given)
    assert whole.training["fitted"] == 200
    assert not are_close(fit, whole, 1e-2, 1e-3)


@pytest.mark.slow
def test_the_statistics_of_a_streamed_corpus_are_outweighed(bert, sentences, outweighed, monkeypatch):
    def mean(**more):
        fit = fastflow.fit(sentences, bert, "whiten,recolour", stream=True, **EQUAL, **more)
        return fit.stages[0].params["mean"], fit.training["fitted"]

    (usual, some), (both, every) = mean(), mean(background=120)
    assert (some, every) == (30, 256)
    monkeypatch.setattr(recipe, "SHARE", 1000)  # no text counts
    alone, none = mean()
    assert none == 0
    assert np.abs(both - alone).max() > 1e-2
    assert np.allclose((usual - alone) / (30 / 150), (both - alone) / (256 / 376), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_token_weights_and_the_corpus_hash_are_of_the_corpus_only(train, tmp_path, read_training):
    for count, out in ((0, "alone"), (50, "beside")):
        assert train(*FLOW, "--background", count, out=tmp_path / out).exit_code == 0
    one, other = (load_model(tmp_path / name) for name in ("alone", "beside"))
    assert np.array_equal(one.pooling.weights, other.pooling.weights)
    assert len({read_training(tmp_path / name)["corpus_sha256"] for name in ("alone", "beside")}) == 1
    assert not np.array_equal(one.calibration[-1].params["matrix"], other.calibration[-1].params["matrix"])


FRENCH = read_languages()["French"]
GERMAN = [f"Der Hund Nummer {i} läuft über die Wiese und das Kind sieht ihm zu" for i in range(70)]


@pytest.mark.slow
def test_words_of_another_language_give_weights_and_a_background(bert, tmp_path):
    path, given = tmp_path / "words.txt", {"stop": "budget", "depth": 1, "width": 8}
    path.write_text("der 3\nHund 1\nWiese 1\n", encoding="utf-8")
    own = fastflow.fit(GERMAN, bert, "flow", **given)
    found = fastflow.fit(GERMAN, bert, "flow", **given, background_words=str(path))
    assert (own.training["background"], found.training["background"]) == (0, 3000)
    assert not np.array_equal(found.encoder.pooling.weights, own.encoder.pooling.weights)


@pytest.mark.slow
def test_a_corpus_of_another_language_is_fitted_with_sentences_of_its_language(bert, tmp_path):
    given = {"method": "whiten,recolour", "stop": "budget", "language": "de"}
    words = fastflow.fit(GERMAN, bert, **given)
    assert words.training["background"] == 3000
    path = tmp_path / "large.txt"
    path.write_text("".join(f"Im Garten steht das Haus Nummer {i}.\n" for i in range(40)), encoding="utf-8")
    both = fastflow.fit(GERMAN, bert, **given, background_sentences=str(path))
    assert (both.training["background"], both.training["fitted"]) == (80, 2)  # 40, and 40 of random words
    assert not np.array_equal(words.encoder.pooling.weights, both.encoder.pooling.weights)
    assert words.training["languages"] == ["German"]


def test_sentences_without_the_words_of_their_language_are_refused(bert, tmp_path):
    path = tmp_path / "large.txt"
    path.write_text("Im Garten steht das Haus.\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"^background_sentences= goes with the words of its language"):
        fastflow.fit(GERMAN, bert, background_sentences=str(path))


@pytest.mark.slow
def test_a_fitted_language_is_not_warned_of(bert, tmp_path):
    texts = [f"{FRENCH} {i}" for i in range(99)]
    fastflow.fit(texts, "untuned", "standardize", token_weights="none").save(tmp_path / "m")
    for model, is_foreign in ((None, True), (tmp_path / "m", False)):
        with fastflow.Runtime(model) as runtime:
            assert ("look like French" in (runtime.session.warn_of([FRENCH]) or "")) == is_foreign


@pytest.mark.slow
def test_the_command_takes_the_words_too(train, tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("the 3\ndog 1\n", encoding="utf-8")
    for out, options in (("read", ()), ("streamed", ("--stream",))):
        made = train("--method", "whiten,recolour", "--background-words", path, *options, out=tmp_path / out)
        assert made.exit_code == 0, made.stderr
    one, other = (load_model(tmp_path / name).pooling.weights for name in ("read", "streamed"))
    assert np.array_equal(one, other)


@pytest.mark.slow
def test_a_flow_runs_over_the_sentences_at_every_step_with_the_dropout_of_the_encoder(train, tmp_path, read_training):
    refused = train(*FLOW, "--batch-size", 257, "--background", 1000)
    assert_one_sentence(refused, 2, "the corpus has 256 distinct texts, fewer than one batch of 257")
    result = train(*FLOW, "--encoder-dropout", "--background", 100)
    assert result.exit_code == 0, result.stderr
    assert "flow: 5 steps of 64 texts" in result.stderr  # of 356
    assert read_training(tmp_path / "m")["background"] == 100
    assert load_model(tmp_path / "m").calibration[0].settings["depth"] == 6  # the large one
    assert ": 256 distinct texts, and 100 sentences of the lang" in (tmp_path / "m" / "README.md").read_text()
    diverges = (*FLOW, "--save-steps", 1, "--lr", 1e30)
    assert train(*diverges, "--background", 100, out=tmp_path / "n").exit_code == 1  # and leaves a checkpoint
    refused = train(*diverges, "--background", 99, "--resume", out=tmp_path / "n")
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


@pytest.mark.slow
def test_the_calibration_comes_after_every_module(model, directory, sentences):
    opened = load_model(model)
    pooled = expected(directory, sentences[:20], "the old ")
    want = apply([stage.astype(np.float64) for stage in opened.calibration], pooled)
    for backend in ("cpu", "reference", "torch"):
        rt = fastflow.Runtime(model, backend=backend, dtype="float32")
        found = rt.encode(sentences[:20])
        assert found.shape == (20, 8)
        assert np.abs(found - want).max() <= 1e-4 * np.abs(want).max()  # whitening amplifies small deviations
        np.testing.assert_allclose(rt.pool(sentences[:20]), pooled, atol=2e-6)
    fitted = expected(directory, list(dict.fromkeys(sentences)), "the old ")  # the default prompt
    np.testing.assert_allclose(opened.calibration[0].params["mean"], fitted.mean(axis=0), atol=1e-5)
    manifest = opened.manifest
    assert (manifest["format_version"], manifest["pooling"]) == (3, {"mode": "modules", "calibration": "last"})
    assert manifest["least_cosine"].keys() == {"bfloat16", "int8"}


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


def test_manifests_that_cannot_be(model, tmp_path):
    files = json.loads((model / "fastflow.json").read_text())["files"]
    for number, (changes, message) in enumerate((
        ({"pooling": {"mode": "modules", "calibration": "first"}}, "field pooling: must be {'mode': 'modules'"),
        ({"max_length": 12}, "field max_length: must be 64, the limit of 0_SentenceTransformer"),
        ({"format_version": 1}, "0_Transformer is missing"),
        ({"dim": 9}, "field dim: says 9"),
        (
            {"files": {name: mark for name, mark in files.items() if "2_Dense/config" not in name}},
            "2_Dense/config.json is not listed in fastflow.json",
        ),
    )):  # fmt: skip
        with pytest.raises(FastflowError) as caught:
            load_model(change_manifest(shutil.copytree(model, tmp_path / str(number)), **changes))
        assert message in str(caught.value)


def test_choices_that_do_not_go_together(directory, bert, sentences, tmp_path):
    cut = make_directory(tmp_path / "cut", bert, [pooling("mean")], truncate_dim=4)
    for encoder, limit, message in (
        (bert, None, "--pooling model is for a directory of Sentence Transformers, and"),
        (directory, 32, "--pooling model keeps the limit of 64 tokens: leave out --max-length"),
        (cut, None, "keeps 4 dimensions of its own"),
    ):
        with pytest.raises(UsageError, match=message):
            open_encoder(str(encoder), "model", limit)
    with pytest.raises(UsageError, match=r"^pooling=model pools as the directory says: leave out token_weights=$"):
        fastflow.fit(sentences, directory, "none", pooling="model", token_weights="sif")


@pytest.mark.slow
def test_embed_fit_keeps_the_modules(directory, tmp_path, corpus):
    out, kept = tmp_path / "x.npy", tmp_path / "kept"
    done = run("embed", corpus, "-m", directory, "--fit", "--save-model", kept, "-o", out)
    assert done.exit_code == 0, done.stderr
    assert load_model(kept).modules.names() == load_model(directory).modules.names()
    assert np.load(out).shape[1] == fastflow.Runtime(kept).dim
