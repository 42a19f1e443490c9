"""Random encoders and packed texts, for the tests of the compiled encoder: arrays only, no model directory."""

import numpy as np
from hypothesis import strategies as st

from fastflow.kernels.encoder import EncoderShape
from fastflow.kernels.stored import BFLOAT16, STORED, quantise, to_bfloat16

VOCABULARY, POSITIONS = 200, 140


LENGTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 130)


text_lengths = st.lists(st.one_of(st.sampled_from(LENGTHS), st.integers(1, 130)), min_size=1, max_size=8)


def random_encoder(
    seed: int, layers: int, hidden: int, heads: int, intermediate: int, activation: str = "gelu",
    *, width: int | None = None, pad_id: int | None = None, half: bool = False,
) -> tuple[dict[str, np.ndarray], EncoderShape]:  # fmt: skip
    """float32 weights under the names of the reference and their shape; ``width``: of ELECTRA's embeddings."""
    rng = np.random.default_rng(seed)

    def draw(*size: int, scale: float = 0.3, mean: float = 0.0) -> np.ndarray:
        return (mean + scale * rng.normal(size=size)).astype(np.float32)

    narrow = width or hidden
    weights = {
        "word": draw(VOCABULARY, narrow).astype(np.float16 if half else np.float32),
        "position": draw(POSITIONS + 2, narrow), "segment": draw(narrow),
        "embed_norm.scale": draw(narrow, mean=1), "embed_norm.bias": draw(narrow),
    }  # fmt: skip
    if width:
        weights |= {"projection.weight": draw(hidden, width), "projection.bias": draw(hidden)}
    sizes = {
        "qkv": (3 * hidden, hidden),
        "out": (hidden, hidden),
        "up": (intermediate, hidden),
        "down": (hidden, intermediate),
    }
    for i in range(layers):
        for name, (rows, columns) in sizes.items():
            weights[f"layer.{i}.{name}.weight"] = draw(rows, columns, scale=columns**-0.5)
            weights[f"layer.{i}.{name}.bias"] = draw(rows)
        for name in ("norm1", "norm2"):
            weights |= {f"layer.{i}.{name}.scale": draw(hidden, mean=1), f"layer.{i}.{name}.bias": draw(hidden)}
    weights |= {"pooler.weight": draw(hidden, hidden, scale=hidden**-0.5), "pooler.bias": draw(hidden)}
    start = 0 if pad_id is None else pad_id + 1
    shape = EncoderShape(layers, hidden, heads, intermediate, 1e-12, activation, POSITIONS + start, start, pad_id)
    return weights | {"position": weights["position"][: POSITIONS + start]}, shape


def random_mpnet(
    seed: int, layers: int, hidden: int, heads: int, intermediate: int, **settings: bool
) -> tuple[dict[str, np.ndarray], EncoderShape]:
    weights, shape = random_encoder(seed, layers, hidden, heads, intermediate, pad_id=1, **settings)
    bias = np.random.default_rng(seed).normal(size=(32, heads)).astype(np.float32)
    return weights | {"relative": bias}, shape


def random_modernbert(
    seed: int, layers: int, hidden: int, heads: int, intermediate: int, activation: str = "gelu",
    *, window: int = 8, biases: bool = False, half: bool = False, positions: int = POSITIONS,
) -> tuple[dict[str, np.ndarray], EncoderShape]:  # fmt: skip
    """A random encoder in ModernBERT's form: full attention in every third layer, a window of 2 x window between."""
    rng = np.random.default_rng(seed)
    rows = {"qkv": 3 * hidden, "out": hidden, "up": 2 * intermediate, "down": hidden}
    columns = {"qkv": hidden, "out": hidden, "up": hidden, "down": intermediate}
    names = [f"layer.{i}.norm{n}" for i in range(layers) for n in (1, 2)][1:]
    weights = {"word": rng.normal(size=(VOCABULARY, hidden)).astype(np.float16 if half else np.float32)}
    for norm in ("embed_norm", *names, "final_norm"):
        weights[f"{norm}.scale"] = rng.normal(1, 0.3, hidden).astype(np.float32)
        if biases:
            weights[f"{norm}.bias"] = rng.normal(0, 0.3, hidden).astype(np.float32)
    for i in range(layers):
        for name in rows:
            drawn = rng.normal(0, columns[name] ** -0.5, (rows[name], columns[name]))
            weights[f"layer.{i}.{name}.weight"] = drawn.astype(np.float32)
            if biases:
                weights[f"layer.{i}.{name}.bias"] = rng.normal(0, 0.3, rows[name]).astype(np.float32)
    local = [bool(i % 3) for i in range(layers)]
    shape = EncoderShape(
        layers, hidden, heads, intermediate, 1e-5, activation, positions, 0, None, pre_norm=True, gated=True,
        rotary=tuple(10000.0 if near else 160000.0 for near in local),
        windows=tuple(window if near else None for near in local),
    )  # fmt: skip
    return weights, shape


def pack(lengths: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """ids (N,) int32, some of them 1, and offsets (B + 1,) int64."""
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, sum(lengths)).astype(np.int32)
    return ids, np.r_[0, np.cumsum(lengths)].astype(np.int64)


def select(ids: np.ndarray, offsets: np.ndarray, rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    parts = [ids[offsets[i] : offsets[i + 1]] for i in rows]
    return np.concatenate(parts), np.r_[0, np.cumsum([len(p) for p in parts])].astype(np.int64)


def bits(vectors: np.ndarray) -> np.ndarray:
    assert np.isfinite(vectors).all()
    return vectors.view(np.int32)


def rounded(values: np.ndarray) -> np.ndarray:
    found = to_bfloat16(np.ascontiguousarray(values, np.float32)).astype(np.uint32) << 16
    return found.view(np.float32).astype(np.float64)


def coarse(values: np.ndarray) -> np.ndarray:
    """To int8, one scale a row, and back."""
    whole, scale = quantise(np.ascontiguousarray(values, np.float32))
    return whole * scale[:, None].astype(np.float64)


def token_weights(seed: int) -> np.ndarray:
    """(vocabulary,) float32 in (0.01, 1], spread evenly over the orders of magnitude."""
    return (0.01 ** np.random.default_rng(seed).random(VOCABULARY)).astype(np.float32)


def stored_as(values: np.ndarray, kind: int) -> np.ndarray:
    if STORED[kind] == BFLOAT16:
        return to_bfloat16(values).view(BFLOAT16)
    return values.astype(STORED[kind])
