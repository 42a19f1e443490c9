"""``fastflow.Reranker`` scores as CrossEncoder of its library does, or refuses a directory by file and field."""

from __future__ import annotations

import json
import pickle
import shutil
from contextlib import nullcontext
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

import fastflow
from fastflow.errors import FastflowError, UsageError
from fastflow.model.pairs import fit_pair
from fastflow.reranker import score_tokens

from support.builders import POSITIONS, VOCABULARY, make_sentences
from support.rerankers import CLASSES, INPUTS, change_config, make_reranker, theirs

SENTENCES = make_sentences(12, seed=5)
LONG = " ".join(make_sentences(40, seed=3))
QUERY = SENTENCES[0]
DOCUMENTS = ["", " ", "the", *SENTENCES[1:], LONG, "  a  cat\t[SEP] x ", "É Straße 東京"]
PAIRS = [(QUERY, text) for text in DOCUMENTS] + [
    (LONG, "a dog"),
    (LONG, LONG),
    (LONG + " dog", LONG),
    ("", ""),
    ("<s> the", "</s>"),
]
BORN = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"}}
CASES: dict[str, dict[str, Any]] = {
    **{name: {"family": name} for name in (
        "bert", "minilm", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "mpnet", "modernbert"
    )},
    **{f"{name} of its own tokenizer": {"family": name, "tokenizer": {"tokenizer_class": kind}}
       for name, kind in CLASSES.items()},
    "no token types": {"tokenizer": {"model_input_names": INPUTS[:2]}},
    "mean": {"family": "modernbert", "classifier_pooling": "mean"},
    "biases": {"family": "modernbert", "classifier_bias": True, "norm_bias": True, "classifier_activation": "silu"},
    "logits": BORN,
    "older tanh": {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh"},
    "three labels": {"family": "roberta", "labels": 3},
    "two labels": {"labels": 2, "problem_type": "single_label_classification"},
    "saved": {"saved": True, **BORN},
    "saved xlm-roberta": {"saved": True, "family": "xlm-roberta"},
    "saved with three labels": {"saved": True, "family": "distilbert", "labels": 3},
    "half precision": {"dtype": "float16"},
    "bfloat16 weights": {"dtype": "bfloat16"},
    "short": {"tokenizer": {"tokenizer_class": "BertTokenizer", "model_max_length": 22}},
    "short roberta": {"family": "roberta", "tokenizer": {"model_max_length": 23}},
    "beyond its positions": {"tokenizer": {"tokenizer_class": "BertTokenizer", "model_max_length": 10_000}},
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return cache(lambda name: make_reranker(tmp_path_factory.mktemp("reranker") / "model", **CASES[name]))


@pytest.fixture(scope="module")
def wanted(made):
    return cache(lambda name: theirs(made(name)).predict(PAIRS))


def score(reranker, pairs=PAIRS, **options):
    with pytest.warns(fastflow.FastflowWarning, match=f"longer than {reranker.max_length} tokens are cut"):
        return reranker.predict(pairs, **options)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_of_the_library(made, wanted, name, backend):
    """Every architecture, tokenizer, head and activation; empty, long and odd texts."""
    found = score(fastflow.Reranker(made(name), backend=backend))
    assert found.dtype == np.float32
    assert found.shape == wanted(name).shape
    assert wanted(name).std(axis=0).min() > 0.01  # the comparison is of something
    assert np.abs(found - wanted(name)).max() <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", ["minilm", "roberta"])
def test_lower_precisions_keep_the_order(made, wanted, name, dtype):
    found = score(fastflow.Reranker(made(name), dtype=dtype))
    assert np.corrcoef(found, wanted(name))[0, 1] > 0.98
    assert np.abs(found - wanted(name)).max() > 1e-6  # another arithmetic


@pytest.mark.slow
def test_int8_keeps_its_trial_of_pairs(made, monkeypatch, tmp_path):
    """The trial has pairs, not texts; a spoilt one refuses int8; a Runtime of the same files has its own."""
    from fastflow.backends import precision

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen, trial = [], precision.trial
    monkeypatch.setattr(precision, "trial", lambda model: seen.append(trial(model)) or seen[-1])
    first = score(fastflow.Reranker(made("bert"), dtype="int8"))
    np.testing.assert_array_equal(score(fastflow.Reranker(made("bert"), dtype="int8")), first)
    assert len(seen) == 1
    assert seen[0].tokens.seconds is not None
    for _ in range(2):
        fastflow.Runtime(made("bert"), dtype="int8", device="cpu")
        np.testing.assert_array_equal(score(fastflow.Reranker(made("bert"), dtype="int8")), first)
    assert len(seen) == 2
    monkeypatch.setattr(precision, "LEAST_INT8", 1.1)
    with pytest.raises(UsageError, match="int8 changes the vectors of pairs, which its head scores, too much"):
        fastflow.Reranker(made("bert"), dtype="int8")
    with pytest.raises(UsageError, match="int8 changes the embeddings too much"):
        fastflow.Runtime(made("bert"), dtype="int8", device="cpu")


def test_a_pair_has_the_same_score_in_any_batch(made):
    reranker = fastflow.Reranker(made("bert"))
    whole = score(reranker)
    for size, threads in product((1, 3), (1, 2)):
        other = fastflow.Reranker(made("bert"), threads=threads)
        np.testing.assert_array_equal(score(other, batch_size=size), whole)
    alone = [reranker.predict(pair) for pair in PAIRS]
    np.testing.assert_array_equal(alone, whole)
    assert alone[0].shape == ()


def test_options_of_predict(made):
    reranker, model = fastflow.Reranker(made("three labels")), theirs(made("three labels"))
    pairs = PAIRS[:5]
    found = reranker.predict(np.array(pairs), apply_softmax=True, convert_to_numpy=False, device=None)
    np.testing.assert_allclose(found, model.predict(pairs, apply_softmax=True), atol=1e-5)
    assert isinstance(found, list)
    torch = pytest.importorskip("torch")
    for activation in (torch.nn.Identity(), torch.nn.Sigmoid(), torch.nn.Tanh()):
        want = model.predict(pairs, activation_fn=activation)
        np.testing.assert_allclose(reranker.predict(pairs, activation_fn=activation), want, atol=1e-5)
    assert reranker.predict([]).shape == (0, 3)


def test_rank_is_that_of_the_library(made):
    reranker, model = fastflow.Reranker(made("bert")), theirs(made("bert"))
    for options in ({}, {"top_k": 3}, {"return_documents": True, "top_k": 2}, {"prompt": "the cat: ", "batch_size": 2}):
        with pytest.warns(fastflow.FastflowWarning) if not reranker.truncated else nullcontext():
            found = reranker.rank(QUERY, DOCUMENTS, **options)
        want = model.rank(QUERY, DOCUMENTS, **options)
        assert [each["corpus_id"] for each in found] == [each["corpus_id"] for each in want]
        assert [each.get("text") for each in found] == [each.get("text") for each in want]
        np.testing.assert_allclose([each["score"] for each in found], [each["score"] for each in want], atol=1e-5)
    assert reranker.rank(QUERY, []) == []


def test_a_saturated_sigmoid_makes_no_ties(made, tmp_path):
    """Logits of 20 to 60 are 1 in float32 as scores, and some in float64; their order is that of the logits."""
    path = shutil.copytree(made("bert"), tmp_path / "large")
    tensors = load_file(path / "model.safetensors")
    tensors["classifier.weight"] *= 10
    tensors["classifier.bias"] += 70
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    reranker, pairs = fastflow.Reranker(path), [(QUERY, text) for text in SENTENCES]
    logits = score_tokens(reranker, reranker.model.pairing.pair(pairs), "identity")[1][:, 0]
    assert logits.min() > 20
    ranked = reranker.rank(QUERY, SENTENCES)
    assert len({np.float32(each["score"]) for each in ranked}) == 1
    assert [each["corpus_id"] for each in ranked] == np.argsort(-logits, kind="stable").tolist()


@pytest.mark.parametrize("room", [1, 2, 3, 4, 7, 8])
def test_the_longer_text_is_cut_first_as_in_tokenizers(room):
    plain = Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    }))  # fmt: skip
    plain.enable_truncation(room, strategy="longest_first")
    for first, second in product(range(12), repeat=2):
        places = plain.encode("a " * first, "a " * second).sequence_ids
        assert fit_pair(first, second, room) == (places.count(0), places.count(1))


def test_cut_pairs_are_counted(made):
    reranker = fastflow.Reranker(made("short"))
    score(reranker, [(QUERY, "the"), (QUERY, LONG), (LONG, "the"), (LONG, LONG)])
    assert (reranker.truncated, reranker.max_length) == (3, 22)
    reranker.predict((LONG, ""))
    assert reranker.truncated == 4
    assert fastflow.Reranker(made("beyond its positions")).max_length == POSITIONS
    assert np.diff(reranker.model.pairing.pair([(LONG, LONG)]).offsets).tolist() == [22]


@pytest.mark.slow
def test_prompts_and_lower_case_of_a_saved_directory(made, tmp_path):
    path = shutil.copytree(made("saved xlm-roberta"), tmp_path / "prompted")
    prompts = {"prompts": {"question": "the dog: ", "none": ""}, "default_prompt_name": "question"}
    change_config(path, "config_sentence_transformers.json", **prompts)
    change_config(path, "sentence_bert_config.json", max_seq_length=30, do_lower_case=True)
    reranker, model = fastflow.Reranker(path), theirs(path)
    np.testing.assert_allclose(score(reranker), model.predict(PAIRS), atol=1e-5)
    for options in ({"prompt_name": "none"}, {"prompt": "a cat "}):
        np.testing.assert_allclose(reranker.predict(PAIRS, **options), model.predict(PAIRS, **options), atol=1e-5)
    assert np.abs(reranker.predict(PAIRS) - reranker.predict(PAIRS, prompt="")).max() > 1e-3


def test_vocab_txt_makes_pairs_as_bert_does(made, tmp_path):
    path = shutil.copytree(made("bert of its own tokenizer"), tmp_path / "old")
    (path / "tokenizer.json").unlink()
    (path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    np.testing.assert_array_equal(score(fastflow.Reranker(path)), score(fastflow.Reranker(made("bert"))))


def test_a_reranker_pickles_and_closes(made, tmp_path, monkeypatch):
    monkeypatch.chdir(made("bert").parent)
    with fastflow.Reranker("model", threads=1) as reranker:
        want = reranker.predict(PAIRS[:3])
        monkeypatch.chdir(tmp_path)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(reranker)).predict(PAIRS[:3]), want)
        assert repr(reranker).endswith("model, sigmoid, cpu float32>")
    with pytest.raises(FastflowError, match="this Reranker is closed"):
        reranker.predict(PAIRS[:3])
    assert repr(reranker).endswith("closed>")


def tensors(change):
    def spoil(path):
        found = load_file(path / "model.safetensors")
        change(found)
        save_file(found, path / "model.safetensors", {"format": "pt"})

    return spoil


def fields(name="config.json", **changes):
    return lambda path: change_config(path, name, **changes)


def processor(**rule):
    return lambda path: change_config(path, "tokenizer.json", post_processor=rule)


PIECES = [{"Sequence": {"id": "A", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 0}}]
ODD = {"type": "TemplateProcessing", "single": PIECES[:1], "pair": PIECES, "special_tokens": {}}
SETTINGS = "config_sentence_transformers.json"
FAULTS = [
    ("bert", fields(architectures=["BertModel"]), "field architectures: a cross-encoder is a BertForSequenceClassif"),
    ("bert", fields(architectures=None), "field architectures: a cross-encoder is a BertForSequenceClassif"),
    ("bert", fields(model_type="albert"), "architecture 'albert' is not supported"),
    ("bert", fields(problem_type="ranking"), "config.json, field problem_type: 'ranking' is unknown"),
    ("bert", fields(num_labels=2), "field id2label: must be the names of 2 labels"),
    ("bert", fields(id2label=["a"]), "field id2label: must be the names of 1 labels"),
    ("bert", fields(id2label={"0": "a", "1": "b"}), "classifier.weight of the head of a Bert must be floats of"),
    ("bert", fields(sentence_transformers={"activation_fn": "my.Sigmoid"}), "activation_fn: 'my.Sigmoid' is unknown"),
    ("bert", fields(sentence_transformers={"scale": 2}), "sentence_transformers, field 'scale': is unknown"),
    ("bert", fields(sbert_ce_default_activation_function="torch.nn.Softmax"), "'torch.nn.Softmax' is unknown; known"),
    ("bert", fields(type_vocab_size=1), "field type_vocab_size: must be at least 2, not 1"),
    ("bert", tensors(lambda found: found.pop("classifier.bias")), "tensor classifier.bias of the head of a Bert"),
    ("bert", tensors(lambda found: found.pop("bert.pooler.dense.weight")), "tensor bert.pooler.dense.weight of the"),
    ("bert", tensors(lambda found: found.update({"classifier.out_proj.weight": np.ones(3, np.float32)})),
     "tensor classifier.out_proj.weight is not of the head of a Bert"),
    ("bert", tensors(lambda found: found["classifier.bias"].fill(np.nan)), "tensor classifier.bias holds NaN"),
    ("bert", processor(**ODD), "field post_processor: a pair is not two texts of token types 0 and then 1"),
    ("bert", processor(type="Other"), "tokenizer.json cannot be read as a tokenizer"),
    ("bert", fields("tokenizer_config.json", model_input_names=None), "model_input_names: must be there, for token"),
    ("bert", fields("tokenizer_config.json", model_max_length=3), "leaves no room for two texts in 3 tokens"),
    ("bert", fields("tokenizer_config.json", truncation_side="left"), "field truncation_side: only \"right\""),
    ("modernbert", fields(classifier_pooling="max"), "field classifier_pooling: must be cls or mean, not 'max'"),
    ("modernbert", fields(classifier_activation="swish"), "field classifier_activation: 'swish' is unknown; known are"),
    ("saved", fields(SETTINGS, model_type="SentenceTransformer"), "field model_type: only CrossEncoder is supported"),
    ("saved", fields(SETTINGS, activation_fn="my.module"), "activation_fn: 'my.module' is unknown; known are Identity"),
    ("saved", fields(SETTINGS, keep=1), "field 'keep': is unknown to this version"),
    ("saved", fields(SETTINGS, default_prompt_name="q"), "default_prompt_name: 'q' is not the name of a prompt"),
    ("saved", fields("sentence_bert_config.json", transformer_task="text-generation"), "field transformer_task: only"),
    ("saved", lambda path: (path / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1", "type": "sentence_transformers.models.Pooling"}])),
     "a cross-encoder is one Transformer, not Transformer, Pooling"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fault", "sentence"), FAULTS, ids=[sentence for *_, sentence in FAULTS])
def test_a_directory_is_refused(made, tmp_path, name, fault, sentence):
    path = shutil.copytree(made(name), tmp_path / "model")
    fault(path)
    with pytest.raises(FastflowError) as caught:
        fastflow.Reranker(path)
    assert sentence in str(caught.value)


CALLS = [
    (lambda it: it.predict([("a", "b"), ("a",)]), "pair 1 is ('a',), not two texts"),
    (lambda it: it.predict(["a", 7]), "pair 0 is ['a', 7], not two texts"),
    (lambda it: it.predict("ab"), "pair 0 is 'ab', not two texts"),
    (lambda it: it.predict([("a", "\ud800")]), "half a surrogate pair"),
    (lambda it: it.rank("a", ["b", None]), "pair 1 is ('a', None), not two texts"),
    (lambda it: it.rank("a", ["b"], top_k=0), "top_k must be a whole number of at least 1, not 0"),
    (lambda it: it.predict([("a", "b")], batch_size=0), "batch_size must be a whole number"),
    (lambda it: it.predict([("a", "b")], activation_fn=abs), "activation_fn is Identity, Sigmoid, Tanh of torch.nn"),
    (lambda it: it.predict([("a", "b")], convert_to_tensor=True), "predict has no option convert_to_tensor=True"),
    (lambda it: it.predict([("a", "b")], max_len=3), "predict has no option max_len=3"),
    (lambda it: it.predict([("a", "b")], prompt_name="q"), "no prompt is called 'q'"),
    (lambda it: fastflow.Reranker(it.model.path, device="cuda"), "a Reranker runs on device cpu"),
    (lambda it: fastflow.Reranker(it.model.path, backend="torch"), "by backend cpu or reference"),
    (lambda it: fastflow.Reranker(it.model.path, dtype="int4"), "unknown dtype 'int4'"),
    (lambda it: fastflow.Reranker(it.model.path / "none"), "is not an encoder: it has no config.json"),
]


@pytest.mark.parametrize(("call", "sentence"), CALLS, ids=[sentence for _, sentence in CALLS])
def test_a_call_is_refused(made, call, sentence):
    with pytest.raises(FastflowError) as caught:
        call(fastflow.Reranker(made("bert")))
    assert sentence in str(caught.value)


def test_rank_of_several_labels_names_predict(made):
    with pytest.raises(UsageError, match="has 3 labels, and rank needs one: use predict"):
        fastflow.Reranker(made("three labels")).rank("a", ["b"])
