"""Keys of texts: the whole text and everything else that decides a pooled vector; and the rows that are kept."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.files.reuse.store import CHECK, KEY, check_of, decides, keys_of, packed, unpacked


@pytest.fixture(scope="module")
def runtime(model):
    return Runtime(model)


def test_a_key_is_of_the_whole_text(runtime):
    decided = decides(runtime, None)
    texts = ["", " ", "a", "A", "a ", "a" * 100_000, "a" * 99_999 + "b", "b" + "a" * 99_999, "é", "e\u0301", "\ud800"]
    keys = keys_of(texts, decided)
    assert len(set(keys)) == len(texts)
    assert {len(key) for key in keys} == {KEY}
    assert KEY >= 16
    assert keys_of(texts[::-1], decided) == keys[::-1]


def test_everything_that_decides_a_pooled_vector_is_in_the_key(runtime, model, bert, monkeypatch):
    one = decides(runtime, None)
    assert {"fingerprint", "backend", "dtype", "arithmetic", "prompt", "max_length", "fastflow"} == set(one)
    for name, value in one.items():
        assert keys_of(["a"], one) != keys_of(["a"], one | {name: f"{value}."}), name
    others = [decides(Runtime(bert), None), decides(runtime, "so "), decides(Runtime(model, backend="reference"), None)]
    others.append(decides(Runtime(model, dtype="float64", backend="reference"), None))
    monkeypatch.setattr("fastflow.files.reuse.store.__version__", "9")
    others.append(decides(runtime, None))
    assert len({keys_of(["a"], each)[0] for each in [one, *others]}) == 6


def test_the_instruction_set_is_in_the_key(model, forced_isa, monkeypatch):
    """Bits differ between them, and a file may move to another machine."""
    forced = decides(Runtime(model, backend="cpu"), None)
    assert forced["arithmetic"]
    other = "portable" if forced_isa != "portable" else "avx2"
    from conftest import usable

    usable(other)
    monkeypatch.setenv("FASTFLOW_ISA", other)
    assert keys_of(["a"], forced) != keys_of(["a"], decides(Runtime(model, backend="cpu"), None))


def test_a_prompt_is_no_part_of_the_text(runtime):
    assert keys_of(["so a"], decides(runtime, None)) != keys_of(["a"], decides(runtime, "so "))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_hold_the_bits_of_a_vector_and_whether_the_text_was_cut(dtype):
    vectors = np.random.default_rng(0).normal(size=(4, 3)).astype(dtype)
    vectors[0, 0], vectors[1, 0] = -0.0, 5e-324
    rows = packed(vectors, [1, 3])
    assert {len(row) for row in rows} == {1 + vectors[0].nbytes}
    found, cut = unpacked(rows[1:], 3, vectors.dtype)
    assert found.tobytes() == vectors[1:].tobytes()
    assert cut == 2
    assert unpacked([], 3, vectors.dtype)[0].shape == (0, 3)


def test_a_check_binds_a_row_to_its_key():
    key, row = bytes(range(KEY)), b"row"
    check = check_of(key, row)
    assert len(check) == CHECK
    assert check != check_of(key[::-1], row)
    assert check != check_of(key, b"raw")
