"""Every option of a fit with its default: the one place from which the command, the report and the tests take them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastflow.errors import UsageError, missing_extra
from fastflow.values import is_whole, short

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
SHAPE = ("levels", "depth", "width", "coupling", "permutation")
CHOICES = {
    "stop": ("rule", "budget", "likelihood"),
    "token_weights": ("auto", "sif", "none"),
    "coupling": ("additive", "affine"),
    "permutation": ("reversal", "random", "lu"),
    "init": ("data", "glorot"),
    "device": ("cpu", "cuda"),
}
LEAST = {
    "depth": 1, "width": 1, "batch_size": 2, "seed": 0, "save_steps": 0, "sample": 1, "demoted": 0, "background": 0,
}  # fmt: skip
OPTIONAL = ("depth", "width", "demoted", "sample", "background")
SMALL, LARGE = {"depth": 3, "width": 32}, {"depth": 6, "width": 64}  # of a flow: compared in bench/results/default.md
LARGE_CORPUS = 20_000  # texts: single sets are better with the small one, the broad mix with the large one
BACKGROUND, BESIDE_A_TEXT, BESIDE = (10_000, 100_000), 10, 3  # a third of the corpus within these; ten a text at most
FEWEST = 1000  # texts for which auto fits a flow: with fewer, the weights alone are better (bench/results/default.md)
POOLING = "embedding-first-last"  # of an encoder that was not tuned for similarity: chosen in bench/results/default.md
COLOURS = {  # of recolour, by the token weights: chosen in bench/results/default.md
    "sif": {"spectrum": 0.4, "mean_share": 0.2, "demoted": 2},
    "none": {"spectrum": 0.75, "mean_share": 0.0, "demoted": 2},
}
LEVELS = (1, 4)
SHARES = {"spectrum": 1.0, "mean_share": 0.99}  # name -> the most it may be
MOST = 2**63 - 1  # of a seed


def flag(name: str) -> str:
    """The option ``name`` as the command writes it."""
    return "--" + name.replace("_", "-")


def _positive(name: str, value: Any) -> float:
    """``value`` as a finite float above 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and value > 0):
        raise UsageError(f"{flag(name)} must be a number above 0, not {short(value)}")
    return float(value)


def _share(name: str, value: Any, most: float) -> float:
    """``value`` as a float of 0 to ``most``."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and 0 <= value <= most):
        raise UsageError(f"{flag(name)} must be a number from 0 to {most:g}, not {short(value)}")
    return float(value)


@dataclass(frozen=True)
class Options:
    """How a calibration is fitted. Raises a UsageError for a value that no fit can have.

    The names are those of fastflow-train's options, whose --help explains them.
    """

    method: str = "auto"
    stop: str = "rule"
    pooling: str = "auto"  # POOLING; last for an encoder that was tuned for similarity
    token_weights: str = "auto"  # noqa: S105 - sif; none for an encoder that was tuned for similarity
    max_length: int | None = None  # None: 128, or the encoder's limit
    levels: int = 2
    depth: int | None = None  # None: by the size of the corpus, SMALL or LARGE
    width: int | None = None
    coupling: str = "additive"
    permutation: str = "reversal"
    spectrum: float | None = None  # None: by the token weights, COLOURS
    mean_share: float | None = None
    demoted: int | None = None
    latent: bool = False
    background: int | None = None  # None: by the corpus, background_size
    init: str = "data"
    encoder_dropout: bool = False
    epochs: float = 1.0
    batch_size: int = 64
    lr: float = 1e-3
    seed: int = 0
    save_steps: int = 500
    sample: int | None = None  # None: every distinct text
    sentences: bool = False
    stream: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise UsageError(f"{flag(name)} must be {' or '.join(known)}, not {short(value)}")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if not (is_whole(value, least, MOST) or (value is None and name in OPTIONAL)):
                raise UsageError(f"{flag(name)} must be a whole number of at least {least}, not {short(value)}")
        if not is_whole(self.levels, *LEVELS):
            raise UsageError(f"--levels must be {LEVELS[0]} to {LEVELS[1]}, not {short(self.levels)}")
        for name in ("epochs", "lr"):
            object.__setattr__(self, name, _positive(name, getattr(self, name)))
        for name in ("method", "pooling"):
            if not isinstance(value := getattr(self, name), str):
                raise UsageError(f"{flag(name)} must be a name, not {short(value)}")
        for name, most in SHARES.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _share(name, getattr(self, name), most))
        for name in ("encoder_dropout", "latent", "sentences", "stream"):
            if not isinstance(value := getattr(self, name), bool):
                raise UsageError(f"{flag(name)} must be True or False, not {short(value)}")
        if self.max_length is not None and type(self.max_length) is not int:
            raise UsageError(f"--max-length must be a whole number, not {short(self.max_length)}")
        if self.method == "auto" and self.stop == "budget":
            raise UsageError("--method auto chooses by the rule: name another --method to go with --stop budget")

    def shape(self, count: int = 0, background: int = 0) -> dict[str, Any]:
        """The shape of a flow on that many texts and sentences of the background: levels, depth, width and so on."""
        size = LARGE if background or count >= LARGE_CORPUS else SMALL
        return {name: size.get(name) if (own := getattr(self, name)) is None else own for name in SHAPE}

    @property
    def weighted(self) -> bool:
        """Whether frequent tokens count less."""
        return self.token_weights == "sif"  # noqa: S105

    @property
    def has_flow(self) -> bool:
        """Whether the method, once settled, trains a flow."""
        return "flow" in self.method

    @property
    def colour(self) -> dict[str, Any]:
        """The settings of recolour: spectrum, mean_share and demoted."""
        usual = COLOURS["none" if self.token_weights == "none" else "sif"]  # noqa: S105
        return {name: value if (own := getattr(self, name)) is None else own for name, value in usual.items()}


DEFAULTS = Options()


def background_size(count: int) -> int:
    """How many background sentences go with a corpus of ``count`` texts (compared in bench/results/default.md)."""
    low, high = BACKGROUND
    return min(BESIDE_A_TEXT * count, max(low, min(count // BESIDE, high)))


def check_extra(purpose: str) -> None:
    """Raise a FastflowError that names the extra to install if PyTorch or transformers is absent."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise missing_extra("train", str(error.name), purpose) from error
