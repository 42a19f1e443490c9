"""The one error users see: a plain sentence: what, where and what to do."""

from __future__ import annotations

import re
import sys
import warnings
from importlib.util import find_spec

NEED_TORCH = {"torch", "sentence-transformers"}
SMALL_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"


class FastflowError(Exception):
    """A failure the user can mend; the command line prints it as one line and exits with 1."""


class UsageError(FastflowError):
    """A wrong option or combination of options; the command line exits with 2."""


class CannotFit(FastflowError):
    """Texts or vectors that are too few, or too much the same, for a calibration; ``auto`` then keeps the pooling."""


class UnsupportedArchitecture(FastflowError):
    """An encoder that the native equations do not cover; PyTorch may."""


class WrongOnGpu(FastflowError):
    """A body that fails, or has wrong numbers, on the GPU of this machine."""


class FastflowWarning(UserWarning):
    """Texts, a vocabulary or a calibration that need a look, though the result is as asked."""


def warn(message: str) -> None:
    """A FastflowWarning at the line that called fastflow, however deep in fastflow it is found."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "fastflow":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, FastflowWarning, stacklevel=level)


def install(extra: str) -> str:
    """The command that installs the packages of an extra, of a checkout or of an installed wheel alike."""
    return f"pip install {' '.join(packages(extra))}"


def packages(extra: str) -> list[str]:
    """The packages that an extra names, those of the extras among them too; the extra itself if nothing is recorded."""
    from importlib.metadata import PackageNotFoundError, requires  # only to fail

    try:
        asked = [each for each in requires("fastflow") or () if re.search(f"extra == .{extra}.", each)]
    except PackageNotFoundError:
        asked = []
    found: list[str] = []
    for each in asked:
        name, inner = re.match(r"([\w.-]+)(?:\[([^]]*)])?", each).groups()  # type: ignore[union-attr]
        if name == "fastflow":
            found += [package for other in inner.split(",") for package in packages(other)]
        else:
            found.append(f"'{name}[{inner}]'" if inner else name)
    return list(dict.fromkeys(found)) or [f"'fastflow[{extra}]'"]


def missing_extra(extra: str, module: str, purpose: str) -> FastflowError:
    """The sentence for an optional dependency that is absent, with the command to type."""
    needed = f"{purpose} needs {module}, which is not installed: run {install(extra)}"
    if find_spec("torch") is None and set(packages(extra)) & NEED_TORCH:
        needed += f"; on a machine without a GPU first {SMALL_TORCH}, or gigabytes of CUDA come with it"
    return FastflowError(needed)
