"""Checkpoints of a flow: they resume bit for bit, and those that cannot be used are refused in one sentence."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file

from fastflow.errors import FastflowError, UsageError

from support.loops import CONFIG, SCHEDULE, Interruption, interrupt_at, same, train


@pytest.mark.slow
@pytest.mark.parametrize("permutation", ["reversal", "random", "lu"])
@pytest.mark.parametrize("stop", [5, 8, 14])
def test_resume_gives_the_weights_of_an_uninterrupted_run(tmp_path, stop, permutation):
    config, path = dataclasses.replace(CONFIG, permutation=permutation), tmp_path / "stage-0.safetensors"
    whole = train(config=config)
    with pytest.raises(Interruption):
        train(config=config, checkpoint=path, log=interrupt_at(stop))
    torch.manual_seed(1234)
    seen = []
    resumed = train(config=config, checkpoint=path, resume=True, log=lambda step, values: seen.append(step))
    assert seen == list(range((stop - 1) // 4 * 4 + 1, 16))  # from the last checkpoint, not from the start
    assert same(whole, resumed)


def test_resume_twice(tmp_path):
    path = tmp_path / "c.safetensors"
    for stop in (6, 11):
        with pytest.raises(Interruption):
            train(checkpoint=path, resume=True, log=interrupt_at(stop))
    assert same(train(), train(checkpoint=path, resume=True))


def test_checkpoints_come_every_so_many_steps(tmp_path):
    path = tmp_path / "new" / "c.safetensors"
    train(checkpoint=path)
    assert [p.name for p in path.parent.iterdir()] == ["c.safetensors"]
    assert {"random", "first.0", "second.0", "flow.levels.0.0.actnorm.shift"} <= set(load_file(path))
    train(dataclasses.replace(SCHEDULE, save_steps=0), checkpoint=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_without_resume_a_checkpoint_is_not_read(tmp_path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(b"rubbish")
    seen = []
    assert same(train(), train(checkpoint=path, log=lambda step, values: seen.append(step)))
    assert seen[0] == 1


def test_resume_without_a_checkpoint_starts(tmp_path):
    assert same(train(), train(checkpoint=tmp_path / "c.safetensors", resume=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"schedule": {"lr": 2e-3}}, {"schedule": {"epochs": 4.0}}, {"schedule": {"seed": 7}}, {"identity": "b"},
     {"schedule": {"init": "glorot"}}, {"schedule": {"batch_size": 25}}, {"config": {"width": 9}},
     {"config": {"coupling": "affine"}}],
)  # fmt: skip
def test_checkpoint_of_another_run_is_refused(tmp_path, change):
    path = tmp_path / "c.safetensors"
    with pytest.raises(Interruption):
        train(checkpoint=path, identity="a", log=interrupt_at(5))
    schedule = dataclasses.replace(SCHEDULE, **change.get("schedule", {}))
    config = dataclasses.replace(CONFIG, **change.get("config", {}))
    with pytest.raises(UsageError, match=r"c\.safetensors is from a run with another corpus, encoder or settings"):
        train(schedule, config, checkpoint=path, identity=change.get("identity", "a"), resume=True)
    often = dataclasses.replace(SCHEDULE, save_steps=2)  # decides nothing about the weights
    assert same(train(), train(often, checkpoint=path, identity="a", resume=True))


@pytest.mark.parametrize("content", [b"", b"rubbish rubbish rubbish", None])
def test_damaged_checkpoint(tmp_path, content):
    path = tmp_path / "c.safetensors"
    train(checkpoint=path)
    path.write_bytes(path.read_bytes()[:-10] if content is None else content)
    with pytest.raises(
        FastflowError, match=r"the checkpoint .*c\.safetensors is damaged: .*remove it or drop --resume"
    ):
        train(checkpoint=path, resume=True)


def test_checkpoint_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FastflowError, match=r"the checkpoint .* cannot be written: (Not a directory|File exists)"):
        train(checkpoint=tmp_path / "file" / "c.safetensors")
