"""Spoil packed, Parquet and other inputs in thousands of ways: each must give right rows or one sentence.

    python tests/attacks/inputs.py --count 2000 --seconds 300 --seed 0
    python tests/attacks/inputs.py --seed 0 --only 1234        one case again, with its traceback

A case is read in a process of its own, with a limit on memory and on time. Exit code 1: something else came out, which
is printed with the number that repeats it.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from boxed import Judge, attack, cut, flipped, sentence

from fastflow.errors import FastflowError
from fastflow.files.read.records import Layout
from fastflow.files.read.texts import read_records

MEMORY = 600 << 20  # bytes that a case may take beyond what its process holds at its start
WORDS = ["dog", "Straße", "中文", "a b", "", "x" * 300, "tab\tor", 'quote"d', "\u2028", "\U0001f600"]
FORMATS = ("txt", "jsonl", "csv", "tsv", "parquet")


def plain(kind: str, texts: list[str], rng: random.Random) -> bytes:
    """A sound file of ``texts``."""
    if kind == "jsonl":
        return "".join(json.dumps({"text": t}) + "\n" for t in texts).encode()
    if kind == "csv":
        quoted = ('"' + t.replace('"', '""') + '"' for t in texts)
        return ("text\n" + "".join(q + "\n" for q in quoted)).encode()
    if kind == "parquet":
        return parquet(texts, rng)
    return (("text\n" if kind == "tsv" else "") + "".join(t + "\n" for t in texts)).encode()


def parquet(texts: list[str], rng: random.Random) -> bytes:
    """A sound Parquet file, of any of the types, encodings and compressions that text comes in."""
    kind = rng.choice([pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
    columns = {"text": pa.array(texts, kind)}
    if rng.random() < 0.3:
        columns["other"] = pa.array([{"a": [i]} for i in range(len(texts))])
    out = io.BytesIO()
    pq.write_table(
        pa.table(columns), out, use_dictionary=rng.random() < 0.5, row_group_size=rng.choice([1, 7, 1000]),
        compression=rng.choice(["none", "snappy", "gzip", "zstd"]), data_page_size=rng.choice([64, 1 << 20]),
        data_page_version=rng.choice(["1.0", "2.0"]), write_page_checksum=rng.random() < 0.5,
    )  # fmt: skip
    return out.getvalue()


def pack(suffix: str, data: bytes, rng: random.Random) -> bytes:
    """``data`` as members or frames of the format of ``suffix``, one or several, with or without a checksum."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice([0, 0, 1, 3])))
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    if suffix == ".gz":
        return b"".join(gzip.compress(part, rng.choice([0, 1, 9])) for part in parts)
    packer = zstandard.ZstdCompressor(rng.choice([1, 19]), write_checksum=rng.random() < 0.5)
    return b"".join(packer.compress(part) for part in parts)


def bomb(kind: str, rng: random.Random) -> bytes:
    """A sound file that is far larger than its packed form: one long line, lines of one letter, or a long field."""
    size = rng.choice([20, 100, 300]) << 20
    line = rng.choice([b"a", b"a\n", b"\n", b"word and ", "中".encode()])
    size = size if b"\n" not in line else 4 << 20  # lines take time, and no memory
    head = {"jsonl": b'{"text": "', "csv": b'text\n"', "tsv": b"text\n"}.get(kind, b"")
    return head + line * (size // len(line))


def long_parquet(rng: random.Random) -> bytes:
    """A Parquet file of few bytes that stand for gigabytes, or of long texts."""
    out, rows = io.BytesIO(), rng.choice([300, 20_000])
    text = "word " * rng.choice([1000, 100_000])
    if rng.random() < 0.5:
        values = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
        pq.write_table(pa.table({"text": values}), out)
    else:
        texts = [text[: rng.randrange(200_000)] for _ in range(300)]
        pq.write_table(pa.table({"text": texts}), out, use_dictionary=False, compression="zstd")
    return out.getvalue()


def make(number: int, seed: int, folder: Path) -> tuple[Path, list[str] | None]:
    """The file of a case, and its texts if it is sound."""
    rng = random.Random(f"{seed}/{number}")
    kind = rng.choice(FORMATS)
    suffix = "" if kind == "parquet" else rng.choice(["", ".gz", ".zst"])
    texts = [" ".join(rng.choices(WORDS, k=rng.randrange(4))) for _ in range(rng.choice([1, 5, 200]))]
    if kind in ("txt", "tsv"):
        texts = [t.replace("\t", " ") for t in texts]
    change = rng.choice(["none", "flip", "cut", "bomb"])
    path = folder / f"{number}.{kind}{suffix}"
    if change == "bomb":
        data = long_parquet(rng) if kind == "parquet" else bomb(kind, rng)
        path.write_bytes(pack(suffix, data, rng) if suffix else data[: 64 << 20] if kind != "parquet" else data)
        return path, None
    data = plain(kind, texts, rng)
    data = pack(suffix, data, rng) if suffix else data
    changes: dict[str, Callable[[bytes, random.Random], bytes]] = {"flip": flipped, "cut": cut}
    path.write_bytes(changes[change](data, rng) if change in changes and data else data)
    return path, texts if change == "none" else None


def judge(path: Path, wanted: list[str] | None) -> tuple[str, str]:
    """(outcome, details) of a file; see ``boxed``."""
    count, found = 0, []
    try:
        for record in read_records(str(path), Layout(field="text") if path.suffixes[0] != ".txt" else Layout()):
            count += 1
            if wanted is not None:
                found.append(record.texts[0])
    except FastflowError as error:
        return sentence(str(error), wanted is not None)
    if wanted is not None and found != wanted:
        return "Wrong rows", f"{len(found)} of {len(wanted)}"
    return "rows", str(count)


def case(number: int, seed: int, folder: Path) -> Judge:
    """The judge of a case."""
    return partial(judge, *make(number, seed, folder))


if __name__ == "__main__":
    sys.exit(attack(__doc__, case, MEMORY))
