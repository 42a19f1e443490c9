"""The subject in PyTorch: the encoder and its pooling; in float32 the reference of every check."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fastflow.backends.embedding_layer import build_words_layer
from fastflow.bench.measure.subject import Array, Subject
from fastflow.errors import missing_extra
from fastflow.evaluation.agreement import quiet
from fastflow.kernels.encoder.shape import WORDS
from fastflow.model.encoder.architecture import max_tokens


class Pooled(torch.nn.Module):
    """transformers' encoder and the subject's pooling: (B, T) ids and mask int64 -> (B, D).

    ``layers`` None: as the subject pools; otherwise the plain mean of these layers and of all tokens.
    """

    def __init__(
        self, subject: Subject, dtype: torch.dtype, attention: str = "sdpa", layers: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        import transformers

        with quiet():
            self.encoder = transformers.AutoModel.from_pretrained(
                subject.encoder, attn_implementation=attention, dtype=dtype
            )
        self.eval()
        self.layers = subject.layers if layers is None else layers
        self.shares = subject.shares if layers is None else None
        self.mode = subject.mode if layers is None else "mean"
        self.words: torch.nn.Module | None = None
        if WORDS in self.layers:
            self.words = build_words_layer(self.encoder, max_tokens(subject.shape), subject.encoder)
        self.last = self.layers == (subject.depth,)
        table = subject.weights if layers is None else None
        # a column, looked up as the encoder's own tables are, which every exporter and compiler supports
        self.token_weights: torch.Tensor | None
        self.register_buffer("token_weights", None if table is None else torch.tensor(table)[:, None])

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return pooled vectors in float32; sums are in float32 too."""
        return self._pool({"input_ids": input_ids, "attention_mask": attention_mask}, attention_mask)

    def unmasked(self, input_ids: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        """Do the same for texts of equal length, without the mask that transformers reads back from a GPU."""
        return self._pool({"input_ids": input_ids}, ones)

    def _pool(self, given: dict[str, torch.Tensor], attention_mask: torch.Tensor) -> torch.Tensor:
        if self.mode == "pooler":
            return self.encoder(**given).pooler_output.to(torch.float32)
        if self.last:
            hidden = self.encoder(**given).last_hidden_state
        else:
            states = self._compute_states(given)
            found = [states[layer] for layer in self.layers]
            if self.shares is None:
                hidden = sum(found) / len(found)
            else:
                hidden = sum(share * state for share, state in zip(self.shares, found, strict=True))
        if self.mode == "cls":
            return hidden[:, 0].to(torch.float32)
        weights = attention_mask.unsqueeze(-1).to(torch.float32)
        if self.token_weights is not None:
            weights = weights * torch.nn.functional.embedding(given["input_ids"], self.token_weights)
        return (hidden.to(torch.float32) * weights).sum(1) / weights.sum(1)

    def _compute_states(self, given: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
        """{layer: hidden states (B, T, D)}; no layer of the encoder runs if only WORDS is pooled."""
        if self.layers == (WORDS,) and self.words is not None:
            return {WORDS: self.words(given["input_ids"])}
        states = dict(enumerate(self.encoder(**given, output_hidden_states=True).hidden_states))
        states[WORDS] = states[0] if self.words is None else self.words(given["input_ids"])
        return states


class Saved(torch.nn.Module):
    """A directory of Sentence Transformers in its own modules: (B, T) ids and mask int64 -> (B, D') float32."""

    def __init__(self, directory: Path, dtype: torch.dtype, attention: str = "sdpa") -> None:
        super().__init__()
        if find_spec("sentence_transformers") is None:
            raise missing_extra("peers", "sentence_transformers", f"the bench of {directory}, which it saved,")
        from sentence_transformers import SentenceTransformer

        how = {"dtype": dtype, "attn_implementation": attention}
        with quiet():
            self.model = SentenceTransformer(str(directory), device="cpu", local_files_only=True, model_kwargs=how)
        self.eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the directory's embeddings, its head applied."""
        found = self.model({"input_ids": input_ids, "attention_mask": attention_mask})["sentence_embedding"]
        return torch.as_tensor(found).to(torch.float32)

    def unmasked(self, input_ids: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        """Do the same: Sentence Transformers needs the mask."""
        return self(input_ids, ones)


def open_pooled(subject: Subject, dtype: torch.dtype, attention: str = "sdpa") -> Pooled | Saved:
    """Open the subject as a module of (ids, mask), with its own pooling."""
    if subject.saved is not None:
        return Saved(subject.saved, dtype, attention)
    return Pooled(subject, dtype, attention)


def open_reference(
    subject: Subject, layers: tuple[int, ...] | None = None, device: str = "cpu"
) -> Callable[[Array, Array], Array]:
    """Open PyTorch in float32, with which everybody is compared; ``layers`` as for Pooled."""
    module = open_pooled(subject, torch.float32) if layers is None else Pooled(subject, torch.float32, layers=layers)
    module.to(device)

    def run(ids: Array, mask: Array) -> Array:
        with torch.inference_mode():
            return np.asarray(module(*(torch.from_numpy(a).to(device) for a in (ids, mask))).cpu().numpy())

    return run
