"""The self-test of a GPU on a stand-in: right bodies open; of a wrong one ``auto`` steps down, and a name refuses."""

import numpy as np
import pytest

import fastflow
from fastflow import Runtime
from fastflow.backends import choose
from fastflow.backends.gpu import self_test
from fastflow.errors import WrongOnGpu
from fastflow.model.artifact import open_model
from fastflow.model.encoder import CPU_ONLY

from support.builders import FAMILIES, make_encoder, make_model
from support.gpu_standin import Plans, TorchBodies, use_standin
from support.sentence_dirs import NORMALIZE, dense, make_directory, pooling
from support.static_dirs import model2vec_dir
from support.triton_processes import NEEDS

pytestmark = NEEDS


@pytest.fixture
def tested(monkeypatch):
    """A stand-in whose backends are tried at opening, as on a GPU that the system shows."""
    monkeypatch.setattr(choose, "_sees_gpu", lambda: True)
    return use_standin(monkeypatch, self_test=True)


def opens(model, **options):
    """The Runtime, whose opening gave no warning and no step down."""
    runtime = Runtime(model, **options)
    assert not [note for note in runtime.info()["notes"] if "stepped down" in note]
    return runtime


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in CPU_ONLY])
def test_right_bodies_open(tested, encoders, family):
    assert opens(encoders(family)).backend == "triton"
    captured = [entry for entry in tested.log if entry[0] == "capture"]
    assert len(captured) == 4, "one text and several, pooled and calibrated"
    assert max(entry[2] for entry in tested.log if entry[0] == "run") == sum(self_test.LENGTHS[-1]) * self_test.COPIES


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("how", ["cls", "pooler", "mean-of-layers:2", "words"])
def test_right_bodies_of_other_poolings_open(tested, bert, sentences, tmp_path, how, dtype):
    model = make_model(tmp_path, bert, sentences[:64], "none", pooling=how)
    assert opens(model, dtype=dtype).backend == "triton"


def test_modules_after_the_pooling_and_a_short_limit_open(tested, bert, tmp_path):
    path = make_directory(tmp_path / "m", bert, [pooling("mean"), dense(12), NORMALIZE], length=6)
    assert opens(path).encode(["a dog"]).shape == (1, 12)


def halve(real):
    def halved(self, *given, **named):
        found = real(self, *given, **named)
        return tuple(part / 2 for part in found) if isinstance(found, tuple) else found / 2

    return halved


def leave(real):
    return lambda self, **named: None


def spoil(real):
    def spoilt(self, y_ptr, **named):
        real(self, y_ptr=y_ptr, **named)
        y_ptr[..., 0] += 1 + y_ptr.abs().max() / 4  # one column of many

    return spoilt


def fail(real):
    def failing(self, *given, **named):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ...")

    return failing


WRONG = [
    (TorchBodies, "_embed_body", spoil, "pooled vectors, 1 at once, differ from NumPy's by "),
    (TorchBodies, "_add_norm_body", spoil, "pooled vectors, 1 at once, differ"),
    (TorchBodies, "_activate_body", leave, "pooled vectors, 1 at once, differ"),
    (TorchBodies, "_attend_body", spoil, "pooled vectors, 1 at once, differ"),
    (TorchBodies, "_attend_body", fail, "RuntimeError: CUDA error: an illegal memory access was encountered"),
    (Plans, "pool", halve, "pooled vectors, 1 at once, differ"),
    (Plans, "__call__", halve, "embeddings, 1 at once, differ"),
    (Plans, "__call__", fail, "RuntimeError: CUDA error"),
]


@pytest.mark.parametrize(("kind", "body", "harm", "said"), WRONG, ids=lambda value: getattr(value, "__name__", None))
def test_of_a_wrong_body_auto_steps_down_and_a_name_refuses(tested, model, monkeypatch, kind, body, harm, said):
    monkeypatch.setattr(kind, body, harm(getattr(kind, body)))
    with pytest.warns(fastflow.FastflowWarning) as warned:
        runtime = Runtime(model)
    (note,) = [note for note in runtime.info()["notes"] if note.startswith("stepped down from the triton backend: ")]
    assert [str(warning.message) for warning in warned] == [note]
    assert said in note
    assert "\n" not in note
    assert runtime.backend == "cpu"
    assert np.array_equal(runtime.encode("a dog"), Runtime(model, device="cpu").encode("a dog"))
    for named in ({"device": "cuda"}, {"backend": "triton"}):
        with pytest.raises(WrongOnGpu, match="use device='cpu'") as caught:
            Runtime(model, **named)
        assert said in str(caught.value)


def test_the_body_for_a_text_s_first_token_is_tried(tested, bert, sentences, tmp_path, monkeypatch):
    monkeypatch.setattr(TorchBodies, "_pool_first_body", spoil(TorchBodies._pool_first_body))
    model = make_model(tmp_path, bert, sentences[:64], "none", pooling="cls")
    with pytest.raises(WrongOnGpu, match="pooled vectors"):
        Runtime(model, device="cuda")


def test_the_body_for_many_tokens_is_tried(tested, sentences, tmp_path, monkeypatch):
    encoder = make_encoder(tmp_path / "encoder", "bert", hidden_size=64, num_attention_heads=4)
    model = make_model(tmp_path / "model", encoder, sentences[:64], "none")
    assert opens(model, dtype="bfloat16").backend == "triton"
    monkeypatch.setattr(TorchBodies, "_multiply_activate_body", spoil(TorchBodies._multiply_activate_body))
    with pytest.raises(WrongOnGpu, match=f"pooled vectors, {self_test.COPIES * len(self_test.LENGTHS[-1])} at once"):
        Runtime(model, device="cuda", dtype="bfloat16")


@pytest.mark.parametrize("count", [1, 2, 1025])
def test_a_fault_of_one_size_of_batch_is_found(tested, model, monkeypatch, count):
    real = Plans.__call__

    def wrong(self, x, *given, **named):
        z = real(self, x, *given, **named)
        return -z if len(z) == count else z

    monkeypatch.setattr(Plans, "__call__", wrong)
    with pytest.raises(WrongOnGpu, match=r"differ from NumPy's by [12](\.\d+)?, relative"):
        Runtime(model, device="cuda")


def test_pytorch_is_tried_too(vector_model, model, encoders, tmp_path, monkeypatch):
    """What has no Triton kernels: vectors, a table, and an architecture that only PyTorch runs; here on the CPU."""
    table, other = model2vec_dir(tmp_path / "table"), make_encoder(tmp_path / "other", "longformer")
    kinds = [(open_model(path), choose.open_backend) for path in (model, table, other)]
    kinds.append((open_model(vector_model), choose.open_calibrator))
    opened = [(opener(found, "torch", "cpu", "auto", None), found) for found, opener in kinds]
    for pair in opened:
        self_test.self_test(*pair)
    for runs, found in opened:
        real = runs.calibrate
        monkeypatch.setattr(runs, "calibrate", lambda *given, real=real: -real(*given))
        with pytest.raises(WrongOnGpu, match=r"the torch backend cannot be trusted on this GPU: .* by 2, relative"):
            self_test.self_test(runs, found)


def test_what_is_named_for_a_gpu_is_tried(vector_model, model, tmp_path, monkeypatch):
    class Opened:
        name, device, notes, details = "torch", "cuda", [], []

    tried = []
    monkeypatch.setattr(choose.BackendClass, "load", lambda self: lambda *given: Opened())
    monkeypatch.setattr(choose, "cannot_run", lambda name, device: None)
    monkeypatch.setattr(self_test, "self_test", lambda opened, model: tried.append(type(model).__name__))
    for path in (model, model2vec_dir(tmp_path / "table")):
        choose.open_backend(open_model(path), "torch", "cuda", "auto", None)
    choose.open_calibrator(open_model(vector_model), "auto", "cuda", "auto", None)
    assert tried == ["Model", "Model", "VectorModel"]
    Opened.device = "cpu"
    choose.open_backend(open_model(model), "torch", "cpu", "auto", None)
    assert len(tried) == 3
