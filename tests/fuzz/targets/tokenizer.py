"""A tokenizer.json of any bytes: what the compiled reader takes, the library takes too, with the same ids."""

import json
from typing import Any

import tokenizers
from harness import Finding

from fastflow.model.tokenizer.files import NotNativeError
from fastflow.model.tokenizer.native import read_native

from support.builders import wordpiece

TEXTS = ["the dog sleeps near it.", "", "[MASK] \u00dcn\u00efcode 42 \u4e2d", "a" * 300, "x[SEP]y"]


def one(data: bytes) -> None:
    try:
        native = read_native(data, False)
    except NotNativeError:
        return
    try:
        library = tokenizers.Tokenizer.from_buffer(data)
    except ValueError as error:
        raise Finding(f"the library refuses what is read here: {error}") from error
    library.no_truncation()
    library.no_padding()
    ids, offsets, _ = native.tokenizer.tokenize(TEXTS, 1000, threads=1)
    for i, each in enumerate(library.encode_batch_fast(TEXTS)):
        if ids[offsets[i] : offsets[i + 1]].tolist() != each.ids:
            raise Finding(f"{TEXTS[i]!r} is {each.ids[:40]}, not {ids[offsets[i] : offsets[i + 1]].tolist()[:40]}")


def seeds() -> list[bytes]:
    tree: dict[str, Any] = json.loads(wordpiece().to_str())
    out = [json.dumps(tree).encode(), json.dumps(tree, indent=2, ensure_ascii=False).encode()]
    cased: dict[str, Any] = {"lowercase": False, "strip_accents": None}
    changes = [cased, cased | {"strip_accents": True}, {"strip_accents": False}]
    return out + [json.dumps(tree | {"normalizer": tree["normalizer"] | change}).encode() for change in changes]
