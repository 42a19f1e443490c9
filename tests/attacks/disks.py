"""Every writer on a disk that fills: one sentence and no half-made file; with more room, the bytes of a whole run.

The subjects of kills.py write to a file system in memory of some pages (tmpfs; to mount it needs root). Each must end
with 0, or with 1 and a sentence about the disk, without a file under its name. The file system grows, and the command
again, with --resume if it has that, must leave the files of a whole run. Exit code 77 if mounting is not allowed.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import Finding
from kills import LOG, Shop, Subject, check_last, read_files

PAGE = 4096
LEAST, ENOUGH = 0.02, 1 << 26  # of the bytes that a whole run leaves; bytes
SAID = re.compile("No space left on device|disk is full|File too large")


@contextmanager
def mount(size: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fastflow-disk-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True, capture_output=True)
        try:
            yield Path(folder).resolve()
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def fill(shop: Shop, subject: Subject, rng: random.Random, counts: Counter[str]) -> None:
    """Run ``subject`` on a disk that may be too small, and again on a larger one."""
    whole = shop.wholes[subject.name]
    size = sum(map(len, whole.values())) * LEAST ** (rng.random() * 2 - 1)
    with mount(max(1, round(size / PAGE)) * PAGE) as folder:
        code, _ = shop.run(folder, subject.command)
        said = LOG.read_text()
        there = [name for name in read_files(folder, subject.kept) if name.split("/")[0] == subject.out]
        if code not in (0, 1) or (code and (there or "Traceback" in said or not SAID.search(said))):
            raise Finding(f"{subject.name}: after exit code {code} there are {there}, and it said: {said[-300:]}")
        counts["full" if code else "enough"] += 1
        subprocess.run(["mount", "-o", f"remount,size={ENOUGH}", folder], check=True)
        if code:
            code, _ = shop.run(folder, (*subject.command, *["--resume"] * subject.resume))
        check_last(folder, subject, whole, code)


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[..., None]]:
    try:
        with mount(PAGE):
            pass
    except subprocess.CalledProcessError as error:
        print(f"no file system can be mounted here: {error.stderr.decode().strip()}")
        sys.exit(77)
    shop = Shop(folder)
    subjects = shop.list_subjects()
    shop.prepare(subjects)

    def one(place: Path, rng: random.Random, number: int, counts: Counter[str]) -> None:
        fill(shop, subjects[number % len(subjects)], rng, counts)

    yield one
