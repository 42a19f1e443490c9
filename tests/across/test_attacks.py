"""A few rounds of the attacks on processes: ``tests/fuzz/run.py NAME --rounds N`` runs more."""

import sys

import pytest

from support.places import TESTS
from support.processes import run_limited


def attack(name, rounds):
    command = [sys.executable, TESTS / "fuzz/run.py", name, "--rounds", rounds, "--seed", 1, "--seconds", 1800]
    done = run_limited(command, seconds=900)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: {rounds} rounds" in done.stdout
    assert "; 0 faults" in done.stdout


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "rounds"),
    [("writers", 8), ("forks", 20), ("kills", 36), ("disks", 36), ("server", 2)],
)
def test_no_fault_is_found(name, rounds):
    attack(name, rounds)
