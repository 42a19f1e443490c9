"""The version is one, wherever it is said."""

import re
from pathlib import Path

import fastflow
from fastflow.version import __version__

ROOT = Path(__file__).parents[1]


def test_the_version_is_said_alike():
    said = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert {said[1], cited[1], fastflow.__version__} == {__version__}
    assert f"## {__version__} " in (ROOT / "CHANGELOG.md").read_text()
