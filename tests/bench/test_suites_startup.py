"""Processes that are started to be timed."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.bench.suites import startup
from fastflow.errors import FastflowError

pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")


def test_a_process_that_fails_says_why():
    import sys

    with pytest.raises(FastflowError, match=r"peer int8 failed: ValueError: no such file"):
        startup.start("peer", "int8", [sys.executable, "-c", "raise ValueError('no such file')"], np.ones((1, 2)))
