"""Writers on a disk that fills: ``disks.py``, a few of its runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.places import TESTS


@pytest.mark.whole
def test_a_disk_that_fills_is_a_sentence_and_with_more_room_the_run_is_whole():
    done = subprocess.run(
        [sys.executable, TESTS / "faults/disks.py", "--count", "36"],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "; 0 faults" in done.stdout
