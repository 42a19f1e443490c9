"""Batches of texts from several requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.model.tokenizer import Tokens

Floats = NDArray[np.floating[Any]]


class How(NamedTuple):
    """How a request is embedded: arguments of ``Runtime.encode``."""

    normalize: bool = True
    dim: int | None = None
    prompt: str = ""


class Part(NamedTuple):
    """Tokens of some texts of one request."""

    tokens: Tokens
    how: How


Embed = Callable[[Tokens, How], Floats]


def compute(embed: Embed, parts: Sequence[Part]) -> list[Floats | Exception]:
    """Return the vectors (b, D') of each part, or its error; ``embed`` computes a batch."""
    found: list[Floats | Exception] = [RuntimeError("not computed")] * len(parts)
    kinds: dict[tuple[object, ...], list[int]] = {}
    for i, (tokens, how) in enumerate(parts):
        kinds.setdefault((tokens.skip, how.normalize, how.dim), []).append(i)
    for rows in kinds.values():
        for i, z in zip(rows, _compute_together(embed, [parts[i] for i in rows]), strict=True):
            found[i] = z
    return found


def _compute_together(embed: Embed, parts: Sequence[Part]) -> list[Floats | Exception]:
    try:
        z = embed(join_tokens([part.tokens for part in parts]), parts[0].how)
    except Exception as error:  # the request answers and logs the error
        if len(parts) == 1:
            return [error]
        return [_compute_together(embed, [part])[0] for part in parts]
    ends = np.cumsum([len(part.tokens.offsets) - 1 for part in parts])
    return list(np.split(z, ends[:-1]))


def join_tokens(parts: Sequence[Tokens]) -> Tokens:
    """Join the tokens of ``parts``, which have equal ``skip`` (prompt tokens, not pooled)."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part.offsets) - 1 for part in parts)])
    cut = np.concatenate([part.cut + start for part, start in zip(parts, starts[:-1], strict=True)])
    offsets = np.zeros(starts[-1] + 1, np.int64)
    np.cumsum(np.concatenate([np.diff(part.offsets) for part in parts]), out=offsets[1:])
    return Tokens(np.concatenate([part.ids for part in parts]), offsets, cut, parts[0].skip)


def take_texts(tokens: Tokens, start: int, stop: int) -> Tokens:
    """Take texts ``start`` to ``stop`` - 1, without the record of cut texts."""
    first, last = tokens.offsets[start], tokens.offsets[stop]
    offsets = tokens.offsets[start : stop + 1] - first
    return Tokens(tokens.ids[first:last], offsets, np.zeros(0, np.int64), tokens.skip)
