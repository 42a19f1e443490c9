"""What every command shares: lines for the person, lines of data, errors as sentences, and opening a Runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastflow.errors import FastflowError, UsageError

if TYPE_CHECKING:
    from fastflow.artifact import Model
    from fastflow.runtime import Runtime


def say(message: str) -> None:
    """A line for the person, on standard error."""
    click.echo(message, err=True)


def emit(text: str) -> None:
    """Lines of data, on standard output."""
    try:
        click.echo(text)
    except BrokenPipeError:  # the reader has gone away: click ends the process quietly
        raise
    except OSError as error:
        from fastflow.outputs import lost_output

        raise lost_output(error) from error


class Commands(click.Group):
    """A group whose failures are one plain sentence: exit 1, or 2 for wrong usage; --debug shows the traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        return plain_errors(super().invoke, ctx, bool(ctx.params.get("debug")))


def plain_errors(invoke: Any, ctx: click.Context, debug: bool) -> Any:
    """Run ``invoke(ctx)`` and turn a FastflowError or an exhausted machine into a sentence and an exit code."""
    try:
        return invoke(ctx)
    except FastflowError as error:
        if debug:
            raise
        say(f"fastflow: {error}")
        ctx.exit(2 if isinstance(error, UsageError) else 1)
    except MemoryError:
        if debug:
            raise
        say("fastflow: out of memory; use a smaller --batch-tokens or a smaller model")
        ctx.exit(1)
    except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
        raise
    except Exception as error:
        if debug:
            raise
        say(f"fastflow: unexpected {type(error).__name__}: {error}; please report it with what --debug shows")
        ctx.exit(1)


def open_runtime(model: str | Model | None, device: str, dtype: str, threads: int | None, quiet: bool) -> Runtime:
    """The Runtime for a command, with one line on standard error that says what runs."""
    from fastflow.runtime import Runtime

    runtime = Runtime(model, device, dtype, threads)
    what = runtime.info()
    if not quiet:
        say(
            f"fastflow: model {what['model']}, {what['calibration']}, {what['dim']} dimensions, "
            f"{what['backend']} {what['dtype']}"
        )
        for note in what["notes"]:
            say(f"fastflow: {note}")
    return runtime


def write_json(path: str, value: Any) -> None:
    """``value`` as indented JSON to a file, by way of a temporary name, or standard output for ``-``; NaN is null."""
    text = json.dumps(_without_nan(value), indent=2)
    if path == "-":
        emit(text)
        return
    temporary = Path(path + ".partial")
    try:
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise FastflowError(f"{path} cannot be written: {error.strerror}") from error


def _without_nan(value: Any) -> Any:
    """``value`` with None for NaN, which JSON has no word for."""
    if isinstance(value, dict):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and value != value else value
