"""A Parquet file of any bytes. Bytes: one that chooses the fields, then the file."""

from random import Random

from harness import Choices, Finding, check_contract, load, scratch

from fastflow.files.read import InputFormat
from fastflow.files.read.inputs import Input
from fastflow.files.read.parquet import row_count
from fastflow.files.read.texts import read_records

PATH = scratch() / "x.parquet"


def one(data: bytes) -> None:
    choices = Choices(data[:1].ljust(1, b"\0"))
    layout = InputFormat(field=choices.choice((None, "text")), keep=choices.choice(((), ("other",))))
    PATH.write_bytes(data[1:])
    check_contract(lambda: read(layout))


def read(layout: InputFormat) -> None:
    with Input(str(PATH)) as source:
        rows = row_count(source)
    found = list(read_records(str(PATH), layout))
    if len(found) != rows or not all(isinstance(record.texts[0], str) for record in found):
        raise Finding(f"{len(found)} records of {rows} rows")


def seeds() -> list[bytes]:
    return [b"\0" + load("inputs").write_parquet(["a", "dog", ""], Random(seed)) for seed in range(6)]
