"""Small launches of every Triton kernel, several blocks of rows a program, for compute-sanitizer.

    small_launches.py flow|float32|float16...    the flow, or the encoder in a dtype; default all

On a GPU; under TRITON_INTERPRET=1 on a CPU. Two runs on the same rows must agree bit for bit.
"""

import sys
from dataclasses import replace

import numpy as np
import torch
import triton

from fastflow.bench.suites.flow import make_pooled_like, make_trained_like
from fastflow.kernels.encoder import reference
from fastflow.kernels.encoder import triton as encoder_triton
from fastflow.kernels.encoder.triton import TritonEncoder
from fastflow.kernels.flow import triton as flow_triton
from fastflow.kernels.flow.triton import CONFIGURATIONS
from fastflow.plan import fold

from support.packed import pack, random_encoder

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"


def launch_flows(kind: str, width: int, coupling: str = "additive") -> None:
    """Each configuration of ``kind``, on one program."""
    x = make_pooled_like(300, 64, 1)
    flow_triton.FEW, flow_triton.WORTH = (0, 0) if kind == "state" else (300, 0)
    flow = flow_triton.TritonFlow(
        fold([make_trained_like(x, 1, levels=2, depth=2, width=width, coupling=coupling)], 64), DEVICE
    )
    flow.programs = 1
    for config in CONFIGURATIONS[kind]:
        flow_triton.choose = lambda *_, config=config: config
        rows = torch.from_numpy(x[: 1 if config.BM == 1 else 2 * config.BM + 5]).to(DEVICE)
        z = flow(rows, normalize=True)
        assert torch.isfinite(z).all(), config
        assert torch.equal(z, flow(rows, normalize=True)), config
        print(kind, width, config.BM, tuple(z.shape), flush=True)
    offsets = torch.tensor([0, 3, 3, 40], dtype=torch.int32, device=DEVICE)
    assert torch.isfinite(flow.pool(torch.from_numpy(x[:40]).to(DEVICE), offsets)).all()


def launch_encoder(dtype: str) -> None:
    """Texts that straddle the blocks of attention."""
    weights, shape = random_encoder(3, 1, 64, 4, 96)
    ids, offsets = pack([1, 17, 65], 4)
    given = (ids, reference.positions(ids, offsets, shape), offsets)
    ids, positions, offsets = (torch.from_numpy(np.asarray(a, np.int32)).to(DEVICE) for a in given)
    encoder = TritonEncoder(weights, shape, (1,), dtype, DEVICE)
    for longest, tokens in ((65, 1), (128, 1 << 30)):
        encoder_triton.UP = replace(encoder_triton.UP, tokens=tokens)
        hidden = encoder(ids, positions, offsets, longest)[0]
        assert torch.isfinite(hidden).all()
    assert torch.isfinite(encoder.first(hidden, offsets)).all()
    print("encoder", dtype, tuple(hidden.shape), flush=True)


if __name__ == "__main__":
    for part in sys.argv[1:] or ("flow", "float32", "float16"):
        if part == "flow":
            for kind in CONFIGURATIONS:
                if kind != "dense":  # the code of hidden, with S read as a matrix
                    launch_flows(kind, 32)
            launch_flows("state", 32, "affine")
            launch_flows("hidden", 70)
        else:
            launch_encoder(part)
