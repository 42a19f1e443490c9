"""Training curves: what a flow's stopping rule saw, from the manifest, and TensorBoard's scalars of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError, missing_extra

Curves = dict[str, list[tuple[float, float]]]  # name -> (step, value) in order
NO_MEASURE = ("kept_step", "steps", "history")  # of the keys of a look: the one other is its measure


def looks_in(training: dict[str, Any]) -> tuple[Curves, dict[str, float]]:
    """The curve of each flow in the ``training`` of a manifest, and the step that was kept, both by name."""
    curves: Curves = {}
    kept: dict[str, float] = {}
    looks = training.get("choice", {}).get("looks", [])
    for index, look in enumerate(looks):
        name = "choice.looks" if len(looks) == 1 else f"choice.looks.{index}"
        (measure,) = (key for key in look if key not in NO_MEASURE)
        curves[f"{name}.{measure}"] = [(float(step), value) for step, value in look["history"] if value is not None]
        kept[f"{name}.kept_step"] = float(look["kept_step"])
    return curves, kept


def read_log(directory: Path) -> Curves:
    """The curves in ``directory``, which TensorBoard writes (fastflow-train --log-dir)."""
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
