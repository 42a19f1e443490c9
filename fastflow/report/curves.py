"""Training curves: every series over steps in a manifest, in JSON Lines or in TensorBoard's files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError, missing_extra

STEPS = ("step", "steps")
STOP = re.compile(
    r"(stop|best|kept|keep|chosen)\w*step|step\w*(stop|best|kept|chosen)|^(stopped|kept|best|chosen)(_at)?$"
)
WHY = re.compile(r"reason|why")

Curves = dict[str, list[tuple[float, float]]]  # name -> (step, value) in order


def curves_in(value: Any, name: str = "") -> Curves:
    """Every series in nested ``value``.

    A series is a list of {"step": ..., measure: ...}, lists under one {"step": [...], measure: [...]}, or a list of
    [step, value]; the last is called after the one other measure with it, if there is one.
    """
    out: Curves = {}
    if isinstance(value, dict):
        steps = next((value[key] for key in STEPS if isinstance(value.get(key), list)), None)
        if steps is not None:
            for key, values in value.items():
                if key not in STEPS and isinstance(values, list) and len(values) == len(steps):
                    _extend(out, _join(name, key), zip(steps, values, strict=True))
            return out
        measures = [key for key, inner in value.items() if isinstance(inner, float)]
        for key, inner in value.items():
            pairs = _pairs(inner) and len(measures) == 1
            out |= curves_in(inner, _join(name, measures[0] if pairs else key))
    elif _pairs(value):
        _extend(out, name or "value", value)
    elif isinstance(value, list):
        rows = [row for row in value if isinstance(row, dict)]
        if rows and all(_number(row.get("step")) for row in rows) and len(rows) == len(value):
            for key in dict.fromkeys(key for row in rows for key in row if key != "step"):
                _extend(out, _join(name, key), ((row["step"], row.get(key)) for row in rows))
            return out
        for index, inner in enumerate(value):
            out |= curves_in(inner, _join(name, str(index)) if len(value) > 1 else name)
    return out


def stops_in(value: Any, name: str = "") -> tuple[dict[str, float], list[str]]:
    """The steps at which a run stopped or that it kept, by name, and the recorded reasons."""
    steps: dict[str, float] = {}
    reasons: list[str] = []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        where = _join(name, str(key)) if isinstance(value, dict) else name
        if isinstance(inner, (dict, list)):
            more, said = stops_in(inner, where)
            steps |= more
            reasons += said
        elif _number(inner) and STOP.search(str(key)):
            steps[where] = float(inner)
        elif isinstance(inner, str) and WHY.search(str(key)):
            reasons.append(inner)
        if isinstance(inner, list) and WHY.search(str(key)):
            reasons += [said for said in inner if isinstance(said, str)]
    return steps, reasons


def read_log(path: Path) -> Curves:
    """The curves of a JSON Lines or JSON file, or of a directory that TensorBoard writes (fastflow-train --log-dir)."""
    if path.is_dir():
        return _tensorboard(path)
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return curves_in(json.loads(text))
        return curves_in([json.loads(line) for line in text.splitlines() if line.strip()])
    except OSError as error:
        raise FastflowError(f"{path} cannot be opened: {error.strerror}") from error
    except ValueError as error:
        raise FastflowError(f"{path} is not JSON or JSON Lines: {error}") from error


def logs_beside(model: Path) -> list[Path]:
    """Training logs that lie in a model directory or in the folder MODEL.training next to it."""
    folders = [model, model.with_name(model.name + ".training")]
    return [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.jsonl"))]


def _tensorboard(directory: Path) -> Curves:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise missing_extra("train", "tensorboard", f"reading {directory}") from error
    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    names: Sequence[str] = events.Tags()["scalars"]
    if not names:
        raise FastflowError(f"{directory} holds no TensorBoard scalars; give the --log-dir of fastflow-train")
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in names}


def _extend(out: Curves, name: str, points: Iterable[tuple[Any, Any]]) -> None:
    found = [(float(step), float(value)) for step, value in points if _number(step) and _number(value)]
    if found:
        out[name] = found


def _pairs(value: Any) -> bool:
    """Whether ``value`` is a list of [step, number or None]."""
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(row, (list, tuple)) and len(row) == 2 and _number(row[0]) for row in value)
        and all(row[1] is None or _number(row[1]) for row in value)
    )


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
