"""Small rooms of the package: values of files that others wrote, errors, files that are replaced whole, the version."""

import errno
import os
import re
import stat

import pytest

import fastflow
from fastflow.atomic import replace_text
from fastflow.errors import FastflowError, UnsupportedArchitecture, UsageError, install, missing_extra
from fastflow.values import (
    MOST,
    flag,
    is_whole,
    number,
    open_regular,
    panics,
    read_config,
    read_json,
    read_object,
    reason,
    short,
    system_errors,
    whole_number,
)
from fastflow.version import __version__

from support.places import ROOT


def test_an_object_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"a": [1, "\\u00e4"]}')
    assert read_object(tmp_path / "a.json") == {"a": [1, "ä"]}
    assert read_json(tmp_path / "a.json", 20) == {"a": [1, "ä"]}
    with pytest.raises(FastflowError, match=r"a\.json cannot be read: it has more than 0 MB"):
        read_json(tmp_path / "a.json", 19)
    with open_regular(tmp_path / "a.json") as handle:
        assert handle.read(3) == b'{"a'


def test_only_whole_numbers_within_bounds_are_numbers_of_things():
    assert [v for v in (True, 4.0, "4", None, [4], 0, MOST + 1, -4) if is_whole(v, 1)] == []
    assert is_whole(1, 1)
    assert is_whole(MOST, 1)
    assert is_whole(3, 3, 3)


def test_values_and_reasons_stay_on_one_short_line():
    assert short("a\nb") == "'a\\nb'"
    assert len(short("x" * 1000)) == 80
    assert reason(ValueError("a\n  b\tc")) == "a b c"
    assert len(reason(ValueError("x" * 1000))) == 300
    assert reason(ValueError()) == "ValueError"


def test_a_panic_is_an_error_that_can_be_caught_and_the_rest_passes():
    PanicException = type("PanicException", (BaseException,), {})  # as PyO3 names its own
    with pytest.raises(RuntimeError, match="index out of range"), panics():
        raise PanicException("index out of range")
    for other in (KeyboardInterrupt, ValueError):
        with pytest.raises(other), panics():
            raise other


def test_an_error_of_rust_that_holds_a_number_of_the_system_is_that_error():
    with pytest.raises(OSError, match="No space left") as raised, system_errors():
        raise Exception("I/O error: no room (os error 28)")
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(KeyError), system_errors():
        raise KeyError("another")


def test_fields_of_an_encoder_are_taken_as_they_are(tmp_path):
    (tmp_path / "config.json").write_text('{"n": 3, "on": true}')
    config = read_config(tmp_path)
    assert (whole_number(config, "n", tmp_path, 3, 3), number(0, "x", tmp_path, 0, 1)) == (3, 0.0)
    assert (flag(config, "on", tmp_path), flag(config, "off", tmp_path)) == (True, False)
    with pytest.raises(FastflowError, match=r"is not an encoder: it has no config\.json"):
        read_config(tmp_path / "absent")


def test_wrong_usage_and_unknown_encoders_are_caught_as_any_failure():
    for kind in (UsageError, UnsupportedArchitecture):
        with pytest.raises(FastflowError, match="said"):
            raise kind("said")
    assert not issubclass(UnsupportedArchitecture, UsageError), "the exit code of wrong usage is 2"


def test_a_missing_extra_is_one_sentence_with_the_command_that_installs_its_packages():
    error = missing_extra("train", "torch", "fitting 'flow'")
    assert type(error) is FastflowError
    assert str(error) == f"fitting 'flow' needs torch, which is not installed: run {install('train')}"
    assert install("parquet") == "pip install pyarrow"
    assert install("train").startswith("pip install torch transformers ")
    assert set(install("train").split()) < set(install("peers").split()), "an extra of extras"
    assert install("ray") == "pip install 'ray[data]' pyarrow"
    assert install("nothing") == "pip install 'fastflow[nothing]'"


def test_every_extra_that_an_error_names_exists():
    project = (ROOT / "pyproject.toml").read_text()
    declared = re.search(r"^\[project\.optional-dependencies\]\n(.*?)^\[", project, re.S | re.M)[1]
    extras = set(re.findall(r"^(\w+) = \[", declared, re.M))
    sources = [path.read_text() for room in ("fastflow", "train", "bench") for path in (ROOT / room).rglob("*.py")]
    calls = re.compile(r"(?:missing_extra\(\s*|\binstall\((?=\"\w+\"\)))\"(\w+)\"")
    named = {name for text in sources for name in calls.findall(text)}
    assert {"train", "bench"} <= named
    assert named <= extras


def test_a_file_is_replaced_whole(tmp_path):
    path, beside = tmp_path / "a.json", tmp_path / "a.json.tmp"
    for text in ("one", "zwei ü", ""):
        beside.write_text("half, of a killed run")
        replace_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_text(tmp_path / "folder", "new")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.json", "folder"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_in_the_place_of_the_temporary_name_is_removed(tmp_path, exists):
    target = tmp_path / "precious"
    if exists:
        target.write_text("kept")
    (tmp_path / "a.json.tmp").symlink_to(target)
    replace_text(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "new"
    assert (target.read_text() if target.exists() else None) == ("kept" if exists else None)


def test_the_mode_of_a_replaced_file(tmp_path):
    before = os.umask(0o022)
    try:
        replace_text(tmp_path / "a", "")
        replace_text(tmp_path / "b", "", 0o600)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"] == [0o644, 0o600]


def test_the_version_is_said_alike():
    said = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert {said[1], cited[1], fastflow.__version__} == {__version__}
    assert f"## {__version__} " in (ROOT / "CHANGELOG.md").read_text()
