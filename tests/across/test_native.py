"""Programs of tests/native: bodies that are wrong fail a self-test, and products are right without Python."""

import re
import shutil
import sys

import pytest

from fastflow.kernels._cpu import isas

from support.places import ROOT, TESTS
from support.processes import run_limited


@pytest.mark.whole
@pytest.mark.skipif(not isas()["avx512"][1] | isas()["neon"][1], reason="the script breaks bodies of AVX-512 or NEON")
def test_a_broken_body_fails_a_self_test():
    done = run_limited([sys.executable, TESTS / "native/broken.py"], seconds=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\n0 of 1[3-9] missed", done.stdout)


@pytest.mark.whole
def test_every_product_is_near_float64(tmp_path):
    compiler = shutil.which("cc") or pytest.skip("this machine has no C compiler")
    sources = [str(path) for path in sorted((ROOT / "kernels/c").rglob("*.c"))]
    program = tmp_path / "products"
    flags = ["-std=c11", "-O2", "-ffp-contract=off", f"-I{ROOT / 'kernels/c'}"]
    command = [compiler, *flags, str(ROOT / "tests/native/products.c"), *sources, "-pthread", "-lm", "-o", str(program)]
    assert run_limited(command, seconds=300).returncode == 0
    said = run_limited([str(program)], seconds=300)
    assert said.returncode == 0, said.stdout
    assert said.stdout.count("roundings") >= 2, said.stdout
