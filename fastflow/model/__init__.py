"""Opened models, with or without an encoder, and their prompts. Errors name the file and the field at fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import UsageError
from fastflow.kernels.encoder import Head, head_width
from fastflow.late import late
from fastflow.model.encoder import is_static, size_of
from fastflow.model.hashing import Later
from fastflow.model.tokenizer import Tokenizer
from fastflow.transforms.calibration import Stage, unit_variance
from fastflow.transforms.pooling import Pooling
from fastflow.values import short

if TYPE_CHECKING:
    from fastflow.model.encoder.int8 import Int8
    from fastflow.model.sentence.directory import Modules
    from fastflow.transforms.truncation import Truncation

TASKS = ("query", "document")  # every model of Sentence Transformers has these prompts, empty by default


class Prompts(NamedTuple):
    """Prompts by name, the default prompt's name, and whether prompt tokens are ``pooled``."""

    texts: Mapping[str, str] = MappingProxyType({})
    default: str | None = None
    pooled: bool = True

    def resolve(self, prompt: str | None = None, name: Any = None) -> str:
        """Return the prompt put before every text: ``prompt``, the prompt called ``name``, or the default."""
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
        """Return the prompt of a task in TASKS, or "", never the default."""
        return self.texts.get(name, "")


@dataclass(frozen=True, eq=False, repr=False)
class Calibrated:
    """The fields that Model and VectorModel share: calibration and identity."""

    path: Path
    _: KW_ONLY
    calibration: tuple[Stage, ...] = ()
    identity: str | Later = ""  # the fingerprint; a token table without a manifest computes it at first use
    manifest: dict[str, Any] = field(default_factory=dict)
    note: str | None = None
    truncation: Truncation | None = None  # the directions that truncate_dim keeps; None: its first dimensions
    spread: NDArray[np.float32] | None = None
    modules: Modules | None = None

    @property
    def fingerprint(self) -> str:
        return self.identity if isinstance(self.identity, str) else self.identity()

    @property
    def prompts(self) -> Prompts:
        m = self.modules
        if m is None:
            return Prompts()
        return Prompts(dict.fromkeys(TASKS, "") | m.prompts, m.default_prompt, m.pooling.include_prompt)

    @property
    def similarity(self) -> str:
        return "cosine" if self.modules is None else self.modules.similarity

    @property
    def truncate_dim(self) -> int | None:
        return None if self.modules is None else self.modules.truncate_dim

    def measure_spread(self, dim: int, truncate: int | None) -> NDArray[Any] | None:
        """Return each dimension's root mean square after a cut to ``truncate``; None if unknown."""
        if self.truncation is not None and truncate is not None:
            return self.truncation.deviation[:truncate]
        spread = np.ones(dim) if self._unit_variance else self.spread
        return None if spread is None else spread[:truncate]

    @late
    def _unit_variance(self) -> bool:
        return unit_variance(self.calibration)

    def describe_truncation(self) -> str:
        if self.truncation is not None:
            return "leading directions"
        ordered = bool(self.calibration) and self.calibration[-1].kind in ("whiten", "recolour")
        return "first dimensions, which lead" if ordered else "first dimensions, in no order"


@dataclass(frozen=True, eq=False, repr=False)
class Model(Calibrated):
    """A checked model that embeds texts."""

    gives: ClassVar = "the embeddings"

    encoder: Path
    pooling: Pooling
    max_length: int
    _: KW_ONLY
    int8: Int8 | None = None
    head: Head = ()
    awaited: Callable[[], str] | None = None
    pairs: bool = False  # whether texts are pairs of two segments

    @property
    def pooled_dim(self) -> int:
        return head_width(self.head, size_of(self.encoder).hidden * len(self.pooling.parts))

    def tokenizer(self) -> Tokenizer:
        lower = self.modules is not None and self.modules.transformer.do_lower_case
        return tokenizer_of(self.encoder, self.max_length, lower, proved=bool(self.manifest))


@dataclass(frozen=True, eq=False, repr=False)
class VectorModel(Calibrated):
    """A checked model without an encoder, which calibrates vectors of ``input_dim`` numbers."""

    input_dim: int


def tokenizer_of(directory: Path, max_length: int, lower: bool = False, proved: bool = False) -> Tokenizer:
    """Open an encoder's tokenizer; see Tokenizer for the options."""
    if is_static(directory):
        from fastflow.model.static.tokens import StaticTokenizer

        return StaticTokenizer(directory, max_length)
    return Tokenizer(directory, max_length, lower, proved)


def no_encoder(model: Path) -> UsageError:
    """Return the error for texts given to a VectorModel."""
    return UsageError(
        f"{model} calibrates vectors and has no encoder: give vectors to transform, or fit a model to texts"
    )
