"""The folded flow on a CUDA GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.flow import Plan
from fastflow.kernels.flow.triton_layout import (
    LaunchLayout,
    arrange,
    count_products,
    is_dense,
    lay_out_hidden,
    lay_out_state,
    pad_width,
)
from fastflow.kernels.launch import Launcher, options

POOL = 16  # tokens that pooling sums at a time
# most tokens of a single text that ``flow_read`` and ``flow_emit`` pool themselves
POOL_FUSED = 64
SMALL = 16  # rows in a block of ``unit_rows``
WIDE = 128  # channels in a block of ``pool_mean`` and ``unit_rows``


@dataclass(frozen=True)
class Config:
    """A configuration: the most rows it serves, and constants as in ``triton_bodies``."""

    rows: float
    BM: int  # rows in a block
    BN: int  # output channels in a chunk
    BK: int  # inputs read together
    HB: int  # hidden units read together
    SCHEME: str  # "fma", "tf32x3" or "split", as in ``triton_parts``
    warps: int
    stages: int
    per_sm: int = 1  # programs of ``flow_state`` per multiprocessor
    AHEAD: int | None = None  # steps loaded early by ``flow_chain``; None: not used


ANY = float("inf")
# "hidden" was timed on an H100 (bench/research/triton_table.py), others follow the compiler's resource report
CONFIGURATIONS: dict[str, tuple[Config, ...]] = {
    "hidden": (
        Config(4, 1, 32, 512, 8, "fma", 8, 3, AHEAD=2),
        Config(64, 16, 32, 64, 32, "tf32x3", 4, 3, AHEAD=1),
        Config(2048, 16, 64, 64, 32, "tf32x3", 4, 3),
        Config(ANY, 64, 64, 32, 32, "split", 4, 3),
    ),
    "dense": (
        Config(1, 1, 16, 128, 16, "fma", 8, 3, AHEAD=2),
        Config(1024, 16, 32, 64, 32, "tf32x3", 4, 3),
        Config(ANY, 64, 64, 32, 32, "split", 4, 3),
    ),
    "state": (
        Config(1, 1, 64, 128, 0, "fma", 4, 3),
        Config(4096, 16, 64, 64, 0, "tf32x3", 4, 3, 2),
        Config(ANY, 64, 32, 32, 0, "tf32x3", 4, 3, 2),
    ),
}


def choose(kind: str, rows: int) -> Config:
    """Return the configuration for ``rows``."""
    return next(config for config in CONFIGURATIONS[kind] if rows <= config.rows)


Tensor = Any  # torch.Tensor
PIECE = 65_536  # most rows at once
# predicted, not timed: more rows update u if merging takes over WORTH times as many products
FEW, WORTH = 16, 1.25
# None: the compiled kernel lacks the argument
UNWEIGHTED = {"id_ptr": None, "weight_ptr": None, "share_ptr": None}


class TritonFlow(Launcher):
    """Apply folded plans in order on one GPU.

    ``device``: CUDA, or cpu under Triton's interpreter. ``weights``: (vocabulary,) float32 token weights. ``shares``:
    weights of pooled layers. Raises ValueError as ``launch.prepare``.
    """

    def __init__(
        self, plans: Sequence[Plan], device: str = "cuda", weights: NDArray[np.float32] | None = None,
        shares: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        if not plans:
            raise ValueError("a TritonFlow needs at least one plan; fold() of an empty calibration gives the identity")
        super().__init__(device, "fastflow.kernels.flow.triton_bodies")
        self.weights = None if weights is None else self._table(weights)
        self.shares = None
        if shares is not None:  # times their number, by which kernels divide
            factors = np.array(shares, np.float64) * len(shares)
            self.shares = self.torch.tensor(factors.astype(np.float32), device=self.device)
        self.inputs, self.outputs = plans[0].inputs, plans[-1].outputs
        merged, separate = arrange(plans), arrange(plans, merge=False)
        self.merged = self.in_place = [_Part(self, plan) for plan in merged]
        if count_products(merged) > WORTH * count_products(separate):
            self.in_place = [_Part(self, plan) for plan in separate]

    def __call__(
        self, x: Tensor, normalize: bool = False, offsets: Tensor | None = None, ids: Tensor | None = None
    ) -> Tensor:
        """Return z (B, N) float32 of x (B, D), or of hidden states that ``pool`` pools, if ``offsets`` are given.

        ``normalize`` divides z by max(|z|, 1e-12).
        """
        return self._run(x, normalize, offsets, ids)

    def pool(self, hidden: Tensor, offsets: Tensor, ids: Tensor | None = None) -> Tensor:
        """Return (B, D) float32: means over tokens offsets[i] to offsets[i+1] and layers; 0 for a text without tokens.

        hidden: (tokens, D) or (layers, tokens, D), float32, float16 or bfloat16; offsets: (B + 1,) int32; ids:
        (tokens,) int32, only with ``weights``.
        """
        hidden = self._hidden(hidden)
        rows = self._offsets(offsets)
        pooled = self.torch.empty(rows, self.inputs, device=self.device)
        self.launch(
            self.bodies.pool_mean, (rows, -(-self.inputs // WIDE)), pool_constants(self.inputs), {},
            x_ptr=hidden, z_ptr=pooled, B=rows, D=self.inputs, **self._pooling(hidden, offsets, ids),
        )  # fmt: skip
        return pooled

    def _pooling(self, hidden: Tensor, offsets: Tensor, ids: Tensor | None) -> dict[str, Any]:
        texts = UNWEIGHTED | {"offset_ptr": offsets, "layers": len(hidden), "layer_pitch": hidden.stride(0)}
        if self.shares is not None:
            if len(hidden) != len(self.shares):
                raise ValueError(f"{len(self.shares)} shares do not fit hidden states of {len(hidden)} layers")
            texts["share_ptr"] = self.shares
        if self.weights is None:
            return texts
        if ids is None or ids.shape != hidden.shape[1:2] or ids.dtype != self.torch.int32:
            found = "none are given" if ids is None else f"these are {tuple(ids.shape)} of {ids.dtype}"
            raise ValueError(f"weighted pooling needs ids, ({hidden.shape[1]},) of int32, and {found}")
        return texts | {"id_ptr": self._check_device(ids).contiguous(), "weight_ptr": self.weights}

    def _run(self, x: Tensor, normalize: bool, offsets: Tensor | None, ids: Tensor | None) -> Tensor:
        pooling: dict[str, Any] | None = None
        if offsets is None:
            x, rows = self._check(x, 2, f"x must be (B, {self.inputs})"), len(x)
        else:
            x, rows = self._hidden(x), self._offsets(offsets)
            if rows == 1 and x.shape[1] <= POOL_FUSED and self.merged[0].kind == "hidden":
                pooling = self._pooling(x, offsets, ids)
            elif rows:
                x = self.pool(x, offsets, ids)
        if not rows:
            return self.torch.empty(0, self.outputs, device=self.device)
        parts = self.merged if rows <= FEW else self.in_place
        for part in parts:
            x = part(x, rows, normalize and part is parts[-1], pooling)
            pooling = None
        return x

    def _table(self, weights: NDArray[np.float32]) -> Tensor:
        if weights.ndim != 1 or weights.dtype != np.float32:
            raise ValueError(f"weights must be (vocabulary,) of float32; these are {weights.shape} of {weights.dtype}")
        return self.torch.tensor(np.ascontiguousarray(weights), device=self.device)

    def _hidden(self, hidden: Tensor) -> Tensor:
        if hidden.ndim == 2:
            hidden = hidden[None]
        return self._check(hidden, 3, f"hidden states must be (tokens, {self.inputs}) or (layers, tokens, same)")

    def _check(self, x: Tensor, ndim: int, rule: str) -> Tensor:
        if x.ndim != ndim or x.shape[-1] != self.inputs or not x.is_floating_point() or x.element_size() not in (2, 4):
            raise ValueError(f"{rule} of float32, float16 or bfloat16, and this is {tuple(x.shape)} of {x.dtype}")
        return self._check_device(x).contiguous()

    def _check_device(self, x: Tensor) -> Tensor:
        if x.device != self.device:
            raise ValueError(f"this flow runs on {self.device}, and the tensor given is on {x.device}: move it there")
        return x

    def _offsets(self, offsets: Tensor) -> int:
        if offsets.ndim != 1 or len(offsets) < 1 or offsets.dtype != self.torch.int32:
            raise ValueError(f"offsets must be (B + 1,) of int32; these are {tuple(offsets.shape)} of {offsets.dtype}")
        return len(self._check_device(offsets)) - 1

    def launch(
        self, kernel: Any, grid: tuple[int, ...], constants: dict[str, Any], arrays: dict[str, Tensor], **values: Any
    ) -> None:
        """Launch ``kernel``; pointers in neither ``values`` nor ``arrays`` get ``x_ptr``."""
        absent = values.get("x_ptr")
        pointers = {n: arrays.get(n, absent) for n in kernel.arg_names if n.endswith("_ptr") and n not in values}
        self.start(kernel, grid, **pointers, **values, **constants)


class _Part:
    def __init__(self, flow: TritonFlow, plan: Plan) -> None:
        self.flow, self.plan = flow, plan
        self.kind = kind(plan)
        self.width = pad_width(plan.width)
        self.layouts: dict[tuple[int, int, int, bool], tuple[LaunchLayout, dict[str, Tensor]]] = {}
        for config in CONFIGURATIONS[self.kind]:
            self.lay_out(config)  # now: a call captured in a CUDA graph must not copy

    def lay_out(self, config: Config) -> tuple[LaunchLayout, dict[str, Tensor]]:
        key = (config.HB, config.BN, config.BK, config.SCHEME == "split")
        if key not in self.layouts:
            state = self.kind == "state"
            layout = lay_out_state(self.plan, *key[1:3]) if state else lay_out_hidden(self.plan, *key)
            tensors = {name: self.flow.torch.from_numpy(a).to(self.flow.device) for name, a in layout.arrays.items()}
            self.layouts[key] = layout, tensors
        return self.layouts[key]

    def __call__(self, x: Tensor, rows: int, normalize: bool, pooling: dict[str, Any] | None) -> Tensor:
        config = choose(self.kind, rows)
        z = self.flow.torch.empty(rows, self.plan.outputs, device=self.flow.device)
        if self.kind == "state":
            self._run_state(config, x, z, rows)
        else:
            for start in range(0, rows, PIECE):
                given = x[start : start + PIECE] if pooling is None else x
                self._run_hidden(config, given, z[start : start + PIECE], pooling)
        if normalize:
            self.flow.launch(
                self.flow.bodies.unit_rows, (-(-rows // SMALL),), unit_constants(self.plan.outputs), {}, z_ptr=z,
                B=rows, N=self.plan.outputs,
            )  # fmt: skip
        return z

    def _run_hidden(self, config: Config, x: Tensor, z: Tensor, pooling: dict[str, Any] | None) -> None:
        rows, (layout, arrays) = len(z), self.lay_out(config)
        blocks, chain = -(-rows // config.BM), config.AHEAD is not None and layout.chain is not None
        values = {
            "x_ptr": x, "z_ptr": z, "a_ptr": self._scratch(blocks * config.BM * layout.columns), "B": rows,
            "D": layout.inputs, "N": layout.outputs, "C": layout.columns, "pitch": layout.pitch, "steps": layout.steps,
            "tiles": layout.tiles, "chunks": layout.chunks,
        } | (pooling or {"offset_ptr": x, "layers": 1, "layer_pitch": 0} | UNWEIGHTED)  # fmt: skip
        bodies = {"flow_read": layout.tiles} | (
            {"flow_chain": layout.chunks} if chain else {"flow_recur": layout.steps > 0, "flow_emit": layout.chunks}
        )
        for body, programs in bodies.items():
            kernel = getattr(self.flow.bodies, body)
            self.flow.launch(
                kernel, (blocks * programs,), constants(config, body, layout, self.width, pool=pooling is not None),
                arrays, **{name: value for name, value in values.items() if name in kernel.arg_names},
            )  # fmt: skip

    def _run_state(self, config: Config, x: Tensor, z: Tensor, rows: int) -> None:
        layout, arrays = self.lay_out(config)
        programs = min(-(-rows // config.BM), self.flow.programs * config.per_sm)
        self.flow.launch(
            self.flow.bodies.flow_state, (programs,),
            constants(config, "flow_state", layout, self.width, gated=self.plan.R is not None), arrays,
            x_ptr=x, z_ptr=z, scratch_ptr=self._scratch(programs * config.BM * layout.pitch), B=rows,
            D=layout.inputs, N=layout.outputs, steps=layout.steps, C=layout.columns, pitch=layout.pitch,
        )  # fmt: skip

    def _scratch(self, size: int) -> Tensor:
        return self.flow.torch.empty(max(size, 1), device=self.flow.device)


def kind(plan: Plan) -> str:
    """Return the key in CONFIGURATIONS of a plan from ``arrange``."""
    return "state" if plan.L is None else "dense" if is_dense(plan) else "hidden"


def constants(
    config: Config, body: str, layout: LaunchLayout, width: int, pool: bool = False, gated: bool = True
) -> dict[str, Any]:
    """Return constants and options of kernel ``body``."""
    names = {
        "flow_read": "BM BK HB SCHEME VEC POOL", "flow_recur": "BM WP UB SCHEME",
        "flow_emit": "BM BN BK WP SCHEME VEC DENSE POOL",
        "flow_chain": "BM BN BK WP SCHEME VEC DENSE POOL BLOCKS READERS LINKS AHEAD",
        "flow_state": "BM BN BK WP SCHEME VEC GATED",
    }  # fmt: skip
    values = vars(config) | {
        "WP": width, "UB": min(width, layout.unit), "VEC": math.gcd(layout.inputs, layout.outputs, 16),
        "DENSE": layout.dense, "POOL": POOL if pool else 0, "GATED": gated,
    } | (layout.chain._asdict() if layout.chain else {})  # fmt: skip
    return {n: values[n] for n in names[body].split()} | options(config.warps, config.stages)


def pool_constants(inputs: int) -> dict[str, Any]:
    """Return constants of ``pool_mean``."""
    return {"BN": WIDE, "VEC": math.gcd(inputs, 16), "POOL": POOL} | options(4, 3)


def unit_constants(outputs: int) -> dict[str, Any]:
    """Return constants of ``unit_rows``."""
    return {"BM": SMALL, "BN": WIDE, "VEC": math.gcd(outputs, 16)} | options(4, 3)
