"""Bodies that are really wrong, and whether the self-tests find them: ``tests/native/broken.py``."""

import sys

import pytest

from fastflow.kernels._cpu import isas

from support.places import TESTS
from support.processes import run_limited


@pytest.mark.whole
@pytest.mark.skipif(not isas()["amx"][1], reason="the script breaks bodies of AMX and AVX-512")
def test_a_broken_body_fails_a_self_test():
    done = run_limited([sys.executable, TESTS / "native/broken.py"], seconds=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n0 of 15 missed" in done.stdout
