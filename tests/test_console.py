"""What every command shares: JSON that any reader takes, sentences and exit codes, streams that take nothing."""

from __future__ import annotations

import json
import signal
import sys
import time
import warnings
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner

from fastflow.console import Commands, Terminated, add_note, check_stdout, emit, say, write_json
from fastflow.errors import FastflowError, UsageError, warn

NAN = float("nan")


def make_group(go: Callable[[], object]) -> click.Group:
    """A command line with the one command ``go``."""

    @click.group(cls=Commands)
    @click.option("--debug", is_flag=True)
    def main(debug: bool) -> None:
        pass

    main.command(name="go")(lambda: go())
    return main


def fail(failure: BaseException) -> click.Group:
    def go() -> None:
        raise failure

    return make_group(go)


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        (FastflowError("x is broken; mend it"), 1, "fastflow: x is broken; mend it"),
        (UsageError("no such x"), 2, "fastflow: no such x"),
        (MemoryError(), 1, "fastflow: out of memory; use a smaller --batch-tokens or a smaller model"),
        (ImportError("x.so: failed to map segment from shared object"), 1, "fastflow: out of memory; use a smaller"),
        (KeyboardInterrupt(), 130, "fastflow: interrupted"),
        (Terminated(), 143, "fastflow: terminated"),
        (ZeroDivisionError("by 0"), 1, "fastflow: unexpected ZeroDivisionError: by 0; please report it"),
    ],
)
def test_a_failure_is_one_sentence_and_an_exit_code(failure, code, said):
    done = CliRunner().invoke(fail(failure), ["go"])
    assert done.exit_code == code
    assert done.stderr.startswith(said)
    assert (done.stderr.count("\n"), done.stdout) == (1, "")
    shown = CliRunner().invoke(fail(failure), ["--debug", "go"])
    assert type(shown.exception) is type(failure) or isinstance(failure, KeyboardInterrupt)
    assert said not in shown.stderr


@pytest.mark.parametrize("failure", [FastflowError("x"), MemoryError(), KeyboardInterrupt(), ZeroDivisionError("x")])
def test_the_notes_of_a_failure_are_said_after_it(failure):
    for note in ("40 rows\nare kept", "the end"):
        add_note(failure, note)
    said = CliRunner().invoke(fail(failure), ["go"]).stderr.splitlines()
    assert said[1:] == ["fastflow: 40 rows\\nare kept", "fastflow: the end"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_command_and_is_let_go_of_afterwards_in_a_destructor_too(number, code):
    class Held:
        def __del__(self) -> None:
            signal.raise_signal(number)  # Python drops what the handler raises here

    def go() -> None:
        held = Held()
        del held
        time.sleep(30)

    hook, handlers = sys.unraisablehook, [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    for raises in (go, lambda: signal.raise_signal(number)):
        started = time.monotonic()
        assert CliRunner().invoke(make_group(raises), ["go"]).exit_code == code
        assert time.monotonic() - started < 20
    assert sys.unraisablehook is hook
    assert handlers == [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]


def test_json_has_null_where_a_figure_is_undefined(tmp_path, capsys):
    value = {"a": NAN, "b": [1.5, NAN, (2, NAN)], "c": {"d": NAN, "e": "NaN"}}
    write_json(str(tmp_path / "x.json"), value)
    wanted = {"a": None, "b": [1.5, None, [2, None]], "c": {"d": None, "e": "NaN"}}
    assert json.loads((tmp_path / "x.json").read_text()) == wanted
    write_json("-", value)
    assert json.loads(capsys.readouterr().out) == wanted
    (tmp_path / "y.json").mkdir()
    with pytest.raises(FastflowError, match=r"y\.json cannot be written: Is a directory"):
        write_json(str(tmp_path / "y.json"), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "y.json"]


def test_a_closed_standard_output_loses_no_data_in_silence(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    for call in (check_stdout, lambda: emit("a line")):
        with pytest.raises(FastflowError, match="standard output is closed; name a file"):
            call()


def test_names_in_a_message_cannot_drive_a_terminal(capsys):
    say("a\x1b]0;title\x07b\x9b31m\u202ec\td\r")
    assert capsys.readouterr().err == "a\\x1b]0;title\\x07b\\x9b31m\\u202ec\td\\r\n"
    done = CliRunner().invoke(fail(FastflowError("no column 'a\nfastflow: all is well\x1b[2K'")), ["go"])
    assert done.stderr == "fastflow: no column 'a\\nfastflow: all is well\\x1b[2K'\n"


def test_a_warning_of_ours_is_a_line_and_another_librarys_is_not():
    def go() -> None:
        warn("words fall into 9 pieces")
        warnings.warn("of another library", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="of another library") as others:
        result = CliRunner().invoke(make_group(go), ["go"])
    assert result.stderr == "fastflow: WARNING: words fall into 9 pieces\n"
    assert len(others) == 1
