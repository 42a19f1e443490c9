"""Ten million short lines embedded on one machine: rate, memory and bytes; and whether memory grows with the lines.

    python -m fastflow.bench.research.ten_million --folder DIR --out bench/results/ten-million.json
    python -m fastflow.bench.research.ten_million --lines 100000 --every 2 --check

The lines are made on the fly, from a seed, and embedded by ``fastflow embed --precision int8`` with the model in the
package, in a process of its own that is watched (``watched.py``). Options behind ``--`` go to ``fastflow embed`` too.
A run in ``--folder`` may be stopped at any moment, and the same command continues it; lines, vectors and the log stay
there. In the end some rows are computed again, and compared.

The rate is the median over windows in which nothing was paused; processors that others used, pauses, and time spent in
starting are named apart. ``--check`` fails where the last windows of a process take SLACK MB more than its first.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from fastflow.bench.measure.machine import describe
from fastflow.bench.research.watched import watch
from fastflow.errors import FastflowError, UsageError
from fastflow.runtime import Runtime

SLACK = 12.0  # MB by which windows of equal memory may differ
COMPARED = 1000  # rows that are computed again
ALONE = 0.1  # processors that others may use in a window that counts as undisturbed
PRECISION = "int8"
SYLLABLES = ("ba", "do", "fi", "ka", "lu", "mo", "ne", "pi", "ra", "su", "ti", "vo")
FEWEST, MOST = 1, 4  # words of a line: as short as titles and searches are


def write_lines(path: Path, count: int, seed: int = 0) -> None:
    """``count`` lines of FEWEST to MOST made-up words; the first lines do not depend on ``count``."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(20_000)]
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", encoding="ascii") as out:
        for _ in range(count):
            out.write(" ".join(rng.choices(words, k=rng.randint(FEWEST, MOST))) + "\n")
    unfinished.replace(path)


def run(count: int, folder: Path, options: list[str], every: float) -> dict[str, Any]:
    """Embed ``count`` lines in ``folder``, or continue there; returns the summary of the whole run."""
    source, target, log = folder / "lines.txt", folder / "vectors.npy", folder / "log.jsonl"
    model = {name: Runtime().info()[name] for name in ("fingerprint", "backend", "dtype")}
    begun = {"event": "begun", "lines": count, "options": options, "model": model}
    if not log.exists():
        log.write_text(json.dumps(begun) + "\n", encoding="utf-8")
    if read_log(log)[0] != begun:
        raise UsageError(
            f"{folder} holds a run of other lines, options or model; give the same again or another folder"
        )
    if not source.exists():
        write_lines(source, count)
    if not target.exists():
        arguments = ["embed", str(source), "-o", str(target), "--precision", PRECISION, "--quiet", "--resume", *options]
        watch(arguments, target, log, every)
    compare(source, target, count)
    with target.open("rb") as vectors:
        digest = hashlib.file_digest(vectors, "sha256").hexdigest()
    sizes = {"input_mb": source.stat().st_size / 1e6, "output_mb": target.stat().st_size / 1e6}
    return {**begun, **summary(read_log(log)), **sizes, "compared_rows": min(count, COMPARED), "sha256": digest}


def compare(source: Path, target: Path, count: int) -> None:
    """Raise unless the output has ``count`` rows, and COMPARED of them, evenly spread, are those of ``encode``."""
    vectors = np.load(target, mmap_mode="r")
    if vectors.shape[0] != count:
        raise FastflowError(f"{target} has shape {vectors.shape}, not {count} rows")
    chosen = np.unique(np.linspace(0, count - 1, min(count, COMPARED)).astype(np.int64))
    numbers = set(chosen.tolist())
    with source.open(encoding="ascii") as lines:
        texts = [line.rstrip("\n") for at, line in enumerate(lines) if at in numbers]
    wrong = np.flatnonzero((Runtime().encode(texts, precision=PRECISION) != vectors[chosen]).any(axis=1))
    if len(wrong):
        raise FastflowError(f"{target}, row {chosen[wrong[0]]}: is not the vector that encode gives of its line")


def read_log(log: Path) -> list[dict[str, Any]]:
    """The events of a run; a last line that was cut by a kill is left out."""
    text = log.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def summary(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a run from its log."""
    windows = [event for event in events if event["event"] == "window"]
    whole = [window for window in windows if not window["paused"]]
    alone = [window for window in whole if window["others"] <= ALONE]
    stops = [event for event in events if event["event"] == "stop"]
    return {
        "rows_per_second": rates(whole),
        "rows_per_second_undisturbed": rates(alone),
        "windows": {"all": len(windows), "with_a_pause": len(windows) - len(whole), "undisturbed": len(alone)},
        "processors": {name: _median([w[name] for w in whole]) for name in ("processors", "others")},
        "starts": sum(event["event"] == "start" for event in events),
        "seconds": {
            "in_windows": round(sum(w["seconds"] for w in windows), 1),
            "of_processes": round(sum(stop["seconds"] for stop in stops), 1),
            "paused": round(sum(stop["paused"] for stop in stops), 1),
        },
        "rows_in_windows": sum(w["rows"] for w in windows),
        "peak_mb": max([0.0, *(event["peak_mb"] for event in windows + stops)]),
        "growth_mb": growth(events),
        "over_time": [[w["until"], round(w["rows"] / w["seconds"]), w["peak_mb"], w["paused"]] for w in windows],
    }


def rates(windows: list[dict[str, Any]]) -> dict[str, float] | None:
    """Median and deciles of rows a second; None of no windows."""
    if not windows:
        return None
    found = np.quantile([w["rows"] / w["seconds"] for w in windows], [0.1, 0.5, 0.9])
    return dict(zip(("decile_1", "median", "decile_9"), np.round(found, 1).tolist(), strict=True))


def growth(events: list[dict[str, Any]]) -> float | None:
    """MB by which the peak of the last quarter of a process's windows exceeds that of the first; of the process with
    most windows, None where it has fewer than four.
    """
    longest: list[float] = []
    for event in events:
        if event["event"] == "start":
            peaks: list[float] = []
        elif event["event"] == "window":
            peaks.append(event["peak_mb"])
            longest = peaks if len(peaks) > len(longest) else longest
    quarter = len(longest) // 4
    return round(max(longest[-quarter:]) - max(longest[:quarter]), 1) if quarter else None


def _median(values: list[float]) -> float | None:
    return round(float(np.median(values)), 2) if values else None


def check_constant(found: dict[str, Any]) -> None:
    """Raise where memory grew by more than SLACK, or the run was too short to see it."""
    if found["growth_mb"] is None:
        raise FastflowError("too few windows to see whether memory grows; give more --lines or a smaller --every")
    if found["growth_mb"] > SLACK:
        raise FastflowError(f"memory grows with the lines: by {found['growth_mb']:.0f} MB over {found['lines']:,}")


@click.command()
@click.option("--lines", type=click.IntRange(1), default=10_000_000, show_default=True)
@click.option("--every", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Seconds of a window.")
@click.option("--check", is_flag=True, help="Fail where memory grows.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Where everything lies and stays.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the JSON here too.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(
    lines: int, every: float, check: bool, folder: Path | None, out: Path | None, options: tuple[str, ...]
) -> None:
    """Embed many lines, watch it, and print the figures as JSON; OPTIONS behind -- are those of fastflow embed."""
    with tempfile.TemporaryDirectory() as place:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            found = run(lines, folder or Path(place), list(options), every)
            command = "python -m fastflow.bench.research.ten_million " + " ".join(_shown(sys.argv[1:]))
            text = json.dumps({"command": command.strip(), "machine": describe(), **found}, indent=1)
            text = re.sub(r"\[[^][{}]*\]", lambda inner: re.sub(r"\s+", " ", inner[0]), text)  # a list a line
            if out is not None:
                out.write_text(text + "\n", encoding="utf-8")
            click.echo(text)
            if check:
                check_constant(found)
        except FastflowError as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            raise click.ClickException("stopped; the same command continues it" * (folder is not None)) from None


def _shown(arguments: list[str]) -> list[str]:
    """The arguments without the name of a folder on this machine."""
    return ["DIR" if before == "--folder" else word for before, word in zip(["", *arguments], arguments, strict=False)]


if __name__ == "__main__":
    main()
