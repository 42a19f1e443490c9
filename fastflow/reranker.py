"""Reranker: pairs of query and document -> scores of a cross-encoder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastflow.backends import Backend
from fastflow.backends.choose import open_backend
from fastflow.errors import FastflowError, UsageError, warn
from fastflow.kernels.encoder.texts import ACTIVATIONS, apply_head
from fastflow.model.locate import find_model
from fastflow.model.pairs import open_pair_model
from fastflow.model.tokenizer import Tokens
from fastflow.transforms.vectors import check_count, check_finite
from fastflow.values import short

if TYPE_CHECKING:
    from fastflow.types import BackendName, Device, Dtype

MODULES = {"Identity": "identity", "Sigmoid": "sigmoid", "Tanh": "tanh"}  # of torch.nn
NOTHING = {"convert_to_tensor": False, "device": None, "pool": None, "chunk_size": None, "num_workers": 0}


class Reranker:
    """A cross-encoder of Sentence Transformers on the CPU; threads and forked processes may share it, and it pickles.

    A pair has ``num_labels`` scores. ``activation`` turns logits into scores: sigmoid gives 0 to 1, identity keeps the
    logits. ``truncated`` counts the pairs that were cut at ``max_length`` tokens.

    Args:
        model: The path or Hub id of a CrossEncoder: BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA, DistilBERT, MPNet or
            ModernBERT.
        device: auto or cpu.
        dtype: The encoder's arithmetic: auto, float32, float64, bfloat16 or int8, if the backend has it. Its head is
            computed in float64.
        threads: The threads of one call. None: OMP_NUM_THREADS, else the cores of this process.
        backend: auto, cpu (compiled) or reference (NumPy).
        allow_download: Whether to ask the Hub; otherwise only its local cache is read.

    Raises:
        FastflowError: The model is absent, damaged or unsupported.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        device: Device = "auto",
        dtype: Dtype = "auto",
        threads: int | None = None,
        *,
        backend: BackendName = "auto",
        allow_download: bool = False,
    ) -> None:
        if device not in ("auto", "cpu") or backend not in ("auto", "cpu", "reference"):
            raise UsageError("a Reranker runs on device cpu, by backend cpu or reference")
        directory = Path(os.path.abspath(find_model(os.fspath(model), allow_download)))
        self._arguments: dict[str, Any] = {"dtype": dtype, "threads": threads, "backend": backend}
        self.model, self.truncated = open_pair_model(directory), 0
        self.model.pairing.threads = threads
        self.activation, self.num_labels = self.model.activation, self.model.labels
        self.max_length = self.model.max_length
        self._backend: Backend | None = open_backend(self.model, backend, "cpu", dtype, threads)

    def __repr__(self) -> str:
        how = "closed" if self._backend is None else f"{self.activation}, {self.backend.name} {self.backend.dtype}"
        return f"<Reranker: {self.model.path}, {how}>"

    @property
    def backend(self) -> Backend:
        """The backend that runs the encoder."""
        if self._backend is None:
            raise FastflowError("this Reranker is closed; make a new one")
        return self._backend

    def predict(
        self, inputs: Sequence[Any], prompt_name: str | None = None, prompt: str | None = None,
        batch_size: int | None = None, show_progress_bar: bool | None = None, activation_fn: Any = None,
        apply_softmax: bool | None = False, convert_to_numpy: bool = True, **foreign: object,
    ) -> Any:  # fmt: skip
        """Score pairs of texts.

        Args:
            inputs: A pair of texts, or a list of pairs.
            prompt_name: The name of a prompt of the model.
            prompt: Text to put before the first text of every pair. None: the prompt ``prompt_name``, or the default.
            batch_size: The most pairs computed at once. None: their tokens decide.
            show_progress_bar: True shows progress on standard error.
            activation_fn: torch.nn.Identity(), which gives logits, Sigmoid() or Tanh(). None: the model's own.
            apply_softmax: Whether the scores of several labels are made to sum to 1.
            convert_to_numpy: False returns a list.
            **foreign: Other options of Sentence Transformers, refused unless they have no effect.

        Returns:
            float32 (B,), or (B, labels) for several labels; of a single pair one number, or (labels,).

        Raises:
            FastflowError: A pair is not two texts, or its score is not finite; the message names its index.
        """
        for name, value in foreign.items():
            if name not in NOTHING or value not in (None, NOTHING[name]):
                raise UsageError(f"predict has no option {name}={short(value)}")
        single = isinstance(inputs, str) or (len(inputs) > 0 and isinstance(inputs[0], str))
        pairs = [inputs] if single else inputs
        found, _ = self._score(pairs, (prompt_name, prompt), batch_size, show_progress_bar, activation_fn)
        if apply_softmax and self.num_labels > 1:
            found = np.exp(found - found.max(axis=1, keepdims=True))
            found /= found.sum(axis=1, keepdims=True)
        scores = (found[:, 0] if self.num_labels == 1 else found).astype(np.float32)
        if single:
            return scores[0]
        return scores if convert_to_numpy else list(scores)

    def rank(
        self, query: str, documents: Sequence[str], top_k: int | None = None, return_documents: bool = False,
        prompt_name: str | None = None, prompt: str | None = None, batch_size: int | None = None,
        show_progress_bar: bool | None = None, activation_fn: Any = None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Score documents for a query, best first; documents of equal scores by logit, then in their order.

        Args:
            query: A text.
            documents: A list of texts.
            top_k: How many documents to return. None: all.
            return_documents: Whether to return their texts.
            prompt_name, prompt, batch_size, show_progress_bar, activation_fn: As in ``predict``.

        Returns:
            {"corpus_id": index, "score": float} of each document, with "text" if asked.

        Raises:
            FastflowError: As ``predict``.
            UsageError: The model has several labels.
        """
        if self.num_labels != 1:
            raise UsageError(f"{self.model.path} has {self.num_labels} labels, and rank needs one: use predict")
        check_count("top_k", top_k)
        pairs = [(query, text) for text in documents]
        found = self._score(pairs, (prompt_name, prompt), batch_size, show_progress_bar, activation_fn)
        scores, logits = (each[:, 0] for each in found)
        best = np.lexsort((-logits, -scores))[:top_k].tolist()
        more = [{"text": pairs[i][1]} if return_documents else {} for i in best]
        return [{"corpus_id": i, "score": float(scores[i])} | text for i, text in zip(best, more, strict=True)]

    def _score(
        self, inputs: Sequence[Any], prompts: tuple[str | None, str | None], size: int | None, shown: Any, by: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return scores and logits, each (B, labels)."""
        from fastflow.progress import Progress

        check_count("batch_size", size)
        prompt, activation = self.model.prompts.resolve(prompts[1], prompts[0]), self.activation
        if by is not None and (activation := MODULES.get(type(by).__name__, "")) == "":
            raise UsageError(f"activation_fn is {', '.join(MODULES)} of torch.nn, not {short(by)}")
        for i, pair in enumerate(inputs):
            texts = pair if isinstance(pair, list | tuple | np.ndarray) else ()
            if [isinstance(text, str) for text in texts] != [True, True]:
                raise FastflowError(f"pair {i} is {short(pair)}, not two texts")
        if len(inputs) == 0:
            return (np.zeros((0, self.num_labels)),) * 2
        tokens = self.model.pairing.pair([(prompt + first, second) for first, second in inputs])
        if len(tokens.cut) and not self.truncated:
            warn(f"pairs longer than {self.max_length} tokens are cut (the model's max_length)")
        self.truncated += len(tokens.cut)
        with Progress("rerank", len(inputs), "pairs", bool(shown)) as progress:
            return score_tokens(self, tokens, activation, size, progress.advance)

    def close(self) -> None:
        """Free the weights; the Reranker cannot be used afterwards."""
        self._backend = None

    def __enter__(self) -> Reranker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.model.path, **self._arguments), ()


def score_tokens(
    reranker: Reranker, tokens: Tokens, activation: str, size: int | None = None, count: Callable[[int], object] = int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return scores and logits, each (B, labels), of the tokens of pairs; ``count(n)`` is called after n pairs."""
    backend = reranker.backend

    def batches() -> Iterator[NDArray[np.int64]]:
        for rows in tokens.batches(size or len(tokens.offsets), backend.batch_tokens):
            yield rows
            count(len(rows))

    pooled = check_finite(backend.pool_batches(tokens, batches()), "pair")
    logits = check_finite(apply_head(reranker.model.scorer, pooled.astype(np.float64)), "pair")
    with np.errstate(over="ignore"):
        return ACTIVATIONS[activation](logits), logits
