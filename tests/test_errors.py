"""Errors: one family, and a sentence for every extra that names the command to type."""

import re
from pathlib import Path

import pytest

import fastflow
from fastflow.errors import FastflowError, UnsupportedArchitecture, UsageError, install, missing_extra

from support.places import ROOT


def test_wrong_usage_and_unknown_encoders_are_caught_as_any_failure():
    for kind in (UsageError, UnsupportedArchitecture):
        with pytest.raises(FastflowError, match="said"):
            raise kind("said")
    assert not issubclass(UnsupportedArchitecture, UsageError), "the exit code of wrong usage is 2"


def test_a_missing_extra_is_one_sentence_with_the_command():
    error = missing_extra("train", "torch", "fitting 'flow'")
    assert type(error) is FastflowError
    assert str(error) == f"fitting 'flow' needs torch, which is not installed: run {install('train')}"


def test_the_command_installs_the_packages_of_the_extra():
    assert install("parquet") == "pip install pyarrow"
    assert install("train").startswith("pip install torch transformers ")
    assert set(install("train").split()) < set(install("bench").split()), "an extra of extras"
    assert install("ray") == "pip install 'ray[data]' pyarrow"
    assert install("nothing") == "pip install 'fastflow[nothing]'"


def test_every_extra_that_an_error_names_exists():
    declared = re.search(
        r"^\[project\.optional-dependencies\]\n(.*?)^\[", (ROOT / "pyproject.toml").read_text(), re.S | re.M
    )[1]
    extras = set(re.findall(r"^(\w+) = \[", declared, re.M))
    sources = [path.read_text() for room in ("fastflow", "train", "bench") for path in Path(ROOT / room).rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"(?:missing_extra|install)\(\s*\"(\w+)\"", text)}
    assert {"train", "bench"} <= named
    assert named <= extras


def test_a_warning_names_the_line_that_called_fastflow(model):
    rt, long = fastflow.Runtime(model), ["dog " * 200]
    for call in (rt.encode, rt.encode_query, rt.pool, lambda texts: list(rt.stream(texts))):
        rt.session.truncated = 0
        with pytest.warns(fastflow.FastflowWarning, match="longer than 64 tokens are cut") as warned:
            call(long)
        assert [each.filename for each in warned] == [__file__]
