"""Arrays in a mapped file that other programs may change."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHANGED = "its file was changed while it was read; replace files as a whole, and open it again"


def watch(pages: Any, file: int) -> Any:
    """Watch ``pages``, the map of a whole open ``file``: if it is cut short, lost pages read as zeros.

    Without the extension it returns ``pages``, and a lost page ends the process.
    """
    if find_spec("fastflow.kernels._cpu") is None or not len(pages):
        return pages
    from fastflow.kernels._cpu import Watched

    return Watched(pages, file)


def was_changed(array: NDArray[Any]) -> bool:
    """Return whether the watched file of ``array`` was cut short or written to."""
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return bool(getattr(base, "changed", False))
