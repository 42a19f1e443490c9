"""Write random flows and encoders for the native targets, for some or all instruction sets of this machine.

python tests/fuzz/record.py FILE [INSTRUCTION SET ...]

``programs.h`` reads the file: numbers are int64, and an array follows its length in bytes, -1 for none.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import Any, BinaryIO
from unittest.mock import patch

import harness  # noqa: F401 - the path of support
import numpy as np
from drawn import DIMS, WIDTHS, draw_encoder

from fastflow.kernels import processor
from fastflow.kernels.encoder import PoolingSpec
from fastflow.kernels.encoder import cpu as cpu_encoder
from fastflow.kernels.flow import cpu as cpu_flow
from fastflow.plan import fold

from support.stages import draw_chain

FLOWS, ENCODERS = 12, 24  # for each instruction set, and of encoders for each dtype in turn
FLOW_NUMBERS = ("inputs", "outputs", "result", "stride", "block", "cost", "isa")
ENCODER_NUMBERS = ("heads", "head", "hidden", "outputs", "position_start", "pad_id")


def catch_call(module: Any, name: str, make: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with which ``make()`` calls ``name`` of ``module``."""
    with patch.object(module, name) as called:
        make()
    return called.call_args.args, called.call_args.kwargs


def write_numbers(out: BinaryIO, *values: int) -> None:
    out.write(np.array(values, np.int64).tobytes())


def write_arrays(out: BinaryIO, *values: Any) -> None:
    for value in values:
        data = None if value is None else np.ascontiguousarray(value).tobytes()
        write_numbers(out, -1 if data is None else len(data))
        out.write(data or b"")


def write_flow(out: BinaryIO, isa: str, rng: Random) -> None:
    chain = draw_chain(rng, DIMS, WIDTHS)
    (weights, ops, table), given = catch_call(
        cpu_flow, "Flow", lambda: cpu_flow.CpuFlow(fold(chain.stages, chain.dim), 1, isa)
    )
    write_arrays(out, weights, ops, table)
    write_numbers(out, len(ops), *(given[name] for name in FLOW_NUMBERS))


def write_encoder(out: BinaryIO, isa: str, dtype: str, rng: Random) -> None:
    weights, shape, mode, layers, options = draw_encoder(rng)
    found, given = catch_call(
        cpu_encoder, "Encoder",
        lambda: cpu_encoder.CpuEncoder(weights, shape, PoolingSpec(mode, layers, **options), dtype, 1, isa=isa),
    )  # fmt: skip
    _, _, steps, strides, _, words, _ = found
    write_arrays(out, *found)
    write_numbers(out, words.itemsize == 2, len(steps), len(strides), *(given[name] for name in ENCODER_NUMBERS))
    write_numbers(out, len(words), given["position_rows"], given["layers"], given["isa"], round(given["eps"] * 1e12))


def has_products(isa: str, dtype: str) -> bool:
    try:
        cpu_encoder.choose(dtype, isa)
    except ValueError:
        return False
    return True


def main() -> None:
    rng, sets = Random(0), sys.argv[2:] or [name for name, (_, usable, *_) in processor.isas().items() if usable]
    with Path(sys.argv[1]).open("wb") as out:
        write_numbers(out, FLOWS * len(sets))
        for isa in sets:
            for _ in range(FLOWS):
                write_flow(out, isa, rng)
        write_numbers(out, ENCODERS * len(sets))
        for isa in sets:
            dtypes = [dtype for dtype in cpu_encoder.DTYPES if has_products(isa, dtype)]
            for i in range(ENCODERS):
                write_encoder(out, isa, dtypes[i % len(dtypes)], rng)


if __name__ == "__main__":
    main()
