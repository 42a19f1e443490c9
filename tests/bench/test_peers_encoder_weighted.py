"""Engines of a model whose mean weighs its tokens: everybody weighs them, and who does not is found out."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.bench.measure.compare import least_cosine
from fastflow.bench.measure.timing import Effort
from fastflow.bench.peers import encoder as peers_encoder
from fastflow.bench.peers.encoder import PEERS, open_peers
from fastflow.bench.peers.pooled import reference
from fastflow.bench.suites import encoder

from support.benches import plain

pytestmark = pytest.mark.usefixtures("as_in_a_run")


ONCE = Effort(budget_s=0, min_runs=1, max_runs=1, sample_s=0, pause_s=0)


def test_peers_agree_and_who_forgets_the_weights_is_refused(weighted_subject):
    skipped: list = []
    wanted = [("torch-eager", dtype) for dtype in PEERS["torch-eager"][1]]
    engines = [*open_peers(weighted_subject, wanted, 1, skipped), plain(weighted_subject)]
    ids = np.random.default_rng(1).integers(5, len(weighted_subject.weights), (2, 9))
    how = {"limits": lambda *_: (1.0, 1.0), "skipped": skipped, "effort": ONCE}
    rows = encoder.measure_shape(weighted_subject, engines, ids, reference(weighted_subject), 1, **how)
    assert [(row.name, row.dtype) for row in rows] == wanted
    assert [entry["name"] for entry in skipped] == ["plain float32"]
    assert "plain float32 differs from PyTorch in float32: cosine 0.9" in skipped[0]["reason"]


@pytest.mark.parametrize("family", ["onnxruntime", "onnxruntime-plain", "openvino", "ctranslate2"])
def test_installed_peers_weigh_too(weighted_subject, ragged, family):
    for module in (*PEERS[family][0], *peers_encoder.MODULES.get((family, "int8"), ())):
        pytest.importorskip(module, reason="this peer is not installed", exc_type=ImportError)
    skipped: list = []
    engines = list(open_peers(weighted_subject, [(family, dtype) for dtype in PEERS[family][1]], 1, skipped))
    reasons = [entry["reason"] for entry in skipped if "bfloat16" not in entry["name"]]
    assert len(reasons) == (2 if family == "ctranslate2" and len(weighted_subject.layers) > 1 else 0)
    assert all("it gives the last layer only" in reason for reason in reasons)
    exact, forgetful = reference(weighted_subject)(*ragged), plain(weighted_subject).prepare(*ragged)()
    for engine in engines:
        z = engine.prepare(*ragged)()
        assert least_cosine(engine.name, engine.dtype, z, exact) <= 1 + 1e-6
        assert np.linalg.norm(z - exact) < 0.7 * np.linalg.norm(z - forgetful)
