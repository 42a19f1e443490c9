"""The types that a checker of a caller sees."""

import inspect
import subprocess
import typing

import pytest

import fastflow
from fastflow import types
from fastflow.train.arguments import COMMAND_ONLY
from fastflow.train.options import DEFAULTS, TrainOptions

from support.places import TESTS

CALLER = """
import fastflow

rt = fastflow.Runtime()
reveal_type(rt.encode("a"))
reveal_type(rt.encode(["a"]))
reveal_type(rt.encode(["a"], precision="int8"))
reveal_type(rt.encode(["a"], normalize_embeddings=True))
reveal_type(rt.encode_query("a"))
reveal_type(rt.encode_document(["a"], truncate_dim=3))
reveal_type(rt.similarity("a", "b"))
reveal_type(rt.info()["max_length"])
with fastflow.Index("x.db", rt) as index:
    reveal_type(index.search("a"))
rt.encode(["a"], precision="int4")
fastflow.Runtime(device="gpu")
fastflow.Runtime(dtype="half")
fastflow.Runtime(backend="numpy")
rt.encode(["a"], convert_to_tensor=True)
"""
FLOATS = "numpy.ndarray[tuple[int], numpy.dtype[numpy.floating[numpy._typing"
FLOATS_2 = "numpy.ndarray[tuple[int, int], numpy.dtype[numpy.floating[numpy._typing"
VECTOR = "numpy.ndarray[tuple[int], numpy.dtype[numpy.number"
MATRIX = "numpy.ndarray[tuple[int, int], numpy.dtype[numpy.number"
COSINES = "numpy.ndarray[tuple[int, int], numpy.dtype[numpy.floating"
SEEN = [FLOATS, FLOATS_2, MATRIX, FLOATS_2, VECTOR, MATRIX, COSINES, "int | None", "list[tuple[int, float"]


def names_of(function: object, *without: str) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self", *without}


def test_typed_options_are_those_of_the_calls():
    given = ("inputs", "sentences", "prompt", "prompt_name", "foreign")
    assert set(types.EncodeOptions.__annotations__) == names_of(fastflow.Runtime.encode, *given)
    assert set(types.Info.__annotations__) == set(fastflow.Runtime().info())


def test_fit_has_every_option_of_the_command_with_its_default():
    named = {name: p.default for name, p in inspect.signature(fastflow.fit).parameters.items()}
    by_name = set(types.FitOptions.__annotations__)
    options = {name for name in TrainOptions.__dataclass_fields__ if name not in COMMAND_ONLY}
    assert by_name | (options & set(named)) == options, "give FitOptions the new option too (fastflow/types.py)"
    assert not by_name & set(named)
    assert {name: named[name] for name in options - by_name} == {n: getattr(DEFAULTS, n) for n in options - by_name}


def test_no_public_call_returns_any():
    for kind in (fastflow.Runtime, fastflow.Index, fastflow.Fit):
        for name, value in inspect.getmembers(kind):
            function = value.fget if isinstance(value, property) else value
            if not name.startswith("_") and inspect.isfunction(function):
                assert "Any" not in str(function.__annotations__.get("return")), f"{kind.__name__}.{name}"


@pytest.mark.whole
def test_a_checker_sees_vectors_and_matrices(tmp_path):
    caller = tmp_path / "caller.py"
    caller.write_text(CALLER)
    done = subprocess.run([TESTS / "typed.sh", caller], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if "caller.py:" in line]
    revealed = [line.partition('is "')[2] for line in lines if "Revealed" in line]
    assert [text[: len(start)] for text, start in zip(revealed, SEEN, strict=True)] == SEEN, done.stdout
    wrong = {line.partition(":")[2].partition(":")[0] for line in lines if " error: " in line}
    last = CALLER.count("\n")
    assert wrong == {str(last - at) for at in range(5)}, "the last lines alone"


def test_hints_can_be_read_at_run_time():
    assert typing.get_type_hints(types.Info)["dim"] is int
