"""The calibration: fitted stages, as plain data, that map a pooled vector (B, D) to an embedding (B, D').

With f all stages through the last flow, the log-density of a pooled vector is (Li et al. 2020, section 3.1):

    log p(x) = log N(z; 0, I) + log|det dz/dx|,    z = f(x).

Closed forms before a flow are affine: their log-determinant is one constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.values import is_whole, short

KINDS = ("flow", "recolour", "whiten", "standardize", "nullspace", "linear")
PYTHON = "python"  # a kind that no file has: the settings have an object with ``transform``, and its width
SETTINGS: dict[str, tuple[str, ...] | type[int]] = {
    "levels": int, "depth": int, "width": int,
    "coupling": ("additive", "affine"), "permutation": ("reversal", "random", "lu"),
}  # fmt: skip
BELOW_ONE = float(np.nextafter(1.0, 0.0))
Densities = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Stage:
    """One fitted transform: a kind of KINDS, settings, and arrays by name (``kernels.flow.equations``)."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)

    def astype(self, dtype: Any) -> Stage:
        params = {k: v.astype(dtype) if v.dtype.kind == "f" else v for k, v in self.params.items()}
        return Stage(self.kind, self.settings, params)

    def dims(self, inputs: int) -> int:
        if self.kind == PYTHON:
            return int(self.settings["dim"])
        return int(self.params["matrix"].shape[1]) if self.kind in ("whiten", "linear") else inputs


def apply(stages: Sequence[Stage], x: Any) -> Any:
    """Apply the stages to ``x`` (B, D), an array or tensor of their dtype."""
    from fastflow.kernels.flow import equations

    for stage in stages:
        if stage.kind == "flow":
            x, _ = apply_with_log_det(stage, x)
        elif stage.kind == PYTHON:
            x = transform_in_python(stage.settings["object"], x)
        else:
            x = getattr(equations, stage.kind)(x, **stage.params)
    return x


def transform_in_python(calibration: Any, x: Any) -> NDArray[Any]:
    """Call ``calibration.transform`` on float32 (B, D); raises a FastflowError unless it gives numbers (B, D')."""
    z = np.asarray(calibration.transform(np.ascontiguousarray(x, np.float32)))
    if z.ndim != 2 or len(z) != len(x) or z.dtype.kind != "f":
        name = type(calibration).__name__
        raise FastflowError(
            f"{name}.transform gave {z.dtype} of shape {z.shape} for {len(x)} rows: it must return floats of shape "
            f"({len(x)}, k)"
        )
    return z


def apply_wide(stages: Sequence[Stage], x: Any) -> NDArray[np.float64]:
    """Apply the stages to ``x`` (B, D) in float64."""
    return np.asarray(apply([stage.astype(np.float64) for stage in stages], np.asarray(x, np.float64)))


def apply_with_log_det(stage: Stage, x: Any) -> tuple[Any, Any]:
    """Compute z (B, D) and log|det dz/dx| (B,) of a flow."""
    from fastflow.kernels.flow import equations

    s = stage.settings
    return equations.flow(x, stage.params, s["levels"], s["depth"], s["coupling"], s["permutation"])


def log_volume(matrix: NDArray[Any]) -> float:
    """Compute log|det| of ``matrix`` (D, D) in float64, without its columns of zeros."""
    kept = matrix[:, matrix.any(axis=0)].astype(np.float64)
    if kept.shape[1] == len(kept):
        return float(np.linalg.slogdet(kept)[1])
    return float(np.linalg.slogdet(kept.T @ kept)[1] / 2)


def check_saved(stages: Sequence[Stage]) -> None:
    """Raise a UsageError for a calibration that only this process has."""
    if any(stage.kind == PYTHON for stage in stages):
        raise UsageError(
            f"{describe(stages)} is not linear, so no model or copy of it can be saved: a model's files hold no code; "
            "use Fit.runtime() in this process"
        )


def output_dim(stages: Sequence[Stage], inputs: int) -> int:
    """Return the output width for ``inputs`` columns."""
    for stage in stages:
        inputs = stage.dims(inputs)
    return inputs


def describe(stages: Sequence[Stage]) -> str:
    """Describe the stages, such as ``whiten(128) -> flow(2x3, width 32, additive)``."""
    words = []
    for stage in stages:
        s = stage.settings
        if stage.kind == "flow":
            words.append(f"flow({s['levels']}x{s['depth']}, width {s['width']}, {s['coupling']}, {s['permutation']})")
        elif stage.kind == "recolour":
            words.append(
                f"recolour(spectrum {s['spectrum']:g}, mean share {s['mean_share']:g}, {s['demoted']} demoted)"
            )
        elif stage.kind in ("whiten", "linear"):
            words.append(f"{stage.kind}({stage.params['matrix'].shape[1]})")
        elif stage.kind == PYTHON:
            words.append(f"{type(s['object']).__name__} in Python")
        elif stage.kind == "nullspace":
            name = "components" if keeps_mean([stage]) else "nullspace"
            words.append(f"{name}({stage.params['directions'].shape[0]})")
        else:
            words.append(stage.kind)
    return " -> ".join(words) or "none"


def is_linear(stages: Sequence[Stage]) -> bool:
    """Return whether there are stages, and all are linear maps: they commute with a mean."""
    return bool(stages) and all(stage.kind == "nullspace" and not stage.params["mean"].any() for stage in stages)


def keeps_mean(stages: Sequence[Stage]) -> bool:
    """Return whether embeddings may have a mean other than 0."""
    if stages and stages[-1].kind in ("linear", PYTHON):
        return True
    if stages and stages[-1].kind == "recolour":
        return bool(stages[-1].params["shift"].any())
    return not stages or is_linear(stages)


def check(stages: Sequence[Stage], inputs: int) -> None:
    """Raise a FastflowError that names the stage and array at fault."""
    for position, stage in enumerate(stages):
        if stage.kind == "flow":
            _check_settings(stage.settings)
            levels, depth, count = stage.settings["levels"], stage.settings["depth"], len(stage.params)
            if levels * depth > count:
                said = f"{levels} x {depth} steps, and the file holds {count} arrays of it"
                raise FastflowError(f"calibration flow, settings levels and depth: {said}")
        expected = list_shapes(stage, inputs)
        if set(expected) != set(stage.params):
            odd = sorted(set(expected) ^ set(stage.params))
            shown = ", ".join(odd[:3]) + f" and {len(odd) - 3} more" * (len(odd) > 3)
            raise FastflowError(f"calibration stage {position} ({stage.kind}): arrays missing or unknown: {shown}")
        for name, shape in expected.items():
            _check_array(f"calibration stage {position} ({stage.kind}), array {name}", stage.params[name], shape)
        if stage.kind == "standardize" and not (stage.params["deviation"] > 0).all():
            raise FastflowError(f"calibration stage {position} (standardize), array deviation: must be above 0")
        if stage.kind == "linear" and len(stage.params["shift"]) != stage.dims(inputs):
            raise FastflowError(
                f"calibration stage {position} (linear), array shift: must be as long as a row of matrix"
            )
        if not (inputs := stage.dims(inputs)):
            raise FastflowError(f"calibration stage {position} ({stage.kind}), array matrix: leaves no dimension")


def _check_array(what: str, array: NDArray[Any], shape: tuple[int | None, ...]) -> None:
    if len(array.shape) != len(shape) or any(n is not None and n != m for n, m in zip(shape, array.shape, strict=True)):
        raise FastflowError(f"{what}: shape {array.shape} does not fit {shape}")
    if array.dtype.kind not in ("i" if what.endswith("index") else "f"):
        raise FastflowError(f"{what}: unexpected dtype {array.dtype}")
    if array.dtype.kind == "f" and not (np.abs(array) <= np.finfo(np.float32).max).all():  # false for NaN
        raise FastflowError(f"{what}: holds NaN or infinity, or what float32 cannot hold")
    if array.dtype.kind == "i" and not np.array_equal(np.sort(array), np.arange(len(array))):
        raise FastflowError(f"{what}: is not a permutation")


def list_shapes(stage: Stage, dim: int) -> dict[str, tuple[int | None, ...]]:
    """Return array name -> shape (None: any) of a stage on ``dim`` channels."""
    if stage.kind == "standardize":
        return {"mean": (dim,), "deviation": (dim,)}
    if stage.kind == "nullspace":
        return {"mean": (dim,), "directions": (None, dim)}
    if stage.kind == "whiten":
        return {"mean": (dim,), "matrix": (dim, None)}
    if stage.kind == "linear":
        return {"matrix": (dim, None), "shift": (None,)}
    if stage.kind == "recolour":
        _check_recolour(stage.settings, dim)
        return {"mean": (dim,), "matrix": (dim, dim), "shift": (dim,)}
    if stage.kind != "flow":
        raise FastflowError(f"unknown calibration {short(stage.kind)}; known: {', '.join(KINDS)}")
    s = stage.settings
    _check_settings(s)
    if dim % 2 ** s["levels"]:
        raise FastflowError(f"a flow of {s['levels']} levels cannot run on {dim} dimensions")
    shapes: dict[str, tuple[int | None, ...]] = {}
    for level in range(s["levels"]):
        for depth in range(s["depth"]):
            for name, shape in _step_shapes(dim >> level, s["width"], s["coupling"], s["permutation"]).items():
                shapes[f"levels.{level}.{depth}.{name}"] = shape
    return shapes


def _check_settings(settings: dict[str, Any]) -> None:
    for name, known in SETTINGS.items():
        if not (settings[name] in known if isinstance(known, tuple) else is_whole(settings[name], 1)):
            wanted = " or ".join(known) if isinstance(known, tuple) else "a whole number of at least 1"
            raise FastflowError(f"calibration flow, setting {name}: must be {wanted}, not {short(settings[name])}")


def _check_recolour(settings: dict[str, Any], dim: int) -> None:
    if not is_whole(settings["demoted"], 0, dim - 1):
        raise FastflowError(
            f"calibration recolour, setting demoted: must be a whole number from 0 to {dim - 1}, "
            f"not {short(settings['demoted'])}"
        )
    for name, below in (("spectrum", 1.0), ("mean_share", BELOW_ONE)):
        value = settings[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= below:
            most = "0 to 1" if below == 1 else "at least 0 and below 1"
            raise FastflowError(f"calibration recolour, setting {name}: must be {most}, not {short(value)}")


def _step_shapes(channels: int, width: int, coupling: str, permutation: str) -> dict[str, tuple[int, ...]]:
    half, out = channels // 2, channels if coupling == "affine" else channels // 2
    net = {"weight1": (width, half), "weight2": (width, width), "weight3": (out, width), "bias3": (out,)}
    net |= {"logscale3": (out,)} | dict.fromkeys(("shift1", "logscale1", "shift2", "logscale2"), (width,))
    shapes: dict[str, tuple[int, ...]] = {f"coupling.net.{name}": shape for name, shape in net.items()}
    shapes |= {"actnorm.shift": (channels,), "actnorm.logscale": (channels,)}
    if permutation in ("random", "lu"):
        shapes["permutation.index"] = (channels,)
    if permutation == "lu":
        shapes |= {f"permutation.{name}": (channels, channels) for name in ("lower", "upper")}
        shapes |= {f"permutation.{name}": (channels,) for name in ("sign", "logdiag")}
    return shapes


def unit_variance(stages: Sequence[Stage]) -> bool:
    """Return whether every dimension ends with variance 1."""
    return bool(stages) and stages[-1].kind in ("flow", "whiten", "standardize")


class Density(NamedTuple):
    """The log-density: ``stages`` are f; ``log_det`` is the closed forms' part of log|det dz/dx|."""

    stages: tuple[Stage, ...]
    log_det: float

    def log_prob(self, x: NDArray[Any], chain: Sequence[Stage]) -> Densities:
        with np.errstate(over="ignore", invalid="ignore"):
            return log_normal(*self.latent(x, chain))

    def latent(self, x: Any, chain: Sequence[Stage]) -> tuple[Any, Any]:
        """Compute z (B, D) and log|det dz/dx| (B,), as arrays or tensors like ``x``."""
        total = self.log_det
        for stage in chain[: len(self.stages)]:
            if stage.kind == "flow":
                x, found = apply_with_log_det(stage, x)
                total = total + found
            else:
                x = apply([stage], x)
        return x, total


def log_normal(z: NDArray[Any], log_det: NDArray[Any]) -> Densities:
    """Compute log N(z; 0, I) + ``log_det`` (B,) of z (B, D) in float64."""
    z = np.asarray(z, np.float64)
    constant = 0.5 * z.shape[1] * np.log(2 * np.pi)
    return np.asarray(log_det - constant - 0.5 * np.square(z).sum(axis=1), np.float64)


def density_of(stages: Sequence[Stage], model: Path | str) -> Density:
    """Return the density of ``stages``; raises a UsageError that names ``model`` if it has none."""
    flows = [number for number, stage in enumerate(stages) if stage.kind == "flow"]
    if not flows:
        raise UsageError(
            f"log_prob needs a flow, and the calibration of {model} is {describe(stages)}: fit one with the method flow"
        )
    chosen = tuple(stages[: flows[-1] + 1])
    return Density(chosen, sum(_log_det(stage, model) for stage in chosen if stage.kind != "flow"))


def _log_det(stage: Stage, model: Path | str) -> float:
    if stage.kind == "standardize":
        return -float(np.log(stage.params["deviation"].astype(np.float64)).sum())
    found = -np.inf
    if stage.kind != "nullspace" and len({*stage.params["matrix"].shape}) == 1:
        found = log_volume(stage.params["matrix"])
    if not np.isfinite(found):
        raise UsageError(
            f"log_prob needs every direction in front of the flow, and {describe([stage])} of {model} leaves some out: "
            "fit a model without that stage"
        )
    return found
