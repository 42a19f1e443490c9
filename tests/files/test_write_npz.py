"""What a .npz carries along: arrays of text, of JSON if not all values are text, and ids that stay numbers."""

from __future__ import annotations

import zipfile

import numpy as np

from fastflow.files.write.npz import NpzFile, id_array
from fastflow.files.write.printing import Block

from support.outputs import META, vectors_of


def test_fields_to_keep_are_arrays_of_text(tmp_path):
    """A missing value is neither the text null nor an empty one."""
    values = {
        "title": ["a", "ü", "", "null"], "n": [1, None, {"deep": [2]}, 3], "may": ["null", None, "", "ü"],
    }  # fmt: skip
    with NpzFile(tmp_path / "x.npz", META) as writer:
        writer.begin()
        writer.write(Block(range(4), [""] * 4, None, vectors_of("float32", rows=4), None, values))
        writer.finish()
    with np.load(tmp_path / "x.npz", allow_pickle=False) as found:
        assert found["title"].tolist() == ["a", "ü", "", "null"]
        assert found["n"].tolist() == ["1", "null", '{"deep": [2]}', "3"]
        assert found["may"].tolist() == ['"null"', "null", '""', '"ü"']
    with zipfile.ZipFile(tmp_path / "x.npz") as bundle:  # no clock: equal runs give equal bytes
        assert {entry.date_time for entry in bundle.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_ids_are_numbers_where_all_are():
    assert id_array([1, -2]).dtype == np.int64
    assert id_array([1, True]).tolist() == ["1", "true"]
    assert id_array([7, "7", 1.5, True, None]).tolist() == ["7", "7", "1.5", "true", "null"]
    assert id_array([2**63, ["é"]]).tolist() == [str(2**63), '["é"]']
