"""fastflow: calibrated sentence embeddings from a frozen BERT, without labels.

>>> import fastflow
>>> fastflow.Runtime().encode(["A cat sat.", "A dog ran."]).shape
(2, 256)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastflow.errors import FastflowError
from fastflow.version import __version__

if TYPE_CHECKING:
    from fastflow.runtime import Runtime
    from fastflow.search import Index
    from fastflow.train import fit

__all__ = ["FastflowError", "Index", "Runtime", "__version__", "fit"]


def __getattr__(name: str) -> Any:
    """Import Runtime, and NumPy with it, only when it is used: ``fastflow --help`` stays instant. So with others."""
    if name == "Runtime":
        from fastflow.runtime import Runtime

        return Runtime
    if name == "Index":
        from fastflow.search import Index

        return Index
    if name == "fit":
        from fastflow.train import fit

        return fit
    raise AttributeError(f"module 'fastflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
