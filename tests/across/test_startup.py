"""What a process takes to its first vector: memory at the peak and afterwards, modules, and the time to import them.

Times are compared with NumPy's in the same process, because the machines that run this are never the same.
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from builders import make_encoder
from places import USERS
from safetensors.torch import load_file, save_file

from fastflow.errors import FastflowError
from fastflow.model.artifact import Opening, load_model
from fastflow.model.hashing import Hashes, encoder_hash, file_hash

MIB = 2**20
SIZES = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, "num_hidden_layers": 8}

MEMORY = """
import json, sys
import fastflow
def memory():
    lines = [line.split() for line in open("/proc/self/status")]
    return {line[0][:-1]: int(line[1]) * 1024 for line in lines if line[0] in ("VmHWM:", "VmRSS:", "RssFile:")}
small = fastflow.Runtime(sys.argv[1], "cpu", sys.argv[3], 2)  # everything is imported, the threads are there
small.encode("the dog")
before = memory()
runtime = fastflow.Runtime(sys.argv[2], "cpu", sys.argv[3], 2)
runtime.encode("the dog")
after = memory()
print(json.dumps({name: after[name] - before[name] for name in after}))
"""


@pytest.fixture(scope="module")
def middling(tmp_path_factory) -> Path:
    """A random BERT whose weights dwarf an interpreter's own memory: 101 MB."""
    return make_encoder(tmp_path_factory.mktemp("middling") / "bert", **SIZES)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is counted as Linux counts it")
@pytest.mark.skipif(find_spec("fastflow.kernels._cpu") is None, reason="the cpu backend is not compiled here")
@pytest.mark.parametrize(("dtype", "share"), [("float32", 1.0), ("bfloat16", 0.5), ("int8", 0.25)])
def test_memory_is_that_of_the_packed_weights(middling, bert, run_python, dtype, share):
    done = run_python(MEMORY, bert, middling, dtype)
    assert (done.returncode, done.stderr) == (0, "")
    grown = json.loads(done.stdout)
    packed = share * (middling / "model.safetensors").stat().st_size
    batch = 32 * MIB  # of stored weights that may be mapped at a time
    assert grown["VmRSS"] <= packed + 12 * MIB
    assert grown["VmRSS"] >= 0.8 * packed  # the count is of the right thing
    assert grown["VmHWM"] <= packed + batch + 24 * MIB
    assert grown["RssFile"] <= 4 * MIB  # the mapped file was let go of


@pytest.mark.skipif(find_spec("fastflow.kernels._cpu") is None, reason="the cpu backend is not compiled here")
@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_half_the_bytes_in_the_file_are_half_the_bytes_read(middling, tmp_path, bert, run_python, stored):
    import torch

    (tmp_path / "half").mkdir()
    for path in middling.iterdir():
        (tmp_path / "half" / path.name).write_bytes(path.read_bytes())
    tensors = load_file(middling / "model.safetensors")
    half = {name: tensor.to(getattr(torch, stored)) for name, tensor in tensors.items()}
    save_file(half, tmp_path / "half" / "model.safetensors")
    done = run_python(MEMORY, bert, tmp_path / "half", "bfloat16")
    assert (done.returncode, done.stderr) == (0, "")
    packed = 0.5 * (middling / "model.safetensors").stat().st_size
    assert json.loads(done.stdout)["VmHWM"] <= packed + 32 * MIB + 24 * MIB


MODULES = """
import sys
before = set(sys.modules)
import fastflow
fastflow.Runtime(sys.argv[1], "cpu").encode("the dog")
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(roots - set(sys.stdlib_module_names)))
print(*sorted({"asyncio", "concurrent", "multiprocessing", "http", "urllib", "sqlite3", "xml", "unittest"} & roots))
"""


def test_a_first_vector_imports_the_dependencies_alone(model, run_python):
    done = run_python(MODULES, model)
    assert (done.returncode, done.stderr) == (0, "")
    found, heavy = done.stdout.split("\n")[:2]
    compiled = {name for name in found.split() if re.match(r"_?cython|__editable__", name)}
    assert set(found.split()) - compiled <= {"fastflow", "numpy", "tokenizers", "safetensors"}
    assert {"fastflow", "numpy", "tokenizers"} <= set(found.split())
    assert set(heavy.split()) <= {"urllib"}  # pathlib's


def self_times(text: str) -> dict[str, int]:
    """{package: microseconds that its modules took without what they import}."""
    out: dict[str, int] = {}
    for line in re.finditer(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", text, re.M):
        root = line[2].partition(".")[0]
        out[root] = out.get(root, 0) + int(line[1])
    return out


def test_import_takes_little_beside_numpy(run_python):
    taken = []
    for _ in range(3):
        done = run_python("from fastflow import Runtime", env=USERS | {"PYTHONPROFILEIMPORTTIME": "1"})
        assert done.returncode == 0
        taken.append(self_times(done.stderr))
    own, numpy = (min(times[name] for times in taken) for name in ("fastflow", "numpy"))
    assert own > 0
    assert own <= 1.5 * numpy  # a third of it on a quiet machine
    assert "torch" not in taken[0]
    assert "transformers" not in taken[0]


def test_a_plain_encoder_is_identified_when_the_opening_ends(bert):
    with Opening(bert) as opening:
        assert opening.model.fingerprint == ""
    assert opening.model.fingerprint == encoder_hash(bert) == load_model(bert).fingerprint


def test_a_damaged_file_is_reported_before_what_it_led_to(model_copy):
    weights = model_copy / "0_Transformer" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    message = r"model\.safetensors is damaged: its sha256 differs"
    with pytest.raises(FastflowError, match=message), Opening(model_copy):
        pass
    with pytest.raises(FastflowError, match=message), Opening(model_copy):
        raise FastflowError("something that the damage led to")
    with pytest.raises(KeyboardInterrupt), Opening(model_copy):
        raise KeyboardInterrupt


def test_a_file_that_cannot_be_read_is_named_where_its_hash_is_asked_for(tmp_path):
    hashes = Hashes()
    (tmp_path / "there").write_bytes(b"abc")
    hashes.start([tmp_path / "absent", tmp_path / "there"])
    assert hashes(tmp_path / "there") == file_hash(tmp_path / "there")
    with pytest.raises(FastflowError, match="absent cannot be read: No such file"):
        hashes(tmp_path / "absent")
