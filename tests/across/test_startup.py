"""Memory and modules of a process until its first vector."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from house import entered
from safetensors.torch import load_file, save_file

from support.builders import calm, make_encoder

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
    path = make_encoder(tmp_path_factory.mktemp("middling") / "bert", **SIZES)
    calm(path, SIZES["hidden_size"])  # or int8 would be refused
    return path


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is counted as Linux counts it")
@pytest.mark.skipif(find_spec("fastflow.kernels._cpu") is None, reason="the cpu backend is not compiled here")
@pytest.mark.parametrize(
    ("dtype", "share"), [("float32", 1.0), ("bfloat16", 0.5), ("int8", 0.26)]
)  # four columns of a product are float32
def test_memory_is_that_of_the_packed_weights(middling, bert, run_python, dtype, share):
    done = run_python(MEMORY, bert, middling, dtype)
    assert (done.returncode, done.stderr) == (0, "")
    grown = json.loads(done.stdout)
    packed = share * (middling / "model.safetensors").stat().st_size
    batch = 32 * MIB  # of stored weights that may be mapped at a time
    assert grown["VmRSS"] <= packed + 14 * MIB
    assert grown["VmRSS"] >= 0.8 * packed  # the count is of the right thing
    assert grown["VmHWM"] <= packed + batch + 24 * MIB
    assert grown["RssFile"] <= 4 * MIB  # the mapped file was let go of


@pytest.mark.slow
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
    assert set(found.split()) - compiled <= {"fastflow", "numpy", "safetensors"}
    assert {"fastflow", "numpy"} <= set(found.split())
    assert set(heavy.split()) <= {"urllib"}  # pathlib's


# modules of fastflow and its kernels that a command enters, each __init__.py counted too
MOST = {"embed": 61, "embed to a file": 66, "info": 53, "search --help": 8, "--help": 6}


@pytest.mark.parametrize("what", MOST)
def test_a_command_enters_no_more_modules_than_it_did(what, model):
    arguments = {
        "embed": ("embed", "in.txt", "-m", model),
        "embed to a file": ("embed", "in.txt", "-m", model, "-o", "out.npy"),
        "search --help": ("search", "--help"),
        "info": ("info", model),
        "--help": ("--help",),
    }[what]
    modules = entered(*arguments)
    assert {"fastflow", "fastflow.cli", "fastflow.console"} <= set(modules)
    assert len(modules) <= MOST[what], modules


def test_every_command_is_there_and_has_its_name():
    from fastflow.cli import LATER, main

    with main.make_context("fastflow", [], resilient_parsing=True) as context:
        commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    assert set(commands) == set(LATER)
    assert len(commands) >= 12
    assert all(command is not None and command.name == name for name, command in commands.items())


IMPORTED = """
import sys
before = set(sys.modules)
from fastflow import Runtime
new = set(sys.modules) - before
print(sum(name.partition(".")[0] == "fastflow" for name in new))
print(*sorted({name.partition(".")[0] for name in new} - set(sys.stdlib_module_names)))
"""


def test_importing_the_runtime_loads_numpy_and_few_modules_of_ours(run_python):
    done = run_python(IMPORTED)
    assert (done.returncode, done.stderr) == (0, "")
    ours, others = done.stdout.splitlines()
    compiled = {name for name in others.split() if re.match(r"_?cython|__editable__", name)}
    assert set(others.split()) - compiled == {"fastflow", "numpy"}
    assert 10 < int(ours) <= 36, "each takes a millisecond: import what one command needs inside it"
