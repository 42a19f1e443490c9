"""Training of a small encoder: a broken run ends at the weights of a whole one, and its files are an encoder."""

import json
import math
import shutil
from itertools import pairwise

import numpy as np
import pytest
import tokenizers
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from fastflow.bench.research import pretrain
from fastflow.bench.research.pretrain import Batches, Shape, main, rate
from fastflow.bench.research.pretrain_text import CLS, MASK, PAD, SEP, SPECIAL, Text, prepared, start_words
from fastflow.errors import FastflowError
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import open_encoder

OPTIONS = ["--layers", "2", "--width", "32", "--vocabulary", "200", "--tokens", "256"]
SHAPE = Shape(2, 32, 200, tokens=256)


@pytest.fixture
def corpus(tmp_path, sentences):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(f"{a} Über {b}" for a, b in pairwise(sentences)))
    return path


@pytest.fixture
def text(corpus, tmp_path):
    return prepared([str(corpus)], tmp_path, 200, False, 126)


def run(corpus, out, steps, *more):
    return CliRunner().invoke(main, [str(corpus), "--out", str(out), "--steps", str(steps), *OPTIONS, *more])


def test_rows_are_the_texts_in_pieces(text, corpus, tmp_path):
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for i, line in enumerate(corpus.read_text().splitlines()[:20]):
        assert [CLS, *text.ids[text.offsets[i] : text.offsets[i + 1]], SEP] == tokenizer.encode(line).ids
    assert "Ü" in (tmp_path / "vocab.txt").read_text().splitlines(), "a cased vocabulary keeps accents"


def test_a_long_text_has_rows_of_like_length(corpus, tmp_path):
    text = prepared([str(corpus)], tmp_path, 200, False, 10)
    sizes = np.diff(text.offsets)
    assert sizes.max() <= 10
    assert sizes.min() >= 5
    assert text.offsets[-1] == len(text.ids)


def test_a_pass_has_every_row_once_and_steps_of_the_size_asked_for(text):
    batches = Batches(text, SHAPE)
    for number in (0, 1):
        steps = batches.epoch(number)
        assert sorted(np.concatenate(steps)) == list(range(len(batches.sizes)))
        assert all(len(rows) == 1 or len(rows) * batches.sizes[rows].max() <= SHAPE.tokens for rows in steps)
    first = len(batches.epoch(0))
    assert batches.rows(first).tolist() == batches.epoch(1)[0].tolist()
    assert [rows.tolist() for rows in batches.epoch(0)] != [rows.tolist() for rows in batches.epoch(1)]


def test_masks_hide_a_share_of_the_words_and_targets_are_what_they_hide(text):
    batches = Batches(text, SHAPE)
    ids, chosen, targets = batches.masked(3)
    assert all(torch.equal(a, b) for a, b in zip(batches.masked(3), (ids, chosen, targets), strict=True))
    rows, whole = batches.rows(3), ids.clone()
    whole.view(-1)[chosen] = targets
    for line, row in zip(whole.tolist(), rows, strict=True):
        pieces = text.ids[text.offsets[row] : text.offsets[row + 1]].tolist()
        assert line == [CLS, *pieces, SEP] + [PAD] * (len(line) - len(pieces) - 2)
    assert (targets >= len(SPECIAL)).all()
    assert len(chosen) == round(0.15 * int((whole >= len(SPECIAL)).sum()))
    hidden = ids.view(-1)[chosen] == MASK
    assert 0.6 < hidden.float().mean() < 1
    assert int((ids == MASK).sum()) == int(hidden.sum())


def test_the_rate_rises_then_falls_to_nothing():
    rates = [rate(step, 1000) for step in range(1001)]
    assert rates[:150] == sorted(rates[:150])
    assert rates[200:] == sorted(rates[200:], reverse=True)
    assert rates[100] == pytest.approx(101 / 200 * pretrain.LR)
    assert rates[500] == pytest.approx(0.5 * pretrain.LR)
    assert rates[-1] == 0 < rates[0]


def test_pieces_in_one_context_start_alike():
    """Pieces 10 and 11 stand in the same places, 12 in others."""
    rng = np.random.default_rng(0)
    rows = [[20, 21, rng.choice([10, 11]), 22, 23] for _ in range(300)] + [[30, 31, 12, 32, 33]] * 300
    text = Text(np.concatenate(rows).astype(np.uint16), np.arange(0, 5 * len(rows) + 1, 5))
    words, shares = start_words(text, 40, 4, 0)
    unit = words / np.maximum(np.linalg.norm(words, axis=1, keepdims=True), 1e-9)
    assert unit[10] @ unit[11] > 0.95
    assert abs(unit[10] @ unit[12]) < 0.1
    assert np.exp(shares[20]) == pytest.approx(0.1, rel=0.02)


@pytest.mark.slow
def test_a_run_in_two_parts_ends_at_the_weights_of_a_whole_one(corpus, tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(corpus, whole, 12, "--minutes", "9").exit_code == 0
    shutil.copytree(whole, parts, ignore=shutil.ignore_patterns("checkpoint.pt"))  # one vocabulary for both
    advance = pretrain.Training.advance

    def killed(self, *rest):
        if self.step == 5:
            raise KeyboardInterrupt
        advance(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(pretrain.Training, "advance", killed)
        assert run(corpus, parts, 12, "--minutes", "0").exit_code != 0
    assert json.loads((parts / "training.json").read_text())["step"] == 5
    went_on = run(corpus, parts, 12, "--minutes", "9")
    assert "step 12 of 12" in went_on.output
    a, b = (load_file(folder / "model.safetensors") for folder in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a)
    one, two = (json.loads((folder / "training.json").read_text()) for folder in (whole, parts))
    assert (one["step"], one["tokens_a_step"]) == (12, 256)
    assert 6 * 256 < one["tokens"] < 12 * 256
    assert {k: v for k, v in one.items() if k != "seconds"} == {k: v for k, v in two.items() if k != "seconds"}


@pytest.mark.slow
def test_training_lowers_the_loss_and_the_files_are_an_encoder(tmp_path):
    words = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"]
    rows = [" ".join((words * 5)[first : first + count]) for first in range(12) for count in range(12, 40)]
    (tmp_path / "corpus.txt").write_text("\n".join(rows))
    corpus, out = tmp_path / "corpus.txt", tmp_path / "encoder"
    assert run(corpus, out, 200, "--minutes", "9").exit_code == 0
    loss = json.loads((out / "training.json").read_text())["loss"]  # of the last fifty steps or so
    assert loss < math.log(12) - 0.03, "no better than the words' frequencies"
    frozen = open_encoder(str(out), "first-last", None)
    assert Embedder(frozen, "cpu")(["Ein Text.", "Über"]).shape == (2, 32)
    assert json.loads((out / "config.json").read_text())["hidden_dropout_prob"] == 0.1


@pytest.mark.slow
def test_a_checkpoint_of_another_encoder_is_refused(corpus, tmp_path):
    assert run(corpus, tmp_path / "e", 1).exit_code == 0
    refused = run(corpus, tmp_path / "e", 2, "--layers", "3")
    assert isinstance(refused.exception, FastflowError)
    assert "is of another encoder" in str(refused.exception)
