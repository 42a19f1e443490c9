"""The attack scripts, a few cases each; run them whole as their docstrings say."""

from __future__ import annotations

import sys

import pytest

from support.places import TESTS
from support.processes import run_limited

ATTACKS = TESTS / "attacks"


@pytest.mark.whole
@pytest.mark.parametrize(
    "command",
    [
        "writers.py --rounds 8 --seed 1",
        "memory.py --rounds 14 --seed 1",
        "forks.py --rounds 20 --seed 1",
        "inputs.py --count 100 --seed 1",
        "outputs.py --count 160 --seed 1",
        "models.py --count 40 --seed 1",
        "tokens.py --lines 20000 --seed 1 .",
    ],
)
def test_no_fault_is_found(command):
    name, *options = command.split()
    done = run_limited([sys.executable, ATTACKS / name, *options], seconds=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 faults" in done.stdout
