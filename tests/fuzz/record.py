"""Write flows and encoders by chance, for some or all instruction sets of this machine, for the native targets.

python tests/fuzz/record.py FILE [INSTRUCTION SET ...]

``programs.h`` reads the file: numbers are int64, and an array follows its length in bytes, -1 for none.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import Any, BinaryIO
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from drawn import chain, encoder

from fastflow.kernels import isa as instructions
from fastflow.kernels.encoder import cpu as cpu_encoder
from fastflow.kernels.encoder.shape import Pooling
from fastflow.kernels.flow import cpu as cpu_flow
from fastflow.plan.fold import fold

FLOWS, ENCODERS = 12, 24  # for each instruction set, and of encoders for each dtype in turn
FLOW_NUMBERS = ("inputs", "outputs", "result", "stride", "block", "cost", "isa")
ENCODER_NUMBERS = ("heads", "head", "hidden", "outputs", "position_start", "pad_id")


def taken(module: Any, name: str, make: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with which ``make()`` calls ``name`` of ``module``."""
    with patch.object(module, name) as called:
        make()
    return called.call_args.args, called.call_args.kwargs


def numbers(out: BinaryIO, *values: int) -> None:
    """Write int64 numbers."""
    out.write(np.array(values, np.int64).tobytes())


def arrays(out: BinaryIO, *values: Any) -> None:
    """Write arrays, each after its length."""
    for value in values:
        data = None if value is None else np.ascontiguousarray(value).tobytes()
        numbers(out, -1 if data is None else len(data))
        out.write(data or b"")


def write_flow(out: BinaryIO, isa: str, rng: Random) -> None:
    """Write one flow."""
    stages, dim = chain(rng)
    (weights, ops, table), given = taken(
        cpu_flow, "Flow", lambda: cpu_flow.CpuFlow(fold(stages, dim, rng.random() < 0.5), 1, isa)
    )
    arrays(out, weights, ops, table)
    numbers(out, len(ops), *(given[name] for name in FLOW_NUMBERS))


def write_encoder(out: BinaryIO, isa: str, dtype: str, rng: Random) -> None:
    """Write one encoder."""
    weights, shape, mode, layers, options = encoder(rng)
    found, given = taken(
        cpu_encoder, "Encoder",
        lambda: cpu_encoder.CpuEncoder(weights, shape, Pooling(mode, layers, **options), dtype, 1, isa=isa),
    )  # fmt: skip
    _, _, steps, strides, _, words, _ = found
    arrays(out, *found)
    numbers(out, words.itemsize == 2, len(steps), len(strides), *(given[name] for name in ENCODER_NUMBERS))
    numbers(out, len(words), given["position_rows"], given["layers"], given["isa"], round(given["eps"] * 1e12))


def runs(isa: str, dtype: str) -> bool:
    """Whether ``isa`` has products of ``dtype`` here."""
    try:
        cpu_encoder.choose(dtype, isa)
    except ValueError:
        return False
    return True


def main() -> None:
    """Write the file that the command line names."""
    rng, sets = Random(0), sys.argv[2:] or [name for name, (_, usable, *_) in instructions.isas().items() if usable]
    with Path(sys.argv[1]).open("wb") as out:
        numbers(out, FLOWS * len(sets))
        for isa in sets:
            for _ in range(FLOWS):
                write_flow(out, isa, rng)
        numbers(out, ENCODERS * len(sets))
        for isa in sets:
            dtypes = [dtype for dtype in cpu_encoder.DTYPES if runs(isa, dtype)]
            for i in range(ENCODERS):
                write_encoder(out, isa, dtypes[i % len(dtypes)], rng)


if __name__ == "__main__":
    main()
