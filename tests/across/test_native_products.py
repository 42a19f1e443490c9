"""Products of every instruction set of this machine against float64: ``tests/native/products.c``, without Python."""

import shutil
import subprocess

import pytest

from support.places import ROOT


@pytest.mark.whole
def test_every_product_is_right(tmp_path):
    compiler = shutil.which("cc") or pytest.skip("this machine has no C compiler")
    sources = [str(path) for path in sorted((ROOT / "kernels/c").rglob("*.c"))]
    program = tmp_path / "products"
    flags = ["-std=c11", "-O2", "-ffp-contract=off", f"-I{ROOT / 'kernels/c'}"]
    subprocess.run(
        [compiler, *flags, str(ROOT / "tests/native/products.c"), *sources, "-pthread", "-lm", "-o", str(program)],
        check=True, timeout=300,
    )  # fmt: skip
    said = subprocess.run([str(program)], capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stdout
    assert said.stdout.count("roundings") >= 2, said.stdout
