"""Fields that a .npz carries along: arrays of text, and ids that stay numbers where all are."""

from __future__ import annotations

import numpy as np
from outputs import META, vectors_of

from fastflow.files.npz import NpzFile, id_array, text_array
from fastflow.files.printing import Block


def test_fields_to_keep_are_arrays_of_text(tmp_path):
    vectors = vectors_of("float32", rows=3)
    values = {"title": ["a", "ü", ""], "n": [1, None, {"deep": [2]}]}
    with NpzFile(tmp_path / "x.npz", META) as writer:
        writer.begin()
        for at in range(3):
            writer.write(
                Block([at], ["t"], None, vectors[at : at + 1], None, {k: v[at : at + 1] for k, v in values.items()})
            )
        writer.finish()
    with np.load(tmp_path / "x.npz", allow_pickle=False) as found:
        assert found["title"].tolist() == ["a", "ü", ""]
        assert found["n"].tolist() == ["1", "null", '{"deep": [2]}']


def test_ids_are_numbers_where_all_are():
    assert id_array([1, -2]).dtype == np.int64
    assert id_array([1, True]).tolist() == ["1", "true"]
    assert id_array([2**63]).tolist() == [str(2**63)]
    assert text_array([]).dtype.kind == "U"
