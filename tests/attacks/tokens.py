"""The compiled WordPiece against ``tokenizers``, id for id, on lines of files and on random texts.

Lines come from the text files of --texts, by default of the checkout. A round reads 500 lines; every fifth line is read
again with changes, and 25 texts are of mixed characters of all scripts. After the last line come short such texts.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import Random

import zstandard
from harness import Finding
from wordpieces import Pair, make_files

from support.places import ROOT
from support.unicode import changed, mixed

BATCH = 500  # texts in a call
OPENERS = {".gz": gzip.open, ".zst": zstandard.open}
ENDINGS = (".txt", ".tsv", ".jsonl", ".csv", ".md", ".po", ".json")


@contextmanager
def prepare(folder: Path, paths: list[Path]) -> Iterator[Callable[..., None]]:
    pairs = {name: Pair(*file) for name, file in make_files().items()}
    corpus = read_lines(paths or [ROOT])

    def one(folder: Path, rng: Random, number: int, counts: Counter[str]) -> None:
        lines = list(islice(corpus, BATCH))
        kinds = {"lines": lines, "changed": [changed(line, rng) for line in lines if rng.random() < 0.2]}
        kinds["mixed"] = [mixed(rng) for _ in range(BATCH // 20)]
        for kind, texts in kinds.items() if lines else [("short", [mixed(rng, 4) for _ in range(4 * BATCH)])]:
            name = "bert" if rng.random() < 0.4 else rng.choice(list(pairs))
            counts[kind] += len(texts)
            if fault := pairs[name].difference(texts, rng.choice((2, 3, 8, 17, 128, 128, 512)), rng.choice((1, 1, 3))):
                raise Finding(f"{name}, {kind}, {fault}")

    yield one


def read_lines(paths: list[Path]) -> Iterator[str]:
    found = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    for path in found:
        if path.is_file() and path.name.removesuffix(".gz").removesuffix(".zst").endswith(ENDINGS):
            with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8", errors="replace") as handle:
                for line in handle:
                    yield line.rstrip("\n")
