"""The model that the server runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastflow.errors import UsageError
from fastflow.model.tokenizer import Tokens
from fastflow.runtime import Runtime
from fastflow.serve.batch import Floats, How
from fastflow.serve.refusals import Refused

WORDS = "the quick brown fox jumps over the lazy dog while two birds sing in an old tree near the river "
PROBE = 0.05  # seconds of computing that measure the speed
TRIES = 3
TYPES = (("query", "search_query"), ("document", "passage", "search_document"))  # values of input_type for one task

log = logging.getLogger("fastflow.serve")


class ServedModel:
    """The model of a server; answers have the first of ``names``."""

    def __init__(self, runtime: Runtime, names: Sequence[str] = ()) -> None:
        self.runtime, self.opened, self.info = runtime, runtime.session, runtime.info()
        runtime.tokenizer.threads = 1  # other requests use the other cores
        self.max_length: int = runtime.tokenizer.max_length
        path = self.info["model"]
        own = [path if path == "default" else Path(path).name]
        self.names = tuple(dict.fromkeys([*names, *own, "default"]))
        self.normalize = self.info["similarity"] == "cosine"

    def tokenize(self, texts: Sequence[str], prompt: str) -> Tokens:
        if self.opened.seen.open and (warning := self.opened.look_at(texts)):
            log.warning("texts of the requests so far: %s", warning)
        return self.opened.tokenize(texts, prompt)

    def embed(self, tokens: Tokens, how: How) -> Floats:
        return self.opened.embed_tokens(tokens, how.normalize, how.dim)

    def check_dim(self, dim: int | None) -> None:
        if dim is not None and dim > self.opened.width:
            message = f"dimensions must be a whole number from 1 to {self.opened.width}, the width of this model"
            raise Refused("validation", message, "dimensions")

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

    def measure_rate(self) -> float:
        """Measure tokens a second: the best of TRIES batches of about PROBE seconds."""
        count, how = 8, How()
        sentence = WORDS * max(1, min(32, self.max_length - 4) // len(WORDS.split()))
        while True:
            tokens = self.opened.tokenize([sentence] * count)
            if (spent := self._time(tokens, how)) >= PROBE or 2 * len(tokens.ids) > self.opened.backend.batch_tokens:
                return len(tokens.ids) / min(spent, *(self._time(tokens, how) for _ in range(TRIES)))
            count *= 2

    def _time(self, tokens: Tokens, how: How) -> float:
        start = time.perf_counter()
        self.embed(tokens, how)
        return time.perf_counter() - start

    def describe(self) -> dict[str, Any]:
        i = self.info
        return {
            "model_id": self.names[0],
            "model_sha": None,
            "model_dtype": i["dtype"],
            "model_type": {"embedding": {"pooling": i["pooling"]}},
            "max_input_length": self.max_length,
            "fingerprint": i["fingerprint"],
            "dim": i["dim"],
            "prompts": i["prompts"],
            "default_prompt": i["default_prompt"],
            "similarity": i["similarity"],
            "normalize": self.normalize,
            "calibration": i["calibration"],
            "backend": i["backend"],
        }
