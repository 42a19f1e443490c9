"""Inputs of the fuzzer that are kept: tests/corpus has a file for each target, an input in base64 a line.

A line that begins with # is a sentence about the one after it, which once broke something.
"""

from __future__ import annotations

import base64
from itertools import pairwise
from pathlib import Path

from support.places import TESTS


def path_of(name: str) -> Path:
    return TESTS / "corpus" / f"{name}.txt"


def lines_of(name: str) -> list[str]:
    return path_of(name).read_text(encoding="ascii").splitlines() if path_of(name).is_file() else []


def inputs(name: str) -> list[bytes]:
    return [base64.b64decode(line) for line in lines_of(name) if not line.startswith("#")]


def regressions(name: str) -> dict[str, bytes]:
    """Sentence -> the input that it is about."""
    found = pairwise(lines_of(name))
    return {said[2:]: base64.b64decode(line) for said, line in found if said.startswith("#")}
