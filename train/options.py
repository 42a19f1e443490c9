"""Every option of a fit with its default: the one place from which the command, the report and the tests take them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from fastflow.errors import UsageError, missing_extra
from fastflow.values import is_whole, short

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
SHAPE = ("levels", "depth", "width", "coupling", "permutation")
SMALL, LARGE = {"depth": 3, "width": 32}, {"depth": 6, "width": 64}  # of a flow: compared in bench/results/default.md
LARGE_CORPUS = 20_000  # texts: single sets are better with the small one, the broad mix with the large one
BACKGROUND, SHARE = (3_000, 10_000), 4  # sentences: SHARE a text within these; compared in bench/results/own-texts.md
FEWEST = 100  # texts for which auto fits a flow: the fewest that were compared (bench/results/default.md)
POOLING = "words"  # of an encoder that was not tuned for similarity: chosen in bench/results/default.md
COLOURS = {  # of recolour, by the token weights: chosen in bench/results/default.md
    "sif": {"spectrum": 0.5, "mean_share": 0.1, "demoted": 0},
    "none": {"spectrum": 0.75, "mean_share": 0.0, "demoted": 2},
}
TUNED_SPECTRUM = 0.0  # of recolour, for an encoder tuned for similarity: chosen in bench/results/tuned.md
MOST = 2**63 - 1  # of a whole number


class Setting(NamedTuple):
    """The kind, the range and the help of an option: the command and the checks are made of it."""

    kind: str  # name, choice, flag, whole or number
    help: str
    choices: tuple[str, ...] = ()
    least: Any = None
    most: Any = None  # a number without it is above 0
    metavar: str | None = None

    def checked(self, name: str, value: Any) -> Any:
        """``value`` of the option ``name``, a number as a float; a UsageError for one that the option cannot have."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if self.kind == "choice":
            right, must = value in self.choices, " or ".join(self.choices)
        elif self.kind == "name":
            right, must = isinstance(value, str), "a name"
        elif self.kind == "flag":
            right, must = isinstance(value, bool), "True or False"
        elif self.kind == "number" and self.most is None:
            right, must = number and math.isfinite(value) and value > 0, "a number above 0"
        elif self.kind == "number":
            right, must = number and 0 <= value <= self.most, f"a number from 0 to {self.most:g}"
        elif self.most is not None:
            right, must = is_whole(value, self.least, self.most), f"{self.least} to {self.most}"
        elif self.least is not None:
            right, must = is_whole(value, self.least, MOST), f"a whole number of at least {self.least}"
        else:
            right, must = type(value) is int, "a whole number"
        if not right:
            raise UsageError(f"{flag(name)} must be {must}, not {short(value)}")
        return float(value) if self.kind == "number" else value


def flag(name: str) -> str:
    """The option ``name`` as the command writes it."""
    return "--" + name.replace("_", "-")


def _option(default: Any, kind: str, help: str, **more: Any) -> Any:
    """A field of ``Options``; without a default, None, the help tells what decides."""
    return field(default=default, metadata={"setting": Setting(kind, help, **more)})


def _by_size(name: str) -> str:
    return f"  [default: {SMALL[name]}; {LARGE[name]} beside a background or from {LARGE_CORPUS:,} texts]"


def _by_weights(name: str) -> str:
    return f"  [default: {COLOURS['sif'][name]:g}; {COLOURS['none'][name]:g} without token weights]"


@dataclass(frozen=True)
class Options:
    """How a calibration is fitted. Raises a UsageError for a value that no fit can have.

    The names are those of fastflow-train's options, whose --help explains them.
    """

    method: str = _option(
        "auto",
        "name",
        "auto: the recommended method, which is flow; whiten,recolour with --stream, nullspace:10 for vectors, and "
        f"none for an encoder that was tuned for similarity or for fewer than {FEWEST:,} texts. Else flow, whiten[:K], "
        "standardize, components[:K], nullspace[:K], none, or a chain such as whiten:128,flow.",
    )
    stop: str = _option(
        "rule",
        "choice",
        "rule: keep the training step that best separates two dropout views of a text from other texts; keep no "
        "calibration if none beats the pooling itself. budget: keep the last step. likelihood, the default for vectors "
        "and for them alone: keep the step that makes held-out vectors most likely.",
        choices=("rule", "budget", "likelihood"),
    )
    pooling: str = _option(
        "auto",
        "name",
        "auto, embedding-first-last (the mean of layers 0, 1 and L, 0 being the embedding layer), first-last (1 and "
        "L, as in the paper), words (the embedding layer with the mean position in place of each token's own), "
        "words-first-last (words, 1 and L), last, cls, pooler, mean-of-layers:I,J,... (words is an item too, and 3*I "
        "counts three times) or model. "
        "auto: words; for an encoder that was tuned for similarity model, if it is a directory of Sentence "
        "Transformers, else last. model: all modules of such a directory, with the calibration after them.",
    )
    token_weights: str = _option(
        "auto",
        "choice",
        "sif: frequent tokens count less in the mean (Arora et al. 2017); a token with corpus frequency p counts "
        "a/(a+p), a = 0.0005; the frequencies of the language at large count twenty times the corpus's own, so that "
        "the words of its subject keep their weight. none: every token counts 1, as in the BERT-flow paper. auto: sif, "
        "or none for an encoder that was tuned for similarity.",
        choices=("auto", "sif", "none"),
    )
    max_length: int | None = _option(
        None, "whole", "Longest text, in tokens; longer texts are cut.  [default: 128, or the encoder's limit]"
    )
    levels: int = _option(2, "whole", "Flow: levels.", least=1, most=4)
    depth: int | None = _option(None, "whole", "Flow: steps in a level." + _by_size("depth"), least=1)
    width: int | None = _option(None, "whole", "Flow: hidden units of a coupling net." + _by_size("width"), least=1)
    coupling: str = _option("additive", "choice", "Flow: coupling.", choices=("additive", "affine"))
    permutation: str = _option(
        "reversal", "choice", "Flow: channel mixing; lu is learned.", choices=("reversal", "random", "lu")
    )
    spectrum: float | None = _option(
        None,
        "number",
        "Of recolour, after a flow or a whitening: how far the spectrum is equalised. 1: every direction counts the "
        "same; 0: as in the encoder, which is the default for one tuned for similarity." + _by_weights("spectrum"),
        most=1.0,
    )
    mean_share: float | None = _option(
        None,
        "number",
        "Of recolour: how much of the mean is kept, as the average cosine of unrelated texts."
        + _by_weights("mean_share"),
        most=0.99,
    )
    demoted: int | None = _option(
        None,
        "whole",
        "Of recolour: how many leading directions, which sentences of a kind have in common, count like the last.  "
        + _by_weights("demoted").strip(),
        least=0,
    )
    latent: bool = _option(False, "flag", "Flow: the Gaussian latent is the embedding, as in the BERT-flow paper.")
    background: int | None = _option(
        None,
        "whole",
        "After a flow, or another method with recolour: fit to N sentences of random words of the language with the "
        "corpus, so that texts unlike it are embedded well too; 0: none. Token weights have a background of their own. "
        f" [default: four a text, {BACKGROUND[0]:,} to {BACKGROUND[1]:,}, with {BACKGROUND[1] // SHARE:,} texts drawn "
        "from a larger corpus; 0 if the corpus is not English and has no --background-words]",
        least=0,
        metavar="N",
    )
    background_words: str | None = _option(
        None,
        "name",
        "The words of the corpus's language, if it is not English: a UTF-8 file with a word, a space and how often it "
        "occurs on each line.",
        metavar="FILE",
    )
    init: str = _option(
        "data",
        "choice",
        "Flow: data starts the ActNorms from the statistics of the corpus; glorot is the start of the official code.",
        choices=("data", "glorot"),
    )
    encoder_dropout: bool = _option(False, "flag", "Flow: run the encoder, with its dropout, at every step (slow).")
    epochs: float = _option(1.0, "number", "Flow: passes over the corpus, or a part of one.")
    batch_size: int = _option(64, "whole", "Flow: texts in a step.", least=2)
    lr: float = _option(1e-3, "number", "Flow: learning rate, constant.")
    seed: int = _option(0, "whole", "Seed of --sample, and of a flow's start and order of texts.", least=0)
    save_steps: int = _option(500, "whole", "Flow: steps between checkpoints; 0 for none.", least=0)
    sample: int | None = _option(None, "whole", "Draw N of the distinct texts at random.", least=1, metavar="N")
    sentences: bool = _option(False, "flag", "Cut texts into sentences first, for a model that will embed sentences.")
    stream: bool = _option(
        False,
        "flag",
        "Read the corpus once, in memory that does not grow with it, and cache nothing. Repeated texts count again. "
        "Token weights come from the first 32,768 texts. For every method but a flow.",
    )
    device: str = _option("cpu", "choice", "Where the encoder runs.", choices=("cpu", "cuda"))

    def __post_init__(self) -> None:
        for entry in fields(self):
            if (value := getattr(self, entry.name)) is not None or entry.default is not None:
                object.__setattr__(self, entry.name, entry.metadata["setting"].checked(entry.name, value))
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
    """How many background sentences go with a corpus of ``count`` texts."""
    least, most = BACKGROUND
    return max(least, min(SHARE * count, most))


def fitted_size(count: int, background: int) -> int:
    """How many of ``count`` texts are fitted with the usual ``background``; all if there is none.

    A corpus of one field has its topics as leading directions. A fit that it outweighs takes them for what all texts
    have in common, and equalises them.
    """
    return min(count, background // SHARE) if background else count


def check_extra(purpose: str) -> None:
    """Raise a FastflowError that names the extra to install if PyTorch or transformers is absent."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise missing_extra("train", str(error.name), purpose) from error
