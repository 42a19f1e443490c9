"""An opened model, of texts, with an encoder, or of vectors made elsewhere, with a calibration alone; its prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import UsageError
from fastflow.kernels.encoder.shape import Head, head_width
from fastflow.late import late
from fastflow.model.encoder.architecture import is_static, size_of
from fastflow.model.hashing import Later
from fastflow.model.manifest import Likelihood
from fastflow.model.tokenizer.encode import Tokenizer
from fastflow.stages.calibration import Stage
from fastflow.stages.pooling import Pooling
from fastflow.stages.spread import unit_variance
from fastflow.values import short

if TYPE_CHECKING:
    from fastflow.model.encoder.int8 import Int8
    from fastflow.model.sentence.directory import Modules
    from fastflow.stages.truncation import Truncation

TASKS = ("query", "document")  # prompts that every model of Sentence Transformers has, empty if it stores none


class Prompts(NamedTuple):
    """``texts`` by name; ``default`` names the one for a call without any; ``pooled``: their tokens are pooled too."""

    texts: Mapping[str, str] = MappingProxyType({})
    default: str | None = None
    pooled: bool = True

    def resolve(self, prompt: str | None = None, name: Any = None) -> str:
        """The text that goes before every text: ``prompt`` itself, the one called ``name``, or the default.

        Raises a UsageError for both at once, and for a name that the model does not have.
        """
        if prompt is not None:
            if name is not None:
                raise UsageError("give prompt or prompt_name, not both")
            return prompt
        if name is None:
            return "" if self.default is None else self.texts[self.default]
        if not isinstance(name, str) or name not in self.texts:
            known = f"known are {', '.join(self.texts)}" if self.texts else "the model has none"
            raise UsageError(f"no prompt is called {short(name)}: {known}")
        return self.texts[name]

    def of_task(self, name: str) -> str:
        """The prompt of a task, one of TASKS; if the model has none it is empty, and never the default.

        Sentence Transformers 6 documents passage and corpus as other names of document, and never comes to them, for
        every model there has an empty document.
        """
        return self.texts.get(name, "")


class Calibrated:
    """The common part of both kinds of model: the calibration stages, and the identity."""

    path: Path
    calibration: tuple[Stage, ...]
    identity: str | Later  # the fingerprint; of a token table without a manifest it is computed when asked for
    manifest: dict[str, Any]
    note: str | None  # one line for stderr when something is assumed
    truncation: Truncation | None  # the directions that truncate_dim keeps; None: the first dimensions
    spread: NDArray[np.float32] | None  # of each dimension, if the calibration leaves it open and it is known
    modules: Modules | None  # of a directory that Sentence Transformers saved

    @property
    def fingerprint(self) -> str:
        """sha256 that identifies the files and settings."""
        return self.identity if isinstance(self.identity, str) else self.identity()

    @property
    def prompts(self) -> Prompts:
        """The prompts that the model stores; most store none."""
        m = self.modules
        if m is None:
            return Prompts()
        return Prompts(dict.fromkeys(TASKS, "") | m.prompts, m.default_prompt, m.pooling.include_prompt)

    @property
    def similarity(self) -> str:
        """The name of the similarity that the embeddings are made for."""
        return "cosine" if self.modules is None else self.modules.similarity

    @property
    def truncate_dim(self) -> int | None:
        """How many dimensions an embedding keeps if the caller names no number; None: all."""
        return None if self.modules is None else self.modules.truncate_dim

    def spread_of(self, dim: int, truncate: int | None) -> NDArray[Any] | None:
        """The root mean square of each of ``dim`` dimensions that ``truncate`` keeps; None if it is not known."""
        if self.truncation is not None and truncate is not None:
            return self.truncation.deviation[:truncate]
        spread = np.ones(dim) if self._unit_variance else self.spread
        return None if spread is None else spread[:truncate]

    @late
    def _unit_variance(self) -> bool:
        return unit_variance(self.calibration)

    def describe_truncation(self) -> str:
        """The dimensions that truncate_dim keeps, in words."""
        if self.truncation is not None:
            return "leading directions"
        ordered = bool(self.calibration) and self.calibration[-1].kind in ("whiten", "recolour")
        return "first dimensions, which lead" if ordered else "first dimensions, in no order"


@dataclass(frozen=True, eq=False, repr=False)
class Model(Calibrated):
    """A checked model of texts: where its encoder lies, how to pool, and the calibration of the pooled vectors."""

    path: Path
    encoder: Path
    pooling: Pooling
    max_length: int
    calibration: tuple[Stage, ...]
    identity: str | Later
    manifest: dict[str, Any] = field(default_factory=dict)
    note: str | None = None
    truncation: Truncation | None = None
    spread: NDArray[np.float32] | None = None
    likelihood: Likelihood | None = None
    int8: Int8 | None = None  # the trial of int8 that it was saved with
    modules: Modules | None = None
    head: Head = ()  # the modules after the pooling, with their weights
    awaited: Callable[[], str] | None = None  # the fingerprint, waited for: of a directory that is being opened

    @property
    def pooled_dim(self) -> int:
        """The width of a vector before the calibration."""
        return head_width(self.head, size_of(self.encoder).hidden * len(self.pooling.parts))

    def tokenizer(self) -> Tokenizer:
        """Texts -> tokens as the encoder takes them; raises a FastflowError for a tokenizer that cannot be used."""
        lower = self.modules is not None and self.modules.transformer.do_lower_case
        return tokenizer_of(self.encoder, self.max_length, lower, proved=bool(self.manifest))


@dataclass(frozen=True, eq=False, repr=False)
class VectorModel(Calibrated):
    """A checked model without an encoder: it calibrates vectors of ``input_dim`` numbers that were made elsewhere."""

    path: Path
    input_dim: int
    calibration: tuple[Stage, ...]
    identity: str | Later
    manifest: dict[str, Any] = field(default_factory=dict)
    note: str | None = None
    truncation: Truncation | None = None
    spread: NDArray[np.float32] | None = None
    modules: Modules | None = None


def tokenizer_of(directory: Path, max_length: int, lower: bool = False, proved: bool = False) -> Tokenizer:
    """An encoder's tokenizer, limited to ``max_length`` tokens; ``lower`` and ``proved`` are those of Tokenizer."""
    if is_static(directory):
        from fastflow.model.static.tokens import StaticTokenizer  # few encoders are one

        return StaticTokenizer(directory, max_length)
    return Tokenizer(directory, max_length, lower, proved)


def no_encoder(model: Path) -> UsageError:
    """The sentence for texts that are given to a VectorModel."""
    return UsageError(
        f"{model} calibrates vectors and has no encoder: give vectors to transform, or fit a model to texts"
    )
