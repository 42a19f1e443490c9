"""fastflow embed --ray: paths and URLs; test_refusals.py has the options that do not go together with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastflow.commands.ray import url_of


@pytest.mark.parametrize("name", ["s3://bucket/folder", "gs://b/f/g", "file:///tmp/f", "/tmp/f", "out", "a:b/c"])
def test_a_url_comes_back_from_a_path(name):
    assert url_of(Path(name)) == name
