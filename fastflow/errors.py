"""Errors and warnings for users: fault, place and remedy in one sentence."""

from __future__ import annotations

import re
import sys
import warnings
from importlib.util import find_spec

NEED_TORCH = {"torch", "sentence-transformers"}
SMALL_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"


class OptionText(str):
    """A sentence that names options of a command; ``in_python`` names arguments, and ``option`` is the first name."""

    in_python: str
    option: str


class FastflowError(Exception):
    """A failure that the user can mend; the command exits with 1. ``option`` names the option at fault, or is empty."""

    def __init__(self, message: str = "", **named: str | None) -> None:
        super().__init__(message, **named)
        self.option: str = getattr(message, "option", "")


class UsageError(FastflowError):
    """A wrong option or combination of options; the command exits with 2."""


class CannotFit(FastflowError):
    """Too few or too similar texts or vectors to fit a calibration."""


class UnsupportedArchitecture(FastflowError):
    """An encoder that fastflow's own kernels do not compute; PyTorch may."""


class WrongOnGpu(FastflowError):
    """A kernel that fails, or computes wrong numbers, on this GPU."""


class FastflowWarning(UserWarning):
    """A doubt about texts, vocabulary or calibration; the result is computed."""


def warn(message: str) -> None:
    """Issue a FastflowWarning that points to the calling line outside fastflow."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "fastflow":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, FastflowWarning, stacklevel=level)


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install {' '.join(packages(extra))}"


def packages(extra: str) -> list[str]:
    """Return the packages of an extra; without package metadata, its name."""
    from importlib.metadata import PackageNotFoundError, requires

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


def need_extra(extra: str, module: str, purpose: str) -> None:
    """Raise a FastflowError if ``module`` of an extra is not installed."""
    if find_spec(module) is None:
        raise missing_extra(extra, module, purpose)


def missing_extra(extra: str, module: str, purpose: str) -> FastflowError:
    """Return the error for an absent dependency."""
    needed = f"{purpose} needs {module}, which is not installed: run {install(extra)}"
    if find_spec("torch") is None and set(packages(extra)) & NEED_TORCH:
        needed += f"; on a machine without a GPU first {SMALL_TORCH}, or gigabytes of CUDA come with it"
    return FastflowError(needed)
