"""Products of every instruction set of this machine against float64: ``tests/native/products.c``, without Python."""

import shutil

import pytest

from support.places import ROOT
from support.processes import run_limited


@pytest.mark.whole
def test_every_product_is_right(tmp_path):
    compiler = shutil.which("cc") or pytest.skip("this machine has no C compiler")
    sources = [str(path) for path in sorted((ROOT / "kernels/c").rglob("*.c"))]
    program = tmp_path / "products"
    flags = ["-std=c11", "-O2", "-ffp-contract=off", f"-I{ROOT / 'kernels/c'}"]
    command = [compiler, *flags, str(ROOT / "tests/native/products.c"), *sources, "-pthread", "-lm", "-o", str(program)]
    assert run_limited(command, seconds=300).returncode == 0
    said = run_limited([str(program)], seconds=300)
    assert said.returncode == 0, said.stdout
    assert said.stdout.count("roundings") >= 2, said.stdout
