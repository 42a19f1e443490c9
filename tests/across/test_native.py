"""Bodies of C that are wrong fail a self-test, and products of every kind are right without Python."""

import re
import sys

import pytest

from fastflow.kernels._cpu import isas

from support.places import TESTS
from support.processes import run_limited


@pytest.mark.whole
@pytest.mark.skipif(not isas()["avx512"][1] | isas()["neon"][1], reason="the script breaks bodies of AVX-512 or NEON")
def test_a_broken_body_fails_a_self_test():
    done = run_limited([sys.executable, TESTS / "native/broken.py"], seconds=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\n0 of 1[3-9] missed", done.stdout)


@pytest.mark.whole
def test_every_product_is_near_float64():
    done = run_limited([sys.executable, TESTS / "fuzz/building.py", "plain", "products"], seconds=900)
    assert re.search(r"plain products: \d{4,} inputs", done.stdout), done.stdout + done.stderr
