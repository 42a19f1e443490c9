"""The lowest steps of the kernel ladder: the flow as loops, in Python and in C, as one would write them down.

Both know additive couplings with reversal only. The C is compiled for the machine at hand, once as it stands and once
with ``-ffast-math``, with which the compiler may reorder a sum and so make vectors of it.
"""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.flow.plan import Plan
from fastflow.stages.calibration import Stage

Array = NDArray[Any]
Call = Callable[[Array], Array]
FLAGS = {"": (), ", reordered sums": ("-ffast-math",)}
SOURCE = Path(__file__).with_suffix(".c")
NET = ("weight1", "shift1", "logscale1", "weight2", "shift2", "logscale2", "weight3", "bias3", "logscale3")


ARRAYS = ("m", "s", "U", "c", "G", "B", "d", "V", "S", "t", "gather", "reads", "writes")  # of a plan, as the C has them


class _Plan(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ARRAYS),
        *((name, ctypes.c_int) for name in ("dim", "steps", "width")),
    )


def in_python(stage: Stage) -> Call:
    """x (B, D) -> z (B, D): every row, layer, channel and weight a step of Python, on lists of floats."""
    p = {name: array.tolist() for name, array in stage.params.items()}
    levels, depth = stage.settings["levels"], stage.settings["depth"]

    def linear(weight: list[list[float]], x: list[float]) -> list[float]:
        return [sum([w * v for w, v in zip(row, x, strict=True)]) for row in weight]

    def hidden(prefix: str, i: int, x: list[float]) -> list[float]:
        made = linear(p[f"{prefix}weight{i}"], x)
        norm = zip(made, p[f"{prefix}shift{i}"], p[f"{prefix}logscale{i}"], strict=True)
        return [max((v + shift) * math.exp(3 * log), 0.0) for v, shift, log in norm]

    def row(x: list[float]) -> list[float]:
        emitted: list[float] = []
        for level in range(levels):
            if level:
                half = len(x) // 2
                emitted, x = emitted + x[half:], x[:half]
            for step in range(depth):
                prefix = f"levels.{level}.{step}."
                norm = zip(x, p[f"{prefix}actnorm.shift"], p[f"{prefix}actnorm.logscale"], strict=True)
                x = [(v + shift) * math.exp(3 * log) for v, shift, log in norm][::-1]
                half, net = len(x) // 2, f"{prefix}coupling.net."
                out = linear(p[f"{net}weight3"], hidden(net, 2, hidden(net, 1, x[:half])))
                last = zip(x[half:], out, p[f"{net}bias3"], p[f"{net}logscale3"], strict=True)
                x = x[:half] + [v + (o + bias) * math.exp(3 * log) for v, o, bias, log in last]
        return emitted + x

    return lambda x: np.array([row(one) for one in x.tolist()], np.float32)


def in_c(stage: Stage, plan: Plan) -> dict[str, Call]:
    """{step: x (B, D) float32 -> z (B, D)}: unfolded and folded, with each of ``FLAGS``."""
    s = stage.settings
    found: dict[str, Call] = {}
    names = [f"levels.{level}.{step}." for level in range(s["levels"]) for step in range(s["depth"])]
    every = [
        stage.params[f"{n}{a}"] for n in names
        for a in ("actnorm.shift", "actnorm.logscale", *(f"coupling.net.{part}" for part in NET))
    ]  # fmt: skip
    weights = np.concatenate([np.ravel(array) for array in every], dtype=np.float32)
    single = plan.astype(np.float32)
    arrays = {name: np.ascontiguousarray(getattr(single, name)) for name in ARRAYS}
    folded = _Plan(
        **{name: array.ctypes.data for name, array in arrays.items()},
        dim=plan.inputs,
        steps=plan.steps,
        width=plan.width,
    )
    sizes = [plan.inputs, s["levels"], s["depth"], s["width"]]
    for name, flags in FLAGS.items():
        library = _compiled(flags)

        def layers(x: Array, library: Any = library) -> Array:
            z = np.empty_like(x)
            library.run_layers(_at(weights), _at(x), _at(z), ctypes.c_long(len(x)), *sizes)
            return z

        def plans(x: Array, library: Any = library, kept: Any = arrays) -> Array:
            z = np.empty_like(x)
            library.run_folded(ctypes.byref(folded), _at(x), _at(z), ctypes.c_long(len(x)))
            return z

        found |= {f"loops in C{name}": layers, f"loops in C, folded{name}": plans}
    return found


def _at(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _compiled(flags: Sequence[str]) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        library, compiled, compiler = Path(folder, "naive.so"), Path(folder, "naive.o"), shutil.which("cc") or "cc"
        options = ["-O3", "-march=native", *flags, "-fPIC"]
        subprocess.run([compiler, *options, "-c", "-o", compiled, SOURCE], check=True)
        # linked without the flags: linked with -ffast-math, it would turn off the whole process's subnormal numbers
        subprocess.run([compiler, "-shared", "-o", library, compiled, "-lm"], check=True)
        return ctypes.CDLL(str(library))
