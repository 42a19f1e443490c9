"""Files that are not finished: locked while they are written, and never followed elsewhere."""

from __future__ import annotations

import json

import pytest

from fastflow.errors import FastflowError, UsageError
from fastflow.files.write.outputs import NpyFile
from fastflow.files.write.partial import State, check_known, partial_path, state_path

from support.outputs import META


def test_the_record_of_a_run_that_was_killed_after_its_last_step_is_removed(tmp_path):
    """The target had its name, and the record was still there; --resume has nothing to do."""
    target = tmp_path / "x.npy"
    target.write_bytes(b"whole")
    state_path(target).write_text("{}")
    with pytest.raises(UsageError, match=r"x\.npy is finished, and there is no x\.npy\.run\.json, which names"):
        check_known(target)
    assert list(tmp_path.iterdir()) == [target]


def test_a_partial_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("kept")
    partial_path(tmp_path / "x.npy").symlink_to(tmp_path / "precious")
    with pytest.raises(FastflowError, match=r"x\.npy\.partial cannot be written: Too many levels of symbolic links"):
        NpyFile(tmp_path / "x.npy", META)
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_link_in_the_place_of_the_temporary_name_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "out.npy.partial.json.tmp").symlink_to(precious)
    State(tmp_path / "out.npy", [1, 2], {}).save(3, 7)
    assert precious.read_text() == "kept"
    assert json.loads((tmp_path / "out.npy.partial.json").read_text())["rows"] == 3
