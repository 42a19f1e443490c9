"""The Triton encoder against float64: in Triton's interpreter on a CPU (TRITON_INTERPRET=1), else on a GPU.

tests/kernels/test_triton.py runs this file in a process of its own. Buffers start as NaN, so that unwritten values and
tokens after the last text show.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton

from fastflow.kernels.encoder import reference
from fastflow.kernels.encoder.triton import ATTENTION, UP, TritonEncoder

from support.packed import pack, random_encoder

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
LIMIT = 2e-6  # relative, float32 against float64
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# a value rounded once to the dtype; the interpreter truncates to bfloat16, which errs up to twice as much
ROUNDING = {"float32": LIMIT, "float16": 1e-3, "bfloat16": 8e-3}


def make_nan(*size, **options):
    return torch.full(size, torch.nan, **options)


def on_device(weights, shape, layers, dtype="float32"):
    made = TritonEncoder(weights, shape, layers, dtype, DEVICE)
    made.torch = SimpleNamespace(**(vars(torch) | {"empty": make_nan}))
    return made


def to_device(ids, offsets, shape):
    positions = reference.positions(ids, offsets, shape)
    return [torch.from_numpy(np.asarray(a, np.int32)).to(DEVICE) for a in (ids, positions, offsets)]


def relative(found, exact):
    found, exact = np.asarray(found.cpu().double()), np.asarray(exact, np.float64)
    assert found.shape == exact.shape
    assert np.isfinite(found).all()
    assert exact.std() > 0.1
    return np.abs(found - exact).max() / np.abs(exact).max()


def random(*size, seed=0, dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(size)).to(dtype).to(DEVICE)


WHOLE = {
    "bert": ((1, 2), {}, [5, 1, 9]),
    "narrow heads": ((1,), {"layers": 1, "hidden": 48, "heads": 12, "intermediate": 97, "activation": "relu"}, [3, 6]),
    "odd heads": ((1,), {"layers": 1, "hidden": 72, "heads": 3, "activation": "gelu_tanh"}, [18, 2]),
    "electra": ((0, 2), {"width": 24}, [7]),
    "roberta": ((0,), {"pad_id": 1}, [9, 4]),
    "words": ((-1, 2), {}, [5, 9]),
    "words alone": ((-1,), {"pad_id": 1}, [9, 4]),
    "words of electra": ((0, -1), {"width": 24}, [7]),
    "stored in half": ((1,), {"half": True}, [8]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_hidden_states_of_whole_encoders(name):
    layers, settings, lengths = WHOLE[name]
    settings = {"seed": 3, "layers": 2, "hidden": 64, "heads": 4, "intermediate": 128} | settings
    weights, shape = random_encoder(**settings)
    ids, offsets = pack(lengths, 4)
    exact = reference.encode(
        {k: v.astype(np.float64) for k, v in weights.items()}, ids, offsets, shape, layers, np.dtype(np.float64)
    )
    found = on_device(weights, shape, layers)(*to_device(ids, offsets, shape), max(lengths))
    assert found.shape == (len(layers), len(ids), shape.hidden)
    for slot, layer in enumerate(layers):
        assert relative(found[slot], exact[layer]) <= LIMIT


def small(dtype="float32", **settings):
    settings = {"seed": 5, "layers": 1, "hidden": 64, "heads": 4, "intermediate": 64} | settings
    return on_device(*random_encoder(**settings), (1,), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 33, 312, 1024])
def test_bias_residual_and_layer_norm(width, dtype):
    encoder = small(dtype, hidden=width, heads={312: 3, 1024: 16}.get(width, 1))
    x, residual = (random(3, width, seed=s, dtype=DTYPES[dtype]) for s in (1, 2))
    w = {k.removeprefix("layer.0."): v.double().cpu().numpy() for k, v in encoder.weights.items()}
    total = x.double().cpu().numpy() + w["out.bias"] + residual.double().cpu().numpy()
    exact = reference.layer_norm(total, w["norm1.scale"], w["norm1.bias"], encoder.shape.eps)
    if width == 1:
        exact = np.broadcast_to(w["norm1.bias"], total.shape)  # a row of one is its own mean
        assert np.abs(encoder.add_norm(x, residual, "layer.0.", "out", "norm1", None).double().cpu().numpy() -
                      exact).max() <= ROUNDING[dtype]  # fmt: skip
        return
    target = make_nan(3, width, dtype=DTYPES[dtype], device=DEVICE)
    assert relative(encoder.add_norm(x.clone(), residual, "layer.0.", "out", "norm1", target), exact) <= ROUNDING[dtype]
    in_place = encoder.add_norm(x, residual, "layer.0.", "out", "norm1", None)
    assert in_place is x
    assert torch.equal(x, target)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("activation", "width"), [("gelu", 33), ("gelu_tanh", 1030), ("relu", 8)])
def test_bias_and_activation(activation, width, dtype):
    encoder = small(dtype, intermediate=width, activation=activation)
    x, bias = random(2, width, dtype=DTYPES[dtype]), encoder.weights["layer.0.up.bias"]
    exact = reference.activate((x.double() + bias.double()).cpu().numpy(), activation)
    assert relative(encoder.activate(x, bias), exact) <= ROUNDING[dtype]
    far = torch.tensor([[-40.0, 40.0, -5.0, 100.0] * 2] * 2, dtype=DTYPES[dtype], device=DEVICE)
    exact = reference.activate(far.double().cpu().numpy(), activation)
    assert relative(encoder.activate(far, torch.zeros(8, device=DEVICE)), exact) <= ROUNDING[dtype]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("activation", "width", "tokens"), [("gelu", 130, 300), ("gelu_tanh", 33, 129), ("relu", 8, 1)]
)
def test_product_and_activation_at_once(activation, width, tokens, dtype, monkeypatch):
    """Blocks that end outside, and groups of blocks that are not full."""
    encoder = small(dtype, intermediate=width, activation=activation)
    w = {name: encoder.weights[f"layer.0.up.{name}"] for name in ("weight", "bias")}
    x = random(tokens, 64, dtype=DTYPES[dtype])
    apart = encoder.widen(x, **w)
    monkeypatch.setattr("fastflow.kernels.encoder.triton.UP", replace(UP, tokens=1, GROUP=2))
    monkeypatch.setattr(encoder, "activate", None)  # only ``multiply_activate`` may run
    found = encoder.widen(x, **w)
    product = x.double() @ w["weight"].double().T + w["bias"].double()
    exact = reference.activate(product.cpu().numpy(), activation)
    assert relative(found, exact) <= min(ROUNDING[dtype], 2 * relative(apart, exact))


def attention_cases():
    for itemsize, configs in ATTENTION.items():
        for number, config in enumerate(configs):
            for head in {0: (4,), 3: (80,)}.get(number, (24, 64)):
                yield pytest.param(itemsize, number, head, id=f"{itemsize}-bytes-{config.BM}x{config.BN}-head-{head}")


@pytest.mark.parametrize(("itemsize", "number", "head"), list(attention_cases()))
def test_attention_within_each_text(itemsize, number, head, monkeypatch):
    """Every stored configuration, texts straddling its blocks; company and spare tokens have no effect."""
    config = ATTENTION[itemsize][number]
    monkeypatch.setattr("fastflow.kernels.encoder.triton.attention", lambda *_: config)
    dtype = "float32" if itemsize == 4 else "float16"
    encoder = small(dtype, hidden=2 * head, heads=2)
    lengths = [1, 0, config.BN + 1, 3] if number else [15, 0, 16]
    offsets = np.r_[0, np.cumsum(lengths)]
    qkv = random(sum(lengths), 6 * head, dtype=DTYPES[dtype])
    exact = reference.attention(qkv.double().cpu().numpy(), np.unique(offsets), 2)
    spare = torch.full((5, 6 * head), torch.nan, dtype=qkv.dtype, device=DEVICE)
    texts = torch.from_numpy(offsets.astype(np.int32)).to(DEVICE)
    found = encoder.attend(torch.cat([qkv, spare]), texts, max(lengths))
    assert relative(found[: len(qkv)], exact) <= ROUNDING[dtype]
    assert found[len(qkv) :].isnan().all(), "only texts are written"
    alone = encoder.attend(qkv[-lengths[-1] :].contiguous(), texts[-2:] - texts[-2], max(lengths))
    assert torch.equal(alone, found[len(qkv) - lengths[-1] : len(qkv)])


def test_any_number_of_texts_fits_the_grid(monkeypatch):
    grids, encoder = [], small(hidden=16, heads=2)
    monkeypatch.setattr(encoder, "launch", lambda body, grid, *_, **__: grids.append(grid))
    encoder.attend(random(70_000, 48), torch.arange(70_001, dtype=torch.int32, device=DEVICE), 1)
    assert grids == [(140_000,)]


def test_attention_of_large_scores_is_finite_and_a_choice():
    """Scores near 1e4 would overflow without the running maximum; every query then takes one key's value."""
    encoder = small(hidden=16, heads=1)
    qkv = random(40, 48)
    qkv[:, :32] *= 60
    exact = reference.attention(qkv.double().cpu().numpy(), np.array([0, 40]), 1)
    found = encoder.attend(qkv, torch.tensor([0, 40], dtype=torch.int32, device=DEVICE), 40)
    assert relative(found, exact) <= 1e-4  # float32 scores of 1e4 are exact to 1e-3, and their exponentials no better


@pytest.mark.parametrize("dtype", DTYPES)
def test_first_tokens(dtype):
    encoder = small(dtype, hidden=33, heads=1)
    hidden, offsets = random(9, 33, dtype=DTYPES[dtype]), torch.tensor([0, 4, 4, 9], dtype=torch.int32, device=DEVICE)
    first = encoder.first(hidden, offsets)
    assert first.dtype == torch.float32
    assert torch.equal(first, torch.stack([hidden[0], 0 * hidden[0], hidden[4]]).float())
    w = encoder.weights
    exact = np.tanh(first.double().cpu().numpy() @ w["pooler.weight"].double().cpu().numpy().T +
                    w["pooler.bias"].double().cpu().numpy())  # fmt: skip
    assert relative(encoder.pooler(first), exact) <= LIMIT


def test_tokens_after_the_last_text_have_no_effect():
    """What a captured graph of fixed size relies on."""
    weights, shape = random_encoder(6, 1, 32, 2, 48)
    ids, offsets = pack([4, 9], 7)
    encoder = on_device(weights, shape, (0, 1))
    packed = encoder(*to_device(ids, offsets, shape), 9)
    more = torch.zeros(19, dtype=torch.int32, device=DEVICE)
    spare = [torch.cat([t, more]) for t in to_device(ids, offsets, shape)[:2]]
    longer = torch.tensor([*offsets, 13, 13], dtype=torch.int32, device=DEVICE)
    bucket = encoder(*spare, longer, 16)
    assert np.abs((bucket[:, :13] - packed).cpu().numpy()).max() <= 5e-6
    assert torch.isfinite(bucket[:, :13]).all()


def test_nothing_to_do_and_wrong_arguments():
    encoder = small()
    none, start = torch.zeros(0, dtype=torch.int32, device=DEVICE), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    assert encoder(none, none, start, 0).shape == (1, 0, 64)
    assert encoder.first(torch.zeros(0, 64, device=DEVICE), start).shape == (0, 64)
    with pytest.raises(ValueError, match="offsets must be one row of int32"):
        encoder(none, none, start.long(), 0)
    with pytest.raises(ValueError, match="0 ids and 1 positions"):
        encoder(none, start, start, 0)
    for dtype, layers, words in (("float64", (1,), "float32, float16, bfloat16"), ("float32", (2,), "outside -1 to 1")):
        with pytest.raises(ValueError, match=words):
            TritonEncoder(*random_encoder(5, 1, 64, 4, 64), layers, dtype, DEVICE)
    with pytest.raises(ValueError, match="512 channels are too wide"):
        TritonEncoder(*random_encoder(5, 1, 512, 1, 8), (1,), "float32", DEVICE)
