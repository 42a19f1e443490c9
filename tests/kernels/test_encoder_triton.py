"""The Triton encoder: its table here, the kernels in the interpreter and the compiler in processes of their own."""

import subprocess
import sys

import pytest
from triton_processes import NEEDS, compiled, interpreted

from fastflow.kernels.encoder.triton import TritonEncoder
from fastflow.kernels.encoder.triton_table import ATTENTION, WIDEST, attention, power_of_two, row_constants


@NEEDS
def test_the_kernels_in_the_interpreter(tmp_path):
    assert interpreted("check_encoder.py", tmp_path) >= 40
    assert interpreted("check_runtime.py", tmp_path) >= 2, "a whole Runtime on the kernels"


@NEEDS
@pytest.mark.compile
def test_the_stored_configurations_compile(tmp_path):
    counts = compiled("check_encoder.py", tmp_path)
    assert counts[0] == counts[1] >= 50


@pytest.mark.parametrize("itemsize", ATTENTION)
def test_every_head_and_length_has_a_configuration(itemsize):
    for head in (1, 32, 64, 65, WIDEST):
        found = [attention(itemsize, head, tokens) for tokens in (1, 16, 17, 64, 65, 10**6)]
        assert all(head <= config.head for config in found)
        assert [config.BM for config in found] == sorted(config.BM for config in found)
    for config in ATTENTION[itemsize]:
        assert all(size & (size - 1) == 0 and size >= 16 for size in (config.BM, config.BN))


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 4), (768, 1024), (1024, 1024)])
def test_powers_of_two(number, power):
    assert power_of_two(number) == power
    assert row_constants(number)["BD"] == power


def test_importing_the_front_loads_neither_torch_nor_triton(tmp_path):
    code = "import sys, fastflow.kernels.encoder.triton; print(sorted({'torch', 'triton'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"


@NEEDS
def test_a_missing_gpu_is_said_in_one_sentence(monkeypatch):
    import torch
    from packed import random_encoder

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="needs an NVIDIA GPU") as caught:
        TritonEncoder(*random_encoder(1, 1, 32, 2, 32), (1,))
    assert "\n" not in str(caught.value)
