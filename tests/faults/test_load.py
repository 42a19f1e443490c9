"""The server under load: ``load.py`` and ``connections.py``, for a moment."""

from __future__ import annotations

import sys

import pytest

from support.places import TESTS
from support.processes import run_limited


@pytest.mark.whole
@pytest.mark.parametrize("command", ["load.py --minutes 0.5 --rate 25", "connections.py --count 600 --guesses 2000"])
def test_every_request_has_its_answer(command):
    name, *options = command.split()
    done = run_limited([sys.executable, TESTS / "faults" / name, *options], seconds=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 faults" in done.stdout
