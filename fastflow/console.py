"""Messages, errors and streams of all commands."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

import click

from fastflow.errors import FastflowError, FastflowWarning, UsageError
from fastflow.progress import Progress

if TYPE_CHECKING:
    from fastflow.model import Model
    from fastflow.runtime import Runtime
    from fastflow.types import Device, Dtype


NO_MEMORY = "out of memory; use a smaller --batch-tokens or a smaller model"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # all but tab and line end


def say(message: str) -> None:
    """Print on standard error with control characters escaped; drop the message if standard error fails."""
    if Progress.painted is not None:
        Progress.painted.wipe()
    try:
        click.echo(escape_controls(message), err=True)
    except OSError:
        drop_pending(sys.stderr)


def escape_controls(text: str) -> str:
    """Escape control characters except tabs and line ends."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def emit(text: str) -> None:
    """Print data on standard output."""
    check_stdout()
    try:
        click.echo(text)
    except BrokenPipeError:  # the reader has closed the pipe: click ends the process
        raise
    except OSError as error:
        raise describe_lost_stdout(error) from error


def check_stdout() -> None:
    """Raise if standard output is closed."""
    if sys.stdout is None:
        raise FastflowError("standard output is closed; name a file to write to")


def describe_lost_stdout(error: OSError) -> FastflowError:
    """Return the error for a failed write to standard output."""
    drop_pending(sys.stdout)
    return FastflowError(f"standard output cannot be written: {error.strerror}")


def drop_pending(stream: TextIO) -> None:
    """Drop the stream's unwritten bytes, which Python would fail to write at exit."""
    with contextlib.suppress(OSError):  # not a real file, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Commands(click.Group):
    """A click group that prints a failure as one sentence.

    ``later``: command -> "module:function", imported at first use. ``tasks``: heading of --help -> command -> summary.
    """

    def __init__(
        self, *args: Any, later: Mapping[str, str] | None = None,
        tasks: Mapping[str, Mapping[str, str]] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)
        self.tasks = tasks or {}
        self.later = dict(later or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.later, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.later:
            module, _, function = self.later[cmd_name].partition(":")
            return cast("click.Command", getattr(import_module(module), function))
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = [repr(name) for name in get_close_matches(args[0], names)]
            meant = f" (Did you mean {'one of: ' * (len(near) > 1)}{', '.join(near)}?)" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return cast("list[str]", plain_errors(lambda given: super(Commands, self).parse_args(given, args), ctx, False))

    def invoke(self, ctx: click.Context) -> Any:
        return plain_errors(super().invoke, ctx, bool(ctx.params.get("debug")))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for task, summaries in self.tasks.items():
            with formatter.section(task):
                formatter.write_dl(list(summaries.items()))


AGAIN_S = 0.05  # seconds until a signal that Python dropped is sent again


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def add_note(error: BaseException, note: str) -> None:
    """Add a sentence that ``plain_errors`` prints after ``error``."""
    error.__notes__ = [*getattr(error, "__notes__", ()), note]  # type: ignore[attr-defined]  # as add_note of Python 3.11


def plain_errors(invoke: Any, ctx: click.Context, debug: bool) -> Any:
    """Run ``invoke(ctx)``; print an error as one sentence and exit.

    Exit codes: 1 failure, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM. ``debug`` raises the error.
    """

    def fail(error: BaseException, sentence: str, code: int) -> NoReturn:
        for line in (sentence, *getattr(error, "__notes__", ())):
            say("fastflow: " + line.replace("\n", "\\n"))  # a line end in a name could forge a line
        ctx.exit(code)

    open_standard_streams()
    try:
        with _terminable(), _warnings_as_lines():
            return invoke(ctx)
    except KeyboardInterrupt as error:
        if debug:
            raise
        fail(error, *(("terminated", 143) if isinstance(error, Terminated) else ("interrupted", 130)))
    except FastflowError as error:
        if debug:
            raise
        fail(error, str(error), 2 if isinstance(error, UsageError) else 1)
    except MemoryError as error:
        if debug:
            raise
        fail(error, NO_MEMORY, 1)
    except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
        raise
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:  # written without ``emit``
            fail(error, str(describe_lost_stdout(error) if error.filename is None else error), 1)
        if isinstance(error, ImportError) and "failed to map segment" in str(error):  # no memory to load a library
            fail(error, NO_MEMORY, 1)
        if "can't start new thread" in str(error):
            sentence = "the system gives no more threads: raise the limit on memory or processes (ulimit -v, -u)"
            fail(error, sentence, 1)
        fail(error, f"unexpected {type(error).__name__}: {error}; please report it with what --debug shows", 1)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Raise Terminated at SIGTERM unless it has a handler; repeat a signal if Python dropped its error."""

    def terminate(number: int, frame: Any) -> None:
        raise Terminated

    def again(lost: Any) -> None:  # Python drops an error raised in a destructor or a weakref callback
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            before(lost)
            return
        number = signal.SIGTERM if isinstance(lost.exc_value, Terminated) else signal.SIGINT
        timer = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))  # an error raised here would be dropped too
        timer.daemon = True
        timer.start()

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    before, sys.unraisablehook = sys.unraisablehook, again
    try:
        yield
    finally:
        sys.unraisablehook = before
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, FastflowWarning):
            say(f"fastflow: WARNING: {message}")
        else:
            before(message, category, *place)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = before


def open_standard_streams() -> None:
    """Open /dev/null for closed standard streams, or another file would get their descriptors."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
    if sys.stderr is None:  # sys.stdout stays None: lost output is an error
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)


def open_runtime(model: str | Model | None, device: str, dtype: str, threads: int | None, quiet: bool) -> Runtime:
    """Open the Runtime of a command."""
    from fastflow.runtime import Runtime

    runtime = Runtime(model, cast("Device", device), cast("Dtype", dtype), threads)
    if not quiet:
        introduce(runtime)
    return runtime


def introduce(runtime: Runtime) -> None:
    """Print the model, its backend and its notes."""
    from fastflow.model.locate import PACKAGED
    from fastflow.session import ENGLISH

    what, packaged = runtime.info(), runtime.session.packaged
    only = " (English only)" * (packaged in ENGLISH)
    others = f"; also in the package: {', '.join(name for name in PACKAGED if name != packaged)}" * bool(packaged)
    kinds = re.sub(r"\([^()]*\)", "", what["calibration"])  # without settings in brackets
    calibration = "no calibration" if kinds == "none" else f"calibrated by {kinds}"
    runs = f"{what['dim']} dimensions, {what['backend']} {what['dtype']}"
    say(f"fastflow: model {what['model']}{only}, {calibration}, {runs}{others}")
    for note in what["notes"]:
        say(f"fastflow: {note}")


def write_json(path: str, value: Any) -> None:
    """Write JSON to a file, atomically, or to standard output for ``-``; NaN becomes null."""
    text = json.dumps(_without_nan(value), indent=2)
    if path == "-":
        emit(text)
    else:
        write_text(path, text + "\n")


def write_text(path: str, text: str) -> None:
    """Write a text file atomically."""
    from fastflow.atomic import replace_text

    try:
        replace_text(Path(path), text)
    except OSError as error:
        raise FastflowError(f"{path} cannot be written: {error.strerror}") from error


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and value != value else value
