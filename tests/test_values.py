"""Files that others wrote: an object or a sentence, numbers that are whole, values on one line."""

import errno
import os

import pytest

from fastflow.errors import FastflowError
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


def test_an_object_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"a": [1, "\\u00e4"]}')
    assert read_object(tmp_path / "a.json") == {"a": [1, "ä"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "a.json cannot be read: it does not hold a JSON object"),
        (b"null", "it does not hold a JSON object"),
        (b"{", "a.json is not JSON: "),
        (b'{"a": "\xff"}', "a.json is not JSON: "),
        (b"", "a.json is not JSON: "),
        (b"[" * 200_000, "its JSON is nested too deep"),
    ],
)
def test_anything_else_is_one_sentence_that_names_the_file(tmp_path, content, message):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(FastflowError, match=message) as caught:
        read_object(tmp_path / "a.json")
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("pipe", "it is not a file"), ("absent", "No such file"), (".", "it is not a file")):
        with pytest.raises(FastflowError, match=f"cannot be read: {message}"):
            read_object(tmp_path / name)


@pytest.mark.parametrize("value", [True, 4.0, "4", None, [4], 0, MOST + 1, -4])
def test_only_whole_numbers_within_bounds_are_numbers_of_things(value):
    assert not is_whole(value, 1)


def test_the_bounds_themselves_are_within():
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
    class PanicException(BaseException):
        """As PyO3 names its own."""

    with pytest.raises(RuntimeError, match="index out of range"), panics():
        raise PanicException("index out of range")
    for other in (KeyboardInterrupt, ValueError):
        with pytest.raises(other), panics():
            raise other


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is not a file"):
        open_regular(tmp_path / "pipe")
    with pytest.raises(FastflowError, match="pipe cannot be read: it is not a file"):
        read_json(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is not a file"):
        open_regular(tmp_path)
    (tmp_path / "plain").write_bytes(b"12")
    with open_regular(tmp_path / "plain") as handle:
        assert handle.read() == b"12"


def test_a_file_may_have_a_largest_size(tmp_path):
    (tmp_path / "a.json").write_text("[1, 2]")
    assert read_json(tmp_path / "a.json", 6) == [1, 2]
    with pytest.raises(FastflowError, match=r"a\.json cannot be read: it has more than 0 MB"):
        read_json(tmp_path / "a.json", 5)


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda where: whole_number({}, "n", where), "field n: missing$"),
        (lambda where: whole_number({"n": 4.0}, "n", where), "field n: missing or not a whole number: 4.0"),
        (lambda where: whole_number({"n": True}, "n", where), "field n: missing or not a whole number: True"),
        (lambda where: whole_number({"n": 2}, "n", where, 3), "field n: must be at least 3, not 2"),
        (lambda where: whole_number({"n": 2}, "n", where, 0, 1), "field n: must be at most 1, not 2"),
        (lambda where: number(float("nan"), "x", where, 0, 1), "field x: must be a number from 0 to 1, not nan"),
        (lambda where: number(True, "x", where, 0, 1), "field x: must be a number from 0 to 1, not True"),
        (lambda where: number(1.5, "x", where, 0, 1), "field x: must be a number from 0 to 1, not 1.5"),
        (lambda where: flag({"on": 1}, "on", where), "field on: must be true or false, not 1"),
    ],
)
def test_a_field_that_cannot_be_is_named_with_its_file(tmp_path, call, message):
    with pytest.raises(FastflowError, match=rf"config\.json, {message}"):
        call(tmp_path)
