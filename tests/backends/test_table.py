"""The backends of a token table: they agree, have the same bits for a text always, and refuse what they cannot run."""

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import UsageError

from support.static_dirs import TEXTS, model2vec_dir, static_embedding_dir

pytestmark = pytest.mark.filterwarnings("ignore:texts longer than")
DENSE = ("Dense", {"out_features": 24, "activation_function": "torch.nn.modules.activation.GELU"})


@pytest.fixture
def headed(tmp_path):
    """A StaticEmbedding with a Dense and a Normalize after it."""
    return static_embedding_dir(tmp_path / "bag", [DENSE, ("Normalize", {})])


def test_backends_agree(tmp_path, headed, backend):
    own = model2vec_dir(tmp_path / "m", clusters=20, weights=np.float32, dtype=np.float16, normalize=True)
    for path in (own, headed):
        runtime = Runtime(path, backend=backend)
        assert runtime.backend == backend
        exact = Runtime(path, backend="reference", dtype="float64").encode(TEXTS)
        assert exact.dtype == np.float64
        np.testing.assert_allclose(runtime.encode(TEXTS), exact, atol=5e-6)


def test_backends_that_cannot_run_a_table(tmp_path):
    path = model2vec_dir(tmp_path / "m")
    with pytest.raises(UsageError, match=r"backend 'triton' runs a transformer, .* usable are cpu, torch, reference"):
        Runtime(path, backend="triton")
    with pytest.raises(UsageError, match="dtype 'int8' does not run on the cpu backend on a token table"):
        Runtime(path, dtype="int8")


def test_a_forced_instruction_set_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTFLOW_ISA", "avx1024")
    with pytest.raises(UsageError, match="FASTFLOW_ISA=avx1024 cannot run"):
        Runtime(model2vec_dir(tmp_path / "m"))


def test_info_names_the_table(tmp_path):
    info = Runtime(model2vec_dir(tmp_path / "m", dtype=np.float16, max_length=None), threads=1).info()
    assert (info["backend"], info["dtype"], info["dim"], info["max_length"]) == ("cpu", "float32", 37, None)
    assert info["pooling"] == "masked mean of word embeddings without positions"
    bag = Runtime(static_embedding_dir(tmp_path / "bag")).info()
    assert (bag["pooling"], bag["modules"]) == (info["pooling"], ["StaticEmbedding"])
    assert any("rows in float16" in line for line in info["details"])
