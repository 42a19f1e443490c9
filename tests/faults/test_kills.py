"""Writers that are killed at any moment: ``kills.py``, a few of its runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.places import TESTS


@pytest.mark.whole
def test_what_is_killed_is_whole_or_absent_and_continues():
    """Each of the subjects twice."""
    done = subprocess.run(
        [sys.executable, TESTS / "faults/kills.py", "--count", "36"],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "36 runs" in done.stdout
    assert "; 0 faults" in done.stdout
