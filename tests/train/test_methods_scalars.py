"""TensorBoard scalars of a run, if they are asked for."""

import sys

import pytest

from fastflow.errors import missing_extra


@pytest.mark.slow
def test_log_directory_holds_scalars(train, tmp_path):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    assert train("--log-dir", tmp_path / "logs").exit_code == 0
    (path,) = (tmp_path / "logs").iterdir()
    scalars = [(v.tag, event.step) for event in EventFileLoader(str(path)).Load() for v in event.summary.value]
    every = [(tag, step) for tag in ("bits_per_dimension", "gradient_norm") for step in (1, 2, 3, 4)]
    assert sorted(scalars) == [*every, ("separability", 0), ("separability", 4)]


@pytest.mark.slow
def test_log_directory_without_tensorboard(train, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = train("--log-dir", tmp_path / "logs")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"fastflow: {missing_extra('train', 'tensorboard', '--log-dir')}"
