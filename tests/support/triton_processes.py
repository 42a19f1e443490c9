"""Running the Triton checks in processes of their own.

Triton decides at its import whether it interprets or compiles, and cannot do both in one process.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
NEEDS = pytest.mark.skipif(
    not (find_spec("triton") and find_spec("torch")), reason="needs torch and triton: pip install 'fastflow[dev]'"
)


def in_its_own_process(files, cache, *options, **variables):
    ours = ("TRITON_INTERPRET", "PYTEST_ADDOPTS")  # no workers of its own
    environment = {k: v for k, v in os.environ.items() if k not in ours and "XDIST" not in k} | variables
    environment |= {"TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--noconftest", "-p", "no:cacheprovider"]
    command.append(f"--rootdir={HERE.parent}")
    # not from the checkout, whose folders would shadow an installed package
    return subprocess.Popen(
        [*command, *options, *map(str, files)], env=environment, cwd=cache, stdout=subprocess.PIPE, text=True
    )


def passed(process):
    output, _ = process.communicate()
    assert process.returncode == 0, output[-20_000:]
    return int(re.search(r"(\d+) passed", output)[1])


def interpreted(cache, *names):
    files = [HERE / "triton_interpret" / name for name in names]
    return passed(in_its_own_process(files, cache, "-m", "", TRITON_INTERPRET="1"))


def compiled(cache, *names):
    files = [HERE / "triton_compile" / name for name in names]
    runs = [in_its_own_process(files, cache, "-k", f"{arch}]") for arch in (80, 90)]
    return [passed(run) for run in runs]
