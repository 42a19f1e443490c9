"""Hidden states of a directory's encoder by transformers and by the reference, for the tests that compare the two."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastflow.backends.torch import load_torch_encoder
from fastflow.kernels.encoder import reference
from fastflow.model.encoder import encoder_shape, read_config
from fastflow.model.encoder.weights import load_weights
from fastflow.model.tokenizer import Tokens

from support.tolerances import REFERENCE


def random_tokens(directory: Path, lengths: tuple[int, ...], seed: int = 0) -> Tokens:
    ids = np.random.default_rng(seed).integers(5, read_config(directory)["vocab_size"], sum(lengths)).astype(np.int32)
    return Tokens(ids, np.r_[0, np.cumsum(lengths)], np.empty(0, np.int64))


def ours(directory: Path, tokens: Tokens, dtype: str, layers: tuple[int, ...]) -> dict[int, np.ndarray]:
    config = read_config(directory)
    shape = encoder_shape(config, directory)
    weights = load_weights(directory, config, shape, np.dtype(dtype))
    return reference.encode(weights, tokens.ids, tokens.offsets, shape, layers, np.dtype(dtype))


@contextmanager
def rotary_in_double() -> Iterator[None]:
    """Cosines, sines and rotations of ModernBERT in float64; transformers has them in float32 in every dtype."""
    from transformers.models.modernbert import modeling_modernbert as modern

    def table(self: Any, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str) -> tuple[Any, Any]:
        angles = position_ids[..., None].float() * getattr(self, f"{layer_type}_inv_freq").float()
        both = torch.cat((angles, angles), dim=-1).double()
        return both.cos(), both.sin()

    def turn(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1) -> Any:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return tuple(x * cos + modern.rotate_half(x) * sin for x in (q, k))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modern.ModernBertRotaryEmbedding, "forward", table)
        patch.setattr(modern, "apply_rotary_pos_emb", turn)
        yield


def theirs(directory: Path, tokens: Tokens, dtype: str, attention: str | None = None) -> list[np.ndarray]:
    """transformers' hidden states, computed padded and then packed: [(N, D)] for layers 0 to L."""
    model = load_torch_encoder(directory, dtype).eval()
    if attention:
        model.set_attn_implementation(attention)
    lengths = np.diff(tokens.offsets)
    mask = np.arange(lengths.max())[None] < lengths[:, None]
    ids = np.full(mask.shape, model.config.pad_token_id)
    ids[mask] = tokens.ids
    given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask).long()}
    with torch.inference_mode():
        if dtype == "float64" and model.config.model_type == "modernbert":
            with rotary_in_double():
                out = model(**given, output_hidden_states=True)
        else:
            out = model(**given, output_hidden_states=True)
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
    return [state.numpy()[mask] for state in out.hidden_states]


def assert_same(directory: Path, tokens: Tokens, dtype: str, attention: str | None = None) -> None:
    """Compare all layers; errors are relative to the largest deviation of a state so far, if that exceeds 1."""
    expected = theirs(directory, tokens, dtype, attention)
    found = ours(directory, tokens, dtype, tuple(range(len(expected))))
    assert sorted(found) == list(range(len(expected)))
    scale = 1.0
    for layer, want in enumerate(expected):
        assert found[layer].dtype == want.dtype == np.dtype(dtype)
        assert np.isfinite(found[layer]).all()
        assert want.std() > 0.1  # the comparison is of something
        scale = max(scale, float(want.std()))
        assert np.abs(found[layer] - want).max() <= REFERENCE[dtype] * scale, layer
