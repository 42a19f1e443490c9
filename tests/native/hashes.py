"""Print a SHA-256 of the CPU kernels' bits for each instruction set, format and subject.

A change of the C code that must not change bits is checked by two runs on one machine:

    python tests/native/hashes.py > before.txt;  python tests/native/hashes.py > after.txt;  diff before.txt after.txt

The hashes of the seeded inputs are first; the last line is the hash of all others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fastflow.kernels import _cpu, processor
from fastflow.kernels.encoder import cpu as cpu_encoder
from fastflow.kernels.table.cpu import CpuTable
from fastflow.kernels.table.reference import RUN, STORED, WHOLE, Table

from support import stages as make
from support.packed import pack, random_encoder, select
from support.subjects import ENCODERS, MEAN, SUBJECTS, Subject, encoder, flow, opened

WIDTHS = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65)  # on both sides of whole vectors
FORMATS = ("FLOAT", "BF16", "BF16_WIDE", "INT8", "INT8_SIGNED", "INT8_TILES")
FORMS = {
    "roberta": {"hidden": 72, "heads": 3, "intermediate": 130, "pad_id": 1},
    "electra": {"hidden": 64, "heads": 4, "intermediate": 97, "width": 24},
    "gelu_tanh, half": {"hidden": 64, "heads": 2, "intermediate": 65, "activation": "gelu_tanh", "half": True},
    "relu, odd": {"hidden": 35, "heads": 5, "intermediate": 33, "activation": "relu"},
    "bert-base": {"hidden": 768, "heads": 12, "intermediate": 3072},
}
TEXTS = pack([WIDTHS[i * i % 10] for i in range(1, 20)], 7)


def list_subjects() -> Iterator[tuple[str, Subject]]:
    """The subjects of the law, and flows and tables of every width."""
    yield from SUBJECTS.items()
    rng = np.random.default_rng(20)
    for n in WIDTHS:
        yield f"whiten {n}", flow([make.standardize(rng, n), make.whiten(rng, n, max(1, n - 2))], n, 64)
        for form in ("additive", "affine"):
            for permutation in ("reversal", "random", "lu"):
                dim = 2 * n + 8 - 2 * n % 4
                yield f"{form} {permutation} {n}", flow([make.flow(rng, dim, 2, 2, n, form, permutation)], dim, 64)
        for dtype in STORED:
            for run in (RUN, WHOLE):
                rows = (40 * rng.normal(size=(200, n))).astype(dtype)
                table = Table(rows, rng.uniform(0.1, 2, 200).astype(np.float32), run=run)
                yield (
                    f"table, {dtype}, {n} wide, run {run}",
                    Subject(partial(CpuTable, table, None), partial(select, *TEXTS), 19),
                )


def list_encoders(form: str) -> Iterator[tuple[str, Subject]]:
    for name, (made, pooling, texts, how) in ENCODERS.items():
        yield name, encoder(made, pooling, texts, form, **how)
    for name, settings in FORMS.items():
        yield name, encoder(random_encoder(30, 2, **settings), MEAN, TEXTS, form)


def digest(rows: Any) -> str:
    return sha256(b"".join(rows)).hexdigest()


def hashes() -> Iterator[tuple[str, str]]:
    """If the inputs differ, the kernels cannot be compared."""
    for name, subject in [*list_subjects(), *list_encoders("float32")]:
        inputs = subject.texts(list(range(subject.count)))
        yield f"inputs, {name}", digest(repr(a).encode() if isinstance(a, list | bool) else a.tobytes() for a in inputs)
    for isa, (number, usable, _, _) in processor.isas().items():
        if usable and isa not in processor.TILES:  # they use AVX-512's
            for name, subject in list_subjects():
                yield f"{isa}, {name}", digest(opened(subject, isa)(list(range(subject.count)), 1))
        for form in FORMATS if usable else ():
            if getattr(_cpu, form) in cpu_encoder.formats(number):
                cpu_encoder.DTYPES[form] = (getattr(_cpu, form),)  # only this format of its dtype
                for name, subject in list_encoders(form):
                    yield f"{isa}, {form}, {name}", digest(opened(subject, isa)(list(range(subject.count)), 1))
                del cpu_encoder.DTYPES[form]


if __name__ == "__main__":
    whole = sha256()
    for combination, found in hashes():
        whole.update(f"{found} {combination}\n".encode())
        print(found, combination, flush=True)
    print(whole.hexdigest(), "all")
