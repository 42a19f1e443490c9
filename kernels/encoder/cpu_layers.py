"""Write an encoder as steps for the compiled kernels.

Their buffers: x, states; y and z, sums or normalised states; context, attention's results; wide, queries, keys and
values by head, or hidden values; heads, queries, keys and values in bfloat16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import _cpu
from fastflow.kernels.encoder import MODES, WORDS, Dense, EncoderShape, Head, Norm, PoolingSpec, Unit, head_width
from fastflow.kernels.encoder.cpu_layout import ACTIVATIONS, EncoderProgram, Products, Stored

# activations that a product can apply
IN_PRODUCT = {"identity": "none", "tanh": "tanh", "relu": "relu", "gelu": "gelu"}
TEXT, OTHER, PROJECTED = "text", "other text", "projected text"  # buffers with a row per text


def assemble(weights: Stored, shape: EncoderShape, pooling: PoolingSpec, products: Products) -> EncoderProgram:
    """Return the steps from tokens to vectors; raise ValueError for a pooling or outliers that cannot run."""
    check_pooling(pooling)
    program = EncoderProgram({**weights, **head_weights(pooling.head)}, shape, pooling, products)
    program.buffers(**text_widths(pooling.head, program.pooled))
    _build(program, pooling.mode, tuple(pooling.layers))
    if pooling.head:
        add_head(program, pooling.head)
    program.check_outliers()
    return program


def _build(program: EncoderProgram, mode: str, layers: tuple[int, ...]) -> None:
    hidden, width, heads = program.shape.hidden, program.parts("word")[0].shape[1], program.shape.heads * program.head
    wide = 2 * program.pad(program.shape.intermediate) if program.shape.gated else program.shape.intermediate
    program.buffers(x=hidden, y=max(hidden, width))
    if max(layers) > 0:
        program.buffers(context=max(hidden, heads), wide=max(3 * heads, wide))
        if program.shape.pre_norm:
            program.buffers(z=hidden)
    if WORDS in layers:
        _embed(program, width, WORDS)
        _pool(program, mode, layers, WORDS)
    if max(layers) >= 0:
        _embed(program, width, 0)
        _pool(program, mode, layers, 0)
    add = _pre_norm_layer if program.shape.pre_norm else _post_norm_layer
    for layer in range(1, max(layers) + 1):
        add(program, layer - 1, f"layer.{layer - 1}.")
        if layer == program.shape.layers and "final_norm.scale" in program.weights:
            program.normalise("final_norm", "x", "x")
        _pool(program, mode, layers, layer)


def _embed(program: EncoderProgram, width: int, layer: int) -> None:
    projected = "projection.weight" in program.weights
    norm = program.norm("embed_norm", width)
    program.step(_cpu.EMBED, target="y" if projected else "x", width=width, mean=int(layer == WORDS), **norm)
    if projected:
        program.linear("projection", "y", "x")


def _post_norm_layer(program: EncoderProgram, layer: int, prefix: str) -> None:
    _attention(program, layer, prefix, "x", "y", add="x")
    program.normalise(f"{prefix}norm1", "y", "x")
    _feed_forward(program, prefix, "x", "y", add="x")
    program.normalise(f"{prefix}norm2", "y", "x")


def _pre_norm_layer(program: EncoderProgram, layer: int, prefix: str) -> None:
    first = f"{prefix}norm1.scale" not in program.weights
    if not first:
        program.normalise(f"{prefix}norm1", "x", "y")
    _attention(program, layer, prefix, "x" if first else "y", "z", add="x")
    program.normalise(f"{prefix}norm2", "z", "y")
    _feed_forward(program, prefix, "y", "x", add="z")


def _attention(program: EncoderProgram, layer: int, prefix: str, source: str, target: str, add: str) -> None:
    columns, rotary = 3 * program.shape.heads * program.head, program.shape.rotary
    heads = program.halves("heads", columns) if program.attention != _cpu.FLOAT else "wide"
    program.linear(f"{prefix}qkv", source, "wide" if rotary else heads, by_head=True, form=program.format)
    if rotary:
        program.step(_cpu.ROTATE, target="wide", table=program.rotary(rotary[layer]))
        if heads != "wide":
            program.step(
                _cpu.CONVERT, source="wide", target=heads, width=columns, format=_cpu.BF16, factors=-1, apart=-1
            )
    window = program.shape.windows[layer] if program.shape.windows else None
    bias = None
    if "relative" in program.weights:
        from fastflow.kernels.encoder import relative_bias

        bias = relative_bias(program.vector("relative"))
    context = program.choose_buffer("context")
    program.attend(heads, context, window, bias)
    program.linear(f"{prefix}out", context, target, add=add, from_heads=True, form=program.format)


def _feed_forward(program: EncoderProgram, prefix: str, source: str, target: str, add: str) -> None:
    wide, kind, hidden = program.shape.intermediate, program.shape.activation, "wide"
    if program.shape.gated:
        padded = program.pad(wide)
        rows = np.full((2, padded), -1, np.int32)
        rows[:, :wide] = np.arange(2 * wide).reshape(2, wide)
        program.linear(f"{prefix}up", source, "wide", rows=rows.reshape(-1), form=program.format)
        program.step(_cpu.GLU, target="wide", width=padded, activation=ACTIVATIONS[kind])
    else:
        hidden = program.choose_buffer("wide")
        program.linear(f"{prefix}up", source, hidden, kind, form=program.format)
    program.linear(f"{prefix}down", hidden, target, add=add, form=program.format)


def _pool(program: EncoderProgram, mode: str, layers: tuple[int, ...], layer: int) -> None:
    if layer not in layers:
        return
    slot, width = layers.index(layer), program.shape.hidden
    if mode == "pooler":
        if "pooler.weight" not in program.weights:
            raise ValueError("the encoder has no pooler")
        program.step(_cpu.FIRST, source="x", target="y", width=width, slot=slot)
        program.linear("pooler", "y", "context", "tanh", texts=1)
        program.step(_cpu.OUTPUT, source="context", width=width)
    else:
        to = TEXT if program.modules else -1
        add_pool(program, mode, slot, program.shares[slot], layer == min(layers), to)


def head_weights(head: Head) -> dict[str, NDArray[Any]]:
    """Return {name in ``add_head``: array} of ``head``."""
    found: dict[str, NDArray[Any]] = {}
    for i, module in enumerate(head):
        if isinstance(module, Dense):
            found |= {f"head.{i}.weight": module.weight, f"head.{i}.bias": module.bias}
            if module.projection is not None:
                found[f"head.{i}.projection.weight"] = module.projection
                found[f"head.{i}.projection.bias"] = np.zeros(len(module.projection), np.float32)
    return found


def check_pooling(pooling: PoolingSpec) -> None:
    """Raise ValueError for a pooling that is unknown, or does not fit its layers or modules."""
    parts, layers, shares = pooling.mode.split("+"), len(pooling.layers), pooling.shares
    if pooling.mode != "pooler" and (odd := [part for part in parts if part not in MODES]):
        raise ValueError(f"pooling {odd[0]!r} is not known; known are {', '.join(MODES)} and pooler")
    if "max" in parts and layers > 1:
        raise ValueError("pooling 'max' is of one layer, not of several")
    if "max" in parts and shares is not None and tuple(shares) != (1,):
        raise ValueError("pooling 'max' takes its layer whole, not a share of it")
    if pooling.mode == "pooler" and pooling.head:
        raise ValueError("pooling 'pooler' runs without modules behind it")


def text_widths(head: Head, pooled: int) -> dict[str, int]:
    """Return {buffer: columns} of the buffers that ``add_head`` needs."""
    if not head:
        return {}
    widest = max([pooled, *(head_width(head[: i + 1], pooled) for i in range(len(head)))])
    projects = any(isinstance(module, Dense) and module.projection is not None for module in head)
    names = [TEXT, OTHER, *([PROJECTED] if projects else [])]
    return dict.fromkeys(names, widest)


def add_pool(program: EncoderProgram, mode: str, slot: int, share: float, first: bool, to: str | int) -> None:
    """Add steps that pool the states in x, each part of ``mode`` in its own columns."""
    width, place = program.shape.hidden, program.put(np.array([share], np.float32))
    for i, part in enumerate(mode.split("+")):
        program.step(
            _cpu.POOL, source="x", target=to, width=width, slot=slot, mode=getattr(_cpu, MODES[part].step),
            column=i * width, share=place, first=int(first),
        )  # fmt: skip


def add_head(program: EncoderProgram, head: Head) -> None:
    """Add the modules of ``head`` on vectors in TEXT, and the step that returns them."""
    here, other, width = TEXT, OTHER, program.pooled
    for i, module in enumerate(head):
        if isinstance(module, Dense):
            _dense(program, module, f"head.{i}", here, other)
            here, other = other, here
        elif isinstance(module, Unit):
            program.step(_cpu.UNIT, target=here, width=width)
        else:
            _norm(program, module, here, width)
        width = head_width([module], width)
    program.step(_cpu.OUTPUT, source=here, width=width)


def _norm(program: EncoderProgram, module: Norm, where: str, width: int) -> None:
    places = {
        name: program.put(np.asarray(values, np.float32))
        for name, values in (("scale", module.scale), ("bias", module.bias), ("eps", [module.eps]))
    }
    program.step(_cpu.NORM, source=where, target=where, texts=1, width=width, **places)


def _dense(program: EncoderProgram, module: Dense, name: str, source: str, target: str) -> None:
    add: str | int = -1
    if module.residual:
        add = source
        if module.projection is not None:
            add = PROJECTED
            program.linear(f"{name}.projection", source, PROJECTED, texts=1)
    fused = module.activation in IN_PRODUCT and (module.activation == "identity" or not module.residual)
    activation = IN_PRODUCT[module.activation] if fused else "none"
    program.linear(name, source, target, activation, texts=1, add=add if fused else -1)
    if not fused:
        program.step(
            _cpu.MAP, target=target, width=len(module.weight), activation=_cpu.MAPS[module.activation], add=add
        )
