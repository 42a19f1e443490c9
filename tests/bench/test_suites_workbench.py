"""The models under test: each made once, gone afterwards, and refused where no peer could pool it."""

import pytest
from benches import SMALL
from builders import make_model

from fastflow.bench.suites.workbench import Workbench, workbench
from fastflow.errors import FastflowError
from fastflow.model.hashing import encoder_hash


def test_a_subject_is_made_once_and_its_files_go():
    with workbench(None, SMALL) as bench:
        base = bench.base()
        assert bench.base() is base
        assert (base.label, base.depth) == ("BERT, random weights: 3 layers, 128 wide", 3)
        assert base.folder.is_dir()
        assert bench.named().model is None
        assert bench.named().folder != base.folder
        folder = bench.folder
    assert not folder.exists()


def test_random_weights_are_the_same_in_every_run():
    hashes = set()
    for _ in range(2):
        with workbench(None, SMALL) as bench:
            hashes.add(encoder_hash(bench.base().encoder))
    assert len(hashes) == 1


def test_only_the_mean_is_known(tmp_path, bert, sentences):
    made = make_model(tmp_path / "m", bert, sentences[:64], "none", pooling="cls")
    with pytest.raises(FastflowError, match="bench: the model given pools by cls; only the mean is known here"):
        Workbench(tmp_path, str(made)).named()
