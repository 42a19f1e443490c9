"""Small files that are replaced whole."""

from __future__ import annotations

import os
import stat

import pytest

from fastflow.atomic import replace_text


def test_the_content_is_replaced(tmp_path):
    path = tmp_path / "a.json"
    for text in ("one", "zwei ü", ""):
        replace_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_in_the_place_of_the_temporary_name_is_removed(tmp_path, exists):
    target = tmp_path / "precious"
    if exists:
        target.write_text("kept")
    (tmp_path / "a.json.tmp").symlink_to(target)
    replace_text(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "new"
    assert target.exists() == exists
    assert not exists or target.read_text() == "kept"


def test_what_a_killed_run_left_is_no_hindrance(tmp_path):
    (tmp_path / "a.json.tmp").write_text("half")
    replace_text(tmp_path / "a.json", "new")
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_text(tmp_path / "a", "new")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_the_mode(tmp_path):
    before = os.umask(0o022)
    try:
        replace_text(tmp_path / "a", "")
        replace_text(tmp_path / "b", "", 0o600)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"] == [0o644, 0o600]
