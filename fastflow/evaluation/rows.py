"""Lines of a text file and rows of a TSV file without quoting, packed or not."""

from __future__ import annotations

import re
from pathlib import Path

from fastflow.errors import FastflowError
from fastflow.files.read.inputs import PACKED, unpack, without_packing
from fastflow.values import short


def read_lines(path: Path) -> list[str]:
    """Read the lines of a file, without their ends."""
    try:
        with path.open("rb") as handle:
            data = b"".join(iter(unpack(str(path), handle).read1, b""))
        lines = data.decode("utf-8").removeprefix("\ufeff").removesuffix("\n").split("\n")
    except OSError as error:
        raise FastflowError(f"{path} cannot be opened: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        raise FastflowError(f"{path}, line {line}: byte {byte} is not UTF-8; convert the file") from error
    return [line.removesuffix("\r") for line in lines]


def without_suffix(path: Path) -> Path:
    """Remove .gz or .zst from the end of ``path``."""
    return Path(without_packing(str(path)))


def find_packed(path: Path) -> Path:
    """Return ``path``, or a packed file of that name."""
    found = (path.with_name(path.name + suffix) for suffix in ("", *PACKED))
    return next((each for each in found if each.exists()), path)


def list_tables(folder: Path) -> list[Path]:
    """List the .tsv files of a folder, packed or not."""
    return sorted(path for path in folder.glob("*.tsv*") if without_suffix(path).suffix == ".tsv")


def read_rows(path: Path, *headers: str) -> tuple[str, list[list[str]]]:
    """Read (header, fields of every later line); a field of ``headers`` in brackets may be absent."""
    found, *lines = read_lines(path)
    if not any(matches(found, header) for header in headers):
        known = [f"'{' '.join(header.split())}'" for header in headers]
        listed = " or ".join(filter(None, (", ".join(known[:-1]), known[-1])))
        raise FastflowError(f"{path}, line 1: the header must be {listed}, separated by tabs, not {short(found)}")
    return found, [line.split("\t") for line in lines]


def matches(found: str, header: str) -> bool:
    """Say whether ``found`` is ``header``, perhaps without its field in brackets."""
    return found in (re.sub(r"\[(\w+)\]", r"\1", header), re.sub(r"\[\w+\]\t", "", header))


def check_fields(path: Path, header: str, rows: list[list[str]], required: int = 0) -> None:
    """Raise unless every row has the fields of ``header``, and field ``required`` is not empty."""
    names = header.split("\t")
    for number, row in enumerate(rows, 2):
        if len(row) != len(names) or not row[required]:
            raise FastflowError(f"{path}, line {number}: must be {', '.join(names)}, with {names[required]} not empty")
