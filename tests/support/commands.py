"""The command lines under test, run in this process."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from fastflow.cli import main
from fastflow.evaluation.evaluate import HEADER

from support.builders import make_sentences


def make_train(encoder: Path, corpus: Path, directory: Path) -> Callable[..., Any]:
    """``train(*options, source, encoder, out, stdin)`` -> click's result; ``directory`` takes output and cache.

    By default the method is flow without demoted directions, and no background is fitted. A traceback or a half-written
    model fails the test.
    """
    from fastflow.commands.train import train as main

    def train(*options: Any, source: Any = corpus, encoder: Any = encoder, out: Any = None, stdin: Any = None) -> Any:
        out = out or directory / "m"
        colour = {} if "--latent" in options else {"--spectrum": "0.5", "--demoted": "0"}
        usual = {} if "--method" in options else {"--method": "flow", **colour}
        method = [word for name, value in usual.items() if name not in options for word in (name, value)]
        alone = [] if "--background" in options else ["--background", "0"]
        arguments = [source, "--encoder", encoder, "-o", out, "--cache-folder", directory / "cache"]
        arguments += [*alone, *method, *options]
        result = CliRunner().invoke(main, [str(a) for a in arguments], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "please report it" not in result.stderr, result.stderr
        assert not out.with_name(out.name + ".partial").exists()
        return result

    return train


def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)


def assert_one_sentence(result: Result, code: int, message: str) -> None:
    """Check for a line of ours or of click on standard error, and an empty standard output."""
    assert result.exit_code == code
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "please report it" not in result.stderr
    said = [line for line in result.stderr.splitlines() if message in line]
    assert said, result.stderr
    assert said[0].startswith(("fastflow: ", "Error: "))
    if code == 1:
        assert sum(not line.startswith("fastflow: model ") for line in result.stderr.splitlines()) <= 3


def write_pairs(path: Path, count: int = 30, constant: bool = False) -> tuple[list[str], list[str], list[float]]:
    first, second = make_sentences(count, seed=3), make_sentences(count, seed=4)
    scores = [1.0] * count if constant else np.random.default_rng(0).normal(size=count).round(3).tolist()
    lines = [f"s{i % 2}\t{score}\t{a}\t{b}" for i, (a, b, score) in enumerate(zip(first, second, scores, strict=True))]
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return first, second, scores


def interrupted(train: Callable[..., Any], monkeypatch: Any, step: int, *options: Any, **given: Any) -> Result:
    """``train`` stopped by Ctrl-C at a ``step`` of its flow, between two checkpoints."""
    from fastflow.train.pipeline import fit

    def stop(done: int, values: Any) -> None:
        if done == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fit, "open_log", lambda directory: nullcontext(stop))
        result = train(*options, **given)
    assert result.exit_code == 130
    return result
