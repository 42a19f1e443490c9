"""The texts of ``encode`` and its companions, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from fastflow.errors import FastflowError, UsageError


def one_of(inputs: Any, sentences: Any) -> Any:
    """The texts of ``encode``, given once, under the one name or the other; raises a UsageError otherwise."""
    if (inputs is None) == (sentences is None):
        raise UsageError("encode takes the texts once, as inputs")
    return sentences if inputs is None else inputs


def in_order(texts: Any) -> Iterator[Any]:
    """The items of ``texts`` in their order; raises a UsageError for an argument without an order."""
    if (
        isinstance(texts, str | bytes | Set | Mapping)
        or getattr(texts, "ndim", 1) != 1
        or not isinstance(texts, Iterable)
    ):
        raise UsageError(
            f"texts come as a list or another iterable of str in a fixed order, not as {type(texts).__name__}; "
            "pooled vectors go to transform()"
        )
    return iter(texts)


def check_text(text: Any, index: int) -> str:
    """``text`` itself; raises a FastflowError with its ``index`` for anything but a str."""
    if not isinstance(text, str):
        raise FastflowError(f"text {index} is {type(text).__name__}, not str; pooled vectors go to transform()")
    return text
