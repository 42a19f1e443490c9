"""A file of texts: txt, tsv, csv or jsonl, packed or not, with any options. Bytes: choices, then the file."""

import gzip
import json

from harness import Choices, Finding, check_contract, scratch

from fastflow.files.read import InputFormat, Record
from fastflow.files.read.inputs import Input
from fastflow.files.read.texts import records_of

FOLDER = scratch()
CHOICES = 6  # bytes of an input that choose its options
FORMATS = ("txt", "tsv", "csv", "jsonl")
SOUND = {
    "txt": b"a dog\n\n \xc3\xbc\r\nb",
    "tsv": b"id\ttext\n1\ta\n2\tb c\n",
    "csv": b'text,n\n"a ""b"", c",1\nd,2\n',
    "jsonl": b'{"text": "a\\u00e9", "id": 1}\n{"text": "b", "id": null}\n',
}


def one(data: bytes) -> None:
    choices = Choices(data[:CHOICES].ljust(CHOICES, b"\0"))
    kind, packed = choices.choice(FORMATS), choices.choice(("", "", ".gz", ".zst"))
    layout = InputFormat(
        field=choices.choice((None, None, "text", "1", "")), id_field=choices.choice((None, None, "id", "n")),
        errors=choices.choice(("strict", "replace")), delimiter=choices.choice((None, None, ",", "\t")),
        header=choices.random() < 0.8, null=kind == "txt" and choices.random() < 0.3,
        keep=choices.choice(((), ("n",), ("id", "text"))),
    )  # fmt: skip
    body = data[CHOICES:]
    path = FOLDER / f"x.{kind}{packed}"
    path.write_bytes(gzip.compress(body, 1) if packed == ".gz" and choices.getrandbits(1) else body)
    check_contract(lambda: read(str(path), layout))


def read(path: str, layout: InputFormat) -> None:
    """All records, and the same after some of them."""
    found = read_from(path, layout, 0)
    if not all(isinstance(text, str) for record in found if isinstance(record, Record) for text in record.texts):
        raise Finding("a text is no str")
    for skip in {1, len(found) // 2, len(found)}:
        if read_from(path, layout, skip) != found[skip:]:
            raise Finding(f"other records after the first {skip}")
    json.dumps([record.id for record in found if isinstance(record, Record)])


def read_from(path: str, layout: InputFormat, skip: int) -> list[Record | str]:
    """The records after ``skip``; the sentence of a row that cannot be used."""
    with Input(path) as source:
        return [each if isinstance(each, Record) else str(each) for each in records_of(source, layout, skip)]


def seeds() -> list[bytes]:
    first = [bytes([i]) + b"\0" * (CHOICES - 1) + SOUND[kind] for i, kind in enumerate(FORMATS)]
    return [*first, b"\0\2" + b"\0" * (CHOICES - 2) + gzip.compress(SOUND["txt"], mtime=0)]
