"""Fill the disk under whatever writes: one sentence and nothing half-made, and with more room the bytes of a whole run.

    python tests/faults/disks.py --count 100 --seed 0

The subjects of kills.py write to a file system in memory of some pages (tmpfs; to mount it needs root). Each must end
with 0, or with 1 and a sentence about the disk, and has then left nothing under its name. The file system is made
larger, and the command again, with --resume if it has that, must end with 0 and leave the files of a whole run, bit for
bit. Exit code 1 for anything else, 77 where nothing can be mounted.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kills import LOG, Shop, Subject, campaign, check_cache, differing, files

PAGE = 4096
LEAST, ENOUGH = 0.02, 1 << 26  # of the bytes that a whole run leaves; bytes
SAID = re.compile("No space left on device|disk is full|File too large")


@contextmanager
def mounted(size: int) -> Iterator[Path]:
    """An empty file system in memory of ``size`` bytes. Raises CalledProcessError where that is not allowed."""
    with tempfile.TemporaryDirectory(prefix="fastflow-disk-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True, capture_output=True)
        try:
            yield Path(folder).resolve()
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def filled(shop: Shop, subject: Subject, rng: random.Random, counts: Counter[str]) -> str:
    """Run ``subject`` on a disk that may be too small, and again on a larger one; a fault in words, or nothing."""
    whole = shop.wholes[subject.name]
    size = sum(map(len, whole.values())) * LEAST ** (rng.random() * 2 - 1)
    with mounted(max(1, round(size / PAGE)) * PAGE) as folder:
        code, _ = shop.child(folder, subject.command)
        said = LOG.read_text()
        there = [name for name in files(folder, subject.kept) if name.split("/")[0] == subject.out]
        if code not in (0, 1):
            return f"exit code {code}: {said[-300:]}"
        if code and (there or "Traceback" in said or not SAID.search(said)):
            return f"after exit code 1 there are {there}, and it said: {said[-300:]}"
        counts["full" if code else "enough"] += 1
        subprocess.run(["mount", "-o", f"remount,size={ENOUGH}", folder], check=True)
        if code:
            code, _ = shop.child(folder, (*subject.command, *["--resume"] * subject.resume))
        if code:
            return f"the command again ends with {code}: {LOG.read_text()[-300:]}"
        if wrong := differing(files(folder, subject.kept), whole):
            return f"other files than of a whole run: {wrong}"
        return check_cache(folder / "c.db")


if __name__ == "__main__":
    try:
        with mounted(PAGE):
            pass
    except subprocess.CalledProcessError as error:
        print(f"no file system can be mounted here: {error.stderr.decode().strip()}")
        sys.exit(77)
    sys.exit(campaign(__doc__, 100, filled))
