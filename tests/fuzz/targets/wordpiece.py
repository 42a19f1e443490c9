"""Texts through the compiled WordPiece, its definition and the library: the same ids. Bytes: choices, then UTF-8.

The definition is Python, so it is what leads the fuzzer.
"""

import json
from functools import cache

import wordpieces
from harness import Choices, Finding

from fastflow.kernels.tokens import reference
from fastflow.model.tokenizer.wordpiece import _read

CHOICES = 3  # bytes of an input that choose the tokenizer and the limit
FILES = list(wordpieces.make_files().values())


@cache
def made(number: int) -> tuple[wordpieces.Pair, reference.WordPiece]:
    data, lower = FILES[number]
    tree = json.loads(data)
    vocabulary, tree["model"]["vocab"] = tree["model"]["vocab"], {}
    return wordpieces.Pair(data, lower), reference.WordPiece(vocabulary, _read(tree, lower)[1])


def one(data: bytes) -> None:
    choices = Choices(data[:CHOICES])
    pair, definition = made(choices.getrandbits(8) % len(FILES))
    limit, threads = choices.choice((2, 3, 8, 17, 128)), choices.choice((1, 3))
    texts = data[CHOICES:].decode("utf-8", "ignore").split("\0")
    if fault := pair.difference(texts, limit, threads):
        raise Finding(fault)
    found, wanted = pair.native.tokenize(texts, limit, threads=1), definition.tokenize(texts, limit)
    if any(a.tolist() != b.tolist() for a, b in zip(found, wanted, strict=True)):
        raise Finding(f"{texts!r:.300} has other ids by definition")


def seeds() -> list[bytes]:
    texts = (
        "The dog [MASK] sleeps.",
        "\u00c9t\u00e9 \u0130stanbul 42",
        "\u4e2d\u6587 \ud55c\uae00 a\u0301\u0307\u0323",
        "x" * 300,
    )
    return [bytes([i, 4, 0]) + "\0".join(texts).encode() for i in range(len(FILES))]
