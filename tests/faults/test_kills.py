"""Writers that are killed at any moment: ``kills.py``, a few of its runs."""

from __future__ import annotations

import sys

import pytest

from support.places import TESTS
from support.processes import run_limited


@pytest.mark.whole
def test_what_is_killed_is_whole_or_absent_and_continues():
    """Each of the subjects twice."""
    done = run_limited([sys.executable, TESTS / "faults/kills.py", "--count", "36"], seconds=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "36 runs" in done.stdout
    assert "; 0 faults" in done.stdout
