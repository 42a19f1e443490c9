"""The Triton encoder: its table here, the kernels in the interpreter and the compiler in processes of their own."""

import subprocess
import sys

import pytest

from fastflow.kernels.encoder.triton import TritonEncoder

from support.packed import random_encoder, random_modernbert, random_mpnet
from support.triton_processes import NEEDS, compiled, interpreted


@pytest.mark.slow
@NEEDS
def test_the_kernels_in_the_interpreter(tmp_path):
    assert interpreted(tmp_path, "check_encoder.py", "check_runtime.py") >= 47, "and a whole Runtime on the kernels"


@NEEDS
@pytest.mark.whole
def test_the_weights_of_tokens_on_every_path_in_the_interpreter(tmp_path):
    assert interpreted(tmp_path, "check_runtime.py", marked="whole") >= 1


@NEEDS
@pytest.mark.compile
def test_the_stored_configurations_compile(tmp_path):
    counts = compiled("check_encoder.py", tmp_path)
    assert counts[0] == counts[1] >= 50


def test_importing_the_front_loads_neither_torch_nor_triton(tmp_path):
    code = "import sys, fastflow.kernels.encoder.triton; print(sorted({'torch', 'triton'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"


@NEEDS
def test_a_missing_gpu_is_said_in_one_sentence(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="needs an NVIDIA GPU") as caught:
        TritonEncoder(*random_encoder(1, 1, 32, 2, 32), (1,))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("made", [random_mpnet, random_modernbert])
def test_other_architectures_are_refused(made):
    weights, shape = made(1, 2, 32, 2, 32)
    with pytest.raises(ValueError, match="the Triton encoder runs BERT's family alone"):
        TritonEncoder(weights, shape, (1,), device="cpu")
