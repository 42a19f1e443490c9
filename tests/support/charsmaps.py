"""Maps of characters as SentencePiece writes them: a double array over UTF-8 bytes, then the replacements."""

from __future__ import annotations

import struct
from typing import Any

FREE = 1 << 31 | 0xFF  # a unit that no byte leads to


def charsmap(replacements: dict[str, str]) -> bytes:
    """Return the precompiled_charsmap that replaces the keys by their values."""
    tree: dict[int, Any] = {}
    texts = b""
    for key, value in replacements.items():
        node = tree
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = len(texts)
        texts += value.encode() + b"\0"
    units = {0: 0}
    bases: set[int] = set()

    def place(node: dict[int, Any], at: int, label: int) -> None:
        base = next(b for b in range(1, 1 << 21) if b not in bases and not any(b ^ byte in units for byte in node))
        bases.add(base)
        units[at] = (at ^ base) << 10 | (0 in node) << 8 | label
        units.update((base ^ byte, 1 << 31 | below if byte == 0 else 0) for byte, below in node.items())
        for byte, below in node.items():
            if byte:
                place(below, base ^ byte, byte)

    place(tree, 0, 0)
    array = [units.get(i, FREE) for i in range(max(units) + 256)]
    return struct.pack(f"<I{len(array)}I", 4 * len(array), *array) + texts
