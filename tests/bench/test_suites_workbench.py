"""The models under test: each made once, gone afterwards, and refused if no peer could pool it."""

import pytest

from fastflow.bench.suites import workbench as benches
from fastflow.bench.suites.workbench import SHAPES, Workbench, workbench
from fastflow.errors import FastflowError
from fastflow.model.hashing import encoder_hash

from support.benches import SMALL
from support.builders import make_model
from support.sentence_dirs import NORMALIZE, dense, make_directory, pooling


def test_a_subject_is_made_once_and_its_files_go():
    with workbench(None, SMALL) as bench:
        base = bench.base()
        assert bench.base() is base
        assert (base.label, base.depth) == ("a BERT, random weights: 3 layers, 128 wide", 3)
        assert base.folder.is_dir()
        assert bench.named().model is None
        assert bench.named().folder != base.folder
        folder = bench.folder
    assert not folder.exists()


@pytest.mark.slow
def test_random_weights_are_the_same_in_every_run():
    hashes = set()
    for _ in range(2):
        with workbench(None, SMALL) as bench:
            hashes.add(encoder_hash(bench.base().encoder))
    assert len(hashes) == 1


def test_a_subject_knows_how_its_model_pools(tmp_path, bert, sentences):
    made = make_model(tmp_path / "m", bert, sentences[:64], "none", pooling="cls")
    subject = Workbench(tmp_path, str(made)).named()
    assert (subject.mode, subject.layers, subject.saved, subject.prompt) == ("cls", (3,), None, "")


def test_a_directory_of_sentence_transformers_brings_its_modules_and_its_prompt(tmp_path, bert):
    prompts = {"prompts": {"query": "find: "}, "default_prompt_name": "query"}
    made = make_directory(tmp_path / "st", bert, [pooling("cls"), dense(8), NORMALIZE], **prompts)
    subject = Workbench(tmp_path, str(made)).named()
    assert (subject.saved, subject.prompt, subject.encoder) == (made, "find: ", made)
    apart = make_directory(tmp_path / "apart", bert, [pooling("mean", include_prompt=False)], **prompts)
    (folder := tmp_path / "of-apart").mkdir()
    with pytest.raises(FastflowError, match="bench: the model given leaves its default prompt out of the pooling"):
        Workbench(folder, str(apart)).named()


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_takes_the_place_of_bert_base(tmp_path, monkeypatch, name):
    made = {}
    monkeypatch.setattr(benches, "make_base", lambda directory, bert: made.update(bert) or stop())
    with pytest.raises(InterruptedError):
        Workbench(tmp_path, None, SMALL, name).base()
    assert made == SHAPES[name]


@pytest.mark.parametrize(
    ("shape", "name"), [("minilm-l6", "MiniLM-L6"), ("minilm-l12", "MiniLM-L12"), ("bert-base", "BERT-base")]
)
def test_a_shape_is_not_called_by_the_model_whose_weights_it_lacks(tmp_path, monkeypatch, shape, name):
    monkeypatch.setitem(SHAPES, shape, SMALL)  # made sooner
    assert Workbench(tmp_path, None, None, shape).base().label == f"shape of {name}, random weights: 3 layers, 128 wide"
    assert benches.NAMES.keys() == SHAPES.keys()


def stop():
    raise InterruptedError


def test_end_to_end_runs_what_was_asked_for(tmp_path, bert, monkeypatch):
    monkeypatch.setattr(Workbench, "base", lambda self: "base")
    monkeypatch.setattr(Workbench, "named", lambda self: "named")
    assert Workbench(tmp_path, None).subjects() == ["named", "base"]
    assert Workbench(tmp_path, str(bert)).subjects() == ["named"]
    assert Workbench(tmp_path, None, None, "minilm-l6").subjects() == ["base"]
