"""The server under load: ``load.py`` and ``connections.py``, for a moment."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.places import TESTS


@pytest.mark.whole
@pytest.mark.parametrize("command", ["load.py --minutes 0.5 --rate 25", "connections.py --count 600 --guesses 2000"])
def test_every_request_has_its_answer(command):
    name, *options = command.split()
    done = subprocess.run(
        [sys.executable, TESTS / "faults" / name, *options], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 faults" in done.stdout
