"""The name of a method -> the links of its chain. Needs no PyTorch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastflow.errors import UsageError

METHODS = (
    "flow, whiten[:K], standardize, components[:K], nullspace[:K], none, auto, or a chain such as whiten:128,flow or "
    "whiten,recolour"
)


@dataclass(frozen=True)
class Method:
    """One link of a chain: its kind and K, if it takes one."""

    kind: str
    dims: int | None = None


def parse_method(text: str) -> list[Method]:
    """``whiten:128,flow`` -> its links; ``none`` -> no link. Raises a UsageError for an unknown one.

    ``whiten:128+flow`` is the same chain, for places where a comma separates the names of a list.
    """
    if text == "none":
        return []
    links = []
    for part in re.split("[,+]", text):
        match = re.fullmatch(r"(flow|standardize|whiten|recolour|components|nullspace)(?::(\d+))?", part.strip())
        if not match or (match[2] and match[1] in ("flow", "standardize", "recolour")):
            raise UsageError(f"unknown method {part.strip()!r}; use {METHODS}")
        links.append(Method(match[1], int(match[2]) if match[2] else None))
    if any(link.kind == "recolour" for link in links[:-1]) or links[0].kind == "recolour":
        raise UsageError(f"method {text!r}: recolour comes last, after the calibration whose spectrum it gives back")
    return links


def shipped(links: list[Method], latent: bool) -> list[Method]:
    """The chain as it is fitted: after a flow that comes last follows recolour, unless the latent is asked for."""
    if links and links[-1].kind == "flow" and not latent:
        return [*links, Method("recolour")]
    return links


def recoloured(method: str, latent: bool) -> bool:
    """Whether the chain of ``method`` ends in recolour as it is fitted."""
    links = shipped(parse_method(method), latent)
    return bool(links) and links[-1].kind == "recolour"
