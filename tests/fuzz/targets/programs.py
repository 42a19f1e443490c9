"""Calibrations and encoders drawn by the bytes, on every instruction set, against their definition in NumPy."""

import numpy as np
from drawn import DIMS, WIDTHS, draw_encoder
from harness import Choices, Finding

from fastflow.kernels import processor
from fastflow.kernels.encoder import PoolingSpec
from fastflow.kernels.encoder.cpu import CpuEncoder
from fastflow.kernels.flow import execute
from fastflow.kernels.flow.cpu import CpuFlow
from fastflow.plan import fold

from support.encoders import defined
from support.packed import pack
from support.stages import draw_chain

NEAR, FACTOR = 2e-5, 20  # of the largest number; times the error of NumPy in float32, in other orders of its sums


def one(data: bytes) -> None:
    choices = Choices(data[1:])
    isa = processor.usable_isas()[choices.getrandbits(8) % len(processor.usable_isas())]
    if data[:1] < b"\x80":
        calibrate(choices, isa)
    else:
        pool(choices, isa)


def calibrate(choices: Choices, isa: str) -> None:
    chain = draw_chain(choices, DIMS, WIDTHS)
    dim, plans = chain.dim, fold(chain.stages, chain.dim)
    rows, threads = choices.choice((0, 1, 2, 7, 17, 40)), choices.choice((1, 2))
    x = np.random.default_rng(choices.getrandbits(16)).normal(size=(rows, dim)).astype(np.float32)
    wanted, plain = x.astype(np.float64), x
    for plan in plans:
        wanted, plain = execute(plan, wanted), execute(plan.astype(np.float32), plain)
    check_near(CpuFlow(plans, threads, isa)(x), wanted, plain)


def pool(choices: Choices, isa: str) -> None:
    weights, shape, mode, layers, options = draw_encoder(choices)
    texts = pack(
        [choices.choice((1, 2, 5, 16, 33, 70)) for _ in range(choices.choice((1, 2, 5)))], choices.getrandbits(16)
    )
    skip, threads = choices.choice((0, 0, 1, 3)), choices.choice((1, 2))
    pooling = PoolingSpec(mode, layers, **options)
    found = CpuEncoder(weights, shape, pooling, threads=threads, isa=isa)(*texts, skip)
    made = weights, shape
    wanted, plain = (defined(made, texts, dtype, pooling, skip) for dtype in (np.float64, np.float32))
    check_near(found, wanted, plain)


def check_near(found: np.ndarray, wanted: np.ndarray, plain: np.ndarray) -> None:
    """``found`` errs little, or not much more than the definition in float32."""
    if found.shape != wanted.shape:
        raise Finding(f"a result of {found.shape}, not {wanted.shape}")
    seen = np.isfinite(wanted)
    if not np.array_equal(np.isfinite(found), seen):
        raise Finding("other numbers are finite")
    scale = max(np.abs(wanted[seen]).max(initial=0), 1)
    error, allowed = (np.abs(each[seen] - wanted[seen]).max(initial=0) / scale for each in (found, plain))
    if error > NEAR + FACTOR * allowed:
        raise Finding(f"an error of {error:g} of the largest number, and {allowed:g} in NumPy")


def seeds() -> list[bytes]:
    return [bytes([first]) + bytes(range(i, i + 40)) for first in (0, 255) for i in range(6)]
