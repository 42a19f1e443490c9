"""The command lines under test, run in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner


def make_train(encoder: Path, corpus: Path, directory: Path) -> Callable[..., Any]:
    """``train(*options, source, encoder, out, stdin)`` -> click's result; ``directory`` takes output and cache.

    The method is flow unless an option says otherwise.

    An exception that reaches the user as a traceback fails the test, and so does a half-written model.
    """
    from fastflow.train.cli import main

    def train(*options: Any, source: Any = corpus, encoder: Any = encoder, out: Any = None, stdin: Any = None) -> Any:
        out = out or directory / "m"
        method = [] if "--method" in options else ["--method", "flow"]
        arguments = [source, "--encoder", encoder, "--out", out, "--cache", directory / "cache", *method, *options]
        result = CliRunner().invoke(main, [str(a) for a in arguments], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "please report it" not in result.stderr, result.stderr
        assert not out.with_name(out.name + ".partial").exists()
        return result

    return train
