"""Fields that a .npz carries along: arrays of text, and ids that stay numbers if all are."""

from __future__ import annotations

import json

import numpy as np

from fastflow.files.write.npz import NpzFile, id_array
from fastflow.files.write.printing import Block

from support.outputs import META, vectors_of


def test_fields_to_keep_are_arrays_of_text(tmp_path):
    """Where not all values are text, all are JSON: a missing value is neither the text null nor an empty one."""
    vectors = vectors_of("float32", rows=4)
    values = {
        "title": ["a", "ü", "", "null"], "n": [1, None, {"deep": [2]}, 3], "may": ["null", None, "", "ü"],
    }  # fmt: skip
    with NpzFile(tmp_path / "x.npz", META) as writer:
        writer.begin()
        for at in range(4):
            writer.write(
                Block([at], ["t"], None, vectors[at : at + 1], None, {k: v[at : at + 1] for k, v in values.items()})
            )
        writer.finish()
    with np.load(tmp_path / "x.npz", allow_pickle=False) as found:
        assert found["title"].tolist() == ["a", "ü", "", "null"]
        assert found["n"].tolist() == ["1", "null", '{"deep": [2]}', "3"]
        assert found["may"].tolist() == ['"null"', "null", '""', '"ü"']
        assert json.loads(str(found["meta"])) == META | {"json": ["n", "may"]}
        for name in ("n", "may"):
            assert [json.loads(value) for value in found[name]] == values[name]


def test_ids_are_numbers_where_all_are():
    assert id_array([1, -2]).dtype == np.int64
    assert id_array([1, True]).tolist() == ["1", "true"]
    assert id_array([2**63]).tolist() == [str(2**63)]
    assert id_array([None, "a"]).tolist() == ["null", "a"]
