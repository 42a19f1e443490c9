"""The layer WORDS of a transformers encoder: the embedding layer with one mean position."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from fastflow.errors import UsageError

TABLE = "embeddings.position_embeddings"
PROJECTIONS = ("embeddings_project", "encoder.embedding_hidden_mapping_in")


def build_words_layer(encoder: Any, longest: int, where: object) -> Any:
    """Make a module, ids (B, T) -> layer WORDS (B, T, D); None if layer 0 has no positions.

    The module shares the word table of ``encoder``, and averages the last ``longest`` rows of the position table.
    Raises a UsageError if a trial run fails.
    """
    import torch

    ids = torch.full((1, 3), int(encoder.config.pad_token_id == 0), device=encoder.device)
    modules = dict(encoder.named_modules())
    projection = [modules[name] for name in PROJECTIONS if name in modules]
    with torch.inference_mode():
        first = get_states(encoder(input_ids=ids, output_hidden_states=True))[0]
        if (first == first[:, :1]).all():
            return None
        found = torch.nn.Sequential(modules["embeddings"], *projection)(ids) if TABLE in modules else None
        if not torch.is_tensor(found) or not torch.equal(found, first):
            raise UsageError(
                f"{where}: the torch backend cannot leave the positions out of the embedding layer of a "
                f"{type(encoder).__name__}; choose a pooling without words"
            )
    return torch.nn.Sequential(_without_positions(modules["embeddings"], longest), *projection)


def get_states(output: Any) -> Any:
    """Return hidden states by layer; the last is after ModernBERT's final LayerNorm, which transformers 4 omits."""
    return (*(output.hidden_states or ())[:-1], output.last_hidden_state)


def _without_positions(layer: Any, longest: int) -> Any:
    words = layer.word_embeddings
    copy = deepcopy(layer, {id(words): words})
    table = copy.position_embeddings.weight.data
    mean = table[len(table) - longest :].double().mean(dim=0)
    table.copy_(mean.to(table.dtype).expand_as(table))
    return copy
