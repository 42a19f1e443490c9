"""The served model, and batches of texts from several requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import UsageError
from fastflow.model.tokenizer import Tokens
from fastflow.reranker import Reranker, score_tokens
from fastflow.runtime import Runtime
from fastflow.serve.requests import Refused

WORDS = "the quick brown fox jumps over the lazy dog while two birds sing in an old tree near the river "
PROBE = 0.05  # seconds of computing that measure the speed
TRIES = 3
TYPES = (("query", "search_query"), ("document", "passage", "search_document"))  # values of input_type for one task

log = logging.getLogger("fastflow.serve")

Floats = NDArray[np.floating[Any]]


class EmbedOptions(NamedTuple):
    """Arguments of ``Runtime.encode`` for the texts of a request."""

    normalize: bool = True
    dim: int | None = None
    prompt: str = ""


class Part(NamedTuple):
    """Tokens of some texts of one request."""

    tokens: Tokens
    options: EmbedOptions


class BatchModel:
    """A model of a BatchEngine: ``tokenize(texts or pairs, prompt)``, and ``embed(tokens, options)`` to (n, D).

    ``sample(text, count)``: the tokens of equal texts.
    """

    text = "text"  # in messages
    max_length: int
    batch_tokens: int
    tokenize: Callable[..., Tokens]
    embed: Callable[..., Floats]
    sample: Callable[..., Tokens]

    def measure_rate(self) -> float:
        """Measure tokens a second: the best of TRIES batches of about PROBE seconds."""
        count = 8
        sentence = WORDS * max(1, min(32, self.max_length - 4) // len(WORDS.split()))
        while True:
            tokens = self.sample(sentence, count)
            spent = self._time(tokens)
            if spent >= PROBE or 2 * len(tokens.ids) > self.batch_tokens:
                return len(tokens.ids) / min(spent, *(self._time(tokens) for _ in range(TRIES)))
            count *= 2

    def _time(self, tokens: Tokens) -> float:
        start = time.perf_counter()
        self.embed(tokens, EmbedOptions())
        return time.perf_counter() - start


class PairScorer(BatchModel):
    """The cross-encoder of a server; a text is a pair, and its row one logit."""

    text = "the query with text"

    def __init__(self, reranker: Reranker) -> None:
        if reranker.num_labels != 1:
            raise UsageError(f"--reranker takes a model of one label, and {reranker.model.path} has several")
        self.reranker, self.name, self.max_length = reranker, reranker.model.path.name, reranker.max_length
        self.batch_tokens, self.prompt = reranker.backend.batch_tokens, reranker.model.prompts.resolve()
        reranker.model.pairing.threads = 1

    def tokenize(self, texts: Sequence[tuple[str, str]], prompt: str) -> Tokens:
        return self.reranker.model.pairing.pair([(prompt + query, text) for query, text in texts])

    def embed(self, tokens: Tokens, options: EmbedOptions) -> Floats:
        return score_tokens(self.reranker, tokens, "identity")[1]

    def sample(self, text: str, count: int) -> Tokens:
        return self.tokenize([("a", text)] * count, "")

    def describe(self) -> dict[str, Any]:
        return {"model": self.name, "max_input_length": self.max_length, "dtype": self.reranker.backend.dtype}


class ServedModel(BatchModel):
    """A model of a server; answers have the first of ``names``. The ``first`` model answers to default too."""

    def __init__(self, runtime: Runtime, names: Sequence[str] = (), first: bool = True) -> None:
        self.runtime, self.opened, self.info = runtime, runtime.session, runtime.info()
        runtime.tokenizer.threads = 1  # other requests use the other cores
        self.max_length, self.batch_tokens = runtime.tokenizer.max_length, self.opened.backend.batch_tokens
        path = self.info["model"]
        own = [path if path == "default" else Path(path).name]
        self.names = tuple(dict.fromkeys([*names, *own, *["default"] * first]))
        self.normalize = self.info["similarity"] == "cosine"

    def tokenize(self, texts: Sequence[str], prompt: str) -> Tokens:
        if self.opened.seen.open and (warning := self.opened.look_at(texts)):
            log.warning("texts of the requests so far: %s", warning)
        return self.opened.tokenize(texts, prompt)

    def embed(self, tokens: Tokens, options: EmbedOptions) -> Floats:
        return self.opened.embed_tokens(tokens, options.normalize, options.dim)

    def sample(self, text: str, count: int) -> Tokens:
        return self.opened.tokenize([text] * count)

    def resolve_prompt(self, input_type: str | None, prompt_name: str | None) -> str:
        """Return the prompt of a task, of a name, or the default; raises Refused for both or an unknown name.

        A model without the prompt ``input_type`` uses another name of that task.
        """
        if input_type is not None:
            if prompt_name is not None:
                raise Refused("validation", "give input_type or prompt_name, not both", "prompt_name")
            others = next((names for names in TYPES if input_type in names), ())
            found = map(self.opened.model.prompts.of_task, (input_type, *others))
            return next(filter(None, found), "")
        try:
            return self.opened.model.prompts.resolve(None, prompt_name)
        except UsageError as error:
            raise Refused("validation", str(error), "prompt_name") from None

    @property
    def input_types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*sum(TYPES, ()), *self.info["prompts"]]))

    def describe(self) -> dict[str, Any]:
        i = self.info
        return {
            "model_id": self.names[0],
            "model_sha": None,
            "model_dtype": i["dtype"],
            "model_type": {"embedding": {"pooling": i["pooling"]}},
            "max_input_length": self.max_length,
            **{name: i[name] for name in ("fingerprint", "dim", "prompts", "default_prompt", "similarity")},
            "normalize": self.normalize,
            "calibration": i["calibration"],
            "backend": i["backend"],
        }


Embed = Callable[[Tokens, EmbedOptions], Floats]


def compute(embed: Embed, parts: Sequence[Part]) -> list[Floats | Exception]:
    """Return the vectors (b, D') of each part, or its error; ``embed`` computes a batch."""
    found: list[Floats | Exception] = [RuntimeError("not computed")] * len(parts)
    kinds: dict[tuple[object, ...], list[int]] = {}
    for i, (tokens, options) in enumerate(parts):
        kinds.setdefault((tokens.skip, options.normalize, options.dim), []).append(i)
    for rows in kinds.values():
        for i, z in zip(rows, _compute_together(embed, [parts[i] for i in rows]), strict=True):
            found[i] = z
    return found


def _compute_together(embed: Embed, parts: Sequence[Part]) -> list[Floats | Exception]:
    try:
        z = embed(join_tokens([part.tokens for part in parts]), parts[0].options)
    except Exception as error:  # the request answers and logs the error
        if len(parts) == 1:
            return [error]
        return [_compute_together(embed, [part])[0] for part in parts]
    ends = np.cumsum([len(part.tokens.offsets) - 1 for part in parts])
    return list(np.split(z, ends[:-1]))


def join_tokens(parts: Sequence[Tokens]) -> Tokens:
    """Join the tokens of ``parts``, which have equal ``skip`` (prompt tokens, not pooled)."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part.offsets) - 1 for part in parts)])
    cut = np.concatenate([part.cut + start for part, start in zip(parts, starts[:-1], strict=True)])
    offsets = np.zeros(starts[-1] + 1, np.int64)
    np.cumsum(np.concatenate([np.diff(part.offsets) for part in parts]), out=offsets[1:])
    seconds = [part.seconds for part in parts if part.seconds is not None]
    ids, typed = np.concatenate([part.ids for part in parts]), np.concatenate(seconds) if seconds else None
    return Tokens(ids, offsets, cut, parts[0].skip, typed)


def take_texts(tokens: Tokens, start: int, stop: int) -> Tokens:
    """Take texts ``start`` to ``stop`` - 1, without the record of cut texts."""
    first, last = tokens.offsets[start], tokens.offsets[stop]
    offsets = tokens.offsets[start : stop + 1] - first
    seconds = None if tokens.seconds is None else tokens.seconds[start:stop]
    return Tokens(tokens.ids[first:last], offsets, np.zeros(0, np.int64), tokens.skip, seconds)
