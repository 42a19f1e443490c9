"""Rewrite a wheel or an sdist so that equal contents give equal bytes; put the SBOM into a wheel.

    python release/seal.py dist/*

Names are sorted; files have the time of SOURCE_DATE_EPOCH, else of 1980, mode 0644 or 0755, and no owner. setup.py
does this at every build. A wheel that ``auditwheel`` rewrote is sealed once more.
"""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import os
import sys
import tarfile
import time
import zipfile
from pathlib import Path

from sbom import make_sbom

FIRST_DAY = 315_532_800  # 1980-01-01: zip has no earlier dates


def resolve_time() -> int:
    """Return the time of every file, in seconds since 1970."""
    return max(int(os.environ.get("SOURCE_DATE_EPOCH", FIRST_DAY)), FIRST_DAY)


def make_record(files: dict[str, bytes], name: str) -> bytes:
    """Make the RECORD ``name`` of a wheel: each file with its sha256 and size."""
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    for file, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        table.writerow([file, f"sha256={digest}", len(data)])
    table.writerow([name, "", ""])
    return written.getvalue().encode()


def seal_wheel(source: Path, target: Path) -> None:
    """Copy a wheel, with the bill of materials; metadata last."""
    with zipfile.ZipFile(source) as held:
        files = {name: held.read(name) for name in held.namelist() if not name.endswith("/")}
    listed = next(name for name in files if name.endswith(".dist-info/RECORD"))
    info = listed.removesuffix("RECORD")
    del files[listed]
    files[f"{info}sboms/fastflow.cdx.json"] = make_sbom(files)
    files = {name: files[name] for name in sorted(files, key=lambda name: (name.startswith(info), name))}
    files[listed] = make_record(files, listed)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, time.gmtime(resolve_time())[:6])
            entry.create_system, entry.compress_type = 3, zipfile.ZIP_DEFLATED  # 3: Unix, whose modes follow
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            wheel.writestr(entry, data)


def seal_sdist(source: Path, target: Path) -> None:
    """Copy the files of an sdist, without its folders."""
    with (
        tarfile.open(source) as held,
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=resolve_time(), fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as sdist,
    ):
        for member in sorted((each for each in held if each.isfile()), key=lambda each: each.name):
            entry = tarfile.TarInfo(member.name)
            entry.size, entry.mtime, entry.mode = member.size, resolve_time(), 0o755 if member.mode & 0o100 else 0o644
            sdist.addfile(entry, held.extractfile(member))


def seal(path: str | os.PathLike[str]) -> str:
    """Rewrite the wheel or the sdist ``path`` in its place; return its path."""
    given = Path(path)
    other = given.with_name(f"{given.name}.part")
    (seal_wheel if given.suffix == ".whl" else seal_sdist)(given, other)
    other.replace(given)
    return str(given)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(hashlib.sha256(Path(seal(argument)).read_bytes()).hexdigest(), argument)
