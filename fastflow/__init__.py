"""fastflow: calibrated sentence embeddings from a frozen BERT, without labels.

>>> import fastflow
>>> fastflow.Runtime().encode(["A cat sat.", "A dog ran."]).shape
(2, 256)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastflow.errors import FastflowError, FastflowWarning, UsageError
from fastflow.version import __version__

if TYPE_CHECKING:
    from fastflow.exports.export import export
    from fastflow.reranker import Reranker
    from fastflow.runtime import Runtime
    from fastflow.search import Hit, Index
    from fastflow.search.pairs import Duplicates, duplicates, groups
    from fastflow.train import distill, fit
    from fastflow.train.export.result import Fit as Fit

# Fit is left out: `from fastflow import *` would need the train extra
__all__ = [
    "Duplicates", "FastflowError", "FastflowWarning", "Hit", "Index", "Reranker", "Runtime", "UsageError",
    "__version__", "distill", "duplicates", "export", "fit", "groups",
]  # fmt: skip
LATER = {  # public name -> the module that defines it
    "Duplicates": "fastflow.search.pairs",
    "Fit": "fastflow.train.export.result",
    "Hit": "fastflow.search",
    "Index": "fastflow.search",
    "Reranker": "fastflow.reranker",
    "Runtime": "fastflow.runtime",
    "distill": "fastflow.train",
    "duplicates": "fastflow.search.pairs",
    "export": "fastflow.exports.export",
    "fit": "fastflow.train",
    "groups": "fastflow.search.pairs",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: ``fastflow --help`` stays instant."""
    if name in LATER:
        return getattr(import_module(LATER[name]), name)
    raise AttributeError(f"module 'fastflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "Fit"]
