"""The body of fastflow-train: where checkpoints lie, what is left after an interruption, and what stands where."""

from __future__ import annotations

import pytest

from fastflow.train.run import checkpoints_of

FLOW = ("--epochs", "2", "--batch-size", "32", "--levels", "1", "--depth", "1", "--width", "4")


def test_checkpoints_lie_beside_the_model_under_its_whole_name(tmp_path):
    assert checkpoints_of(tmp_path / "m.v2") == tmp_path / "m.v2.training"


@pytest.mark.slow
def test_checkpoints_go_when_the_model_is_whole(train, tmp_path):
    done = train(*FLOW, "--save-steps", "2", "--stop", "budget")
    assert done.exit_code == 0, done.stderr
    assert not checkpoints_of(tmp_path / "m").exists()
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"{tmp_path / 'm'}: flow(1x1, width 4, additive, reversal) -> recolour(spectrum 0.5, ")


def test_an_interruption_says_how_to_continue(train, tmp_path, monkeypatch):
    def stopped(*unused, **options):
        checkpoints_of(tmp_path / "m").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr("fastflow.train.run.calibrate", stopped)
    done = train(*FLOW)
    assert done.exit_code == 130
    said = f"checkpoints of the flow are in {checkpoints_of(tmp_path / 'm')}; the same command with --resume continues"
    assert said in done.stderr


@pytest.mark.slow
def test_figures_go_to_standard_output_and_reasons_to_standard_error(train):
    done = train("--method", "auto", "--token-weights", "none")
    assert done.exit_code == 0, done.stderr
    assert "IsoScore" in done.stdout
    assert "IsoScore" not in done.stderr.replace("IsoScore, which", "")
    assert "fingerprint" not in done.stdout


@pytest.mark.parametrize("option", ["--dry-run"])
def test_a_dry_run_says_what_it_would_do(train, tmp_path, option):
    done = train("--method", "standardize", option)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1] == f"dry run: would fit standardize and write {tmp_path / 'm'}"
    assert not (tmp_path / "m").exists()
