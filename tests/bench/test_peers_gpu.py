"""The peers on a GPU, run on the CPU: they weigh tokens too."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.bench.measure.compare import least_cosine
from fastflow.bench.measure.timing import cpu_watch
from fastflow.bench.peers import gpu as peers_gpu
from fastflow.bench.peers.gpu import Gpu
from fastflow.bench.peers.pooled import reference

pytestmark = pytest.mark.usefixtures("as_in_a_run")


@pytest.mark.slow
def test_the_gpus_peers_weigh_too(weighted_subject, monkeypatch):
    monkeypatch.setattr(peers_gpu, "LOWER", ("bfloat16",))
    gpu, skipped = Gpu("cpu", cpu_watch, 32, lambda function, x: lambda: function(x)), []
    ids = np.random.default_rng(2).integers(5, len(weighted_subject.weights), (2, 9))
    exact = reference(weighted_subject)(ids, np.ones_like(ids))
    for engine in peers_gpu.open_peers(weighted_subject, ["torch-eager", "torch-graph"], gpu, True, skipped):
        z = engine.prepare(ids, np.ones_like(ids))()
        assert least_cosine(engine.name, engine.dtype, z, exact) <= 1 + 1e-6
        assert engine.dtype not in ("float32", "tf32") or np.abs(z - exact).max() <= 1e-5
    assert skipped == []
