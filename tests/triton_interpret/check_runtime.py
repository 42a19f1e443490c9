"""A whole Runtime on the triton backend: on a GPU if there is one, else on the stand-in with interpreted kernels.

The interpreter takes a second a batch, so it gets few texts; on a GPU every bucket, dtype and path takes part.
"""

import numpy as np
import pytest
import triton
from triton_interpret.dry_gpu import DryBackend

from fastflow import Runtime
from fastflow.backends import choose as encoder
from fastflow.backends.gpu import self_test
from fastflow.errors import WrongOnGpu
from fastflow.kernels.encoder import triton_bodies as of_encoder
from fastflow.kernels.flow import triton_bodies as of_flow
from fastflow.stages.vectors import compute_paired_cosine

from support.builders import make_encoder, make_model, make_sentences

INTERPRETED = triton.knobs.runtime.interpret
# tokens after a bucket's last text are computed from whatever memory held, and never read
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ON_A_GPU = pytest.mark.skipif(INTERPRETED, reason="thousands of launches: needs a GPU")
SHAPE = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_encoder(tmp_path_factory.mktemp("encoder"), "roberta", **(SHAPE if INTERPRETED else {}))


@pytest.fixture
def runtime(directory, monkeypatch):
    if INTERPRETED:
        monkeypatch.setattr("fastflow.backends.triton.TritonBackend", DryBackend)
        monkeypatch.setattr(encoder, "_has_cuda", lambda: True)
        monkeypatch.setattr(self_test, "LENGTHS", ((3,),))
        monkeypatch.setattr(self_test, "ROWS", (1,))
    return lambda dtype="float32", model=directory: Runtime(model, "cuda", dtype, backend="triton")


def test_texts_alone_and_packed_equal_the_reference(runtime, directory):
    texts = make_sentences(33 if not INTERPRETED else 3, 1)
    ours, exact = runtime(), Runtime(directory, backend="reference").encode(texts)
    together = ours.encode(texts) if not INTERPRETED else in_the_pipeline(ours, texts)
    for found, wanted in ((together, exact), (ours.encode(texts[:1]), exact[:1])):
        assert np.isfinite(found).all()
        assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()


def test_tokens_count_by_their_weights_on_every_path(runtime, directory, tmp_path):
    texts, plain = make_sentences(3, 1), Runtime(directory, backend="reference")
    model = make_model(tmp_path / "m", directory, make_sentences(64, 3), "none", pooling="last", weighted=True)
    ours, exact = runtime(model=model), Runtime(model, backend="reference").encode(texts)
    assert np.abs(exact - plain.encode(texts)).max() > 0.01 * np.abs(exact).max()
    alone, together, packed = ours.encode(texts[:1]), ours.encode(texts), in_the_pipeline(ours, texts)
    for found, wanted in ((alone, exact[:1]), (together, exact), (packed, exact), (ours.pool(texts[:1]), exact[:1])):
        assert np.isfinite(found).all()
        assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_log_densities_are_those_of_the_reference(runtime, directory, tmp_path, coupling):
    model = make_model(tmp_path / "m", directory, make_sentences(64, 3), "flow,recolour", coupling=coupling)
    reference = Runtime(model, backend="reference", dtype="float64")
    pooled, ours = reference.pool(make_sentences(3, 1)), runtime(model=model)
    exact = reference.log_prob(pooled)
    assert np.ptp(exact) > 1
    for found in (ours.log_prob(pooled), np.concatenate([ours.log_prob(row[None]) for row in pooled])):
        assert np.abs(found - exact).max() <= 1e-5 * np.abs(exact).max()


class Idle:
    """A kernel that leaves its output as it is."""

    def __init__(self, kernel):
        self.arg_names = kernel.arg_names

    def __getitem__(self, grid):
        return lambda **values: None


@pytest.mark.parametrize(
    ("bodies", "name"),
    [(of_encoder, "embed"), (of_encoder, "attend"), (of_encoder, "add_norm"), (of_encoder, "activate"),
     (of_flow, "pool_mean"), (of_flow, "flow_write"), (of_flow, "unit_rows")],
)  # fmt: skip
def test_a_body_that_computes_nothing_is_found_at_opening(runtime, monkeypatch, bodies, name):
    monkeypatch.setattr(bodies, name, Idle(getattr(bodies, name)))
    with pytest.raises(WrongOnGpu, match=r"the triton backend cannot be trusted on this GPU: .* differ from NumPy's"):
        runtime()


def in_the_pipeline(runtime, texts):
    """As if no graph were made for so few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastflow.backends.triton.bucket_for", lambda *_: None)
        return runtime.encode(texts)


@ON_A_GPU
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_bucket_and_path_on_a_gpu(runtime, directory, dtype):
    texts = [*make_sentences(400, 2), " ".join(["house"] * 60)]
    ours, exact = runtime(dtype), Runtime(directory, backend="reference").encode(texts)
    packed, limit = ours.encode(texts), 1e-3 if dtype == "float32" else 5e-2
    assert compute_paired_cosine(packed, exact).min() >= (0.999999 if dtype == "float32" else 0.9995)
    for size in (1, 2, 4, 7, 16, 32, 33):
        found = ours.encode(texts[-size:])
        for one, other in zip(found, packed[-size:], strict=True):
            assert np.linalg.norm(one - other) <= limit * np.linalg.norm(other)
        assert np.array_equal(ours.encode(texts[-size:]), found), "the same batch twice"
