"""The frozen BERT on a CUDA GPU."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.encoder import WORDS, EncoderShape, mean_position
from fastflow.kernels.encoder.reference import Weights
from fastflow.kernels.launch import Launcher, options

DTYPES = ("float32", "float16", "bfloat16")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
COLUMNS = 1024  # columns of a program: eight for each of 128 threads
SMALLEST = 16  # tl.dot takes no narrower operand


@dataclass(frozen=True)
class Attention:
    """A configuration of ``attend``: the widest head and the longest text it serves."""

    head: int  # channels, at most
    tokens: float
    BM: int  # queries in a block
    BN: int  # keys in a block
    warps: int
    stages: int


ANY = float("inf")
WIDEST = 128  # most channels of a head
# bytes of an element -> configurations; blocks follow the compiler's resource report on sm_80 and sm_90, and
# thresholds are estimated, not timed
ATTENTION: dict[int, tuple[Attention, ...]] = {
    4: (
        Attention(64, 16, 16, 16, 2, 2),
        Attention(64, 64, 16, 32, 2, 2),
        Attention(64, ANY, 32, 32, 4, 2),
        Attention(WIDEST, ANY, 16, 16, 4, 2),
    ),
    2: (
        Attention(64, 16, 16, 16, 2, 2),
        Attention(64, 64, 16, 32, 2, 2),
        Attention(64, ANY, 64, 64, 4, 3),
        Attention(WIDEST, ANY, 32, 32, 4, 2),
    ),
}


def attention(itemsize: int, head: int, longest: int) -> Attention:
    """Return the configuration for heads of ``head`` channels and ``longest`` tokens."""
    return next(config for config in ATTENTION[itemsize] if head <= config.head and longest <= config.tokens)


def attend_constants(config: Attention, head: int, dot: Any) -> dict[str, Any]:
    """Return constants and options of ``attend``; ``dot``: a Triton dtype."""
    wide = getattr(dot, "name", str(dot)) == "fp32"
    return {
        "BM": config.BM, "BN": config.BN, "HD": power_of_two(max(head, SMALLEST)), "DOT": dot,
        "PRECISION": "tf32x3" if wide else "ieee", "VEC": math.gcd(head, 16),
    } | options(config.warps, config.stages)  # fmt: skip


@dataclass(frozen=True)
class Product:
    """A configuration of ``multiply_activate``: the fewest tokens it serves, and its constants."""

    tokens: int
    BM: int
    BN: int
    BK: int
    GROUP: int
    warps: int
    stages: int


# predicted, not timed
UP = Product(4096, 128, 128, 64, 8, 8, 3)


def product_constants(config: Product, activation: str, width: int, dot: Any) -> dict[str, Any]:
    """Return constants and options of ``multiply_activate`` with ``width`` columns; ``dot``: a Triton dtype."""
    blocks = {name: getattr(config, name) for name in ("BM", "BN", "BK", "GROUP")}
    other = {"ACT": activation, "DOT": dot, "VEC": math.gcd(width, 16)}
    return blocks | other | options(config.warps, config.stages)


def row_constants(columns: int) -> dict[str, Any]:
    """Return constants of kernels with one program per row."""
    wide = power_of_two(columns)
    return {"BD": wide, "VEC": math.gcd(columns, 16)} | options(4 if wide >= 512 else 1, 1)


def activate_constants(activation: str, columns: int) -> dict[str, Any]:
    """Return constants of ``activate``."""
    block = min(power_of_two(columns), COLUMNS)
    return {"ACT": activation, "BI": block, "VEC": math.gcd(columns, 16)} | options(4, 1)


def power_of_two(number: int) -> int:
    """Return the least power of two >= ``number``."""
    return 1 << max(0, number - 1).bit_length()


Tensor = Any  # torch.Tensor
Array = NDArray[Any]


class TritonEncoder(Launcher):
    """Map token ids of concatenated texts to hidden states of the wanted layers, in ``dtype``.

    ``weights``, ``shape``: as in ``reference.encode``. ``device``: CUDA, or cpu under Triton's interpreter. Raises
    ValueError as ``launch.prepare``.
    """

    def __init__(
        self, weights: Weights, shape: EncoderShape, layers: Sequence[int], dtype: str = "float32", device: str = "cuda"
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} does not run in the Triton encoder; usable are {', '.join(DTYPES)}")
        if min(layers) < WORDS or max(layers) > shape.layers:
            raise ValueError(
                f"layers {tuple(layers)} lie outside {WORDS} to {shape.layers}, the layers of this encoder"
            )
        head = shape.hidden // shape.heads
        if head > WIDEST:
            raise ValueError(
                f"heads of {head} channels are too wide for the Triton encoder; it serves {WIDEST} at most"
            )
        if "relative" in weights or shape.pre_norm or shape.gated or shape.rotary or shape.windows:
            raise ValueError("the Triton encoder runs BERT's family alone, without relative bias, rotation or windows")
        super().__init__(device, "fastflow.kernels.encoder.triton_bodies")
        self.shape, self.layers, self.head = shape, tuple(layers), head
        self.dtype = getattr(self.torch, dtype)
        self.dot = self._dot(dtype)
        self.weights = self._load(weights)

    def _dot(self, dtype: str) -> Any:
        """Return the dtype of attention's products: float32 in Triton's interpreter, where bfloat16 is wrong."""
        language = importlib.import_module("triton.language")
        return language.float32 if self.device.type == "cpu" else getattr(language, dtype)

    def _load(self, weights: Weights) -> dict[str, Tensor]:
        last = max(self.layers)
        places = np.vstack([weights["position"], mean_position(weights["position"], self.shape.position_start)])
        found = {"place": self._tensor(places + weights["segment"], self.torch.float32)}
        for name, array in weights.items():
            part, _, rest = name.partition(".")
            if name in ("position", "segment") or (part == "layer" and int(rest.partition(".")[0]) >= last):
                continue
            if name == "word":
                half = array.dtype == np.float16
                found[name] = self._tensor(array, self.torch.float16 if half else self.torch.float32)
            else:
                matrix = name.endswith(".weight") and part != "pooler"
                linear = name.endswith(("qkv.bias", "projection.bias"))  # biases that the product adds
                found[name] = self._tensor(array, self.dtype if matrix or linear else self.torch.float32)
        return found

    def _tensor(self, array: Array, dtype: Any) -> Tensor:
        return self.torch.tensor(np.ascontiguousarray(array), device=self.device).to(dtype)

    def __call__(self, ids: Tensor, positions: Tensor, offsets: Tensor, longest: int) -> Tensor:
        """Return hidden states (layers, N, D) of the wanted layers.

        ids, positions: (N,) int32; offsets: (B + 1,) int32; ``longest``: the most tokens of a text. States of tokens
        from offsets[B] on are arbitrary.
        """
        self._check(ids=ids, positions=positions, offsets=offsets)
        shape, count = self.shape, len(ids)
        kept = self.torch.empty(len(self.layers), count, shape.hidden, dtype=self.dtype, device=self.device)
        if not count or len(offsets) < 2:
            return kept
        if WORDS in self.layers:  # the last row of positions is their mean
            mean = self.torch.full_like(positions, shape.positions)
            x = self._embed(ids, mean, self._place(kept, WORDS))
        if max(self.layers) >= 0:
            x = self._embed(ids, positions, self._place(kept, 0))
        for layer in range(max(self.layers)):
            x = self._layer(x, f"layer.{layer}.", offsets, longest, self._place(kept, layer + 1))
        return kept

    def first(self, hidden: Tensor, offsets: Tensor) -> Tensor:
        """Return (B, D) float32: each text's first state of hidden (N, D); 0 for a text without tokens."""
        rows = len(offsets) - 1
        y = self.torch.empty(rows, self.shape.hidden, device=self.device)
        self.launch("pool_first", (rows,), row_constants(self.shape.hidden), x_ptr=hidden, offset_ptr=offsets, y_ptr=y,
                    D=self.shape.hidden)  # fmt: skip
        return y

    def pooler(self, first: Tensor) -> Tensor:
        """Compute ``reference.pooler`` in float32: (B, D) -> (B, D)."""
        linear = self.torch.nn.functional.linear
        return self.torch.tanh(linear(first, self.weights["pooler.weight"], self.weights["pooler.bias"]))

    def _layer(self, x: Tensor, prefix: str, offsets: Tensor, longest: int, y: Tensor | None) -> Tensor:
        linear, w = self.torch.nn.functional.linear, self.weights
        context = self.attend(linear(x, w[f"{prefix}qkv.weight"], w[f"{prefix}qkv.bias"]), offsets, longest)
        x = self.add_norm(linear(context, w[f"{prefix}out.weight"]), x, prefix, "out", "norm1", None)
        wide = self.widen(x, w[f"{prefix}up.weight"], w[f"{prefix}up.bias"])
        return self.add_norm(linear(wide, w[f"{prefix}down.weight"]), x, prefix, "down", "norm2", y)

    def _embed(self, ids: Tensor, positions: Tensor, y: Tensor | None) -> Tensor:
        w, width = self.weights, self.weights["word"].shape[1]
        projected = "projection.weight" in w
        if y is None or projected:
            x = self.torch.empty(len(ids), width, dtype=self.dtype, device=self.device)
        else:
            x = y
        self.launch(
            "embed", (len(ids),), row_constants(width), id_ptr=ids, position_ptr=positions, word_ptr=w["word"],
            place_ptr=w["place"], scale_ptr=w["embed_norm.scale"], bias_ptr=w["embed_norm.bias"], y_ptr=x, D=width,
            eps=self.shape.eps,
        )  # fmt: skip
        if projected:  # ELECTRA
            x = self.torch.nn.functional.linear(x, w["projection.weight"], w["projection.bias"])
            x = x if y is None else y.copy_(x)
        return x

    def attend(self, qkv: Tensor, offsets: Tensor, longest: int) -> Tensor:
        """Return attention's results (N, hidden) for qkv (N, 3 hidden), within the texts of ``offsets`` (B + 1,)."""
        heads, config = self.shape.heads, attention(qkv.element_size(), self.head, longest)
        constants = attend_constants(config, self.head, self.dot)
        y = self.torch.empty(len(qkv), self.shape.hidden, dtype=self.dtype, device=self.device)
        blocks = -(-longest // config.BM)
        self.launch(
            "attend", ((len(offsets) - 1) * heads * blocks,), constants, qkv_ptr=qkv, offset_ptr=offsets, y_ptr=y,
            heads=heads, head=self.head, blocks=blocks, scale=1 / math.sqrt(self.head),
        )  # fmt: skip
        return y

    def add_norm(self, x: Tensor, residual: Tensor, prefix: str, product: str, norm: str, y: Tensor | None) -> Tensor:
        """Write LayerNorm ``norm`` of x + residual + the bias of ``product``, (N, hidden), to ``y``; None: to ``x``."""
        w = self.weights
        y = x if y is None else y
        self.launch(
            "add_norm", (len(x),), row_constants(self.shape.hidden), x_ptr=x, residual_ptr=residual,
            add_ptr=w[f"{prefix}{product}.bias"], scale_ptr=w[f"{prefix}{norm}.scale"],
            bias_ptr=w[f"{prefix}{norm}.bias"], y_ptr=y, D=self.shape.hidden, eps=self.shape.eps,
        )  # fmt: skip
        return y

    def widen(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return activation(x weight^T + bias): in one kernel for many tokens in 16 bits, else in two."""
        (count, inputs), width = x.shape, len(weight)
        if x.element_size() > 2 or count < UP.tokens or inputs % UP.BK:
            return self.activate(self.torch.nn.functional.linear(x, weight), bias)
        y = self.torch.empty(count, width, dtype=self.dtype, device=self.device)
        constants, blocks = product_constants(UP, self.shape.activation, width, self.dot), -(-count // UP.BM)
        given = {"x_ptr": x, "weight_ptr": weight, "add_ptr": bias, "y_ptr": y, "N": count, "D": inputs, "width": width}
        self.launch("multiply_activate", (blocks * -(-width // UP.BN),), constants, **given)
        return y

    def activate(self, x: Tensor, bias: Tensor) -> Tensor:
        """Apply the activation to x + bias, (N, width), in place."""
        constants = activate_constants(self.shape.activation, x.shape[1])
        self.launch("activate", (len(x), -(-x.shape[1] // constants["BI"])), constants, x_ptr=x, add_ptr=bias,
                    D=x.shape[1])  # fmt: skip
        return x

    def launch(self, body: str, grid: tuple[int, ...], constants: dict[str, Any], **values: Any) -> None:
        self.start(getattr(self.bodies, body), grid, **values, **constants)

    def _place(self, kept: Tensor, layer: int) -> Tensor | None:
        return kept[self.layers.index(layer)] if layer in self.layers else None

    def _check(self, **given: Tensor) -> None:
        for name, tensor in given.items():
            if tensor.ndim != 1 or tensor.dtype != self.torch.int32 or tensor.device != self.device:
                raise ValueError(
                    f"{name} must be one row of int32 on {self.device}, and this is {tuple(tensor.shape)} of "
                    f"{tensor.dtype} on {tensor.device}"
                )
        if len(given["ids"]) != len(given["positions"]):
            raise ValueError(f"{len(given['ids'])} ids and {len(given['positions'])} positions: one a token is wanted")
