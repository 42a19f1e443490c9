"""A packed, Parquet or other input: sound, spoilt, or far larger than its file. Bytes: a seed of the choices."""

import gzip
import io
import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from harness import Finding, check_contract, scratch
from mutators import change_bytes

from fastflow.files.read import InputFormat
from fastflow.files.read.texts import read_records

MEMORY = 600 << 20
FOLDER = scratch()
WORDS = ["dog", "Straße", "中文", "a b", "", "x" * 300, "tab\tor", 'quote"d', "\u2028", "\U0001f600"]
HEADS = {"txt": b"", "jsonl": b'{"text": "', "csv": b'text\n"', "tsv": b"text\n"}
TYPES = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()))


def write_plain(kind: str, texts: list[str]) -> bytes:
    if kind == "jsonl":
        return "".join(json.dumps({"text": t}) + "\n" for t in texts).encode()
    if kind == "csv":
        texts = ['"' + t.replace('"', '""') + '"' for t in texts]
    return (("" if kind == "txt" else "text\n") + "".join(t + "\n" for t in texts)).encode()


def write_parquet(texts: list[str], rng: Random) -> bytes:
    """A sound file, of any type, encoding and compression of texts."""
    columns = {"text": pa.array(texts, rng.choice(TYPES))}
    if rng.random() < 0.3:
        columns["other"] = pa.array([{"a": [i]} for i in range(len(texts))])
    out = io.BytesIO()
    pq.write_table(
        pa.table(columns), out, use_dictionary=rng.random() < 0.5, row_group_size=rng.choice([1, 7, 1000]),
        compression=rng.choice(["none", "snappy", "gzip", "zstd"]), data_page_size=rng.choice([64, 1 << 20]),
        data_page_version=rng.choice(["1.0", "2.0"]), write_page_checksum=rng.random() < 0.5,
    )  # fmt: skip
    return out.getvalue()


def pack(suffix: str, data: bytes, rng: Random) -> bytes:
    """One or several members or frames, with or without a checksum."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice([0, 0, 1, 3])))
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    if suffix == ".gz":
        return b"".join(gzip.compress(part, rng.choice([0, 1, 9])) for part in parts)
    level = rng.choice([1, 19]) if len(data) < 1 << 20 else 1  # 19 takes minutes for a bomb
    packer = zstandard.ZstdCompressor(level, write_checksum=rng.random() < 0.5)
    return b"".join(packer.compress(part) for part in parts) if suffix else data


def write_bomb(kind: str, suffix: str, rng: Random) -> bytes:
    """A sound file of one long line, of lines of one letter, of a long field, or of a text that many rows share."""
    if kind == "parquet":
        out, text = io.BytesIO(), "word " * rng.choice([1000, 100_000])
        if rng.random() < 0.5:
            rows = pa.array([0] * rng.choice([300, 20_000]), pa.int32())
            pq.write_table(pa.table({"text": pa.DictionaryArray.from_arrays(rows, pa.array([text]))}), out)
        else:
            texts = [text[: rng.randrange(200_000)] for _ in range(300)]
            pq.write_table(pa.table({"text": texts}), out, use_dictionary=False, compression="zstd")
        return out.getvalue()
    line = rng.choice([b"a", b"a\n", b"\n", b"word and ", "中".encode()])
    size = rng.choice([20, 100, 300]) << 20 if b"\n" not in line else 4 << 20  # lines take time, and no memory
    size = size if suffix else min(size, 64 << 20)
    return pack(suffix, HEADS[kind] + line * (size // len(line)), rng)


def one(data: bytes) -> None:
    rng = Random(data)
    kind = rng.choice((*HEADS, "parquet"))
    suffix = "" if kind == "parquet" else rng.choice(["", ".gz", ".zst"])
    texts = [" ".join(rng.choices(WORDS, k=rng.randrange(4))) for _ in range(rng.choice([1, 5, 200]))]
    if kind in ("txt", "tsv"):
        texts = [t.replace("\t", " ") for t in texts]
    how = rng.choice([*["sound"] * 3, *["changed"] * 6, "bomb"])
    if how == "bomb":
        made = write_bomb(kind, suffix, rng)
    else:
        made = write_parquet(texts, rng) if kind == "parquet" else pack(suffix, write_plain(kind, texts), rng)
        made = change_bytes(made, rng) if how == "changed" else made
    path = FOLDER / f"x.{kind}{suffix}"
    path.write_bytes(made)
    del made  # it is no memory of the reader
    check_contract(lambda: read(path, texts if how == "sound" else None), how == "sound", MEMORY)


def read(path: Path, wanted: list[str] | None) -> None:
    found = []
    for record in read_records(str(path), InputFormat(field="text") if path.suffixes[0] != ".txt" else InputFormat()):
        if wanted is not None:
            found.append(record.texts[0])
    if wanted is not None and found != wanted:
        raise Finding(f"wrong rows: {len(found)} of {len(wanted)}")


def seeds() -> list[bytes]:
    return [bytes([i]) for i in range(60)]
