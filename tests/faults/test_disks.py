"""Writers on a disk that fills: ``disks.py``, a few of its runs."""

from __future__ import annotations

import sys

import pytest

from support.places import TESTS
from support.processes import run_limited


@pytest.mark.whole
def test_a_disk_that_fills_is_a_sentence_and_with_more_room_the_run_is_whole():
    done = run_limited([sys.executable, TESTS / "faults/disks.py", "--count", "36"], seconds=900)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "; 0 faults" in done.stdout
