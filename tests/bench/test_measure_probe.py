"""The probes of the machine measure something plausible."""

from __future__ import annotations

import pytest

from fastflow.bench.measure.probe import Probe, TorchProbe
from fastflow.kernels.isa import amx_missing


@pytest.mark.slow
@pytest.mark.parametrize("probe", [Probe, TorchProbe])
def test_probes_measure_something_plausible(probe):
    made = probe()
    assert 0.5 < made.fma_gflops(1, 0.01) < 2000
    for rate in (made.read_gbs(1, 0.25, 0.01), made.copy_gbs(1, 0.5, 0.01)):
        assert 0.1 < rate < 5000


def test_tiles_are_measured_where_this_process_has_them():
    found = Probe().tiles_gflops(1, 0.01)
    assert (set(found) == {"bfloat16", "int8"}) == (not amx_missing())
    assert all(100 < rate < 20000 for rate in found.values())
    assert TorchProbe().tiles_gflops(1, 0.01) == {}
